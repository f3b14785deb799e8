"""Two thousand random requests, sent twice in other orders and at other times: every answer must be equal, to the bit.

    python benchmarks/gpu/twice.py http://127.0.0.1:30000 [--requests 2000]

Prompts of 1 to 700 ids, every fourth of a length around the edge of a token bucket (up to 4,097), 1 to 48 new ones;
greedy, seeded, filtered and penalised draws; logprobs of prompt and output.
Exit status 1 if any answer differs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from zerokl.runner.buckets import TOKEN_BUCKETS

EDGES = [bucket + beside for bucket in TOKEN_BUCKETS if 1 < bucket <= 4096 for beside in (-1, 0, 1)]
WAYS = (
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.9, "presence_penalty": 0.5},
)


def request(number: int, vocabulary: int) -> dict:
    draw = random.Random(number)
    length = draw.choice([1, 7, 63, 64, 65, draw.randint(1, 700)])
    if number // len(WAYS) % 4 == 0:
        length = EDGES[number // len(WAYS) // 4 % len(EDGES)]
    shared = random.Random(number % 40)  # some prompts begin alike, so the prefix cache is hit
    ids = [shared.randrange(vocabulary) for _ in range(length // 2)]
    ids += [draw.randrange(vocabulary) for _ in range(length - length // 2)]
    params = WAYS[number % len(WAYS)] | {"max_new_tokens": draw.randint(1, 48), "ignore_eos": True}
    if params["temperature"]:
        params["sampling_seed"] = number
    start = draw.choice([-1, 0])
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True, "logprob_start_len": start}


def send(url: str, body: dict, wait: float) -> str:
    time.sleep(wait)
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=300)
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    told = answer["meta_info"]
    kept = {key: told.get(key) for key in ("input_token_logprobs", "output_token_logprobs", "finish_reason")}
    return json.dumps([answer.get("output_ids"), answer.get("text"), kept], sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--vocabulary", type=int, default=40000)
    parser.add_argument("--concurrency", type=int, default=96)
    given = parser.parse_args()
    bodies = [request(number, given.vocabulary) for number in range(given.requests)]
    rounds = []
    for seed in (1, 2):
        order = random.Random(seed).sample(range(given.requests), given.requests)
        waits = [random.Random(seed * 10**6 + number).random() * 0.05 for number in order]
        began = time.time()
        with ThreadPoolExecutor(given.concurrency if seed == 1 else given.concurrency // 3) as pool:
            found = list(pool.map(send, [given.url] * len(order), [bodies[i] for i in order], waits))
        rounds.append(dict(zip(order, found, strict=True)))
        print(f"round {seed}: {given.requests} answers in {time.time() - began:.1f} s", flush=True)
    different = [number for number in range(given.requests) if rounds[0][number] != rounds[1][number]]
    logprobs = sum(answer.count("[") for answer in rounds[0].values())
    print(f"{len(different)} of {given.requests} answers differ; about {logprobs} logprobs compared")
    if different:
        print("first:", different[:10])
        sys.exit(1)


if __name__ == "__main__":
    main()

"""transformers' continuous batching behind /v1/completions: greedy, token ids in, logprobs of the chosen tokens out.

    pip install torch transformers uvicorn
    python transformers_server.py FOLDER                                  # many requests a step: its bits move
    python transformers_server.py FOLDER --step-tokens 1 --requests 1     # one row a step: they don't

A peer for `zerokl check`, not a product: one model, no errors but the ones that matter, nothing else.
"""

import argparse
import asyncio
import itertools
import json
from pathlib import Path

import torch
import uvicorn
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

NOT_TAKEN = ("echo", "temperature")


class Server:
    """An ASGI app over one ContinuousBatchingManager."""

    def __init__(self, manager, name):
        self.manager, self.name, self.numbers = manager, name, itertools.count()

    async def __call__(self, scope, receive, send):
        body = json.loads((await receive()).get("body") or b"{}") if scope["type"] == "http" else {}
        if scope.get("path") == "/v1/models":
            await reply(send, {"data": [{"id": self.name, "owned_by": "transformers"}]})
        elif scope.get("path") != "/v1/completions" or any(body.get(key) for key in NOT_TAKEN):
            await reply(send, {"error": {"message": "only greedy /v1/completions without echo"}}, 404)
        elif not isinstance(body["prompt"], list):
            await reply(send, {"error": {"message": "prompt: token ids only"}}, 400)
        elif body.get("stream"):
            await start(send, 200, b"text/event-stream")
            async for answer in self.answers(body):
                await part(send, b"data: " + json.dumps(answer).encode() + b"\n\n")
            await part(send, b"data: [DONE]\n\n", more=False)
        else:
            parts = [answer["choices"][0] async for answer in self.answers(body)]
            names = ("tokens", "token_logprobs")
            columns = {name: [value for one in parts for value in one["logprobs"][name]] for name in names}
            await reply(send, {"choices": [{"index": 0, "logprobs": columns, "finish_reason": "length"}]})

    async def answers(self, body):
        """One chunk for each piece of news."""
        news, sent, number = asyncio.Queue(), 0, f"request-{next(self.numbers)}"
        self.manager.register_result_handler(number, news.put_nowait)
        new_tokens = max(1, body["max_tokens"])
        self.manager.add_request(
            body["prompt"], request_id=number, max_new_tokens=new_tokens, streaming=True, eos_token_id=-1
        )
        while sent < new_tokens:
            found = await news.get()
            tokens, logprobs = found.generated_tokens[sent:], found.logprobs[sent:]
            sent = len(found.generated_tokens)
            columns = {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": logprobs}
            yield {"choices": [{"index": 0, "logprobs": columns, "token_ids": tokens}]}


async def start(send, status, kind):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})


async def part(send, body, more=True):
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def reply(send, content, status=200):
    await start(send, status, b"application/json")
    await part(send, json.dumps(content).encode(), more=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8802)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = AutoModelForCausalLM.from_pretrained(chosen.folder, dtype="auto", attn_implementation="sdpa").eval()
    batching = ContinuousBatchingConfig(
        page_size=16,
        num_blocks=1024,
        max_batch_tokens=chosen.step_tokens,
        max_requests_per_batch=chosen.requests,
        return_logprobs=True,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
    greedy = GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=batching)
    manager.start()
    uvicorn.run(
        Server(manager, chosen.folder.name), host="127.0.0.1", port=chosen.port, log_level="warning", lifespan="off"
    )
    manager.stop(block=True, hard_stop=True)


if __name__ == "__main__":
    main()

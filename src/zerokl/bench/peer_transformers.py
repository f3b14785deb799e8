"""Hugging Face transformers as a peer of `zerokl bench peers`: runs in a Python that has them, not in ours.

    python peer_transformers.py MODEL.gguf THREADS PROMPT NEW_TOKENS

Reads one test per line, `["decode", 8, 0]`, and answers tokens per second. float32, as is usual on a CPU.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    path, (threads, prompt, new_tokens) = Path(sys.argv[1]), map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    named = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **named).eval()
    with torch.inference_mode():
        for line in sys.stdin:
            kind, size, depth = json.loads(line)
            found = prefill(model, size) if kind == "prefill" else decode(model, size, depth or prompt, new_tokens)
            print(found, flush=True)  # noqa: T201


def prefill(model: torch.nn.Module, length: int) -> float:
    ids = torch.randint(0, model.config.vocab_size, (1, length))
    start = time.perf_counter()
    model(ids, logits_to_keep=1)
    return length / (time.perf_counter() - start)


def decode(model: torch.nn.Module, sequences: int, depth: int, new_tokens: int) -> float:
    ids = torch.randint(0, model.config.vocab_size, (sequences, depth))
    found = model(ids, use_cache=True, logits_to_keep=1)
    start = time.perf_counter()
    for _ in range(new_tokens):
        found = model(found.logits[:, -1:].argmax(-1), past_key_values=found.past_key_values, use_cache=True)
    return sequences * new_tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()

"""The engine alone, in this process, without a server: whole requests at once, tokens per second."""

from __future__ import annotations

import random
import time
from typing import Any

from zerokl.bench.load import Load, length_of
from zerokl.config import Config


def offline(config: Config, load: Load, repeats: int) -> dict[str, Any]:
    """The best of some repeats, each with an empty cache."""
    from zerokl.llm import LLM

    began = time.perf_counter()
    with LLM.from_config(config) as llm:
        ready = time.perf_counter() - began
        ids = load.ids or llm.vocabulary
        draw = random.Random(load.seed)
        prompts = [
            [draw.randrange(ids) for _ in range(length_of(draw, load.input_tokens, load.shape))]
            for _ in range(load.requests)
        ]
        best = min(seconds_of(llm, prompts, load.output_tokens) for _ in range(repeats))
        inputs, outputs = sum(map(len, prompts)), load.requests * load.output_tokens
        return {
            "fingerprint": llm.fingerprint,
            "requests": load.requests,
            "ready_seconds": round(ready, 2),
            "seconds": round(best, 3),
            "input_tokens": inputs,
            "output_tokens": outputs,
            "input_tokens_per_second": round(inputs / best, 1),
            "output_tokens_per_second": round(outputs / best, 1),
        }


def seconds_of(llm: Any, prompts: list[list[int]], outputs: int) -> float:
    llm.flush_cache()
    began = time.perf_counter()
    llm.generate(prompts, temperature=0, max_new_tokens=outputs, ignore_eos=True)
    return time.perf_counter() - began

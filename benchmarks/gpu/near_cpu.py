"""The GPU's answers beside the CPU's: the same greedy text, and how far logprobs are apart. One model, fifty prompts.

    python benchmarks/gpu/near_cpu.py MODEL [--tokens 64] [--cpu-numerics exact sm90]

All hold the same weights, rounded to bfloat16 once. `exact` computes in float32, the GPU rounds what enters a matrix
product, and keys and values, to bfloat16 (8 bits): they have different fingerprints, and may differ by what that
rounding explains (`near_peer.py` is the yardstick). `sm90` has the GPU's fingerprint, so nothing may differ.
Prints for each the number of equal texts and quantiles of the difference of the texts' logprobs.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from zerokl import LLM

TEMPLATES = {
    "fact": "The most important fact about {} is that",
    "question": "Question: What should everyone know about {}?\nAnswer:",
    "story": "Once upon a time, in a town that lived from {}, there was",
    "list": "Five things to remember about {}:\n1.",
    "letter": "Dear friend,\n\nyesterday I read a long article about {} and",
    "definition": "{}, noun:",
    "how": "How to explain {} to a child: first,",
    "history": "The history of {} began",
    "code": "# A Python function about {}\ndef",
    "dialogue": "Anna: Have you ever thought about {}?\nBen:",
}
TOPICS = ("glass", "tides", "bread", "bridges", "the printing press")
PROMPTS = {f"{name}/{topic}": text.format(topic) for name, text in TEMPLATES.items() for topic in TOPICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cpu-numerics", nargs="+", default=["exact", "sm90"])
    given = parser.parse_args()
    texts, scores = answers(given.model, given.tokens, {"device": "cuda"})
    for numerics in given.cpu_numerics:
        others = answers(given.model, given.tokens, {"cpu_numerics": numerics}, texts)
        print(json.dumps({"cpu numerics": numerics} | compared(texts, others[0], scores, others[1])), flush=True)


def answers(
    model: str, tokens: int, options: dict[str, str], scored: list[str] | None = None
) -> tuple[list[str], list[float]]:
    """Greedy texts, and logprobs of prompts and the `scored` texts, or its own."""
    with LLM(model, dtype="bfloat16", max_total_tokens=65536, **options) as llm:
        found = llm.generate(list(PROMPTS.values()), temperature=0, max_new_tokens=tokens, ignore_eos=True)
        texts = [answer.text for answer in found]
        rows = [llm.score(prompt + text) for prompt, text in zip(PROMPTS.values(), scored or texts, strict=True)]
        print(json.dumps(options | {"fingerprint": llm.fingerprint}), flush=True)
    return texts, [x for row in rows for x in row if x is not None]


def compared(texts: list[str], others: list[str], scores: list[float], other_scores: list[float]) -> dict[str, object]:
    equal = [a == b for a, b in zip(texts, others, strict=True)]
    apart = np.abs(np.array(scores) - np.array(other_scores))
    return {
        "prompts": len(equal),
        "equal greedy texts": sum(equal),
        "other text": [name for name, same in zip(PROMPTS, equal, strict=True) if not same],
        "logprobs": len(apart),
        "equal bits": int((apart == 0).sum()),
        "|difference|": {str(q): round(float(np.quantile(apart, q)), 4) for q in (0.5, 0.9, 0.99, 0.999, 1.0)},
    }


if __name__ == "__main__":
    main()

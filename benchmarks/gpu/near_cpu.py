"""The GPU's answers beside the CPU's: the same greedy text, and how far logprobs are apart. One model, fifty prompts.

    python benchmarks/gpu/near_cpu.py MODEL [--tokens 64]

Both hold the same weights, rounded to bfloat16 once. The CPU computes in float32, the GPU rounds what enters a matrix
product, and keys and values, to bfloat16 (8 bits): they have different fingerprints, and may differ by what that
rounding explains (`near_peer.py` is the yardstick). Prints the share of equal texts and quantiles of the
difference of the prompts' logprobs.
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
    given = parser.parse_args()
    texts, scores, fingerprints = {}, {}, {}
    for device in ("cpu", "cuda"):
        with LLM(given.model, device=device, dtype="bfloat16", max_total_tokens=65536) as llm:
            answers = llm.generate(list(PROMPTS.values()), temperature=0, max_new_tokens=given.tokens, ignore_eos=True)
            texts[device] = [answer.text for answer in answers]
            scores[device] = [
                llm.score(prompt + text) for prompt, text in zip(PROMPTS.values(), texts["cpu"], strict=True)
            ]
            fingerprints[device] = llm.fingerprint
    equal = [a == b for a, b in zip(texts["cpu"], texts["cuda"], strict=True)]
    ours, theirs = (np.array([x for row in scores[device] for x in row if x is not None]) for device in ("cuda", "cpu"))
    apart = np.abs(ours - theirs)
    print(json.dumps({"prompts": len(equal), "equal greedy texts": sum(equal), "tokens each": given.tokens}))
    print(json.dumps({"other text": [name for name, same in zip(PROMPTS, equal, strict=True) if not same]}))
    quantiles = {str(q): round(float(np.quantile(apart, q)), 4) for q in (0.5, 0.9, 0.99, 0.999, 1.0)}
    print(
        json.dumps({"logprobs": len(apart), "|difference|": quantiles, "mean": round(float(np.mean(ours - theirs)), 5)})
    )
    print(json.dumps(fingerprints))


if __name__ == "__main__":
    main()

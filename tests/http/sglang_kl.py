"""SGLang's KL helpers, unchanged, out of their public wheel; our prompts stand where they would download a data set."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import requests

from tests.http.sglang_wheel import load

MODEL = "ours"
SINGLE_TURN = (
    "test_input_output_logprobs_match_helper",
    "test_input_output_logprobs_match_prefill_cache_hit_helper",
    "test_input_output_logprobs_match_decode_cache_hit_helper",
)
THRESHOLD = 1e-9
PARENTS: dict[str, dict[str, Any]] = {key: {} for key in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.test")}


def single_turn(url: str, count: int, shortest: int, longest: int) -> Any:
    """Their module for one server; its memory cache holds `count` pieces of English text of these lengths."""

    def encode(text: str) -> list[int]:
        ids: list[int] = requests.post(url + "/tokenize", json={"prompt": text}).json()["tokens"]
        return ids

    loader = {"get_tokenizer": lambda *args, **kwargs: types.SimpleNamespace(encode=encode)}
    module = load("sglang/test/kl_test_utils.py", {**PARENTS, "sglang.srt.utils.hf_transformers_utils": loader})
    ours = pieces(encode, count, shortest, longest)
    key = f"{MODEL}_{module.DEFAULT_PROMPT_TOKENS}_{max(count, module.DEFAULT_NUM_SAMPLES)}"
    module._cached_input_ids[key] = ours
    return module


def several_turns(single: Any) -> Any:
    """Their module of many turns and branches, over the one of single turns."""
    return load("sglang/test/kl_multiturn_utils.py", {**PARENTS, "sglang.test.kl_test_utils": vars(single)})


def pieces(encode: Any, count: int, shortest: int, longest: int) -> list[list[int]]:
    """Pieces of English text, of lengths evenly from the shortest to the longest."""
    corpus = Path(__file__).parents[2] / "src" / "zerokl" / "check" / "corpus" / "1-english.txt"
    ids = encode(corpus.read_text(encoding="utf-8"))
    lengths = [shortest + (longest - shortest) * i // (count - 1) for i in range(count)]
    starts = [(997 * i) % max(1, len(ids) - longest) for i in range(count)]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def divergences(printed: str) -> list[float]:
    """Of each sequence that the helper kept, out of what it printed; it drops those that the cache didn't hit."""
    found = re.search(r"^kl_divs=\[(.*)\]$", printed, re.MULTILINE)
    assert found, printed
    return [float(one) for one in re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", found.group(1).replace("np.float64", ""))]

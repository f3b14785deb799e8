"""The real Gemma 3 270M: a GGUF file of Q4_K_M, which packages of the index bring in four parts."""

from __future__ import annotations

from pathlib import Path

from tests.models.prompts import CODE, LETTER, LIGHTHOUSE, RECIPE, WATER
from zerokl.checkpoints.cache_folder import cache_folder

GEMMA3_PROMPTS = {
    "capital": "The capital of France is",
    "code": CODE,
    "beyond the window": "\n\n".join([LIGHTHOUSE, WATER, RECIPE, LETTER]),
}


def gemma3_file() -> Path:
    """Where `tools/fetch_gemma3.py` puts it."""
    return cache_folder() / "models" / "gemma-3-270m-q4_k_m.gguf"

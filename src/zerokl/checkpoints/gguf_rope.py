"""Rotary scaling of a GGUF file, in the words of a config.json.

Llama 3.1's scaling is stored only as its result, a divisor per frequency (`rope_freqs.weight`). Its parameters are
found again: the largest divisor is the factor, the others follow from Llama's constants, and must, or it is an error.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf
from zerokl.errors import UnsupportedModel

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_scaling(file: Gguf, prefix: str, base: float, rotated: int) -> dict[str, Any] | None:
    """The `rope_scaling` entry for `rotated` values per head and the base frequency `base`; None: no scaling."""
    metadata = file.metadata
    kind = metadata.get(f"{prefix}.rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, base, rotated)
    if kind == "none":
        return None
    factor = metadata.get(f"{prefix}.rope.scaling.factor")
    if not isinstance(factor, float) or not factor > 0:
        fail(file.path, f"rope scaling {kind!r:.20} with the factor {factor!r:.20}")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = metadata.get(f"{prefix}.rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(f"{file.path}: rope scaling {kind!r:.40}; zerokl reads none, linear, yarn and llama3")


def _llama3(file: Gguf, base: float, rotated: int) -> dict[str, Any]:
    stored = file.tensors["rope_freqs.weight"]
    if stored.shape != (rotated // 2,) or stored.dtype != "F32":
        fail(file.path, f"rope_freqs.weight is {stored.dtype} {stored.shape}, not F32 ({rotated // 2},)")
    divisors = stored.array().astype(np.float64)
    factor = float(divisors.max())
    if not np.allclose(divisors, llama3_divisors(base, rotated, factor), rtol=1e-5, atol=0):
        raise UnsupportedModel(f"{file.path}: rope_freqs.weight is not Llama 3's scaling by {factor}")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def llama3_divisors(base: float, rotated: int, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What each frequency is divided by: 1 for short wavelengths, `factor` for long ones, a blend between."""
    frequencies = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - blend) / factor + blend)

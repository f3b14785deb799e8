"""Rotary scaling of a GGUF file, in the words of a config.json.

Phi's LongRoPE is two tensors of factors. Llama 3.1's scaling is stored only as its result, a divisor per frequency
(`rope_freqs.weight`). Its parameters are found again: the largest divisor is the factor, the others follow from Llama's
constants, and must, or it is an error.
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any

import numpy as np

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf
from zerokl.checkpoints.gguf_architectures import Keys
from zerokl.errors import UnsupportedModel

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_scaling(file: Gguf, keys: Keys, base: float, rotated: int) -> dict[str, Any] | None:
    """The `rope_scaling` entry for `rotated` values per head and the base frequency `base`; None: no scaling."""
    kind = file.metadata.get(f"{keys.prefix}.rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, base, rotated)
    if "rope_factors_long.weight" in file.tensors or "rope_factors_short.weight" in file.tensors:
        return _longrope(file, keys, rotated)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(
            f"{file.path}: rope scaling {kind!r:.40} isn't supported; supported: none, linear, yarn, and llama3 and "
            "longrope by their tensors"
        )
    scaling = {"rope_type": kind, "factor": keys.real("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.count("rope.scaling.original_context_length")
        for name, key in YARN_KEYS.items():
            if key in keys:
                scaling[name] = keys.real(key)
    return scaling


YARN_KEYS = {
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def _longrope(file: Gguf, keys: Keys, rotated: int) -> dict[str, Any]:
    """Two lists of factors, as tensors; the scale of cosines is what the lengths imply, or it is said."""
    lists = {}
    for name in ("long", "short"):
        stored = file.tensors.get(f"rope_factors_{name}.weight")
        if stored is None or stored.shape != (rotated // 2,) or stored.dtype != "F32":
            fail(file.path, f"rope_factors_{name}.weight is not F32 ({rotated // 2},)")
        lists[f"{name}_factor"] = [float(str(value)) for value in stored.array()]
    scaling: dict[str, Any] = {"rope_type": "longrope", **lists}
    said = keys.maybe("rope.scaling.attn_factor")
    trained = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    factor = keys.count("context_length") / trained
    implied = sqrt(1 + log(factor) / log(trained)) if factor > 1 and trained > 1 else 1.0
    return scaling if said is None or abs(said - implied) < 1e-6 else scaling | {"attention_factor": said}


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

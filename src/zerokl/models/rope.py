"""Rotary frequencies from a checkpoint's config: plain, linear and Llama 3 scaling.

They are computed once, by stdlib `decimal` at 50 digits and then rounded to float64, so that they are correctly
rounded and the same on every platform; a C library's `pow` is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from math import inf
from typing import Any

import numpy as np

from zerokl.errors import CheckpointError, UnsupportedModel

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
MOST_ROTATED = 4096
"""A sanity limit: a corrupt config must not keep `decimal` busy for hours."""
SUPPORTED = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """How positions turn the first 2 · len(inv_freq) numbers of each head."""

    inv_freq: np.ndarray
    """[R/2] float64: radians per position."""


def rope_from(config: Mapping[str, Any], head_size: int) -> Rope:
    """The rotary frequencies that a config in Hugging Face's keys asks for, in its old form or its new one.

        old   rope_theta: 1e4, rope_scaling: null | {"rope_type" or "type": ..., "factor": ...}
        new   rope_parameters: {"rope_type": ..., "rope_theta": 1e4, "factor": ...}

    Raises UnsupportedModel for another kind of scaling, CheckpointError for one without its numbers.
    """
    given: dict[str, Any] = {"rope_theta": config.get("rope_theta") or 10000.0}
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key) or {}, Mapping):
            raise CheckpointError(f"the config's {key} must be a table, not {config[key]!r}")
        given |= config.get(key) or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"rotary scaling {kind!r} isn't supported; supported are {', '.join(SUPPORTED)}")
    rotated = int(head_size * given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    if rotated > MOST_ROTATED:
        raise CheckpointError(
            f"the config's head_dim means {rotated} rotated numbers per head, more than {MOST_ROTATED}"
        )
    with localcontext(Context(prec=50)):
        frequencies = plain(number(given, kind, "rope_theta"), rotated)
        if kind == "linear":
            factor = number(given, kind, "factor")
            frequencies = [frequency / factor for frequency in frequencies]
        elif kind == "llama3":
            frequencies = llama3(frequencies, given)
    return Rope(np.array([float(frequency) for frequency in frequencies], np.float64))


def plain(theta: Decimal, rotated: int) -> list[Decimal]:
    """theta ** (-2i / rotated) for i in 0 .. rotated/2 - 1."""
    return [(theta.ln() * (-2 * i) / rotated).exp() for i in range(rotated // 2)]


def llama3(frequencies: list[Decimal], given: Mapping[str, Any]) -> list[Decimal]:
    """Llama 3's bands, by how often a frequency turns within the context that the model was first trained on.

    turns    0 ........ low ............ high ........
             f / factor | blend of both | f as it is
    """
    factor = number(given, "llama3", "factor")
    low, high = number(given, "llama3", "low_freq_factor"), number(given, "llama3", "high_freq_factor")
    trained = number(given, "llama3", "original_max_position_embeddings")
    if low >= high:
        raise CheckpointError(f"rotary scaling 'llama3' needs low_freq_factor {low} below high_freq_factor {high}")

    def scaled(frequency: Decimal) -> Decimal:
        turns = trained * frequency / (2 * PI)
        kept = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
        return (1 - kept) * frequency / factor + kept * frequency

    return [scaled(frequency) for frequency in frequencies]


def number(given: Mapping[str, Any], kind: str, key: str) -> Decimal:
    """The exact value of a number in the config."""
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise CheckpointError(f"rotary positions of kind {kind!r} need a positive {key} in the config, not {value!r}")
    return Decimal(value)

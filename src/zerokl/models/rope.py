"""Rotary frequencies from a checkpoint's config: plain, and stretched in one of four ways.

They are computed once, by stdlib `decimal` at 50 digits and then rounded to float64, so that they are correctly
rounded and the same on every platform; a C library's `pow` is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, localcontext
from math import ceil, floor, inf
from typing import Any

import numpy as np
from msgspec import Struct

from zerokl import ops
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models.fields import Fields

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
MOST_ROTATED = 4096
"""A sanity limit: a corrupt config must not keep `decimal` busy for hours."""
LONGEST_CONTEXT = 1 << 40
SUPPORTED = ("default", "linear", "llama3", "yarn", "longrope")
TRAINED = "original_max_position_embeddings"
SERVED = "served_context_length"
"""Key under which `models.load` adds the context length that a server was started with: LongRoPE asks for it."""


class Rope(Struct, frozen=True, eq=False):
    """How positions turn the first 2 · len(inv_freq) numbers of each head."""

    inv_freq: np.ndarray
    """[R/2] float64: radians per position."""
    scale: float = 1.0
    """Of cosines and sines."""
    name: str = ""
    """Which of several sets of frequencies it is, where the config alone doesn't say: part of the fingerprint."""

    def turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(cos, sin), [T, R/2], of a step's positions."""
        return ops.rope_table(positions, self.inv_freq, self.scale)


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
    kind = "longrope" if kind == "su" else kind  # LongRoPE's first name
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"rotary scaling {kind!r} isn't supported; supported are {', '.join(SUPPORTED)}")
    share = {"it": given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0}
    rotated = int(head_size * float(number(share, kind, "it", "partial_rotary_factor")))
    if rotated > MOST_ROTATED:
        raise CheckpointError(
            f"the config's head_dim means {rotated} rotated numbers per head, more than {MOST_ROTATED}"
        )
    try:
        frequencies, scale, name = scaled_by(kind, config, given, rotated)
    except ArithmeticError as error:
        raise CheckpointError(f"the config's numbers for rotary positions of kind {kind!r} make no sense") from error
    return Rope(np.array([float(frequency) for frequency in frequencies], np.float64), float(scale), name)


def scaled_by(
    kind: str, config: Mapping[str, Any], given: Mapping[str, Any], rotated: int
) -> tuple[list[Decimal], Decimal, str]:
    """(frequencies, scale, name), as in `Rope`."""
    scale, name = Decimal(1), ""
    with localcontext(Context(prec=50)):
        frequencies = plain(number(given, kind, "rope_theta"), rotated)
        if kind == "linear":
            factor = number(given, kind, "factor")
            frequencies = [frequency / factor for frequency in frequencies]
        elif kind == "llama3":
            frequencies = llama3(frequencies, given)
        elif kind == "yarn":
            frequencies, scale = yarn(frequencies, {**given, **lengths(config, given, kind)})
        elif kind == "longrope":
            frequencies, scale, name = longrope(frequencies, {**given, **lengths(config, given, kind)})
    return frequencies, scale, name


def context_length(config: Mapping[str, Any], default: int) -> int:
    """How many positions the config allows: with YaRN, the trained length times the factor, if that is more."""
    length = Fields(config).count("max_position_embeddings", default)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping) or "yarn" not in (scaling.get("rope_type"), scaling.get("type")):
        return length
    stretched = lengths({**config, "max_position_embeddings": length}, scaling, "yarn")
    return max(length, min(int(stretched[TRAINED] * stretched["factor"]), LONGEST_CONTEXT))


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
    trained = number(given, "llama3", TRAINED)
    if low >= high:
        raise CheckpointError(f"rotary scaling 'llama3' needs low_freq_factor {low} below high_freq_factor {high}")

    def scaled(frequency: Decimal) -> Decimal:
        turns = trained * frequency / (2 * PI)
        kept = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
        return (1 - kept) * frequency / factor + kept * frequency

    return [scaled(frequency) for frequency in frequencies]


def lengths(config: Mapping[str, Any], given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The context that the model was trained on and the factor by which it is stretched, wherever the config says."""
    whole = config.get("max_position_embeddings")
    known = {
        TRAINED: config.get(TRAINED) or given.get(TRAINED) or whole,
        SERVED: config.get(SERVED) or whole,
        "factor": given.get("factor"),
    }
    if known["factor"] is None:
        known["factor"] = float(number(config, kind, "max_position_embeddings") / number(known, kind, TRAINED))
    return {key: number(known, kind, key) for key in known}


def yarn(frequencies: list[Decimal], given: Mapping[str, Any]) -> tuple[list[Decimal], Decimal]:
    """YaRN: fast turns stay, slow ones are divided by the factor, a ramp over the pairs' numbers between; and a scale.

    turns within the trained context    beta_fast ........ beta_slow
                                        f as it is | ramp  | f / factor
    """
    factor, theta, pairs = given["factor"], number(given, "yarn", "rope_theta"), len(frequencies)

    def pair_that_turns(beta: str, default: int) -> Decimal:
        turns = number({beta: given.get(beta) or default}, "yarn", beta)
        trained: Decimal = given[TRAINED]
        return pairs * (trained / (turns * 2 * PI)).ln() / theta.ln()

    low, high = pair_that_turns("beta_fast", 32), pair_that_turns("beta_slow", 1)
    if given.get("truncate", True):
        low, high = Decimal(floor(low)), Decimal(ceil(high))
    low, high = max(low, Decimal(0)), min(high, Decimal(2 * pairs - 1))
    width = high - low or Decimal("0.001")
    divided = [min(max((i - low) / width, Decimal(0)), Decimal(1)) for i in range(pairs)]
    stretched = [f / factor * share + f * (1 - share) for f, share in zip(frequencies, divided, strict=True)]
    return stretched, yarn_scale(given)


def yarn_scale(given: Mapping[str, Any]) -> Decimal:
    """attention_factor, or what the paper says for the factor, or DeepSeek's quotient of two such."""
    if given.get("attention_factor") is not None:
        return number(given, "yarn", "attention_factor")

    def of(weight: Decimal) -> Decimal:
        return 1 + weight * given["factor"].ln() / 10 if given["factor"] > 1 else Decimal(1)

    if given.get("mscale") and given.get("mscale_all_dim"):
        return of(number(given, "yarn", "mscale")) / of(number(given, "yarn", "mscale_all_dim"))
    return of(Decimal(1))


def longrope(frequencies: list[Decimal], given: Mapping[str, Any]) -> tuple[list[Decimal], Decimal, str]:
    """LongRoPE: each frequency divided by a factor of its own, from one of two lists; and a scale.

    Hugging Face takes the long list once a text is longer than the trained context, so that a text's first tokens
    change with its last. Here the server's context length decides, once: the long list if it is above the trained one.
    """
    name = "long" if given[SERVED] > given[TRAINED] else "short"
    factors = given.get(f"{name}_factor")
    if not isinstance(factors, list) or len(factors) != len(frequencies):
        raise CheckpointError(f"rotary scaling 'longrope' needs a list {name}_factor of {len(frequencies)} numbers")
    divisors = [number({"it": factor}, "longrope", "it", "factor") for factor in factors]
    divided = [frequency / divisor for frequency, divisor in zip(frequencies, divisors, strict=True)]
    if given.get("attention_factor") is not None:
        return divided, number(given, "longrope", "attention_factor"), name
    stretched = given["factor"] > 1
    scale = (1 + given["factor"].ln() / given[TRAINED].ln()).sqrt() if stretched else Decimal(1)
    return divided, scale, name


def number(given: Mapping[str, Any], kind: str, key: str, name: str = "") -> Decimal:
    """The exact value of a number in the config."""
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise CheckpointError(
            f"rotary positions of kind {kind!r} need a positive {name or key} in the config, not {value!r:.60}"
        )
    return Decimal(value)

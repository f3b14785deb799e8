"""Float32 values as their bits: what a JSON number stands for, and how far two of them are apart."""

from __future__ import annotations

import math
import struct

PACKED = struct.Struct("<f")
LOWEST_FLOAT32 = -3.4028234663852886e38
"""What servers print for a logprob of minus infinity."""


def float32_bits(value: float) -> int:
    """The bits of the float32 nearest to `value`, as an unsigned integer."""
    try:
        return int.from_bytes(PACKED.pack(value), "little")
    except OverflowError:
        return int.from_bytes(PACKED.pack(math.copysign(math.inf, value)), "little")


def from_bits(bits: int) -> float:
    """The float32 of these bits, widened to a Python float (exact)."""
    value: float = PACKED.unpack(bits.to_bytes(4, "little"))[0]
    return value


def is_float32(value: float) -> bool:
    """True if `value` is a float32 widened without loss: what a server that prints all digits sends."""
    return from_bits(float32_bits(value)) == value


def ulps(left: int, right: int) -> int:
    """How many float32 lie between two bit patterns; 0 if equal (and between +0 and -0)."""
    return abs(_ordered(left) - _ordered(right))


def _ordered(bits: int) -> int:
    """Bits as an integer that grows with the value."""
    return bits if bits < 0x8000_0000 else 0x8000_0000 - bits

"""Seeds of requests that bring none."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence

from zerokl.errors import ConfigError

SEED_BITS = 63
"""Seeds are int64 on the API and never negative when we make them."""


def seed_of(default_seed: int, prompt: Sequence[int]) -> int:
    """The seed of a request without one: a stable hash of the server's default seed and the prompt's ids.

    So an unseeded request repeats exactly, and two prompts do not share their noise. BLAKE2b over the seed as int64
    and the ids as int32, all little-endian, the low 63 bits.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"zerokl seed 1")
    digest.update(default_seed.to_bytes(8, "little", signed=True))
    digest.update(array("i", prompt).tobytes())
    return int.from_bytes(digest.digest(), "little") & ((1 << SEED_BITS) - 1)


def default_seed(option: int | str) -> int:
    """`Config.random_seed` as a number; "random" draws one, which then is the server's for as long as it runs."""
    if option == "random":
        return int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)
    try:
        seed = int(option)
        seed.to_bytes(8, "little", signed=True)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"random_seed is {option!r}: an integer of 64 bits, or 'random'") from error
    return seed

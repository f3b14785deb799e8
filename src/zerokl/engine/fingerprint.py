"""The fingerprint: two servers that have the same one answer the same request with the same bits.

What can move a bit is in it, and nothing else: the options marked `bits=True`, as they were resolved; what was loaded;
and the known answers, by which this machine shows that it computes as the contract says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict

from zerokl.config import Config, num_leaves, options

CONTRACT = 1
"""Version of the numeric contract; raised with every line under "Bits" in the changelog that no other part shows."""
PREFIX = "fp_"
HEX_DIGITS = 32


class Evidence(Struct, frozen=True, kw_only=True):
    """What the options do not say."""

    weights: str
    """Digest of the checkpoint's weights."""
    weight_dtypes: tuple[str, ...]
    """Of the matrices in memory, sorted."""
    attention_chunk: int
    """Keys per chunk."""
    quantisation: str = ""
    """How weights are kept, if not as plain numbers."""
    activation_dtype: str = "float32"
    kv_dtype: str = "float32"
    device_family: str = "cpu"
    known_answers: str
    """Digest of every operation's answers on this machine."""
    tokenizer: str
    """Digest of tokenizer, special ids and chat template."""
    grammars: str = field(default_factory=lambda: installed_version("llguidance"))
    """Version of the library that says what a grammar allows next."""
    rotations: str = ""
    """Which set of rotary frequencies, where the context length chooses one (LongRoPE)."""
    default_seed: int = 0
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


RESOLVED = ("dtype", "cpu_numerics", "kv_cache_dtype", "chat_template", "random_seed", "sampling_defaults")
"""Options that `Evidence` shows as what they came to: a path or "auto" says less than the thing itself."""


def installed_version(package: str) -> str:
    """As `importlib.metadata` says it, which takes 7 ms and 2 MB of each start to load: it is asked only where the
    package lies unusually."""
    spec = PathFinder.find_spec(package)
    beside = Path(spec.origin).parents[1] if spec and spec.origin else Path()
    found = list(beside.glob(f"{package}-*.dist-info/METADATA"))
    if len(found) == 1:
        for line in found[0].read_text(encoding="utf-8").splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ").strip()
    from importlib.metadata import version

    return version(package)


def fingerprint(config: Config, evidence: Evidence) -> str:
    """`fp_` and 32 hex digits."""
    chosen = {one.name: getattr(config, one.name) for one in options() if one.metadata["bits"]}
    facts: dict[str, Any] = {
        "contract": CONTRACT,
        **{name: value for name, value in chosen.items() if name not in RESOLVED},
        "tp_leaves": num_leaves(config),
        **asdict(evidence),
    }
    canonical = orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)
    return PREFIX + hashlib.sha256(canonical).hexdigest()[:HEX_DIGITS]

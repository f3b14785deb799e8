"""Reads a checkpoint's config key by key; a value that is missing or makes no sense is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from zerokl.errors import CheckpointError, UnsupportedModel


class Fields:
    """A view of a config in Hugging Face's keys. A null value is a missing one, as Hugging Face reads it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"the config's {key} must be a positive integer, not {value!r}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise CheckpointError(f"the config's {key} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"the config's {key} must be true or false, not {value!r}")
        return value

    def maybe(self, key: str) -> float | None:
        """A positive number, or None where the key is missing or null."""
        return None if self.config.get(key) is None else self.positive(key)

    def layer_types(self, key: str, default: Sequence[str], *supported: str) -> tuple[str, ...]:
        """One word per layer, of those that are supported; `default` has one for each."""
        given = self._value(key, list(default))
        if not isinstance(given, list) or len(given) != len(default):
            raise CheckpointError(f"the config's {key} must be a list of {len(default)} words, one per layer")
        unknown = next((kind for kind in given if kind not in supported), None)
        if unknown is not None:
            raise UnsupportedModel(f"{key} {unknown!r:.60} isn't supported; supported: {', '.join(supported)}")
        return tuple(given)

    def layer_numbers(self, key: str, num_layers: int, default: Sequence[int] = ()) -> frozenset[int]:
        """A list of layers' numbers."""
        given = self._value(key, list(default))
        if not isinstance(given, list) or not all(type(i) is int and 0 <= i < num_layers for i in given):
            raise CheckpointError(f"the config's {key} must be a list of layers below {num_layers}, not {given!r:.60}")
        return frozenset(given)

    def require(self, key: str, *supported: str) -> None:
        """Raise UnsupportedModel unless the key is missing or has one of the supported values."""
        value = self._value(key, supported[0])
        if value not in supported:
            raise UnsupportedModel(f"{key} {value!r} isn't supported; supported: {', '.join(supported)}")

    def divides(self, key: str, whole: int, part: int) -> None:
        """Raise CheckpointError unless `part` divides `whole`, the value of `key`."""
        if whole % part:
            raise CheckpointError(f"the config's {key} {whole} isn't a multiple of {part}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"the config has no {key}")
        return default


def values_of(config: Any) -> dict[str, Any]:
    """What a config was made of, for the constructor of a class that adds to it."""
    return {field.name: getattr(config, field.name) for field in fields(config)}

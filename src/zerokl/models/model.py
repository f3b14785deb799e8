"""A loaded model: what a runner needs to know of it, and the two calls it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from zerokl import ops
from zerokl.models.memory import AS_FLOATS, CacheFormat, LayerMemory, kept_as, memory_of
from zerokl.models.split import ALONE, Team
from zerokl.models.weights import Axes, Parameters, W


class ModelConfig(Axes, Protocol):
    """What every architecture's config answers."""

    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...


class Architecture(Protocol):
    """A module such as `models/llama.py`."""

    Config: Any
    WEIGHTS: tuple[W, ...]
    DROPPED: tuple[str, ...]

    @property
    def forward(self) -> Callable[..., np.ndarray]: ...
    @property
    def logits(self) -> Callable[..., np.ndarray]: ...


class Model(Struct, frozen=True, eq=False):
    """Weights and the functions that run them. Immutable: a step changes the KV pools only."""

    architecture: str
    module: Architecture
    config: ModelConfig
    weights: Parameters
    context_length: int
    """The config's, or lower if the user said so."""
    team: Team = ALONE
    """Which part of a shared model this is: `config` has the numbers of its own heads."""
    cache: CacheFormat = AS_FLOATS
    numerics: str = "cpu"
    """Of the CPU: its own, or "sm90", the arithmetic of that GPU."""

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def num_kv_heads(self) -> int:
        return self.config.num_kv_heads

    @property
    def head_size(self) -> int:
        return self.config.head_size

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What each layer remembers."""
        declared = memory_of(self.config)
        return declared if self.cache == AS_FLOATS else kept_as(declared, self.cache)

    @property
    def declares_memory(self) -> bool:
        """Whether `forward` takes `LayerCache`s; a plain model takes `LayerKV`s."""
        return getattr(self.config, "memory", None) is not None

    @property
    def rotations(self) -> str:
        return rotations_of(self.config)

    @property
    def media_ids(self) -> dict[int, str]:
        """Ids that stand for an image or for sound, of a model that is run for its text alone."""
        return dict(getattr(self.config, "media_ids", ()))

    @property
    def weight_bytes(self) -> int:
        """Of all packed matrices; vectors are small change."""
        return sum(matrix.nbytes for matrix in self.weights.matrices())

    def forward(
        self, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerKV] | Sequence[ops.LayerCache]
    ) -> np.ndarray:
        """Hidden rows [T, E] after the final norm; stores what the tokens leave behind in `layers`."""
        return self.module.forward(self.weights, self.config, tokens, ragged, layers)

    def rows(
        self, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerKV] | Sequence[ops.LayerCache]
    ) -> tuple[Any, ...]:
        """Stores what the tokens leave behind, and gives what each row's logits are made of: arrays of T rows.

        The hidden rows; or, where the architecture has a `body`, what comes before the part that only the rows which
        somebody asks about need.
        """
        body = getattr(self.module, "body", None)
        if body is None:
            return (self.forward(tokens, ragged, layers),)
        return body(self.weights, self.config, tokens, ragged, layers)  # type: ignore[no-any-return]

    def logits_of(self, *rows: Any) -> np.ndarray:
        """Chosen rows of what `rows` gave -> [R, V] float32."""
        if getattr(self.module, "body", None) is None:
            return self.logits(*rows)
        return self.logits(self.module.finish(self.weights, self.config, *rows))  # type: ignore[attr-defined]

    def logits(self, hidden_rows: np.ndarray) -> np.ndarray:
        """[R, E] -> [R, V] float32."""
        return self.module.logits(self.weights, self.config, hidden_rows)


def rotations_of(config: ModelConfig) -> str:
    """Which set of rotary frequencies was chosen, where there are several (LongRoPE): "short", "long" or ""."""
    return str(getattr(getattr(config, "rope", None), "name", ""))

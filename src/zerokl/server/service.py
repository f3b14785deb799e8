"""What every handler is given: the config, the engine, the tokenizer and the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerokl.config import Config
from zerokl.server.clock import Clock
from zerokl.server.engine import Engine
from zerokl.server.errors import Refusal
from zerokl.tokenizer import Tokenizer
from zerokl.wire.messages import Done


@dataclass(slots=True)
class Service:
    config: Config
    engine: Engine
    tokenizer: Tokenizer
    clock: Clock
    started_at: int
    """Unix time."""
    startup_s: float = 0.0
    """From the process's start until the engine was there."""

    @property
    def model_name(self) -> str:
        return self.config.served_model_name or self.config.model

    def names(self, prefix: str, given: Sequence[str | None]) -> list[str]:
        """The answers' ids: as given, else new ones."""
        return [name if name is not None else self.clock.new_id(prefix) for name in given]


def refused(done: Done | None) -> Refusal | None:
    """The refusal or failure that ended a job, if one did; an abort that somebody asked for is none."""
    if done is None or done.status is None:
        return None
    return Refusal(done.status, done.message, param=done.param, code=done.code)

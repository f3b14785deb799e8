"""Everything that zerokl raises on purpose.

ZeroklError
├── CallerError              the caller's fault: what was wrong, which value, what is allowed
│   ├── InvalidRequest       400
│   ├── CheckpointError      a model that can't be loaded: names the file, tensor or key
│   ├── UnsupportedModel     an architecture or quantisation that isn't there: names the nearest
│   ├── ShapeError, UnsupportedDtype     an operation called with arrays that it doesn't take
│   └── ConfigError          a flag or a combination of flags
├── NoRoom                   not now: queue full (429), draining or starting (503)
└── EngineError              ours: the engine stops, with the plan that it was running
"""

from __future__ import annotations


class ZeroklError(Exception):
    """Base of all errors that zerokl raises on purpose."""


class CallerError(ZeroklError, ValueError):
    """The caller's fault; the message says the value given and what is allowed."""


class InvalidRequest(CallerError):
    """A request that can't be served as it stands."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class CheckpointError(CallerError):
    """A checkpoint that is missing, corrupt, truncated or incomplete."""


class UnsupportedModel(CallerError):
    """An architecture or quantisation that zerokl doesn't run."""


class ShapeError(CallerError):
    """Arrays whose shapes don't fit the operation."""


class UnsupportedDtype(CallerError):
    """An array type that the operation doesn't take; no operation converts silently."""


class ConfigError(CallerError):
    """Options that contradict each other or the machine."""


class NoRoom(ZeroklError):
    """No capacity now; try again later."""

    def __init__(self, message: str, *, code: str = "queue_full", status: int = 429) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class EngineError(ZeroklError, RuntimeError):
    """A broken promise of our own. The engine stops rather than answer with doubtful bits."""

"""Every instruction set that this machine has, with one thread and with three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zerokl import _native


def every_cpu() -> Iterator[str]:
    """Switches to each in turn, names it, and puts back what was set."""
    for isa in _native.isas():
        for threads in (1, 3):
            with cpu(isa, threads):
                yield f"{isa}, {threads} threads"


@contextmanager
def cpu(isa: str, threads: int) -> Iterator[None]:
    before = _native.isa(), _native.threads()
    _native.set_isa(isa)
    _native.set_threads(threads)
    try:
        yield
    finally:
        _native.set_isa(before[0])
        _native.set_threads(before[1])

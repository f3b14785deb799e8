"""The deepest boundary of a cached path at which every layer kind has what a request needs that goes on there.

nodes             1    2    3    4    5      keys of all tokens: full layers could go on at 5
sliding, span 2   ■    ■    □    ■    ■      unbroken windows at 1, 2 and 5
checkpoints       ■    ■    □    ■    □      states at 1, 2 and 4
match                  ▲                     2, stopped by "sliding": the first kind that lacks something at 3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from zerokl.cache.states import StateKind
from zerokl.cache.tree import Node
from zerokl.cache.windows import WindowKind

Stop = Literal["limit", "full", "sliding", "state"]
"""Why a match isn't deeper: the request may not match more, no more is cached, or this kind lacks something."""

STOPS: tuple[Stop, ...] = ("limit", "full", "sliding", "state")


def deepest(
    path: Sequence[Node], limit: int, page_size: int, windows: Sequence[WindowKind], states: StateKind | None
) -> tuple[int, Stop]:
    """(pages of the match, why it isn't one interval deeper); `path` holds whole pages of `limit` tokens or fewer."""
    step = states.interval // page_size if states else 1
    best, stop = _deepest_supported(path, step, windows, states) if windows or states else (len(path), None)
    if stop is None:
        stop = "limit" if (best + step) * page_size > limit else "full"
    return best, stop


def _deepest_supported(
    path: Sequence[Node], step: int, windows: Sequence[WindowKind], states: StateKind | None
) -> tuple[int, Stop | None]:
    """(pages, the kind that lacks something at the next boundary of the path)."""
    unbroken = [0] * len(windows)
    best, lacking = 0, None
    for pages, node in enumerate(path, 1):
        for place, kind in enumerate(windows):
            unbroken[place] = unbroken[place] + 1 if kind.shelf.has(node) else 0
        if pages % step:
            continue
        missing = _missing(pages, node, unbroken, windows, states)
        if missing is None:
            best, lacking = pages, None
        else:
            lacking = lacking or missing
    return best, lacking


def _missing(
    pages: int, node: Node, unbroken: Sequence[int], windows: Sequence[WindowKind], states: StateKind | None
) -> Stop | None:
    for run, kind in zip(unbroken, windows, strict=True):
        if run < min(kind.span, pages):
            return "sliding"
    if states and not states.shelf.has(node):
        return "state"
    return None

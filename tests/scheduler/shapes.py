"""What the tests of the scheduler share: requests, and plans as plain numbers."""

from __future__ import annotations

import pytest

from tests.crowd import Crowd
from zerokl.types import Request, RequestId, StepPlan

LAGS = pytest.mark.parametrize("lag", [0, 1])


def request(id: int, prompt_length: int = 4, max_new_tokens: int = 4, first: int | None = None, **options) -> Request:
    """A prompt of its own, unless `first` says how it starts."""
    start = 100 * id if first is None else first
    return Request(RequestId(id), list(range(start, start + prompt_length)), max_new_tokens, **options)


def shape(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each segment."""
    return [(s.request_id, s.start, len(s.tokens)) for s in plan.segments] if plan else []


def shapes(crowd: Crowd) -> list[list[tuple[int, int, int]]]:
    return [shape(plan) for plan in crowd.runner.plans]

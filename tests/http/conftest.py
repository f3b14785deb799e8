"""One server with a fake engine for all tests that don't need a special one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.live import Live, live
from tests.http.toy import EOS


def says(prompt: str, output: str | list[int], logprobs: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """A line of the fake engine's script: after this prompt comes this output."""
    tokens = list(output.encode()) if isinstance(output, str) else output
    return {"prompt": list(prompt.encode()), "tokens": tokens, "logprobs": logprobs or [], **more}


SCRIPT = [
    says("ab", "xyz", [-0.5, -1.25, -0.1]),
    says("stop", "one.two"),
    says("end", [*b"hi", EOS]),
    says("never", "a", [float("-inf")]),
    says("nan", "a", [float("nan")]),
    says("zh", "我😀é"),
    says("cut", [0xE6, 0x88]),
    says("tenth", "a", [-0.1]),
]


@pytest.fixture(scope="session")
def server() -> Iterator[Live]:
    with live(SCRIPT) as running:
        yield running

"""One server with a fake engine for all tests that don't need a special one.

What talks HTTP alone runs against both frontends; `--frontend rust` runs the whole folder against Rust's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.live import FRONTEND, Live, live
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


BOTH = (
    "test_chat",
    "test_clients",
    "test_completions",
    "test_connection",
    "test_control",
    "test_dispatch",
    "test_endings",
    "test_fuzz",
    "test_generate",
    "test_hostile",
    "test_metrics",
    "test_playground",
    "test_streams",
    "test_structured",
    "test_tools",
    "test_tracing",
    "test_traps",
)
"""Files whose tests run against each frontend; the others are about Python's insides, or take minutes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--frontend")
    name = metafunc.module.__name__.rpartition(".")[2]
    kinds = ["python", "rust"] if chosen == "both" and name in BOTH else [chosen.replace("both", "python")]
    if "frontend" in metafunc.fixturenames and ".parity." not in metafunc.module.__name__:
        metafunc.parametrize("frontend", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def frontend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which one `live` starts."""
    FRONTEND.kind = getattr(request, "param", "python")
    yield FRONTEND.kind
    FRONTEND.kind = "python"


@pytest.fixture(autouse=True)
def _what_only_python_has(request: pytest.FixtureRequest, frontend: str) -> None:
    if frontend != "python" and request.node.get_closest_marker("python_frontend"):
        pytest.skip("it looks into the Python frontend")


@pytest.fixture(scope="session")
def server(frontend: str) -> Iterator[Live]:
    with live(SCRIPT) as running:
        yield running

"""Tests of the GPU's kernels and runner. One command on a machine with an NVIDIA GPU: `pytest tests/gpu`.

Without one they are skipped, and counted as such. `TRITON_INTERPRET=1 pytest tests/gpu`, where torch is installed, runs
those that need no real device on numpy (slowly): that is how their logic is developed.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def reason_to_skip() -> str | None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        return "needs an NVIDIA GPU and the cuda extra: torch isn't installed"
    import torch

    if INTERPRETED or torch.cuda.is_available():
        return None
    return "needs an NVIDIA GPU"


REASON = reason_to_skip()
collect_ignore_glob = ["test_*.py"] if REASON and "torch" in REASON else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if REASON:
                item.add_marker(pytest.mark.skip(reason=REASON))
            elif INTERPRETED and item.get_closest_marker("device"):
                item.add_marker(pytest.mark.skip(reason="needs a real GPU, not the interpreter"))


if INTERPRETED and not REASON:
    from tests.gpu.interpreted import install

    install()

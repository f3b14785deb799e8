"""What each process loads before it can do its work: every library here costs each start tens of milliseconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

WEB = {"uvicorn", "fastapi", "starlette", "pydantic", "httpx", "huggingface_hub", "requests"}
NEVER = {
    "zerokl.cli.engine": {*WEB, "click", "rich", "jinja2", "asyncio", "llguidance", "torch"},
    "zerokl.cli.frontend": {*WEB - {"uvicorn"}, "rich", "numpy", "llguidance", "torch"},
    "zerokl.cli.serve": {*WEB, "rich", "numpy", "tokenizers", "asyncio", "torch"},
}


@pytest.mark.parametrize("module", NEVER)
def test_a_process_loads_only_what_it_needs(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert NEVER[module] & set(done.stdout.split()) == set()

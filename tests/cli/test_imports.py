"""What each process loads before it can do its work: every library here costs each start tens of milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.tiny import make_tiny_llama

WEB = {"uvicorn", "fastapi", "starlette", "pydantic", "httpx", "huggingface_hub", "requests"}
NEVER = {
    "zerokl.cli.engine": {
        *WEB,
        "importlib.metadata",
        "zipfile",
        "click",
        "rich",
        "jinja2",
        "asyncio",
        "llguidance",
        "torch",
    },
    "zerokl.engine.build": {*WEB, "zerokl.tokenizer", "zerokl.cache", "zerokl.runner", "zerokl.scheduler"},
    "zerokl.cli.frontend": {*WEB - {"uvicorn"}, "rich", "numpy", "llguidance", "torch"},
    "zerokl.cli.serve": {*WEB, "rich", "numpy", "tokenizers", "asyncio", "torch"},
}


@pytest.mark.parametrize("module", NEVER)
def test_a_process_loads_only_what_it_needs(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert NEVER[module] & set(done.stdout.split()) == set()


def test_a_supervisor_finds_a_model_without_loading_what_reads_it(tmp_path: Path) -> None:
    """It lives as long as the server: what it loads is memory that nobody uses."""
    model = make_tiny_llama(tmp_path / "model", seed=0)
    code = "import sys; from zerokl.cli.serve import settled; from zerokl.config import Config; "
    code += "print(settled(Config(model=sys.argv[1])).model); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=60, check=True
    )
    found, modules = done.stdout.split("\n", 1)
    assert found == str(model)
    never = {*NEVER["zerokl.cli.serve"], "ssl", "http.client", "zerokl._native", "zerokl.types"}
    assert never & set(modules.split()) == set()


def test_a_library_leaves_its_users_environment_alone() -> None:
    code = "import os; before = dict(os.environ); from zerokl import LLM; assert LLM; assert before == dict(os.environ)"
    for given in ({}, {"OPENBLAS_THREAD_TIMEOUT": "20"}):
        subprocess.run([sys.executable, "-c", code], env=os.environ | given, timeout=60, check=True)

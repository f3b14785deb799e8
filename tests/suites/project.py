"""A small project with a table and whatever test files a test wants, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

TABLE = """
[marks]
cpu = "not slow"
[limits]
least_s = 20
disabled_days = 30
[stages.base-a]
commands = ["echo linted"]
[stages.base-b]
[stages.nightly]
on_request = true
[runners.cpu]
[runners.gpu]
gpus = 1
gpu_memory_gib = 40
"""
BASE_A = 'register_cpu_ci(est_time=1, stage="base-a", runner_config="cpu")\n'
BASE_B = BASE_A.replace("base-a", "base-b")


def write_project(root: Path, files: dict[str, str], table: str = TABLE) -> Path:
    """Files that don't register themselves get the import and the call of base-a."""
    tests = root / "tests"
    tests.mkdir(exist_ok=True)
    (tests / "suites.toml").write_text(table)
    for name, source in files.items():
        head = "from zerokl.suites import register_cpu_ci, register_cuda_ci\n"
        path = tests / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source if "register_" in source else head + BASE_A + source)
    return root

"""A supervisor that is killed leaves its run folder; the next start removes it, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zerokl.cli.run_folder import TOKENIZER, new_run_folder, sweep
from zerokl.suites import register_cpu_ci
from zerokl.tokenizer.run_folder import FILES

register_cpu_ci(est_time=4, stage="base-a", runner_config="cpu-small")

HOLD = """
import time
from zerokl.cli.run_folder import new_run_folder
with new_run_folder() as name:
    print(name, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_a_folder_is_private_and_gone_at_the_end(temporary: Path) -> None:
    with new_run_folder() as name:
        assert Path(name).parent == temporary
        assert Path(name).stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_what_a_killed_supervisor_left_is_swept_and_a_living_ones_is_not(temporary: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    left = Path(holder.stdout.readline().strip())
    (left / "config.json").write_text("{}")
    (temporary / "zerokl-of-somebody-else").mkdir()
    with new_run_folder() as own:
        sweep(temporary)
        assert {left, Path(own)} < set(temporary.iterdir()), "both live"
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert left.exists(), "a killed process removes nothing"
        with new_run_folder() as name:
            assert set(temporary.iterdir()) == {Path(own), Path(name), temporary / "zerokl-of-somebody-else"}
    holder.stdout.close()


def test_whoever_waits_for_the_tokenizer_waits_for_its_last_file() -> None:
    assert FILES[-1] == TOKENIZER

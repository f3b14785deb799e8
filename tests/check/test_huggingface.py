"""A Hugging Face model as a target: with a stand-in for torch here, with the real one where `make oracles` put it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.check.fake_engine import VOCAB, mix, spread
from tests.checkpoints.tiny import make_tiny_llama
from zerokl.check.checking import Options, run_check
from zerokl.check.clues import Kind
from zerokl.check.outcome import CouldNotRun, Status
from zerokl.check.run import Report
from zerokl.check.targets.torch_model import TorchModel, parse_place
from zerokl.checkpoints.cache_folder import cache_folder
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=8, stage="base-b", runner_config="cpu-small")

pytestmark = pytest.mark.slow

ORACLE = Path(os.environ.get("ORACLE", cache_folder() / "oracle")) / "bin" / "python"
SOURCE = Path(__file__).parents[2] / "src"
UNDER_ORACLE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.path.append(sys.argv.pop(1)); "
    "from zerokl.cli import main; main()"
)
"""zerokl's packages stand behind the environment's own."""


class FakeModel:
    """Log-probabilities from a hash of the ids; `defect` makes padded batches or decode steps a little different."""

    name, version, vocabulary, context = "hash", "0-fake", VOCAB, 2048

    def __init__(self, defect: str = "") -> None:
        self.defect = defect

    def encode(self, text: str) -> list[int] | None:
        return [ord(letter) % VOCAB for letter in text]

    def decode(self, token: int) -> str | None:
        return f"<{token}>"

    def prefill(self, prompts: Sequence[Sequence[int]], *, all_rows: bool) -> tuple[np.ndarray, list[list[int]]]:
        padded = len(set(map(len, prompts))) > 1
        firsts = [1 if all_rows else len(prompt) for prompt in prompts]
        rows = [
            [self._row(prompt[:end], padded and self.defect == "padding") for end in range(first, len(prompt) + 1)]
            for prompt, first in zip(prompts, firsts, strict=True)
        ]
        return np.array(rows, dtype=np.float32), [list(prompt) for prompt in prompts]

    def decode_step(self, tokens: Sequence[int], state: list[list[int]]) -> tuple[np.ndarray, list[list[int]]]:
        padded = len(set(map(len, state))) > 1 and self.defect == "padding"
        state = [[*ids, token] for ids, token in zip(state, tokens, strict=True)]
        wrong = padded or self.defect == "decode"
        return np.array([[self._row(ids, wrong)] for ids in state], dtype=np.float32), state

    def _row(self, ids: Sequence[int], wrong: bool) -> np.ndarray:
        state = 17
        for token in ids:
            state = mix(state, token)
        logits = spread(state) * 9.0 + (1e-4 * spread(state ^ 5) if wrong else 0)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def check_fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defect: str = "", *cases: str) -> Report:
    monkeypatch.setattr("zerokl.check.targets.huggingface.TorchModel", lambda place: FakeModel(defect))
    options = Options(f"hf:{tmp_path}", cases=cases, max_new_tokens=12)
    return asyncio.run(run_check(options, Console(file=io.StringIO())))


def test_model_in_this_process_is_equal_in_every_case_that_needs_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = check_fake(monkeypatch, tmp_path)
    equal = {result.case.name for result in report.results if result.status is Status.EQUAL}
    assert equal == {
        *("repeats", "rescoring", "continued", "crowd", "order", "mixture", "lengths", "sweep", "number-format")
    }
    assert {result.status for result in report.results} == {Status.EQUAL, Status.NOT_POSSIBLE}
    assert report.values > 2000
    assert report.foreign_requests == 0


@pytest.mark.parametrize(
    ("defect", "kinds"), [("padding", {Kind.BATCH, Kind.PADDING}), ("decode", {Kind.PHASE})], ids=["padding", "decode"]
)
def test_what_batching_and_decoding_do_to_it_is_seen_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defect: str, kinds: set[Kind]
) -> None:
    report = check_fake(monkeypatch, tmp_path, defect)
    assert report.exit_code == 1
    assert report.diagnoses[0].kind in kinds


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CouldNotRun, match=r"needs torch and transformers .*pip install 'zerokl\[hf\]'"):
        TorchModel(parse_place(f"hf:{tmp_path}"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf:/no/such/folder", "does not exist"),
        ("hf:{}?dtype=float8", "no dtype 'float8'; there are: auto, float32"),
        ("hf:{}?device=cuda", "no option 'device'; there are: dtype, attn, rows"),
        ("hf:{}?rows=2", "rows=2; a step has one row"),
    ],
)
def test_place_that_is_none_is_one_clear_error(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(CouldNotRun, match=words):
        parse_place(url.format(tmp_path))


@pytest.mark.oracle
@pytest.mark.timeout(300)
def test_real_model_repeats_and_agrees_with_itself_in_float64_up_to_rounding(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", 3)
    status, cases = check_real(
        tmp_path,
        f"hf:{folder}?dtype=float32",
        *("--cases", "repeats,rescoring", "--against", f"hf:{folder}?dtype=float64"),
    )
    assert status == 1  # float32 and float64 differ
    assert cases["repeats"]["status"] == "equal"
    assert cases["against"]["status"] == "different"
    assert 0 < cases["against"]["max_abs"] < 1e-4


@pytest.mark.oracle
@pytest.mark.timeout(300)
def test_real_model_that_computes_one_row_a_step_is_equal_alone_scored_and_in_company(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", 3)
    status, cases = check_real(tmp_path, f"hf:{folder}?dtype=bfloat16&rows=1", "--cases", "rescoring,continued,crowd")
    assert status == 0
    assert {case["status"] for case in cases.values()} == {"equal"}
    assert all(case["values"] > 100 for case in cases.values())


def check_real(tmp_path: Path, place: str, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and cases of a quick check under the Python that has torch."""
    assert ORACLE.exists(), "make oracles installs torch and transformers"
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    command = [ORACLE, "-c", UNDER_ORACLE, SOURCE, packages, "check", place, "--quick", *more]
    found = subprocess.run([*command, "--json", tmp_path / "report"], timeout=280, capture_output=True, text=True)
    assert (tmp_path / "report").exists(), found.stderr
    report = json.loads((tmp_path / "report").read_text())
    return found.returncode, {case["name"]: case for case in report["cases"]}

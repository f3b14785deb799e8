"""What servers write about their steps becomes evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.conftest import RunCheck
from tests.check.fake_engine import FakeEngine
from zerokl.check.logs import Log, read
from zerokl.check.outcome import CouldNotRun
from zerokl.check.report import as_json

SGLANG = """\
[2026-11-30 05:49:04 TP0] Prefill batch. #new-seq: 1, #new-token: 115, #cached-token: 351, #running-req: 0,
[2026-11-30 05:49:04 TP0] Decode batch. #running-req: 1, #token: 501, token usage: 0.02, cuda graph: True, #queue-req: 0
[2026-11-30 05:49:05] Decode batch, #running-req: 18, #token: 16384, token usage: 0.71, cuda graph: False, #queue-req: 3
"""
VLLM = """\
INFO 11-30 08:12:36 [loggers.py:335] Engine 000: Avg prompt throughput: 3.9 tokens/s, Avg generation throughput: \
0.6 tokens/s, Running: 7 reqs, Waiting: 0 reqs, CPU KV cache usage: 0.6%, Prefix cache hit rate: 24.5%
INFO 11-30 08:12:46 [loggers.py:335] Engine 000: Running: 0 reqs, Waiting: 0 reqs
INFO:     127.0.0.1:41110 - "POST /v1/completions HTTP/1.1" 200 OK
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SGLANG, "1 to 18 requests running, prefills of 115 tokens, 1 steps with a graph, 1 steps without a graph"),
        (VLLM, "7 requests running"),
        ("nothing of interest", ""),
    ],
)
def test_lines_tell_widths_prefills_and_graphs(text: str, words: str) -> None:
    assert read(text.splitlines()).describe() == words


def test_only_new_and_whole_lines_are_read_and_a_new_file_is_begun_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("Running: 3 reqs\n")
    log = Log(path)
    assert log.news().describe() == ""
    with path.open("a") as file:
        file.write("Running: 4 re")
    assert log.news().describe() == ""
    with path.open("a") as file:
        file.write("qs\nRunning: 5 reqs\n")
    assert log.news().describe() == "4 to 5 requests running"
    path.write_text("Running: 6 reqs\n")
    assert log.news().describe() == "6 requests running"


def test_log_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CouldNotRun, match=r"--log .*none.log: No such file"):
        Log(tmp_path / "none.log")


def test_log_stands_with_its_case_and_in_the_evidence(run_fake: RunCheck, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()

    class Writing(FakeEngine):
        def _count(self, plan, decodes) -> None:  # type: ignore[no-untyped-def]
            super()._count(plan, decodes)
            with path.open("a") as file:
                file.write(f"Decode batch, #running-req: {decodes}, cuda graph: False\n")

    report = run_fake("", "repeats", "crowd", engine=Writing("batch_size"), log=path, diagnose=True)
    logs = {case["name"]: case["log"] for case in as_json(report)["cases"]}
    assert logs["repeats"].startswith("1 requests running")
    assert logs["crowd"].startswith("1 to 33 requests running")
    evidence = dict(report.diagnoses[0].evidence)
    assert evidence["log, in cases that differ"].startswith("1 to 33 requests running")
    assert evidence["log, in cases that don't"].startswith("1 requests running")

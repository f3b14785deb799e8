"""Against other programs: who is asked what, what counts, and what is said where one is missing."""

from __future__ import annotations

import json
import stat
from itertools import chain, count

import pytest
from click.testing import CliRunner

from tests.checkpoints.tiny import make_tiny_llama
from zerokl.bench.peers import LlamaCpp, Task, Zerokl, rounds_of, summary
from zerokl.cli.bench import bench
from zerokl.config import Config
from zerokl.errors import CallerError

PRETENDED = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/asked"
echo "a line that is no JSON"
echo '{"avg_ts": 100.0, "speed_tg": 400.0}'
"""


@pytest.fixture
def llama_cpp(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("llama-bench", "llama-batched-bench"):
        (folder / name).write_text(PRETENDED)
        (folder / name).chmod(stat.S_IRWXU)
    return folder


def test_llama_cpp_is_asked_for_the_same(llama_cpp, tmp_path):
    program = LlamaCpp(llama_cpp, tmp_path / "m.gguf", threads=2, new_tokens=64, kv_dtype="bf16")
    speeds = [program.speed(Task.parse(text)) for text in ("prefill:512", "decode:1", "decode:1@8192", "decode:8")]
    assert speeds == [100, 100, 100, 400]
    common = f"-m {tmp_path}/m.gguf -t 2"
    cache = "-ctk bf16 -ctv bf16"
    assert (llama_cpp / "asked").read_text().splitlines() == [
        f"llama-bench {common} -r 1 -o jsonl -p 512 -n 0 -d 0 {cache}",
        f"llama-bench {common} -r 1 -o jsonl -p 0 -n 64 -d 0 {cache}",
        f"llama-bench {common} -r 1 -o jsonl -p 0 -n 64 -d 8192 {cache}",
        f"llama-batched-bench {common} -npp 16 -ntg 64 -npl 8 -c 640 -b 2048 {cache} --output-format jsonl",
    ]


def test_a_missing_or_failing_program_is_one_clear_error(llama_cpp, tmp_path):
    program = LlamaCpp(tmp_path / "nowhere", tmp_path / "m.gguf", 2, 64, "f16")
    with pytest.raises(CallerError, match=r"no llama-bench in .*build\.sh"):
        program.speed(Task("decode", 1))
    (llama_cpp / "llama-bench").write_text("#!/bin/sh\necho bad model >&2\nexit 3\n")
    with pytest.raises(CallerError, match="llama-bench failed: bad model"):
        LlamaCpp(llama_cpp, tmp_path / "m.gguf", 2, 64, "f16").speed(Task("decode", 1))


@pytest.mark.parametrize("text", ["prefill", "prefill:0", "prefill:5@3", "decode:x", "decode:2@-1", "score:3", ""])
def test_what_is_no_test_is_refused(text):
    with pytest.raises(CallerError, match="is no test; write"):
        Task.parse(text)


class Pretended:
    def __init__(self, name, *speeds):
        self.name, self.speeds = name, iter(speeds)

    def speed(self, test):
        return next(self.speeds)


def test_ratios_are_taken_within_a_round_and_the_first_round_does_not_count():
    ours, peer = Pretended("zerokl", 1, 20, 90, 30), Pretended("peer", 1000, 10, 30, 30)
    rounds = list(rounds_of([ours, peer], [Task("decode", 1)], 3))
    found = summary(rounds, "decode:1")
    assert found["tokens_per_second"] == {"zerokl": 30, "peer": 30}
    assert found["ratio"] == {"peer": {"median": 2, "lowest": 1, "highest": 3}}


@pytest.mark.parametrize(("test", "speed"), [("decode:3", 3), ("decode:1@100", 1), ("prefill:40", 0.4)])
def test_our_engine_counts_only_what_was_decoded(tmp_path, monkeypatch, test, speed):
    """By a clock in which the step of the prompts takes 100 and every other one 1, tokens come one per sequence."""
    folder = make_tiny_llama(tmp_path / "model", 3)
    program = Zerokl(Config(model=str(folder), max_total_tokens=1024), new_tokens=8)
    ticks = chain([0], count(100))
    monkeypatch.setattr("zerokl.bench.peers.time.perf_counter", lambda: float(next(ticks)))
    assert program.speed(Task.parse(test)) == speed


def test_the_command_writes_a_table_a_file_and_a_plot(llama_cpp, tmp_path):
    folder = make_tiny_llama(tmp_path / "model", 3)
    report, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    tests = ["--tests", "prefill:20", "--tests", "decode:2", "--tokens", "4", "--rounds", "2"]
    files = ["--json", str(report), "--plot", str(plot)]
    result = CliRunner().invoke(bench, ["peers", str(folder), "--llama-cpp", str(llama_cpp), *tests, *files])
    assert result.exit_code == 0, result.output
    assert "prefill:20" in result.stdout
    assert "x of llama.cpp" in result.stdout
    kept = json.loads(report.read_text())
    assert len(kept["rounds"]) == 2
    assert kept["summary"]["decode:2"]["tokens_per_second"]["llama.cpp"] == 400
    assert kept["machine"]["read_gb_per_s"] > 0
    assert plot.read_text().count("against llama.cpp") == 1


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    result = CliRunner().invoke(bench, ["peers", str(tmp_path), "--json", str(tmp_path / "nowhere" / "report.json")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.output

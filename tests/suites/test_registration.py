"""What a registration may look like; everything that the reader of the source could misread is an error."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.suites.project import BASE_A, write_project
from zerokl.errors import ConfigError
from zerokl.suites.registration import Registration, read
from zerokl.suites.registry import collect
from zerokl.suites.table import find

GOOD = 'stage="base-a", runner_config="cpu"'


def parse(tmp_path: Path, source: str) -> list[Registration]:
    path = tmp_path / "test_it.py"
    path.write_text(source)
    return read(path, "test_it.py")


def test_reads_a_call_without_running_the_file(tmp_path: Path) -> None:
    source = f'raise SystemExit\nregister_cuda_ci(12.5, {GOOD}, nightly=True, disabled="2026-11-01: breaks, #7")'
    (one,) = parse(tmp_path, source)
    assert (one.backend, one.est_time, one.suite) == ("cuda", 12.5, "base-a-test-cpu")
    assert (one.nightly, one.disabled, one.source) == (True, "2026-11-01: breaks, #7", "test_it.py:2")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (f"register_cpu_ci({GOOD})", "est_time must be given"),
        ("register_cpu_ci(est_time=1)", "stage, runner_config must be given"),
        (f"register_cpu_ci(est_time=True, {GOOD})", "est_time can't be True"),
        (f"register_cpu_ci(est_time=0, {GOOD})", "positive number"),
        (f"register_cpu_ci(est_time=-1, {GOOD})", "must be a constant, not `-1`"),
        (f"register_cpu_ci(est_time=1e999, {GOOD})", "positive number"),
        (f"register_cpu_ci(est_time=1, {GOOD}, disabled=REASON)", "disabled must be a constant, not `REASON`"),
        (f"register_cpu_ci(est_time=1, {GOOD}, nightly=FLAG)", "nightly must be a constant"),
        (f'register_cpu_ci(est_time=1, {GOOD}, nightly="no")', "nightly can't be 'no'"),
        (f'register_cpu_ci(est_time=1, {GOOD}, disabled="flaky")', "YYYY-MM-DD: reason"),
        (f'register_cpu_ci(est_time=1, {GOOD}, disabled="2026-02-31: flaky")', "is not a date"),
        (f"register_cpu_ci(est_time=1, {GOOD}, estimate=3)", "no argument 'estimate'; the nearest is 'est_time'"),
        (f"register_cpu_ci(1, est_time=1, {GOOD})", "est_time is given twice"),
        ('register_cpu_ci(1, "base-a")', "only est_time may stand without its name"),
        ("register_cpu_ci(*ARGUMENTS)", "only est_time may stand without its name"),
        ("register_cpu_ci(**OPTIONS)", r"\*\* hides"),
        (f"register_cdua_ci(est_time=1, {GOOD})", "no backend 'cdua'; the nearest is 'cuda'"),
        (f"if True:\n    register_cpu_ci(est_time=1, {GOOD})", "top level"),
        (f"def late():\n    register_cpu_ci(est_time=1, {GOOD})", "top level"),
        (f"suites.register_cpu_ci(est_time=1, {GOOD})", "bare name"),
        (f"done = register_cpu_ci(est_time=1, {GOOD})", "must stand alone"),
        ("from zerokl.suites import register_cpu_ci as register", "must keep its name"),
        ("def broken(:", "not Python"),
    ],
)
def test_what_could_be_misread_is_an_error(tmp_path: Path, call: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(tmp_path, call)


def test_all_mistakes_of_a_project_are_listed_at_once(tmp_path: Path) -> None:
    files = {
        "test_a.py": 'register_cpu_ci(est_time=1, stage="base-c", runner_config="cpu")',
        "test_b.py": 'register_cpu_ci(est_time=1, stage="base-a", runner_config="gpus")',
        "test_c.py": "# register_nothing\n",
        "test_d.py": BASE_A + BASE_A,
        "test_e.py": 'register_cuda_ci(est_time=1, stage="base-a", runner_config="cpu")',
    }
    with pytest.raises(ConfigError) as caught:
        collect(find(write_project(tmp_path, files)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for part in ("no stage 'base-c'", "no runner 'gpus'; the nearest is 'gpu'", "test_c.py: registers nothing"):
        assert part in str(caught.value)
    assert "registered twice" in str(caught.value)
    assert "which has no GPU" in str(caught.value)


def test_a_disabled_test_is_listed_and_expires(tmp_path: Path) -> None:
    disabled = BASE_A.replace(")", ', disabled="2026-11-01: hangs, #7")')
    table = find(write_project(tmp_path, {"test_a.py": disabled, "test_b.py": BASE_A}))
    known = collect(table, datetime.date(2026, 12, 1))
    assert [one.file for one in known.chosen()] == ["tests/test_b.py"]
    assert [one.disabled for one in known.disabled()] == ["2026-11-01: hangs, #7"]
    with pytest.raises(ConfigError, match="disabled for 31 days, 30 are allowed"):
        collect(table, datetime.date(2026, 12, 2))


def test_a_folder_registers_the_files_that_do_not(tmp_path: Path) -> None:
    files = {
        "__init__.py": BASE_A,
        "low/__init__.py": BASE_A.replace("base-a", "base-b"),
        "low/test_own.py": BASE_A.replace("1", "7"),
        "low/test_silent.py": "# register_nothing\n",
        "test_top.py": "# register_nothing\n",
    }
    known = collect(find(write_project(tmp_path, files)))
    assert {(one.file, one.stage, one.est_time) for one in known.chosen()} == {
        ("tests/low/test_own.py", "base-a", 7),
        ("tests/low/test_silent.py", "base-b", 1),
        ("tests/test_top.py", "base-a", 1),
    }


def test_a_wrong_key_in_the_table_names_the_nearest(tmp_path: Path) -> None:
    write_project(tmp_path, {}, "[stages.base-a]\nshard = 2\n")
    with pytest.raises(ConfigError, match="no key 'shard'; the nearest is 'shards'"):
        find(tmp_path)

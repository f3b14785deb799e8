"""`zerokl suite run` on a project where everything that can go wrong does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests.suites.project import BASE_B, write_project
from zerokl.suites.cli import suite

pytestmark = pytest.mark.slow

FILES = {
    "test_crash.py": "import os\ndef test_fine(): pass\ndef test_leaves(): os._exit(0)\n",
    "test_empty.py": "def tset_misspelt(): pass\n",
    "test_fails.py": "def test_wrong():\n    assert 1 == 2, 'one is not two'\ndef test_right(): pass\n",
    "test_hangs.py": """
import subprocess, sys, time
def test_hangs(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open(__file__ + ".pid", "w").write(str(child.pid))
    time.sleep(600)
""",
    "test_passes.py": """
import pytest, subprocess
def test_fine(): subprocess.Popen(["sleep", "600"], start_new_session=True)
@pytest.mark.skip(reason="no coffee")
def test_skipped(): pass
@pytest.mark.slow
def test_slow(): pass
class TestThings:
    def test_one(self): pass
    def test_two(self): pass
""",
    "test_unusable.py": "import os\ndef test_machine(): os._exit(75)\n",
    "test_gpu.py": "from zerokl.suites import register_cuda_ci\n"
    'register_cuda_ci(est_time=1, stage="base-a", runner_config="gpu")\ndef test_gpu(): pass\n',
    "test_later.py": f"from zerokl.suites import register_cpu_ci\n{BASE_B}def test_later(): pass\n",
    "conftest.py": "def pytest_configure(config): config.addinivalue_line('markers', 'slow: it is')\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a third of each start
    yield write_project(tmp_path_factory.mktemp("project"), FILES)
    patch.undo()


def invoke(project: Path, *arguments: str) -> Result:
    reports = ["--reports", str(project / "reports")] if arguments[0] in ("run", "rerun") else []
    return CliRunner().invoke(suite, ["--project", str(project), *arguments, *reports], catch_exceptions=False)


@pytest.fixture(scope="module")
def whole(project: Path) -> tuple[Result, dict[str, dict]]:
    """One run of everything, shared by the tests below; results by file."""
    result = invoke(project, "run", "--keep-going", "--jobs", "2", "--limit", "3")
    rows = json.loads((project / "reports" / "summary.json").read_text())["results"]
    return result, {row["file"].removeprefix("tests/"): row for row in rows}


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().split(") ")[1][0] != "Z"


def test_every_file_gets_the_status_that_it_deserves(whole) -> None:
    result, rows = whole
    assert {name: row["status"] for name, row in rows.items()} == {
        "echo linted": "passed",
        "test_crash.py": "crashed",
        "test_empty.py": "no tests",
        "test_fails.py": "failed",
        "test_gpu.py": "skipped",
        "test_hangs.py": "timed out",
        "test_later.py": "passed",
        "test_passes.py": "passed",
        "test_unusable.py": "machine unusable",
    }
    assert result.exit_code == 1


def test_reasons_name_the_test_and_the_lack(whole) -> None:
    _, rows = whole
    assert rows["test_crash.py"]["reason"] == "exit status 0 without pytest's end, in tests/test_crash.py::test_leaves"
    assert "tests/test_hangs.py::test_hangs" in rows["test_hangs.py"]["reason"]
    assert rows["test_gpu.py"]["reason"] == "gpu needs 1 GPU with 40 GiB, has 0 such"


def test_a_hanging_test_is_ended_within_its_limit_with_all_it_started(project: Path, whole) -> None:
    _, rows = whole
    assert 3 <= rows["test_hangs.py"]["seconds"] < 9
    assert not alive(int((project / "tests" / "test_hangs.py.pid").read_text()))


def test_the_last_line_counts_tests_in_pytests_words(whole) -> None:
    result, _ = whole
    last = result.output.strip().splitlines()[-1]
    assert last == last.strip("=").center(len(last), "=")
    assert "1 failed, 3 unfinished, 6 passed, 1 skipped, 1 deselected in " in last
    assert "one is not two" in result.output
    assert "left 1 processes behind" in result.output


def test_junit_has_every_test_and_every_file_that_has_none(project: Path, whole) -> None:
    root = ElementTree.parse(project / "reports" / "junit.xml").getroot()
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    assert cases["tests/test_fails.py", "test_wrong"].find("failure") is not None
    assert cases["tests/test_hangs.py", "test_hangs"].find("error") is not None
    assert cases["tests/test_passes.py", "test_skipped"].find("skipped").get("message") == "no coffee"
    assert cases["tests/test_empty.py", "tests/test_empty.py"].find("error") is not None
    assert cases["tests/test_gpu.py", "tests/test_gpu.py"].find("skipped") is not None
    for path in (project / "reports").glob("*.xml"):
        ElementTree.parse(path)


def test_a_red_file_stops_the_rest_which_is_reported_as_not_run(project: Path) -> None:
    result = invoke(project, "run", "--limit", "10")
    rows = json.loads((project / "reports" / "summary.json").read_text())["results"]
    statuses = {row["file"].removeprefix("tests/"): (row["status"], row["reason"]) for row in rows}
    assert statuses["test_crash.py"][0] == "crashed"
    assert statuses["test_passes.py"] == ("not run", "tests/test_crash.py is red")
    assert statuses["test_later.py"] == ("not run", "base-a is red")
    assert result.exit_code == 1
    assert "not run" in result.output.strip().splitlines()[-2]


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [
        ("test_passes.py::TestThings.test_two", ["TestThings::test_two"]),
        ("tests/test_passes.py::TestThings", ["TestThings::test_one", "TestThings::test_two"]),
    ],
)
def test_rerun_runs_one_method_or_class(project: Path, wanted: str, ran: list[str]) -> None:
    result = invoke(project, "rerun", wanted)
    root = ElementTree.parse(project / "reports" / "junit.xml").getroot()
    assert [case.get("name") for case in root.iter("testcase")] == ran
    assert result.exit_code == 0


def test_rerun_of_an_unknown_file_names_the_nearest(project: Path) -> None:
    result = CliRunner().invoke(suite, ["--project", str(project), "rerun", "tests/test_pases.py"])
    assert "the nearest is 'tests/test_passes.py'" in str(result.exception)


@pytest.mark.parametrize("alarm", [signal.SIGTERM, signal.SIGINT])
def test_a_runner_that_is_told_to_end_ends_its_jobs(project: Path, alarm: signal.Signals) -> None:
    pid_file = project / "tests" / "test_hangs.py.pid"
    pid_file.unlink(missing_ok=True)
    arguments = ["--project", str(project), "rerun", "test_hangs.py", "--reports", str(project / "ended")]
    # A test run that a shell put in the background ignores SIGINT, and so would its children.
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = f"{hear}from zerokl.suites.cli import suite; suite({arguments!r})"
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.send_signal(alarm)
    assert job.wait(15) != 0
    assert not alive(int(pid_file.read_text()))


def test_a_runner_killed_in_the_middle_leaves_valid_reports(project: Path) -> None:
    reports = project / "killed"
    arguments = ["--project", str(project), "run", "--keep-going", "--reports", str(reports)]
    code = f"from zerokl.suites.cli import suite; suite({arguments!r})"
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while status_in(reports, "tests/test_crash.py") != "crashed":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.send_signal(signal.SIGKILL)
    job.wait()
    rows = {row["file"]: row for row in json.loads((reports / "summary.json").read_text())["results"]}
    assert rows["tests/test_passes.py"]["reason"] == "the run ended before"
    ElementTree.parse(reports / "junit.xml")


def status_in(reports: Path, file: str) -> str:
    """As the summary has it, which is whole whenever somebody looks: this is asked while it is written."""
    summary, junit = reports / "summary.json", reports / "junit.xml"
    if not junit.exists():
        return ""
    ElementTree.parse(junit)
    return next(row["status"] for row in json.loads(summary.read_text())["results"] if row["file"] == file)

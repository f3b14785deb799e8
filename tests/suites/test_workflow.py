"""The workflow written from the table: valid YAML, a job per stage and runner, stages that wait for each other."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.suites.project import BASE_A, BASE_B, TABLE, write_project
from zerokl.suites.registry import collect
from zerokl.suites.table import find
from zerokl.suites.workflow import workflow


def test_stages_wait_shards_are_a_matrix_and_nightly_is_scheduled(tmp_path: Path) -> None:
    nightly = BASE_A.replace("base-a", "nightly").replace(")", ", nightly=True)")
    table = TABLE.replace("[stages.base-b]", "[stages.base-b]\nshards = 3").replace(
        "[runners.cpu]", '[runners.cpu]\nlabels = ["linux"]\nsetup = ["make setup"]'
    )
    files = {"test_a.py": BASE_A, "test_b.py": BASE_B, "test_n.py": nightly}
    jobs = yaml.safe_load(workflow(collect(find(write_project(tmp_path, files, table)))))["jobs"]
    assert list(jobs) == ["base-a-cpu", "base-b-cpu", "nightly-cpu", "rerun-test"]
    assert "needs" not in jobs["base-a-cpu"]
    assert jobs["base-b-cpu"]["needs"] == ["base-a-cpu"]
    assert jobs["base-b-cpu"]["strategy"] == {"fail-fast": False, "matrix": {"shard": [1, 2, 3]}}
    assert jobs["base-b-cpu"]["runs-on"] == ["linux"]
    assert "schedule" in jobs["nightly-cpu"]["if"]
    (run,) = [step["run"] for step in jobs["base-b-cpu"]["steps"] if "suite run" in step.get("run", "")]
    assert "--stage base-b --runner cpu --shards 3 --shard ${{ matrix.shard }}" in run


def test_a_comment_reaches_the_shell_through_the_environment_only(tmp_path: Path) -> None:
    rerun = yaml.safe_load(workflow(collect(find(write_project(tmp_path, {"test_a.py": BASE_A})))))["jobs"][
        "rerun-test"
    ]
    assert "author_association" in rerun["if"]
    assert not any("comment.body" in step.get("run", "") for step in rerun["steps"])

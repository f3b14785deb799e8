"""A GitHub Actions workflow from the table and the registrations: a job per stage and runner, shards as its matrix.

The number of shards stands in the table, so that the workflow changes when the table does and not with every test.
A comment `/rerun-test FILE[::Class[.method]]` by somebody who may write reruns that on the file's own kind of machine.
"""

from __future__ import annotations

import json

from zerokl.suites.registry import Registry
from zerokl.suites.table import Runner, Stage

HEAD = """\
# Written by `zerokl suite workflow` from tests/suites.toml: change that, not this.
name: suites
on:
  push: {branches: [main]}
  pull_request: {types: [opened, synchronize, reopened, labeled]}
  schedule: [{cron: "0 3 * * *"}]
  issue_comment: {types: [created]}
permissions: {contents: read}
jobs:
"""


def workflow(registry: Registry) -> str:
    """Jobs in the order of stages; one needs all jobs of the stages before it that are not on request."""
    jobs: list[str] = []
    before: list[str] = []
    for stage in registry.table.stages.values():
        names = []
        for runner in _runners(registry, stage):
            names.append(f"{stage.name}-{runner.name}")
            jobs.append(_job(names[-1], stage, runner, before))
        if not stage.on_request:
            before += names
    return HEAD + "\n".join([*jobs, _rerun_job(registry)])


def _runners(registry: Registry, stage: Stage) -> list[Runner]:
    names = dict.fromkeys(one.runner_config for one in registry.registrations if one.stage == stage.name)
    return [registry.table.runners[name] for name in names]


def _job(name: str, stage: Stage, runner: Runner, before: list[str]) -> str:
    label = f"contains(github.event.pull_request.labels.*.name, 'run-{stage.name}')"
    bypass = "contains(github.event.pull_request.labels.*.name, 'bypass-fail-fast')"
    nightly = " --nightly" if stage.name == "nightly" else ""
    wanted = "github.event_name == 'schedule'" if nightly else f"github.event_name == 'pull_request' && {label}"
    when = wanted if stage.on_request else "github.event_name != 'issue_comment'"
    healthy = f"(success() || {bypass} || github.event_name == 'schedule')"
    lines = [
        f"  {name}:",
        f"    if: ${{{{ !cancelled() && {healthy} && {when} }}}}",
        *([f"    needs: [{', '.join(before)}]"] if before else []),
        f"    runs-on: {json.dumps(list(runner.labels))}",
        f"    timeout-minutes: {int(stage.shard_limit_s // 60) + 30}",
        "    strategy:",
        "      fail-fast: false",
        f"      matrix: {{shard: {list(range(1, stage.shards + 1))}}}",
        "    steps:",
        "      - uses: actions/checkout@v4",
        *_setup(runner),
        "      - run: >-",
        f"          .venv/bin/zerokl suite run --stage {stage.name} --runner {runner.name}{nightly}",
        f"          --shards {stage.shards} --shard ${{{{ matrix.shard }}}}",
        f"          ${{{{ {bypass} && '--keep-going' || '' }}}}",
        *_upload(f"{name}-${{{{ matrix.shard }}}}"),
    ]
    return "\n".join(lines) + "\n"


def _rerun_job(registry: Registry) -> str:
    """The comment's text reaches the shell through the environment only: it is a stranger's until checked."""
    runner = next(iter(registry.table.runners.values()))
    may_write = 'contains(fromJSON(\'["OWNER", "MEMBER", "COLLABORATOR"]\'), github.event.comment.author_association)'
    lines = [
        "  rerun-test:",
        "    if: >-",
        "      ${{ github.event_name == 'issue_comment' && github.event.issue.pull_request",
        f"      && startsWith(github.event.comment.body, '/rerun-test ') && {may_write} }}}}",
        f"    runs-on: {json.dumps(list(runner.labels))}",
        "    timeout-minutes: 60",
        "    steps:",
        "      - uses: actions/checkout@v4",
        "        with: {ref: 'refs/pull/${{ github.event.issue.number }}/merge'}",
        *_setup(runner),
        "      - env: {COMMENT: '${{ github.event.comment.body }}'}",
        "        run: |",
        '          read -r _ tests <<< "$COMMENT"',
        '          read -ra tests <<< "$tests"',
        '          .venv/bin/zerokl suite rerun -- "${tests[@]}"',
        *_upload("rerun-test"),
    ]
    return "\n".join(lines) + "\n"


def _setup(runner: Runner) -> list[str]:
    return [f"      - run: {json.dumps(command)}" for command in runner.setup]


def _upload(name: str) -> list[str]:
    return [
        "      - if: always()",
        "        uses: actions/upload-artifact@v4",
        f"        with: {{name: '{name}', path: suite-reports}}",
    ]

"""Test suites by stage and runner: who registers, where it runs, how long it may take, and what a failure was about.

A test file (or its folder's `__init__.py`, for all files of the folder) registers with one static call:

    from zerokl.suites import register_cpu_ci

    register_cpu_ci(est_time=12, stage="base-b", runner_config="cpu-small")

The call does nothing when the file runs; `registration` reads it from the source without importing it.

    cli ─▶ registry (table + registrations) ─▶ partition ─▶ run ─▶ execute ─▶ pytest with `plugin`
                                                              └──▶ reports, flaky, terminal
"""

from zerokl.suites.register import register_cpu_ci, register_cuda_ci

__all__ = ["register_cpu_ci", "register_cuda_ci"]

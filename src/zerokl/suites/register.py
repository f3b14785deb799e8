"""The calls that test files make. They do nothing: `registration` reads them from the source."""

from __future__ import annotations


def register_cpu_ci(
    est_time: float, *, stage: str, runner_config: str, nightly: bool = False, disabled: str | None = None
) -> None:
    """This file's tests run on a CPU, in `stage`, on a machine of `runner_config`, in about `est_time` seconds.

    Constants only. `disabled` is "YYYY-MM-DD: reason", and expires; `nightly` tests run when asked for.
    """


def register_cuda_ci(
    est_time: float, *, stage: str, runner_config: str, nightly: bool = False, disabled: str | None = None
) -> None:
    """As `register_cpu_ci`, on NVIDIA GPUs: the runner config says how many, of what memory and capability."""

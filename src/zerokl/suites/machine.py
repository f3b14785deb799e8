"""Has this machine what a runner config needs? If not, its suites are skipped, with the reason and counted."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from zerokl.suites.table import Runner


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_gib: float
    capability: float


@dataclass(frozen=True, slots=True)
class Machine:
    cpus: int
    memory_gib: float
    gpus: tuple[Gpu, ...] = ()

    def lacks(self, runner: Runner) -> str:
        """What is missing, in words; "" if nothing is."""
        if self.cpus < runner.cpus:
            return f"needs {runner.cpus} CPU cores, has {self.cpus}"
        if self.memory_gib < runner.memory_gib:
            return f"needs {runner.memory_gib:g} GiB of memory, has {self.memory_gib:.1f}"
        low, high = runner.capability
        fit = [gpu for gpu in self.gpus if gpu.memory_gib >= runner.gpu_memory_gib and low <= gpu.capability <= high]
        if len(fit) < runner.gpus:
            size = f" with {runner.gpu_memory_gib:g} GiB" if runner.gpu_memory_gib else ""
            kind = f" of capability {low:g} to {high:g}" if low else ""
            return f"needs {runner.gpus} GPU{'s' if runner.gpus > 1 else ''}{size}{kind}, has {len(fit)} such"
        return ""


def this_machine() -> Machine:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores, _memory_gib(), _gpus())


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError):
        return float("inf")  # unknown: the test itself will find out


def _gpus() -> tuple[Gpu, ...]:
    """What the driver's own tool lists; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=memory.total,compute_cap", "--format=csv,noheader,nounits"]
    if not any((Path(folder) / query[0]).exists() for folder in os.get_exec_path()):
        return ()
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    rows = [line.split(",") for line in answer.stdout.splitlines() if answer.returncode == 0 and line.count(",") == 1]
    return tuple(Gpu(float(memory) / 1024, float(capability)) for memory, capability in rows)

"""How much memory this process may still take."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes: what the system says is available, and no more than what the process's control group leaves."""
    return min(available_in_system(), left_in_control_group())


def resident_memory(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Bytes of this process in memory, mapped files among them; None where the system doesn't say."""
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_in_system(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Linux's own estimate; elsewhere half of the physical memory."""
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def left_in_control_group(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Limit less usage, of version 2 or 1 of control groups; a very large number where there is no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (group / limit).exists() and (group / used).exists():
            text = (group / limit).read_text().strip()
            return 2**63 if text == "max" else max(0, int(text) - int((group / used).read_text()))
    return 2**63

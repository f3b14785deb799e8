"""Who runs next and how much: integers only. `plan()` gives a step, `commit()` takes what came of it."""

from zerokl.scheduler.counters import Counters, SchedulerStats
from zerokl.scheduler.scheduler import Limits, Scheduler
from zerokl.scheduler.state import MaskSource

__all__ = ["Counters", "Limits", "MaskSource", "Scheduler", "SchedulerStats"]

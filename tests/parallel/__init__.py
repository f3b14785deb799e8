"""Ranks of one model, as threads and as processes: the same bits for every number of them."""

from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=15, stage="base-b", runner_config="cpu-small")

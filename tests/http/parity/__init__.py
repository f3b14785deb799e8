"""The Rust frontend against the Python one: whole answers, byte for byte."""

from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=40, stage="base-b", runner_config="cpu-small")

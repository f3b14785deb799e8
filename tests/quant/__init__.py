from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=12, stage="base-a", runner_config="cpu-small")

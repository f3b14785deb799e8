from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=5, stage="base-a", runner_config="cpu-small")

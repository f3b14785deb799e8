from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=15, stage="base-a", runner_config="cpu-small")
register_cpu_ci(est_time=60, stage="nightly", runner_config="cpu-small", nightly=True)

from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=60, stage="extra-b", runner_config="1-gpu-small")

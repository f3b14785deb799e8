"""The numerics side of a step: StepPlan -> arrays -> model -> tokens and logprobs -> StepResult."""

from zerokl.runner.cpu import CpuRunner
from zerokl.runner.known_answers import known_answer_digest
from zerokl.runner.kv import bytes_per_token, pages_that_fit
from zerokl.runner.sizes import pool_bytes, pools_for

__all__ = ["CpuRunner", "bytes_per_token", "known_answer_digest", "pages_that_fit", "pool_bytes", "pools_for"]

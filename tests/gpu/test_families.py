"""Every architecture on the GPU: near the CPU, and the same bits in any company, cut and arrival, graphs on or off.

The tiny models of `tests/models/families.py`, with heads of a size that the GPU has; in bfloat16, the CPU's weights are
rounded likewise.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from tests.crowd import Answer, Crowd, assert_as_alone
from tests.gpu.device import INTERPRETED
from tests.gpu.models import settle
from tests.models.families import FAMILIES, config_of, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor
from tests.models.variants import tokens
from zerokl import models
from zerokl.cache import Cache
from zerokl.config import Config
from zerokl.engine.loop import Engine
from zerokl.models import Model
from zerokl.runner import CpuRunner
from zerokl.runner.cuda import CudaRunner, Options
from zerokl.runner.sizes import pools_of
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import LogprobSpec, Pools, Request, RequestId, SamplingParams

SIZES = {"head_dim": 32, "swa_head_dim": 16, "rel_extent": 36}
"""Powers of two, where a tiny config has others."""
MAX_TOKENS, NUM_PAGES, RUNNING, CONTEXT = 64, 24, 6, 400
SPEC = LogprobSpec(2, (0, 283))
SHORT = ("inkling", "gemma3", "qwen3-moe", "mixtral", "mistral", "gemma2", "lfm2", "granite-hybrid", "qwen3-next")
CHOSEN = SHORT if INTERPRETED else tuple(FAMILIES)
every_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CHOSEN]
)
SPREAD = {"head_dim": 16}
UNLIKE = {
    "phi3-short": SPREAD | {"max_position_embeddings": 512, "original_max_position_embeddings": 512},
    "phi3-long": SPREAD,
}
"""Their factors are for six pairs."""


@cache
def model(family: str, device: str = "cuda") -> Model:
    config = config_of(family) | SIZES | UNLIKE.get(family, {})
    checkpoint = MemoryCheckpoint(config, {name: MemoryTensor(array) for name, array in tensors_of(config).items()})
    dtype = "auto" if device == "cuda" else "float32" if INTERPRETED else "bfloat16"
    return models.load(checkpoint, Config(device=device, dtype=dtype, context_length=CONTEXT))


def pools(family: str) -> Pools:
    return pools_of(model(family).memory, NUM_PAGES, 64, RUNNING)


@cache
def runner(family: str, graphs: bool) -> CudaRunner:
    own = pools(family)
    options = Options(max_tokens=MAX_TOKENS, max_segments=RUNNING, decode_graphs=graphs, prefill_graphs=graphs)
    return CudaRunner(model(family), NUM_PAGES, options, windows=own.windows, states=own.states, fill=float("nan"))


def crowd(family: str, graphs: bool, budget: int = MAX_TOKENS, enabled: bool = True) -> Crowd:
    """A new engine; what unwritten places hold is NaN again."""
    made, own = runner(family, graphs), pools(family)
    made.layers.fill(float("nan"))
    settle()
    limits = Limits(
        context_length=CONTEXT, max_running_requests=RUNNING, max_queued_requests=99, chunked_prefill_size=budget
    )
    cache = Cache(NUM_PAGES, 64, enabled, windows=own.windows, states=own.states)
    return Crowd(Engine(Scheduler(limits, cache, made.lag), made))


def request(number: int, length: int, outputs: int, temperature: float = 0.0, story: int = 0) -> Request:
    prompt = tuple(tokens(2 * length + story, 280)[story : story + length])
    sampling = SamplingParams(temperature=temperature, seed=number)
    return Request(RequestId(number), prompt, outputs, sampling, logprobs=SPEC, logprob_start=0)


REQUESTS = [
    request(0, 70, 4),
    request(1, 3, 9, 0.8),
    request(2, 130, 3),
    request(3, 1, 12, 1.0),
    request(4, 64, 4),
    request(5, 150, 2),
    replace(request(6, 130, 6), logprob_start=128),  # behind the cached prefix of number 2
]


@cache
def alone(family: str, asked: Request) -> Answer:
    """Its answer in an engine of its own: eager, uncached, in chunks as large as they come."""
    (answer,) = crowd(family, False, enabled=False).serve(replace(asked, request_id=RequestId(0)))
    return answer


@every_family
def test_logprobs_are_near_the_cpus(family):
    asked = REQUESTS[5]
    answer = alone(family, asked)
    plain = model(family, "cpu")
    own = pools_of(plain.memory, NUM_PAGES, 64, RUNNING)
    limits = Limits(context_length=CONTEXT, chunked_prefill_size=512)
    cpu = CpuRunner(plain, NUM_PAGES, 64, windows=own.windows, states=own.states)
    cache = Cache(NUM_PAGES, 64, windows=own.windows, states=own.states)
    (expected,) = Crowd(Engine(Scheduler(limits, cache, 0), cpu)).serve(asked)
    found, wanted = (np.frombuffer(one.scores.chosen, np.float32) for one in (answer, expected))
    assert np.isfinite(found).all()
    assert np.abs(found - wanted).mean() < (2e-4 if INTERPRETED else 0.3)


@every_family
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(("budget", "gap"), [(17, 1)] if INTERPRETED else [(17, 1), (64, 0), (40, 3)])
def test_company_cuts_and_arrivals_move_no_bit(family, graphs, budget, gap):
    if INTERPRETED and graphs and family not in ("inkling", "gemma3"):
        pytest.skip("graphs are fakes there: two families are enough")
    together = crowd(family, graphs, budget)
    for asked in REQUESTS:
        together.submit(asked)
        together.steps(gap)
    together.finish_all()
    assert_as_alone(together.answers, REQUESTS, lambda asked: alone(family, asked))

"""The next token of each row: a function of its logits, its parameters, its seed and its position, of nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.kv import F32, I32, check_array
from zerokl.types import SamplingParams

GREEDY_BELOW = 1e-6
"""A temperature below this is argmax."""


class Draw(Struct, frozen=True):
    """What one row's draw depends on besides its logits."""

    params: SamplingParams
    position: int
    """Absolute position that the drawn token takes in its sequence."""
    history: tuple[Sequence[int], Sequence[int]] | None = None
    """(prompt ids, output ids so far); needed where `params.needs_history`."""
    mask: bytes | None = None
    """Grammar: bit i of byte i // 8 says that id i is allowed; None: all."""


def sample(logits: F32, draws: Sequence[Draw]) -> I32:
    """Draw one id per row.

    Maths       x = process(logits, draws); id = argmax(x + g), g = -log(-log(u)); at temperature 0, argmax(x)
    Shapes      logits [R, V] f32, R draws -> [R] i32
    Noise       u = (r + 1/2) / 2^32, strictly inside (0, 1); r is word `id mod 4` of Philox4x32-10 with
                counter (id // 4, position, stream, 0) and key (seed mod 2^32, seed // 2^32 mod 2^32).
                g is computed from E = -log(u) without cancellation: see `reference.gumbel`. g < 23.
    Order       none: equal sums go to the lower id
    Same bits   for every R, row place, neighbour, thread count and instruction set; the noise of an id does not
                depend on which filters are on
    Free        rows per thread, skipping ids whose logit is too low for any noise to save (tests/ops/test_sample.py)
    Raises      ShapeError, UnsupportedDtype; EngineError for a NaN, a +inf or a row where nothing may be drawn
    Oracle      ops/reference.py: sample
    """
    check_draws(logits, draws)
    ids = np.empty(len(draws), np.int32)
    _native.sample(logits, draws, ids)
    return ids


def process(logits: F32, draws: Sequence[Draw]) -> F32:
    """The logits of the distribution that `sample` draws from; what can't be drawn is -inf.

    `score(process(logits, draws), ...)` gives the logprobs of `logprobs_mode = processed`.

    Maths       in this order, on x = logits:
                  repetition penalty r    ids of prompt and output: x > 0 ? x / r : x * r
                  frequency penalty f     x - f * (times in the output)
                  presence penalty p      x - p, ids in the output
                  logit bias              x + bias
                  grammar mask            what is not allowed: -inf
                  temperature T           x / T;  T < 1e-6: the argmax is 0, all else -inf, and the filters are idle
                  top-k                   the first k in the order (x falling, id rising) stay
                  top-p                   in that order, among what top-k left: stays while the weight before it is
                                          < max(1, ceil(p * W)); weight = floor(exp(x - max) * 2^40), W their sum
                  min-p                   stays if exp(x - max) >= f32(min_p)
                So of equal logits at the boundary of top-k or top-p the lower ids stay, as many as there is room for.
    Shapes      logits [R, V] f32, R draws -> [R, V] f32
    Rounding    parameters to f32 first; every operation above is one f32 operation (f * times is one, its subtraction
                the next); exp(d) = exp2(d * f32(log2 e)); weights are exact integers, p * W one f64 product
    Order       none: weights are summed as integers
    Same bits   for every R, row place, neighbour, thread count and instruction set
    Free        rows per thread, how the boundaries are found
    Raises      as `sample`
    Oracle      ops/reference.py: process
    """
    check_draws(logits, draws)
    processed = np.empty(logits.shape, np.float32)
    _native.process(logits, draws, processed)
    return processed


def check_draws(logits: F32, draws: Sequence[Draw]) -> None:
    """One draw per row of a [R, V] array with V > 0. What a draw holds is checked by the kernel."""
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ShapeError(f"logits must be [R, V] with V > 0, not {list(logits.shape)}")
    check_array("logits", logits, np.float32, (len(draws), logits.shape[1]))

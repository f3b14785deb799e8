"""Logprobs of rows of logits: one log-softmax for scored prompt tokens and sampled tokens alike."""

from __future__ import annotations

import numpy as np

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.kv import F32, I32, check_array
from zerokl.types import Logprobs, LogprobSpec

BLOCK = 1024
"""Frozen: the vocabulary is summed in blocks of this many absolute ids. A vocabulary shard is whole blocks."""


def score(logits: F32, targets: I32, spec: LogprobSpec) -> Logprobs:
    """The logprob of each row's target, of its `num_top` likeliest ids and of the ids asked for.

    Maths       logprob(i) = x_i - log(sum_j exp(x_j))
    Shapes      logits [R, V] f32 (-inf is legal), targets [R] i32 -> columns of `rows = R`; num_top is cut to V
    Rounding    f32: logprob = x - (M + log2(S) * f32(ln 2))
    Order       blocks of 1,024 absolute ids: m = max; sum of exp2((x - m) * f32(log2 e)) in 16 lanes by id mod 16,
                folded by the usual tree. M = max of all m; S = chain of fma(s_b, exp2((m_b - M) * f32(log2 e)), S) over
                blocks in order from +0, blocks of nothing but -inf left out.
                Top: by logit, highest first, equal logits by lower id. (Two logits can round to one logprob; they
                keep the order of their logits, so the first is always the argmax.)
    Same bits   for every R, row place, thread count and instruction set; a logprob doesn't depend on the spec
    Free        rows per thread, how the top is found (tests/ops/test_score.py)
    Raises      ShapeError, UnsupportedDtype; EngineError for a NaN, a +inf or a row of nothing but -inf
    Oracle      ops/reference.py: score
    """
    rows, vocabulary = logits.shape if logits.ndim == 2 else (0, 0)
    check_array("logits", logits, np.float32, (rows, vocabulary))
    check_array("targets", targets, np.int32, (rows,))
    if vocabulary == 0:
        raise ShapeError(f"logits must be [R, V] with V > 0, not {list(logits.shape)}")
    num_top = min(spec.num_top, vocabulary)
    ids = np.asarray(spec.ids, np.int32)
    chosen = np.empty(rows, np.float32)
    top_ids, top = np.empty((rows, num_top), np.int32), np.empty((rows, num_top), np.float32)
    by_id = np.empty((rows, len(ids)), np.float32)
    _native.score(logits, targets, ids, chosen, top_ids, top, by_id)
    return Logprobs(rows, num_top, len(ids), chosen.tobytes(), top_ids.tobytes(), top.tobytes(), by_id.tobytes())

"""The bits of a fixed small run of every operation, as a digest: evidence that this machine does the known arithmetic.

The digest is part of the fingerprint. At start it is compared with the one in `known_answers.json`, so a compiler, a
processor or a library that rounds otherwise is a start-up error that names the operation, and never a surprise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.runner.known_quantised import quantised_answers
from zerokl.types import LogprobSpec, SamplingParams

COMMITTED = Path(__file__).with_name("known_answers.json")
"""{device family: {operation: hex sha256 of its answers}}; written by `make goldens` alone."""

ROWS, EMBEDDING, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY, PAGE_SIZE = 5, 72, 4, 2, 24, 2100, 8
"""Odd enough to have tails: 72 and 24 are no multiples of 16, 2,100 ids are two blocks of 1,024 and a part."""


def known_answer_digest() -> str:
    """Hex sha256 of every operation's answers on this machine, for the fingerprint. Raises EngineError as verifying."""
    return verify_known_answers()


def digest_of(answers: Mapping[str, str]) -> str:
    """One digest of all."""
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()


@cache
def verify_known_answers(family: str = "cpu") -> str:
    """The answers' digest, once computed. Raises EngineError that names the operations whose bits aren't committed."""
    found = known_answers()
    compare_known_answers(found, family)
    return digest_of(found)


def compare_known_answers(found: Mapping[str, str], family: str) -> None:
    """Raise EngineError that names the operations whose bits aren't the committed ones of this device family."""
    expected: Mapping[str, str] = json.loads(COMMITTED.read_text())[family]
    wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    if wrong:
        raise EngineError(
            f"this machine's arithmetic differs from the known answers of {family!r} in: {', '.join(sorted(wrong))}"
        )


def known_answers() -> dict[str, str]:
    """{operation: hex sha256 of the bytes that it gives for fixed inputs}."""
    digests: dict[str, str] = {}
    for name, answer in run_every_operation():
        digests[name] = hashlib.sha256(digests.get(name, "").encode() + answer).hexdigest()
    return digests


def run_every_operation() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of one small call of each operation, and of `linear` in each weight type."""
    x = numbers(1, ROWS, EMBEDDING)
    for dtype in ("float32", "float16", "bfloat16"):
        weight = ops.pack(numbers(2, HEADS * HEAD_SIZE, EMBEDDING), dtype)
        yield "linear", ops.linear(x, weight, bias=numbers(3, HEADS * HEAD_SIZE)).tobytes()
        yield "embedding", ops.embedding(weight, np.array([0, 17, 95], np.int32)).tobytes()
    leaves = ops.pack(numbers(2, HEADS * HEAD_SIZE, EMBEDDING), "bfloat16", leaves=(32, 48, EMBEDDING))
    yield "linear in leaves", ops.linear(x, leaves, bias=numbers(3, HEADS * HEAD_SIZE)).tobytes()
    yield "rms_norm", ops.rms_norm(x, numbers(4, EMBEDDING), 1e-5).tobytes()
    yield "layer_norm", ops.layer_norm(x, numbers(4, EMBEDDING), numbers(39, EMBEDDING), 1e-5).tobytes()
    yield "swiglu", ops.swiglu(numbers(5, ROWS, EMBEDDING) * np.float32(16)).tobytes()
    positions = np.array([0, 1, 600, 601, 70000], np.int32)
    cos, sin = ops.rope_table(positions, np.array([1.0, 0.1, 1e-4, 2.0**-20]))
    yield "rope", cos.tobytes() + sin.tobytes() + ops.rope(numbers(6, ROWS, HEADS, HEAD_SIZE), cos, sin).tobytes()
    yield "rotate_and_store", rotated_answer(positions, (cos, sin))
    yield "gated_linear", ops.gated_linear(x, ops.pack(numbers(15, 64, EMBEDDING), "bfloat16")).tobytes()
    attention, biased = attention_answer()
    yield "attention", attention
    yield "attention with bias", biased
    for narrow in (np.uint16, np.uint8):
        yield "attention of narrow keys", attention_answer(narrow)[0]
    logits = numbers(7, ROWS, VOCABULARY) * np.float32(30)
    columns = ops.score(logits, np.arange(ROWS, dtype=np.int32), LogprobSpec(3, (VOCABULARY - 1,)))
    yield "score", columns.chosen + columns.top_ids + columns.top + columns.ids
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=50, min_p=0.001, repetition_penalty=1.1, seed=2**40 + 1)
    draws = [ops.Draw(params, 1000 + row, ([5, 6], [7, 7])) for row in range(ROWS)]
    yield "sample", ops.sample(logits, draws).tobytes()
    yield "process", ops.process(logits, draws).tobytes()
    yield from hybrid_answers(x)
    yield from quantised_answers(numbers(40, ROWS, 256))


def hybrid_answers(x: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """What layers that aren't plain attention and MLP add."""
    gate = numbers(20, ROWS, EMBEDDING) * np.float32(16)
    for activation in ("identity", "sigmoid", "silu"):
        yield "gated", ops.gated(x, gate, activation).tobytes()
    yield "geglu", ops.geglu(gate).tobytes()
    yield "gelu", ops.gelu(gate).tobytes()
    yield "scale", ops.scale(x, numbers(21, ROWS)).tobytes()
    yield "softcap", ops.softcap(gate, 5.0).tobytes()
    logits, bias = numbers(22, ROWS, 20) * np.float32(8), numbers(23, 18)
    soft, (chosen, weights) = ops.route(logits, 4), ops.route(logits, 3, scores="sigmoid", shared=2, bias=bias)
    yield "route", soft[0].tobytes() + soft[1].tobytes() + chosen.tobytes() + weights.tobytes()
    first = [ops.pack(numbers(24 + i, 48, EMBEDDING), "float32") for i in range(3)]
    second = [ops.pack(numbers(27 + i, EMBEDDING, 24), "bfloat16") for i in range(3)]
    yield "experts", ops.experts(x, first, second, chosen % 3, weights[:, :3].copy(), residual=gate).tobytes()
    cut = [ops.pack(numbers(27 + i, EMBEDDING, 24), "bfloat16", leaves=(16, 24)) for i in range(3)]
    yield "experts in leaves", ops.experts(x, first, cut, chosen % 3, weights[:, :3].copy(), residual=gate).tobytes()
    starts, taps = np.array([0, 2, ROWS], np.int32), numbers(30, 4, EMBEDDING)
    conv = ops.short_conv(x, taps, numbers(31, 2, 3, EMBEDDING), starts, activation="silu", residual=True)
    yield "short_conv", conv.tobytes()
    step, decay = ops.time_steps(x[:, :HEADS].copy(), numbers(32, HEADS), numbers(33, HEADS), (0.01, 1.0))
    yield "time_steps", step.tobytes() + decay.tobytes()
    q, k = numbers(34, ROWS, KV_HEADS, HEAD_SIZE), numbers(35, ROWS, KV_HEADS, HEAD_SIZE)
    v, skip = numbers(36, ROWS, HEADS, 20), numbers(37, HEADS)
    state = recurrent_state(starts)
    yield "gated_delta", ops.gated_delta(q, k, v, decay, step, state).tobytes() + state.pool.tobytes()
    state = recurrent_state(starts)
    yield "selective_scan", ops.selective_scan(v, q, k, step, decay, skip, state).tobytes() + state.pool.tobytes()


def recurrent_state(starts: np.ndarray) -> ops.RecurrentState:
    """Two sequences, the second with a checkpoint on its way."""
    one = np.array([1], np.int32)
    step = ops.StepStates(
        np.array([0, 1, 7, 8, 9], np.int32), starts, np.array([0, 1], np.int32), one, one * 4, one * 2
    )
    return ops.RecurrentState(numbers(38, 3, HEADS, HEAD_SIZE, 20), np.zeros((2, 1, 0), np.float32), step)


def rotated_answer(positions: np.ndarray, turns: tuple[np.ndarray, np.ndarray]) -> bytes:
    """Queries, and the one page that the keys and values went to."""
    slots, row_starts = np.array([6, 0, 3, -1, 1], np.int32), np.array([0, ROWS], np.int32)
    step = ops.Ragged(positions, slots, row_starts, np.zeros((1, 1), np.int32), PAGE_SIZE)
    pools = np.zeros((2, 1, KV_HEADS, HEAD_SIZE * PAGE_SIZE), np.float32)
    k, v = pools[0].reshape(1, KV_HEADS, HEAD_SIZE, PAGE_SIZE), pools[1].reshape(1, KV_HEADS, PAGE_SIZE, HEAD_SIZE)
    qkv, norms = numbers(14, ROWS, (HEADS + 2 * KV_HEADS) * HEAD_SIZE), numbers(16, 2, HEAD_SIZE)
    options = {"q_norm": norms[0].copy(), "k_norm": norms[1].copy(), "norm_eps": 1e-6}
    return ops.rotate_and_store(qkv, ops.LayerKV(k, v, step), turns, HEADS, **options).tobytes() + pools.tobytes()


def attention_answer(kept: type[np.generic] = np.float32) -> tuple[bytes, bytes]:
    """One sequence of 600 keys, so of two chunks, seen by its last five tokens: plainly and with every
    older option, then with a bias."""
    length, pages = 600, 75
    ragged = ops.Ragged(
        positions=np.arange(length, dtype=np.int32),
        slots=np.arange(length, dtype=np.int32),
        row_starts=np.array([0, length], np.int32),
        page_table=np.arange(pages, dtype=np.int32)[None],
        page_size=PAGE_SIZE,
    )
    kv = ops.LayerKV(
        np.zeros((pages, KV_HEADS, HEAD_SIZE, PAGE_SIZE), kept),
        np.zeros((pages, KV_HEADS, PAGE_SIZE, HEAD_SIZE), kept),
        ragged,
        scales=(0.01, 0.013),
    )
    ops.store_kv(kv, numbers(8, length, KV_HEADS, HEAD_SIZE), numbers(9, length, KV_HEADS, HEAD_SIZE))
    last = np.arange(length - ROWS, length, dtype=np.int32)
    shape = ops.Ragged(last, last, np.array([0, ROWS], np.int32), ragged.page_table, PAGE_SIZE)
    seen = ops.LayerKV(kv.k, kv.v, shape, scales=kv.scales)
    q, scale = numbers(10, ROWS, HEADS, HEAD_SIZE) * np.float32(8), HEAD_SIZE**-0.5
    options = ops.attention(q, seen, scale, window=100, softcap=20.0, sinks=numbers(11, HEADS))
    biased = ops.attention(q, seen, scale, bias=(numbers(12, ROWS, HEADS, 6), numbers(13, 6, 70)))
    return ops.attention(q, seen, scale).tobytes() + options.tobytes(), biased.tobytes()


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Exact multiples of 2**-23 in [-1, 1), by integer arithmetic (splitmix64): no library can move them."""
    z = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(shape)

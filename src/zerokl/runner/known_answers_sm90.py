"""The GPU's known answers, computed on the CPU: evidence that `--cpu-numerics sm90` has that GPU's bits.

The inputs are those of `known_answers_gpu.py`, the digests those that it committed for the family; only operations that
a tape has are here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache

import numpy as np

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.ops.tape import NO_STEP, NO_TOKENS, record
from zerokl.runner.known_answers import COMMITTED, digest_of, numbers

FAMILY = "sm90"
ROWS, DEPTH, HEADS, KV_HEADS, HEAD_SIZE, KEYS, PAGE_SIZE = 5, 192, 4, 2, 64, 600, 64


def family_digest() -> str:
    """The family's part of the fingerprint: a GPU has the same."""
    return digest_of(json.loads(COMMITTED.read_text())[FAMILY])


@cache
def verify_gpu_answers() -> None:
    """Raise EngineError that names the operations whose bits aren't the GPU's."""
    expected = json.loads(COMMITTED.read_text())[FAMILY]
    wrong = [name for name, digest in gpu_answers().items() if digest != expected[name]]
    if wrong:
        raise EngineError(f"on this machine the arithmetic of {FAMILY!r} differs in: {', '.join(sorted(wrong))}")


def gpu_answers(numerics: str = FAMILY) -> dict[str, str]:
    """{operation: hex sha256 of the bytes that it gives for fixed inputs}."""
    digests: dict[str, str] = {}
    for name, answers in run_operations(numerics):
        for answer in answers:
            digests[name] = hashlib.sha256(digests.get(name, "").encode() + answer).hexdigest()
    return digests


def run_operations(numerics: str) -> Iterator[tuple[str, list[bytes]]]:
    """(name, outputs); what the GPU has as bfloat16 in two bytes a number."""
    x, residual, bias = narrow(numbers(1, ROWS, DEPTH)), numbers(3, ROWS, 2 * DEPTH), numbers(4, 2 * DEPTH)
    weight = ops.pack(numbers(2, 2 * DEPTH, DEPTH), "bfloat16")
    products = record(
        (),
        (DEPTH, DEPTH, 2 * DEPTH),
        lambda tokens, ragged, layers, x, larger, residual: [
            ops.linear(x, weight, wide=True),
            ops.linear(x, weight, bias=bias, residual=residual),
            ops.gated_linear(larger, weight),
        ],
        numerics,
    )
    norms = record((), (DEPTH,), lambda tokens, ragged, layers, x: ops.rms_norm(x, numbers(5, DEPTH), 1e-5), numerics)
    assert products
    assert norms
    plain, added, gated = products.run(NO_TOKENS, NO_STEP, x, x * np.float32(16), residual)
    yield "linear", [plain.tobytes(), added.tobytes(), halves(gated)]
    yield "rms_norm", [halves(norms.run(NO_TOKENS, NO_STEP, rows)[0]) for rows in (x, numbers(9, ROWS, DEPTH))]
    yield "attention", attention_answers(numerics)


def attention_answers(numerics: str) -> list[bytes]:
    """600 keys in two steps, and what the last 5 tokens see: the GPU computes that in two ways."""
    pages = -(-KEYS // PAGE_SIZE)
    shape = (pages, KV_HEADS, HEAD_SIZE, PAGE_SIZE)
    kv = ops.LayerKV(np.zeros(shape, np.uint16), np.zeros((*shape[:2], PAGE_SIZE, HEAD_SIZE), np.uint16), NO_STEP)
    frequencies = np.array([0.5 ** (i / 4) for i in range(32)]).astype(np.float32).astype(np.float64)
    norm = np.full(HEAD_SIZE, 1.5, np.float32)
    qkv = narrow(numbers(8, KEYS, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)) * np.float32(4)

    def seen(tokens: np.ndarray, ragged: ops.Ragged, layers: list[ops.LayerKV], qkv: np.ndarray) -> np.ndarray:
        turns = ops.rope_table(ragged.positions, frequencies)
        q = ops.rotate_and_store(qkv, layers[0], turns, HEADS, q_norm=norm, k_norm=norm, norm_eps=1e-6)
        return ops.attention(q, layers[0], HEAD_SIZE**-0.5)

    tape = record([kv], (qkv.shape[1],), seen, numerics)
    assert tape
    table = np.arange(pages, dtype=np.int32)[None]
    out = b""
    for first in range(0, KEYS, ROWS):
        rows = np.arange(first, first + ROWS, dtype=np.int32)
        step = ops.Ragged(rows, rows, np.array([0, ROWS], np.int32), table, PAGE_SIZE)
        out = halves(tape.run(NO_TOKENS, step, qkv[first : first + ROWS])[0])
    return [np.ascontiguousarray(kv.k.transpose(0, 1, 3, 2)).tobytes(), kv.v.tobytes(), out, out]


def narrow(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to nearest even, as float32."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def halves(x: np.ndarray) -> bytes:
    """bfloat16 numbers, as the GPU has them in memory."""
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()

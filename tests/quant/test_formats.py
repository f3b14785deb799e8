"""Every format on every CPU body, at 1, 7, 64 and 300 rows: one row's bits, whatever surrounds it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.quant import BLOCK_TYPES, Fp8, Fp8Blocks, Nvfp4, numbers_of
from zerokl.runner.known_quantised import some_blocks, some_bytes

OUTPUTS, DEPTH = 40, 512
ROWS = (1, 7, 64, 300)


def fp8_codes() -> np.ndarray:
    codes = some_bytes(3, OUTPUTS, DEPTH)
    return np.where(codes & 0x7F == 0x7F, 0x7E, codes).astype(np.uint8)


FORMATS = {
    **{kind: lambda kind=kind: ops.pack_blocks(some_blocks(kind, OUTPUTS, DEPTH), kind, DEPTH, integer=False)
       for kind in BLOCK_TYPES},
    **{f"{kind} by int8": lambda kind=kind: ops.pack_blocks(
        some_blocks(kind, OUTPUTS, DEPTH), kind, DEPTH, integer=True) for kind in BLOCK_TYPES},
    "nvfp4": lambda: ops.pack_nvfp4(some_bytes(3, OUTPUTS, DEPTH // 2), fp8_codes()[:, : DEPTH // 16] & 0x7F, 0.37),
    "fp8": lambda: ops.pack_fp8(fp8_codes(), 0.37),
    "fp8 per output": lambda: ops.pack_fp8(fp8_codes(), wide(5, OUTPUTS)),
    "fp8 by blocks": lambda: ops.pack_fp8(fp8_codes(), wide(6, 1, DEPTH // 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_rows_bodies_and_threads_move_no_bit(name):
    packed, x = FORMATS[name](), wide(1, max(ROWS), DEPTH)
    expected = ops.linear(x, packed)
    for cpu in every_cpu():
        for rows in ROWS:
            assert same(ops.linear(x[:rows].copy(), packed), expected[:rows]), f"{cpu}, {rows} rows"
        assert same(ops.linear(x[299:].copy(), packed), expected[299:]), f"{cpu}, the last row alone"


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_exact_products_are_those_of_a_matrix_of_the_dequantised_numbers(kind):
    packed, x = FORMATS[kind](), wide(1, 13, DEPTH)
    plain = ops.pack(packed.float32(), "float32")
    assert same(ops.linear(x, packed), ops.linear(x, plain))
    assert same(ops.gated_linear(x, packed), ops.gated_linear(x, plain))
    ids = np.arange(OUTPUTS, dtype=np.int32)
    assert same(ops.embedding(packed, ids), ops.embedding(plain, ids))
    assert numbers_of(packed) == {"float32"}


def test_codes_of_all_bytes_unpack_to_their_numbers():
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    nvfp4 = Nvfp4(every, np.full((16, 2), 0x38, np.uint8), np.float32(1))
    assert same(nvfp4.pack(False).float32(), nvfp4.float32())
    assert nvfp4.float32()[2, 3] == 1.0  # byte 0x21: k 2 is code 1, k 3 code 2
    finite = np.where(every & 0x7F == 0x7F, 0, every).astype(np.uint8)
    fp8 = Fp8(finite, np.float32(1))
    assert same(fp8.pack(False).float32(), fp8.float32())


def test_blocks_of_fp8_end_raggedly_and_are_only_cut_between_blocks():
    codes, scales = fp8_codes()[:, :200], wide(7, 1, 2)
    blocks = Fp8Blocks(codes, scales)
    assert same(blocks.pack(False).float32(), blocks.float32())
    assert same(blocks[0:40].float32(), blocks.float32())
    tall = Fp8Blocks(np.tile(codes, (5, 1)), wide(8, 2, 2))
    assert same(tall[128:].float32(), tall.float32()[128:])
    with pytest.raises(Exception, match="only be cut between blocks"):
        tall[64:]


def test_shards_keep_their_factors():
    first, second = (
        FORMATS["nvfp4"](),
        ops.pack_nvfp4(some_bytes(9, 20, DEPTH // 2), fp8_codes()[:20, :32] & 0x7F, 0.11),
    )
    both, x = ops.stack([first, second]), wide(1, 5, DEPTH)
    assert both.dtype == "nvfp4"
    assert same(ops.linear(x, both), np.concatenate([ops.linear(x, first), ops.linear(x, second)], axis=1))
    assert ops.stack([first, FORMATS["q4_k"]()]).dtype == "nvfp4+q4_k"

"""Block types against the `gguf` package, bit for bit, on blocks of random bits (NaN and infinite scales included)."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from zerokl.checkpoints.quantised import CHUNK_BLOCKS, LAYOUTS, dequantise

ONE_BLOCK_AND_AROUND_A_CHUNK = (1, 3, CHUNK_BLOCKS, CHUNK_BLOCKS + 1)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("num_blocks", ONE_BLOCK_AND_AROUND_A_CHUNK)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_random_blocks_give_the_bits_of_the_gguf_package(kind: str, num_blocks: int) -> None:
    layout = LAYOUTS[kind]
    stored = np.random.default_rng(num_blocks).integers(0, 256, num_blocks * layout.block.itemsize, dtype=np.uint8)
    expected = gguf.quants.dequantize(stored.reshape(1, -1), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(dequantise(layout, stored).view(np.uint32), expected.reshape(-1).view(np.uint32))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layout_has_the_sizes_of_the_gguf_package(kind: str) -> None:
    sizes = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert (LAYOUTS[kind].values, LAYOUTS[kind].block.itemsize) == sizes


def test_q4_1_by_hand() -> None:
    d, m = np.float16(0.5).tobytes(), np.float16(-3).tobytes()
    block = d + m + bytes([0x21] * 16)  # low nibble 1, high nibble 2
    values = dequantise(LAYOUTS["Q4_1"], np.frombuffer(block, np.uint8))
    assert values.tolist() == [0.5 * 1 - 3] * 16 + [0.5 * 2 - 3] * 16

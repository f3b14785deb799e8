"""Quantised weights on the device: their numbers are the file's, and every way to multiply with them has one result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, relative_error, same
from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.ops import triton
from zerokl.ops.choices import BLOCKS, LIBRARY, Packed, Persistent, Shape, candidates, reference_of
from zerokl.ops.triton import admit, packed
from zerokl.ops.triton.admit import differing, inputs, outcome
from zerokl.quant import Fp8, Fp8Blocks, Nvfp4, Quantised, device_matrix_of

FORMS = ("nvfp4", "nvfp4/", "fp8", "fp8_block")
ROWS = (1, 7, 64, 300)
WAYS = [Packed(8, 2, 4, 6), Packed(8, 4, 4, 4), Packed(8, 1, 2, 8), Packed(16, 1, 4, 4), Packed(32, 4, 2, 4)]


def some(kind: str, rows: int, columns: int, seed: int = 0) -> Quantised:
    """Every code there is, scales of both signs and zero among NVFP4's, subnormal ones too."""
    random = np.random.default_rng(seed)

    def codes(*shape: int):
        found = random.integers(0, 256, shape, dtype=np.uint8)
        return np.where(found & 127 == 127, found - 8, found).astype(np.uint8)

    if kind.startswith("nvfp4"):
        scales = codes(rows, columns // 16)
        scales[0, 0], scales[1, 0] = 0, 0x80
        return Nvfp4(
            random.integers(0, 256, (rows, columns // 2), dtype=np.uint8), scales, np.float32(0.3), "/" in kind
        )
    if kind == "fp8":
        return Fp8(codes(rows, columns), random.random(rows).astype(np.float32) + np.float32(0.1))
    blocks = (-(-rows // 128), -(-columns // 128))
    return Fp8Blocks(codes(rows, columns), random.random(blocks).astype(np.float32) + np.float32(0.1))


@pytest.mark.parametrize("shape", [(16, 64), (40, 96), (200, 336)])
def test_unpacked_numbers_are_the_files(shape):
    """Bit by bit, the sign of zero included; nvfp4's are kept at 1/128 of their size."""
    of_nvfp4, of_fp8 = some("nvfp4", *shape), some("fp8", *shape)
    plain = Nvfp4(of_nvfp4.codes, of_nvfp4.scales, np.float32(1 / packed.SHRUNK))
    for stored, numbers in ((of_nvfp4, plain), (of_fp8, Fp8(of_fp8.codes, np.float32(1)))):
        found = packed.unpacked(device_matrix_of([stored], DEVICE))
        assert same(found, torch.from_numpy(numbers.float32()).to(DEVICE).to(NARROW))


@pytest.mark.parametrize("form", FORMS)
def test_products_are_near_float64(form):
    parts = [some(form, 48, 160, 1), some(form, 32, 160, 2)]
    weight = device_matrix_of(parts, DEVICE)
    x = inputs(Shape(0, 80, 160), 9, DEVICE, "gaussian", NARROW).x
    exact = x.double() @ torch.from_numpy(np.concatenate([part.float32() for part in parts])).to(DEVICE).double().T
    assert relative_error(ops.linear(x, weight, wide=True), exact) < 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_schedule_gives_the_reference_bits_at_any_rows(form, gated):
    """The matrix of formats, schedules and 1, 7, 64, 300 rows: raw float32 where the result isn't gated."""
    kind = Shape(0, 48 if INTERPRETED else 1008, 160 if INTERPRETED else 1600, gated, True, not gated, False, form)
    for how in admit.KINDS[: 1 if INTERPRETED else None]:
        given = inputs(kind, 7 if INTERPRETED else max(ROWS), DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, len(given.x))
        assert torch.isfinite(expected).all()
        for rows in ROWS[:2] if INTERPRETED else ROWS:
            for way in ways_of(kind, rows):
                assert differing(outcome(way, kind, given, rows), expected[:rows]) == 0, (how, rows, way)


def ways_of(kind: Shape, rows: int):
    found = [way for way in candidates(kind._replace(rows=rows)) if not isinstance(way, Packed | Persistent)]
    if not INTERPRETED:
        tiles = 2 if kind.form == BLOCKS else None
        found += dict.fromkeys(way._replace(tiles=tiles or way.tiles) for way in WAYS)
    return found if kind.form == BLOCKS else [*found, LIBRARY]


def test_a_planted_rounding_of_the_factor_into_the_numbers_differs():
    """What dequantising to bfloat16 would be: not these bits."""
    kind = Shape(0, 64, 256, form="nvfp4")
    given = inputs(kind, 16, DEVICE, "gaussian", NARROW)
    rounded = (packed.unpacked(given.w).float() * given.w.factors[:, None]).to(torch.bfloat16).to(NARROW)
    found = ops.linear(given.x, ops.DeviceMatrix(rounded), wide=True)
    expected = ops.linear(given.x, given.w, wide=True)
    assert differing(found, expected) > 0.9 * expected.numel()


def test_parts_keep_their_own_factors():
    parts = [some("nvfp4", 32, 128, seed) for seed in range(3)]
    parts = [Nvfp4(part.codes, part.scales, np.float32(0.1 * (i + 1))) for i, part in enumerate(parts)]
    x = inputs(Shape(0, 96, 128), 5, DEVICE, "gaussian", NARROW).x
    whole = ops.linear(x, device_matrix_of(parts, DEVICE), wide=True)
    apart = torch.cat([ops.linear(x, device_matrix_of([part], DEVICE), wide=True) for part in parts], 1)
    assert same(whole, apart)


def test_parts_of_several_formats_are_refused():
    with pytest.raises(UnsupportedModel, match="several formats"):
        device_matrix_of([some("fp8", 16, 64), some("nvfp4", 16, 64)], DEVICE)


@pytest.mark.device
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [130, 1024])
def test_tiles_that_programs_take_in_turn_give_the_reference_bits(form, rows):
    kind = Shape(0, 1024, 576, gated=True, form=form)
    given = inputs(kind, rows, DEVICE, "cancelling")
    expected = outcome(reference_of(kind), kind, given, rows)
    for way in candidates(kind._replace(rows=rows)):
        assert differing(outcome(way, kind, given, rows), expected) == 0, way


@pytest.mark.device
@pytest.mark.parametrize("kind", ["modelopt_fp4", "modelopt_fp8", "fp8"])
def test_a_model_of_quantised_weights_loads_packed(kind, tmp_path):
    from tests.checkpoints.tiny import make_tiny_llama
    from zerokl import checkpoints, models
    from zerokl.config import Config

    folder = make_tiny_llama(tmp_path, 0, hidden_size=128, intermediate_size=256)
    config = Config(device="cuda", quantization=kind)
    opened = checkpoints.open(folder, load_format="dummy", shapes_of=models.tensor_shapes, quantization=kind)
    loaded = models.load(opened, config).weights
    found = {type(matrix).__name__ for matrix in loaded.layers[0].matrices()}
    assert found == {"PackedMatrix"}
    assert triton.embedding(loaded.embed, torch.tensor([3], dtype=torch.int32, device=DEVICE)).shape == (1, 128)

"""Quantised weights on the device: their numbers are the file's, and every way to multiply with them has one result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.checkpoints.tiny import make_tiny_llama
from tests.crowd import Crowd
from tests.gpu.device import DEVICE, INTERPRETED, NARROW, relative_error, same
from tests.models.variants import tokens
from zerokl import checkpoints, models, ops
from zerokl.cache import Cache
from zerokl.config import Config
from zerokl.engine.loop import Engine
from zerokl.errors import UnsupportedModel
from zerokl.models import Model
from zerokl.ops import triton
from zerokl.ops.choices import (
    BLOCK_GROUPS,
    BLOCKS,
    LIBRARY,
    REFERENCE,
    OneRow,
    Packed,
    Persistent,
    Relay,
    Shape,
    candidates,
    reference_of,
)
from zerokl.ops.triton import admit, packed
from zerokl.ops.triton.admit import differing, inputs, outcome
from zerokl.ops.triton.experts import FEW, SOME, answers_of
from zerokl.quant import Fp8, Fp8Blocks, Nvfp4, Quantised, device_experts_of, device_matrix_of
from zerokl.runner.cuda import CudaRunner, Options
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import LogprobSpec, Request, RequestId, SamplingParams

FORMS = ("nvfp4", "nvfp4/", "fp8", "fp8_block")
ROWS = (1, 7, 64, 300)
ONE_ROW_WAYS = [OneRow(4, 3, 3), OneRow(4, 5, 3, 2), OneRow(2, 5, 4), OneRow(2, 3, 4, 2)]
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
    kind = Shape(0, 48 if INTERPRETED else 1008, 160 if INTERPRETED else 1600, gated, True, not gated, False, form=form)
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


@pytest.mark.device
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_one_row_by_warpgroups_has_the_reference_bits(form, gated, biased):
    """Outputs that fill no last program, one team and two that take turns."""
    kind = Shape(0, 1008, 1920, gated, biased, not gated, False, form=form)
    for how in admit.KINDS:
        given = inputs(kind, 3, DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, 3)
        for way in ONE_ROW_WAYS:
            assert differing(outcome(way, kind, given, 1), expected[:1]) == 0, (how, way)


@pytest.mark.device
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("added", [False, True])
def test_one_row_by_relay_has_the_reference_bits(form, added):
    kind = Shape(0, 1008, 6144, False, False, added, not added, form=form)
    for how in admit.KINDS:
        given = inputs(kind, 3, DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, 3)
        for way in (Relay(1, 2), Relay(3, 1), Relay(3, 2)):
            assert differing(outcome(way, kind, given, 1), expected[:1]) == 0, (how, way)


@pytest.mark.device
@pytest.mark.parametrize("gated", [False, True])
def test_sums_by_blocks_in_groups_have_the_reference_bits(gated):
    """Each 16 outputs have scales of their own, tiles have rows beyond the last; raw float32 where it isn't gated."""
    kind = Shape(0, 768, 1152, gated, False, not gated, False, form=BLOCKS)
    for how in admit.KINDS:
        given = inputs(kind, 300, DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, 300)
        for way in BLOCK_GROUPS:
            assert differing(outcome(way, kind, given, 300), expected) == 0, (how, way)


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
    loaded = tiny_model(tmp_path, kind, "auto").weights
    found = {type(matrix).__name__ for matrix in loaded.layers[0].matrices()}
    assert found == {"PackedMatrix"}
    assert triton.embedding(loaded.embed, torch.tensor([3], dtype=torch.int32, device=DEVICE)).shape == (1, 256)


@pytest.mark.parametrize("form", FORMS)
def test_packed_experts_are_each_their_own_packed_matrices(form):
    """Whoever goes to them: an expert's rows have the bits of the same matrices alone."""
    width, hidden, top = (64, 32, 2) if INTERPRETED else (576, 320, 2)
    first = [[some(form, 2 * hidden, width, seed)] for seed in range(3)]
    second = [[some(form, width, hidden, 10 + seed)] for seed in range(3)]
    x = inputs(Shape(0, width, width), 9, DEVICE, "gaussian", NARROW).x * 2.0**-6
    chosen = torch.tensor([[0, 2 - (i % 7 == 0)] for i in range(9)], dtype=torch.int32, device=DEVICE)
    stacks = device_experts_of(first, DEVICE), device_experts_of(second, DEVICE)
    assert [(len(stack), stack.shape) for stack in stacks] == [(3, (2 * hidden, width)), (3, (width, hidden))]
    for schedule in (FEW, SOME, REFERENCE):
        found = answers_of(x, *stacks, chosen, schedule).reshape(9, top, width)
        for row in range(9):
            for rank in range(top):
                expert = int(chosen[row, rank])
                between = ops.gated_linear(x[row : row + 1], device_matrix_of(first[expert], DEVICE))
                alone = ops.linear(between, device_matrix_of(second[expert], DEVICE), wide=True)
                assert same(found[row, rank], alone[0]), (schedule, row, rank)


@pytest.mark.device
@pytest.mark.parametrize(
    ("kind", "cache"),
    [("modelopt_fp4", "fp8_e4m3"), ("modelopt_fp8", "auto"), ("fp8", "fp8_e4m3"), ("", "fp8_e4m3")],
)
def test_scored_is_generated_from_every_position_whoever_computes_beside(kind, cache, tmp_path):
    """With graphs, packed weights and narrow keys: a page's end, a chunk's end, and a crowd."""
    model = tiny_model(tmp_path, kind, cache)
    runner = CudaRunner(model, 64, Options(max_tokens=256, max_segments=16), fill=float("nan"))
    starts = (1, 2, 63, 64, 65, 200, 511, 512, 513)
    asked = [
        Request(RequestId(number), tuple(tokens(start, 280)), 40, GREEDY, logprobs=LogprobSpec(0, ()))
        for number, start in enumerate(starts)
    ]
    for budget in (256, 70):
        generated = crowd_of(runner, budget).serve(*asked)
        scoring = [
            Request(RequestId(i), (*one.prompt, *answer.tokens), 1, GREEDY, logprobs=one.logprobs, logprob_start=0)
            for i, (one, answer) in enumerate(zip(asked, generated, strict=True))
        ]
        for one, scored in zip(generated, crowd_of(runner, 256).serve(*scoring), strict=True):
            assert scored.scores.chosen[-len(one.logprobs.chosen) :] == one.logprobs.chosen


GREEDY = SamplingParams(temperature=0.0)


def crowd_of(runner: CudaRunner, budget: int) -> Crowd:
    limits = Limits(context_length=700, max_running_requests=16, max_queued_requests=99, chunked_prefill_size=budget)
    return Crowd(Engine(Scheduler(limits, Cache(64, 64, False), runner.lag), runner))


def tiny_model(folder, kind: str, cache: str) -> Model:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "max_position_embeddings": 1024}
    make_tiny_llama(folder, 0, **sizes)
    opened = checkpoints.open(folder, load_format="dummy", shapes_of=models.tensor_shapes, quantization=kind)
    return models.load(opened, Config(device="cuda", quantization=kind, kv_cache_dtype=cache))

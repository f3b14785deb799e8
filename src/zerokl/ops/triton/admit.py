"""Admission: a way to compute a chain is used only after it gave the reference schedule's bits on this machine.

Inputs are made so that a difference shows. In `cancelling` ones the second half of K repeats the first with weights of
nearly opposite sign, so what is left is rounding: a kernel that splits K differs in over 90 % of outputs there, and in
under 1 % on Gaussian data after rounding to bf16. Rows are independent, so one run of the reference at the largest
bucket serves all of them. What differs is not used, whatever it is: the next candidate is tried, and the reference
schedule is the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from zerokl.errors import EngineError
from zerokl.ops.choices import REFERENCE, Choices, Compare, Shape, Verdict, Way, reference_of, settle
from zerokl.ops.matrix import DeviceExperts, PackedLeaves, PackedMatrix
from zerokl.ops.triton.chain import empty, run_chain
from zerokl.ops.triton.experts import FEW, MANY, MIXTURES, SOME, answers_of
from zerokl.ops.triton.matrix import pack_quantised, packed_leaves
from zerokl.ops.triton.numbers import NARROW
from zerokl.ops.triton.ways import compute

NORMED_ROWS = 8
"""That are normalised, and compared, each by itself."""
KINDS = ("cancelling", "gaussian", "wide", "subnormal")
"""Of inputs; starting uses the first, tests and benchmarks all."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """One layer's operands, with as many rows as the largest bucket."""

    x: Any
    w: Any
    """A tensor or, of a kind with a form, a packed matrix."""
    bias: Any
    residual: Any
    norm: Any = None
    """(weights, eps), of a kind whose x is normalised: weights for each row of x, which is float32 then."""


def admit(
    choices: Choices, kinds: Iterable[Shape], buckets: Iterable[int], device: str, dtype: Any = torch.bfloat16
) -> list[Verdict]:
    """Fill `choices` for every kind (a Shape of any number of rows) at every bucket. Returns what was compared.

    Raises EngineError if a shape is left with nothing.
    """

    def comparing(kind: Shape, most: int) -> Compare:
        given = inputs(kind, most, device, KINDS[0], dtype)
        expected = outcome(reference_of(kind), kind, given, most)

        def compare(way: Way, rows: int) -> tuple[int, int]:
            wanted = expected if kind.normed else expected[:rows]
            try:
                found = outcome(way, kind, given, rows)
            except OutOfResources:  # more memory than a processor has: a wish for another GPU
                return wanted.numel(), wanted.numel()
            return differing(found, wanted), found.numel()

        return compare

    return settle(choices, kinds, buckets, comparing)


def admit_experts(device: str, dtype: Any = torch.bfloat16) -> list[Verdict]:
    """Compare the schedules of every mixture that was asked for, expert by expert and row by row, with the reference.

    Raises EngineError if not even blocks of the reference schedule give its bits.
    """
    verdicts = []
    for width, hidden in sorted(MIXTURES.seen):
        x, gate_up, down, chosen = mixture(width, hidden, device, dtype)
        expected = answers_alone(x, gate_up, down, chosen)
        for schedule in (FEW, SOME, MANY, REFERENCE):
            found = answers_of(x, gate_up, down, chosen, schedule)
            shape = Shape(len(x), width, hidden, gated=True)
            verdicts.append(Verdict(shape, schedule, differing(found, expected), found.numel()))
            if verdicts[-1].differing and schedule == REFERENCE:
                raise EngineError(
                    f"no way to compute experts of {width} and {hidden} gives the reference schedule's bits"
                )
            if verdicts[-1].differing:
                MIXTURES.rejected.add((width, hidden, schedule))
    return verdicts


def mixture(width: int, hidden: int, device: str, dtype: Any, rows: int = 40) -> tuple[Any, Any, Any, Any]:
    """Cancelling operands for three experts, of which each row has two; one expert has nearly all rows."""
    first = [inputs(Shape(0, hidden, width, gated=True), rows, device, KINDS[0], dtype, seed) for seed in range(3)]
    second = [inputs(Shape(0, width, hidden), 1, device, KINDS[0], dtype, seed).w for seed in range(3)]
    chosen = torch.tensor([[0, 1 + (i % 7 == 0)] for i in range(rows)], dtype=torch.int32, device=device)
    stacks = torch.stack([one.w for one in first]), torch.stack(second)
    return first[0].x, DeviceExperts(stacks[0]), DeviceExperts(stacks[1]), chosen


def answers_alone(x: Any, gate_up: DeviceExperts, down: DeviceExperts, chosen: Any) -> Any:
    """[T * top, E] f32: by the reference schedule, each expert for all rows, of which its own are taken."""
    rows, top = chosen.shape
    width, hidden = down.shape
    answers = torch.empty((rows * top, width), dtype=torch.float32, device=x.device)
    for number in range(len(gate_up)):
        between = run_chain(x, gate_up.values[number], empty(x, hidden), REFERENCE, gated=True)
        whole = run_chain(between, down.values[number], empty(x, width, torch.float32), REFERENCE)
        own = (chosen.reshape(-1) == number).nonzero()[:, 0]
        answers[own] = whole[own // top]
    return answers


def outcome(way: Way, kind: Shape, given: Inputs, rows: int) -> Any:
    """What the way gives for the first `rows` rows; of a kind whose x is normalised, for each row alone."""
    if kind.normed:
        by, eps = given.norm
        alone = [replace(given, x=given.x[i : i + 1], norm=(by[i : i + 1], eps)) for i in range(len(by))]
        return torch.cat([run(way, kind, one, 1) for one in alone])
    residual = given.residual[:rows].clone() if kind.added else None
    return run(way, kind, replace(given, residual=residual), rows)


def run(way: Way, kind: Shape, given: Inputs, rows: int) -> Any:
    """The same; a residual's rows take the result."""
    x = given.x[:rows]
    dtype = torch.float32 if kind.wide else NARROW if kind.normed else x.dtype
    y = given.residual[:rows] if kind.added else empty(x, kind.columns, dtype)
    norm = (given.norm[0][0], given.norm[1]) if kind.normed else None
    return compute(way, x, given.w, y, given.bias, kind.added, kind.gated, kind.ends, norm)


def inputs(kind: Shape, rows: int, device: str, how: str, dtype: Any = torch.bfloat16, seed: int = 0) -> Inputs:
    """Random operands of one kind."""
    generator = torch.Generator(device=device).manual_seed(seed)
    columns, depth = kind.columns * (2 if kind.gated else 1), kind.depth
    rows = NORMED_ROWS if kind.normed else rows

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)

    x, w = normal(rows, depth).to(dtype), (normal(columns, depth) / 64).to(dtype)
    if kind.form:
        w = quantised(kind.form, columns, depth, how == "cancelling", generator, kind.ends)
        if how == "cancelling":
            half = depth // 2
            x[:, half : 2 * half] = -x[:, :half] * (1 + 2.0**-6)
        elif how == "wide":
            x = (x.float() * torch.exp2(normal(rows, depth) * 8).clamp(2.0**-40, 2.0**40)).to(dtype)
        elif how == "subnormal":
            x = (x.float() * 2.0**-125).to(dtype)
    elif how == "cancelling":
        half = depth // 2
        x[:, half : 2 * half] = x[:, :half]
        w[:, half : 2 * half] = -w[:, :half] * (1 + 2.0**-6)
    elif how == "wide":
        x = (x.float() * torch.exp2(normal(rows, depth) * 8).clamp(2.0**-40, 2.0**40)).to(dtype)
        w = (w.float() * torch.exp2(normal(columns, depth) * 8).clamp(2.0**-40, 2.0**40)).to(dtype)
    elif how == "subnormal":
        x, w = (x.float() * 2.0**-70).to(dtype), (w.float() * 2.0**-62).to(dtype)
    bias = normal(columns) if kind.biased else None
    residual = normal(rows, columns) * 2.0**-9 if kind.added else None
    if not kind.normed:
        return Inputs(x, w, bias, residual)
    return Inputs(x.float(), w, bias, residual, (weights_that_tell(x.float(), normal(rows, depth), 1e-6), 1e-6))


def weights_that_tell(x: Any, wanted: Any, eps: float) -> Any:
    """Of norms, such that what each row of x becomes is near the middle between two numbers of bfloat16.

    Else a row's factor with another last bit would not be seen: it moves one number of 65,536.
    """
    half = x.shape[1] // 2
    wanted[:, half : 2 * half] = wanted[:, :half] * torch.sign(x[:, :half] * x[:, half : 2 * half])
    middle = (wanted.to(torch.bfloat16).float().view(torch.int32) + 0x8000).view(torch.float32)
    factors = torch.rsqrt((x.double() ** 2).mean(1, keepdim=True) + eps).float()
    return (middle / (x * factors)).clamp(-1e30, 1e30)


def quantised(
    form: str, columns: int, depth: int, repeats: bool, generator: Any, ends: tuple[int, ...] = ()
) -> PackedMatrix | PackedLeaves:
    """Any codes and scales but NaNs; if `repeats`, the second half of K has those of the first."""
    kind, divides = form.rstrip("/"), form.endswith("/")

    def codes(rows: int, width: int) -> Any:
        made = torch.randint(0, 256, (rows, width), generator=generator, device=generator.device, dtype=torch.uint8)
        made = torch.where((made & 127) == 127, made - 8, made)
        if repeats:
            made[:, width // 2 : width // 2 * 2] = made[:, : width // 2]
        return made

    def factors(*shape: int) -> Any:
        return torch.rand(shape, generator=generator, device=generator.device) / 64 + 2.0**-9

    scales = codes(columns, depth // 16) if kind == "nvfp4" else None
    by = factors(columns)
    if kind == "fp8_block":
        scales, by = factors(-(-columns // 16), -(-depth // 128)), None
    made = codes(columns, depth // 2 if kind == "nvfp4" else depth)
    if len(ends) < 2:
        return pack_quantised(kind, made, scales, by, str(generator.device), divides)
    return cut_leaves(kind, made, scales, by, str(generator.device), divides, ends)


def cut_leaves(
    kind: str, codes: Any, scales: Any, by: Any, device: str, divides: bool, ends: tuple[int, ...]
) -> PackedLeaves:
    """The same columns as packed leaves."""
    each, block = (2, 16) if kind == "nvfp4" else (1, 128)
    return packed_leaves(
        [
            pack_quantised(
                kind,
                codes[:, start // each : stop // each].contiguous(),
                None if scales is None else scales[:, start // block : -(-stop // block)].contiguous(),
                by,
                device,
                divides,
            )
            for start, stop in pairwise((0, *ends))
        ]
    )


def differing(found: Any, expected: Any) -> int:
    """How many outputs have other bits."""
    kind = torch.int32 if found.dtype == torch.float32 else torch.int16
    return int((found.view(kind) != expected.view(kind)).count_nonzero())


def split_k(given: Inputs, rows: int) -> Any:
    """The planted defect: two chains of half the depth, added. Raw float32."""
    x, w = given.x[:rows], given.w
    half = x.shape[1] // 2
    parts = []
    for part in (slice(0, half), slice(half, None)):
        left, right = x[:, part].contiguous(), w[:, part].contiguous()
        parts.append(run_chain(left, right, empty(left, len(w), torch.float32), REFERENCE))
    return parts[0] + parts[1]

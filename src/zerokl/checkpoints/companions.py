"""Quantised tensors with what belongs to them: codes, scales and factors of a weight become one tensor.

    ModelOpt, HF's fp8     m.weight, m.weight_scale, m.weight_scale_2 | m.weight_scale_inv, m.input_scale
    compressed-tensors     m.weight_packed | m.weight, m.weight_scale, m.weight_global_scale, m.input_global_scale
    Inkling's release      t, t.scale, t.scale2, t.input_amax, t.original_shape      t: a stack of experts

Which weights are quantised, their types and companions say; the config's list of those left out must agree. Scales of
activations are dropped: activations stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.view import Tensor
from zerokl.errors import UnsupportedModel
from zerokl.quant import Fp8, Fp8Blocks, Nvfp4, Quantised, Scheme
from zerokl.quant.floats import E4M3_NANS

OF_ACTIVATIONS = (".input_scale", ".input_global_scale", ".input_amax", ".original_shape")
OF_CACHE = (".k_scale", ".v_scale")
NEVER_QUANTISED = re.compile(r"embed|norm|conv|(^|\.)mtp\.|visual|audio|vision")
NVFP4_BLOCK, FP8_BLOCK = 16, 128


def with_companions(path: Path, tensors: Mapping[str, Tensor], scheme: Scheme | None) -> dict[str, Tensor]:
    """The same tensors, quantised ones whole. Raises CheckpointError, UnsupportedModel; each names the tensor."""
    found = Found(path, tensors)
    whole = {name: tensor for name in tensors if (tensor := found.quantised(name)) is not None}
    if scheme is None:
        for name in whole:
            fail(path, f"tensor {name!r} is quantised, but the config says nothing about it")
        for name, tensor in tensors.items():
            if tensor.dtype == "F8_E4M3":
                fail(path, f"tensor {name!r} is {tensor.dtype}, but the config says nothing of quantisation")
        return dict(tensors)
    renamed = {name: name.removesuffix("_packed") for name in whole}
    plain = {name: tensor for name, tensor in tensors.items() if name not in found.used and name not in whole}
    check_list(path, scheme, [renamed[name] for name in whole], plain)
    left = [name for name in plain if tensors[name].dtype in ("U8", "F8_E4M3")]
    if left:
        fail(path, f"{len(left)} tensors look quantised but lack their companions: {', '.join(left[:5])}")
    return plain | {renamed[name]: tensor for name, tensor in whole.items()}


def cache_scales(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scales of cached keys and values, by name."""
    return {name: tensor for name, tensor in tensors.items() if name.endswith(OF_CACHE)}


class Found:
    """Looks for the companions of one tensor after another and remembers which are used."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.tensors = path, tensors
        self.used = {name for name in tensors if name.endswith(OF_ACTIVATIONS + OF_CACHE)}

    def quantised(self, name: str) -> Tensor | None:
        """The weight that a tensor of codes is; None for a tensor that is none."""
        codes = self.tensors[name]
        if codes.dtype == "F8_E4M3" and name.endswith(".weight"):
            return self.fp8(name, codes)
        if codes.dtype != "U8":
            return None
        if name.endswith(".weight_packed"):
            return self.nvfp4(codes, self.companion(name, "weight_scale"), self.companion(name, "weight_global_scale"))
        if f"{name}.scale" in self.tensors or f"{name}.scale2" in self.tensors:
            return self.nvfp4(codes, self.wanted(name, f"{name}.scale"), self.wanted(name, f"{name}.scale2"))
        if name.endswith(".weight"):
            if name.replace(".weight", ".pre_quant_scale") in self.tensors:
                raise UnsupportedModel(f"{self.path}: tensor {name!r} is NVFP4_AWQ, which isn't supported")
            return self.nvfp4(codes, self.companion(name, "weight_scale"), self.companion(name, "weight_scale_2"))
        return None

    def companion(self, name: str, ending: str) -> Tensor:
        return self.wanted(name, f"{name.rpartition('.')[0]}.{ending}")

    def wanted(self, name: str, companion: str) -> Tensor:
        if companion not in self.tensors:
            fail(self.path, f"tensor {name!r} is quantised but its companion {companion!r} is missing")
        self.used.add(companion)
        return self.tensors[companion]

    def nvfp4(self, codes: Tensor, scales: Tensor, factor: Tensor) -> Tensor:
        shape = (*codes.shape[:-1], 2 * codes.shape[-1])
        self.must(scales.dtype == "F8_E4M3", scales, f"is {scales.dtype}, not F8_E4M3")
        self.must(shape[-1] % NVFP4_BLOCK == 0, codes, f"has rows of {shape[-1]} numbers, not whole blocks of 16")
        expected = (*shape[:-1], shape[-1] // NVFP4_BLOCK)
        self.must(scales.shape == expected, scales, f"has shape {list(scales.shape)}, not {list(expected)}")
        per_expert = shape[:1] if len(shape) == 3 else ()
        self.must(
            factor.dtype == "F32" and (factor.shape == per_expert or (not per_expert and factor.shape == (1,))),
            factor,
            f"is {factor.dtype} {list(factor.shape)}, not F32 {list(per_expert)}",
        )
        divides = factor.name.endswith("weight_global_scale")
        nbytes = codes.nbytes + scales.nbytes + factor.nbytes
        read = partial(self.read_nvfp4, codes, scales, factor, per_expert, divides)
        return quantised_tensor(codes, shape, "NVFP4", nbytes, read)

    def read_nvfp4(
        self, codes: Tensor, scales: Tensor, factor: Tensor, per_expert: tuple[int, ...], divides: bool
    ) -> Nvfp4:
        factors, bits = factor.float32(), scales.bits()
        self.must(bool(np.isfinite(factors).all() and (factors > 0).all()), factor, "holds no positive number")
        self.must(not np.isin(bits, E4M3_NANS).any(), scales, "holds a NaN")
        return Nvfp4(codes.array(), bits, factors.reshape(per_expert), divides)

    def fp8(self, name: str, codes: Tensor) -> Tensor:
        inverse = f"{name}_scale_inv"
        scale = self.wanted(name, inverse if inverse in self.tensors else f"{name}_scale")
        self.must(len(codes.shape) == 2, codes, f"has shape {list(codes.shape)}, not two axes")
        self.must(scale.dtype in ("F32", "BF16", "F16"), scale, f"is {scale.dtype}, not a float")
        rows, columns = codes.shape
        squeezed = tuple(axis for axis in scale.shape if axis != 1)
        grid = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        kind, shape = "FP8", squeezed
        if scale.shape in ((rows,), (rows, 1)):
            shape = (rows,)
        elif squeezed and scale.shape in (grid, (grid[0], 1, grid[1], 1)):
            kind, shape = "FP8_BLOCK", grid
        elif squeezed:
            choices = f"a single number, [{rows}], [{rows}, 1] or {list(grid)}"
            fail(self.path, f"tensor {scale.name!r} has shape {list(scale.shape)}, not {choices}")
        read = partial(self.read_fp8, codes, scale, kind, shape)
        return quantised_tensor(codes, codes.shape, kind, codes.nbytes + scale.nbytes, read)

    def read_fp8(self, codes: Tensor, scale: Tensor, kind: str, shape: tuple[int, ...]) -> Quantised:
        scales, bits = scale.float32(), codes.bits()
        self.must(bool(np.isfinite(scales).all()), scale, "holds a number that isn't finite")
        self.must(not np.isin(bits, E4M3_NANS).any(), codes, "holds a NaN")
        scales = scales.reshape(shape)
        return Fp8(bits, scales) if kind == "FP8" else Fp8Blocks(bits, scales)

    def must(self, holds: bool, tensor: Tensor, why: str) -> None:
        if not holds:
            fail(self.path, f"tensor {tensor.name!r} {why}")


def quantised_tensor(codes: Tensor, shape: tuple[int, ...], kind: str, nbytes: int, read: Any) -> Tensor:
    name = codes.name.removesuffix("_packed")
    return Tensor(name, shape, kind, nbytes, lambda: read().float32(), codes.forget, read)


def check_list(path: Path, scheme: Scheme, quantised: list[str], plain: Mapping[str, Tensor]) -> None:
    """The list of what is left out and the tensors agree, for every module that is or could be quantised."""
    wrong = [name for name in quantised if scheme.leaves_out(module_of(name))]
    if wrong:
        fail(
            path, f"{len(wrong)} tensors are quantised, but the config leaves their modules out: {', '.join(wrong[:5])}"
        )
    kinds = {kind_of(name) for name in quantised}
    missing = [
        name
        for name, tensor in plain.items()
        if len(tensor.shape) > 1
        and not NEVER_QUANTISED.search(name)
        and (kind_of(name) in kinds or name.endswith("_proj.weight"))
        and not scheme.leaves_out(module_of(name))
    ]
    if missing:
        fail(
            path,
            f"{len(missing)} tensors aren't quantised, but the config doesn't leave them out: {', '.join(missing[:5])}",
        )


def module_of(name: str) -> str:
    """Without the tensor's own part: 'a.b.weight' -> 'a.b', 'a.experts.w13_weight' -> 'a.experts.w13_weight'."""
    return name.removesuffix(".weight")


def kind_of(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", re.sub(r"\.\d+\.", ".N.", name))

"""Dummy weights as a quantised checkpoint has them: the projections of every layer in NVFP4 or FP8, the rest plain; of
Inkling, whose release keeps attention in bfloat16, the chosen experts in NVFP4.

    --quantization     modelopt_fp4: NVFP4     modelopt_fp8: FP8, one scale     fp8: FP8, a scale per 128 by 128

Codes, scales and factors are cut out of a generator's stream, as plain dummy weights are; numbers are about
1/sqrt(columns) in size. A layer's matrices have factors of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from zerokl.checkpoints.view import Tensor
from zerokl.errors import ConfigError
from zerokl.quant import Fp8, Fp8Blocks, Nvfp4, Quantised, Scheme

SCHEMES = {
    "modelopt_fp4": Scheme("modelopt", "NVFP4", ()),
    "modelopt_fp8": Scheme("modelopt", "FP8", ()),
    "fp8": Scheme("fp8", "e4m3", ()),
}
KINDS = {"modelopt_fp4": "NVFP4", "modelopt_fp8": "FP8", "fp8": "FP8_BLOCK"}
STACKS = (".experts.w13_weight", ".experts.w2_weight")
SIZES = {"NVFP4": 4.2, "FP8": 1.46, "FP8_BLOCK": 1.46}
"""Of a code times its block's scale: the root of the mean square."""


def quantised(tensors: Mapping[str, Tensor], option: str, seed: int) -> tuple[Scheme, dict[str, Tensor]]:
    """What the config would say, and the tensors. Raises ConfigError for an option that nothing is made for."""
    if option not in SCHEMES:
        raise ConfigError(f"--load-format dummy makes weights for --quantization {', '.join(SCHEMES)}, not {option}")
    made = {name: one_quantised(tensor, KINDS[option], seed) for name, tensor in tensors.items()}
    if not any(tensor.packed for tensor in made.values()):
        raise ConfigError(f"--quantization {option}: no projection among the dummy weights can be quantised so")
    return SCHEMES[option], made


def one_quantised(tensor: Tensor, kind: str, seed: int) -> Tensor:
    """The tensor, quantised if it is a projection whose rows are whole blocks."""
    name, shape = tensor.name, tensor.shape
    is_stack = kind == "NVFP4" and len(shape) == 3 and name.endswith(STACKS)
    is_projection = len(shape) == 2 and name.endswith("_proj.weight")
    if not (is_stack or is_projection) or (kind == "NVFP4" and shape[-1] % 16):
        return tensor
    read = partial(weight, f"{seed}:{name}", shape, kind)
    half = kind == "NVFP4"
    num_bytes = prod(shape) * 9 // 16 + 4 if half else prod(shape) + 4
    return Tensor(name, shape, kind, num_bytes, lambda: read().float32(), packed=read)


def weight(key: str, shape: tuple[int, ...], kind: str) -> Quantised:
    *before, rows, columns = shape
    generator = np.random.SFC64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little"))

    def codes(*axes: int) -> NDArray[np.uint8]:
        count = prod(axes)
        drawn: NDArray[np.uint8] = generator.random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)
        return drawn[:count].reshape(axes)

    def ones(free: int, *axes: int) -> NDArray[np.uint8]:
        """Codes of e4m3 from 1 to 2, where these bits are the stream's."""
        return codes(*axes) & np.uint8(free) | np.uint8(0x38)

    def factors(*axes: int) -> NDArray[np.float32]:
        """From 1 to 2, over the size that a row of codes has."""
        drawn = 1 + codes(*axes).astype(np.float32) / np.float32(256)
        return (drawn / np.float32(1.5 * SIZES[kind] * columns**0.5)).astype(np.float32)

    if kind == "NVFP4":
        numbers, scales = codes(*before, rows, columns // 2), ones(0x07, *before, rows, columns // 16)
        return Nvfp4(numbers, scales, factors(*before)[()])
    if kind == "FP8":
        return Fp8(ones(0x87, rows, columns), factors()[()])
    return Fp8Blocks(ones(0x87, rows, columns), factors(-(-rows // 128), -(-columns // 128)))

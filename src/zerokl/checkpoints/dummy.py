"""Seeded random weights for a config.json, so that a model runs at its full size without its files.

A value is a random sign and mantissa under one exponent per tensor, about 1/sqrt(columns) in size, so that activations
neither vanish nor explode. Its bits are cut straight out of a generator's stream, so they are the same on every
machine, and a tensor's depend on the seed and its name alone. Norm weights are 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from math import log2, prod
from pathlib import Path
from typing import Any

import numpy as np

from zerokl.checkpoints.dummy_quantised import quantised
from zerokl.checkpoints.folder import read_config, read_generation_config
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Array, Checkpoint, Tensor
from zerokl.errors import CheckpointError

DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
MAX_BYTES, MAX_TENSORS = 1 << 44, 1 << 20
ShapesOf = Callable[[dict[str, Any]], Iterable[tuple[str, tuple[int, ...]]]]
"""(name, shape) of every tensor that a config's architecture has: `models.tensor_shapes`."""


def open_dummy(folder: Path, seed: int, shapes_of: ShapesOf, quantization: str = "") -> Checkpoint:
    """The view of `folder` with made-up weights, quantised as the option says; only config.json need be there."""
    config = read_config(folder)
    generation = read_generation_config(folder)
    dtype, item_bytes = DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), DTYPES["bfloat16"])
    tensors = {}
    for name, shape in _shapes(folder, config, shapes_of).items():
        read = partial(_weights, f"{seed}:{name}", shape, dtype)
        tensors[name] = Tensor(name, shape, dtype, prod(shape) * item_bytes, read)
    text = json.dumps(config, sort_keys=True)
    scheme, made = quantised(tensors, quantization, seed) if quantization else (None, tensors)
    name = f"zerokl dummy 1:{seed}:{quantization and quantization + ':'}{text}"
    return Checkpoint(
        path=folder,
        config=config,
        tensors=made,
        scheme=scheme,
        read_tokenizer=partial(read_tokenizer, folder, config, generation),
        read_generation_config=lambda: generation,
        compute_digest=lambda: hashlib.sha256(name.encode()).hexdigest(),
    )


def _weights(key: str, shape: tuple[int, ...], dtype: str) -> Array:
    if len(shape) == 1 and key.endswith("norm.weight"):
        return _ones(shape, dtype)
    count, exponent = prod(shape), -round(log2(shape[-1]) / 2 + log2(1.5))
    generator = np.random.SFC64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little"))
    words: Array = generator.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]
    if dtype == "F16":
        words = (words & np.uint16(0x83FF)) | np.uint16((15 + max(exponent, -14)) << 10)
        return words.view("<f2").reshape(shape)
    words = (words & np.uint16(0x807F)) | np.uint16((127 + exponent) << 7)
    if dtype == "BF16":
        return words.reshape(shape)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)


def _ones(shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "BF16":
        return np.full(shape, 0x3F80, np.uint16)
    return np.ones(shape, np.float16 if dtype == "F16" else np.float32)


def _shapes(folder: Path, config: dict[str, Any], shapes_of: ShapesOf) -> dict[str, tuple[int, ...]]:
    """Checked for a size that somebody may have meant."""
    shapes, values = {}, 0
    try:
        for name, shape in shapes_of(config):
            shapes[name] = shape
            values += prod(shape)
            if 4 * values > MAX_BYTES or len(shapes) > MAX_TENSORS:
                raise CheckpointError(f"a model of more than {MAX_BYTES} bytes or {MAX_TENSORS} tensors")
    except CheckpointError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    return shapes

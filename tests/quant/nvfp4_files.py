"""A page of numpy that writes NVFP4 as the release of Inkling has it: the writer of our tests, and of nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.tiny import write_safetensors, write_tokenizer
from tests.models.families import config_of, tensors_of
from tests.models.test_inkling import released
from zerokl.quant.floats import E2M1, E4M3

LAYERS = (2, 3)
"""The sparse layers whose experts are packed; those of the first, layer 1, stay as they are."""
LEFT_OUT = [
    *("model.llm.embed", "model.llm.unembed", "model.llm.layers.0.mlp", "model.llm.layers.1.mlp.experts"),
    *(f"model.llm.layers.{i}.attn" for i in range(4)),
    *(f"model.llm.layers.{i}.mlp.{part}" for i in (1, 2, 3) for part in ("gate", "shared_experts")),
]
Stored = dict[str, tuple[str, np.ndarray]]


def quantised(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """(codes [N, K/2], scales [N, K/16], factor): the nearest ones; the scale of a block of zeros is 1."""
    factor = np.float32(np.abs(weight).max() / (6 * 448))
    blocks = weight.reshape(len(weight), -1, 16).astype(np.float64)
    wanted = np.abs(blocks).max(-1) / (6 * np.float64(factor))
    wanted[wanted == 0] = 1
    scales = np.abs(E4M3[:127].astype(np.float64) - np.clip(wanted, 2**-9, 448)[..., None]).argmin(-1).astype(np.uint8)
    steps = E4M3[scales].astype(np.float64)[..., None] * np.float64(factor)
    codes = np.abs(blocks[..., None] / steps[..., None] - E2M1.astype(np.float64)).argmin(-1).astype(np.uint8)
    codes = codes.reshape(weight.shape)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, factor


def numbers(codes: np.ndarray, scales: np.ndarray, factor: np.float32) -> np.ndarray:
    """As ModelOpt defines them: e2m1 * (e4m3 * factor), in float32."""
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    return E2M1[unpacked] * np.repeat(E4M3[scales] * factor, 16, axis=1)


def inkling_config(**overrides: Any) -> dict[str, Any]:
    return config_of("inkling") | {"moe_intermediate_size": 48} | overrides


def quantised_inkling(**overrides: Any) -> tuple[dict[str, np.ndarray], Stored]:
    """(plain tensors in Hugging Face's names, of the numbers that are stored; the release's, packed)."""
    config = inkling_config(**overrides)
    plain = tensors_of(config)
    packed: Stored = {}
    for layer in LAYERS:
        for name, ours in (("w13_weight", "gate_up_proj"), ("w2_weight", "down_proj")):
            key = f"model.layers.{layer}.mlp.experts.{ours}"
            experts = [quantised(expert) for expert in plain[key]]
            plain[key] = np.stack([numbers(*expert) for expert in experts])
            codes, scales, factors = (np.stack(parts) for parts in zip(*experts, strict=True))
            if name == "w13_weight":
                codes, scales = interleave(codes), interleave(scales)
            stem = f"model.llm.layers.{layer}.mlp.experts.{name}"
            packed |= {
                stem: ("U8", codes),
                f"{stem}.scale": ("F8_E4M3", scales),
                f"{stem}.scale2": ("F32", factors),
                f"{stem}.input_amax": ("BF16", np.array([0x4000], np.uint16)),
                f"{stem}.original_shape": ("I64", np.array(plain[key].shape, np.int64)),
            }
    rest = {name: ("F32", array) for name, array in released(config, plain).items() if name not in packed}
    return plain, packed | rest


def interleave(rows: np.ndarray) -> np.ndarray:
    """All gates, then all ups -> g0, u0, g1, u1, ..."""
    gate, up = np.split(rows, 2, axis=1)
    return np.stack([gate, up], axis=2).reshape(rows.shape)


def write_packed(folder: Path, stored: Stored | None = None, left_out: list[str] = LEFT_OUT, **overrides: Any) -> Path:
    """A folder in the release's form, with a tokenizer."""
    config = inkling_config(**overrides)
    about = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "none", "ignore": left_out}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": about}))
    write_stored(folder / "model.safetensors", stored or quantised_inkling(**overrides)[1])
    write_tokenizer(folder, config)
    return folder


def write_plain(folder: Path) -> Path:
    """The same numbers as float32 under Hugging Face's names: what transformers is asked about."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(inkling_config()))
    write_safetensors(folder / "model.safetensors", quantised_inkling()[0])
    return folder


def write_stored(path: Path, stored: Stored) -> None:
    header, offset = {}, 0
    for name, (dtype, array) in stored.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in stored.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)

"""Makes tiny quantised checkpoints with the formats' own libraries, and says what those take each weight for.

    ORACLE/bin/python tools/quant_writers.py KIND FOLDER

Runs in the environment of the oracles, one kind per process (ModelOpt changes its own presets). FOLDER gets the
checkpoint as the library writes it, and `dequantised.json`: tensor name -> sha256 of the float32 numbers that the
library's own code gives for it. `tests/quant/test_writers.py` compares; its copies were made by

    for kind in KINDS: tools/quant_writers.py kind tests/goldens/quant/kind
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

MODELOPT = {
    "modelopt-nvfp4": "NVFP4_DEFAULT_CFG",
    "modelopt-fp8": "FP8_DEFAULT_CFG",
    "modelopt-fp8-kv": "FP8_DEFAULT_CFG",
    "modelopt-fp8-blocks": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
}
COMPRESSED = ("compressed-nvfp4", "compressed-fp8-tensor", "compressed-fp8-channel", "compressed-fp8-block")
KINDS = (*MODELOPT, *COMPRESSED)


def main(kind: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(kind)
    found = with_modelopt(kind, model, folder) if kind in MODELOPT else with_compressed_tensors(kind, model, folder)
    (folder / "dequantised.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    for extra in ("generation_config.json", "README.md", "recipe.yaml"):
        (folder / extra).unlink(missing_ok=True)


def tiny_llama(kind: str) -> LlamaForCausalLM:
    """bfloat16; widths that are no multiples of 128 where the format allows it. Some blocks are zero, some large."""
    wide = kind == "modelopt-fp8-blocks"
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=128 if wide else 64,
        intermediate_size=256 if wide else 160,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        architectures=["LlamaForCausalLM"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape) * (1 + len(name) % 5))
                weight[0, :16] = 0
                weight[1, 16:32] *= 500
                weight[2, 32:48] *= 0.001
    return model.eval()


def digest(weight: torch.Tensor) -> str:
    """Of the numbers, with +0 for both zeros: ModelOpt takes the code of -0 for +0, compressed-tensors doesn't."""
    return hashlib.sha256((weight.detach().float() + 0.0).contiguous().numpy().tobytes()).hexdigest()


def with_modelopt(kind: str, model: LlamaForCausalLM, folder: Path) -> dict[str, str]:
    import copy

    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    config = copy.deepcopy(getattr(mtq, MODELOPT[kind]))
    if kind.endswith("-kv"):
        config = mtq.utils.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    tokens = torch.arange(24).reshape(2, 12)
    mtq.quantize(model, config, lambda model: model(tokens))
    export_hf_checkpoint(model, export_dir=str(folder))
    return {name: digest(weight) for name, weight in modelopt_numbers(folder).items()}


def modelopt_numbers(folder: Path) -> dict[str, torch.Tensor]:
    """By ModelOpt's own tensor classes."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    stored, found = load_file(folder / "model.safetensors"), {}
    for name, codes in stored.items():
        if not name.endswith(".weight") or codes.dtype not in (torch.uint8, torch.float8_e4m3fn):
            continue
        scale = stored[name + "_scale"]
        if codes.dtype == torch.uint8:
            shape = torch.Size((codes.shape[0], 2 * codes.shape[1]))
            tensor = NVFP4QTensor(shape, torch.float32, codes)
            options = {"scale": scale, "double_scale": stored[name + "_scale_2"], "block_sizes": {-1: 16}}
            found[name] = tensor.dequantize(dtype=torch.float32, **options)
        elif scale.ndim == 4:
            blocks = codes.float().reshape(scale.shape[0], 128, scale.shape[2], 128) * scale
            found[name] = blocks.reshape(codes.shape)
        else:
            found[name] = FP8QTensor(codes.shape, torch.float32, codes).dequantize(
                dtype=torch.float32, scale=scale, block_sizes=None
            )
    return found


def with_compressed_tensors(kind: str, model: LlamaForCausalLM, folder: Path) -> dict[str, str]:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    weights = {
        "compressed-nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        "compressed-fp8-tensor": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        "compressed-fp8-channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "compressed-fp8-block": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
    }[kind]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for _, module in model.named_modules():
        if hasattr(module, "weight_scale"):
            fill_scales(module, kind)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    stored = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    numbers = compressed_numbers(stored, scheme.weights)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    return {name: digest(weight) for name, weight in numbers.items()}


def fill_scales(module: torch.nn.Module, kind: str) -> None:
    """As the library's observers: the largest of the part over the largest of the format."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight, scheme = module.weight.data.float(), module.quantization_scheme.weights
    if kind == "compressed-nvfp4":
        module.weight_global_scale.data = generate_gparam(weight.min(), weight.max()).reshape(1)
        parts = weight.reshape(len(weight), -1, 16)
        low, high = parts.amin(-1), parts.amax(-1)
        scale, _ = calculate_qparams(low, high, scheme, global_scale=module.weight_global_scale.data)
    elif kind == "compressed-fp8-block":
        rows, columns = (-(-axis // 128) * 128 for axis in weight.shape)
        padded = torch.zeros(rows, columns)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        parts = padded.reshape(rows // 128, 128, columns // 128, 128)
        scale, _ = calculate_qparams(parts.amin((1, 3)), parts.amax((1, 3)), scheme)
    else:
        axes = (1,) if kind.endswith("channel") else (0, 1)
        low, high = weight.amin(axes, keepdim=True), weight.amax(axes, keepdim=True)
        scale, _ = calculate_qparams(low, high, scheme)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)


def compressed_numbers(stored: dict[str, torch.Tensor], args: object) -> dict[str, torch.Tensor]:
    """By the library's own dequantisation, in float32."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    found = {}
    for name, codes in stored.items():
        base = name.rpartition(".")[0]
        if not name.endswith((".weight_packed", ".weight")) or base + ".weight_scale" not in stored:
            continue
        values, factor = codes, stored.get(base + ".weight_global_scale")
        if codes.dtype == torch.uint8:
            values = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1], dtype=torch.float32)
        scale = stored[base + ".weight_scale"].float()
        found[base + ".weight"] = dequantize(values, scale, args=args, global_scale=factor, dtype=torch.float32)
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""`zerokl serve --dry-run`: what a model's cache takes, from its config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from zerokl.cli.serve import serve
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=3, stage="base-a", runner_config="cpu-small")

KIB = 1024
INKLING_SMALL = {
    "architectures": ["InklingForConditionalGeneration"],
    "model_type": "inkling_mm_model",
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 4096,
        "num_hidden_layers": 42,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "swa_num_attention_heads": 32,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 128,
        "sliding_window_size": 512,
        "local_layer_ids": [i for i in range(42) if (i + 1) % 6],
        "d_rel": 16,
        "rel_extent": 1024,
        "log_scaling_n_floor": 128000,
        "log_scaling_alpha": 0.1,
        "dense_mlp_idx": 2,
        "dense_intermediate_size": 16384,
        "intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "route_scale": 8.0,
        "logits_mup_width_multiplier": 16.0,
        "sconv_kernel_size": 4,
        "vocab_size": 201024,
        "unpadded_vocab_size": 200058,
        "rms_norm_eps": 1e-6,
        "model_max_length": 1048576,
    },
}
"""The released config's text part."""


def memory_of(folder: Path, *flags: str) -> dict[str, Any]:
    result = CliRunner().invoke(serve, [str(folder), "--dry-run", *flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    memory: dict[str, Any] = json.loads(result.stdout)["memory"]
    return memory


def test_inkling_small_takes_what_its_layers_add_up_to(tmp_path: Path) -> None:
    """In bfloat16: 7 global and 35 local layers of 4 KiB per token, 511 tokens in front of a checkpoint, and the last
    three inputs of 42 · (1,024 + 1,024 + 4,096 + 4,096) channels."""
    (tmp_path / "config.json").write_text(json.dumps(INKLING_SMALL))
    memory = memory_of(tmp_path, "--device", "cuda")
    assert memory["bytes_per_token"] == 28 * KIB
    assert memory["bytes_per_sliding_token"] == {"512": 140 * KIB}
    assert memory["bytes_per_window"] == 511 * 140 * KIB
    assert memory["bytes_per_checkpoint"] == memory["bytes_per_sequence"] == 2_580_480
    assert round(memory["bytes_per_sequence"] / KIB**2, 2) == 2.46
    assert memory["convolution_width"] == 4


def test_the_cpu_keeps_the_same_in_float32(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(INKLING_SMALL))
    memory = memory_of(tmp_path)
    assert memory["bytes_per_token"] + memory["bytes_per_sliding_token"]["512"] == 2 * 168 * KIB
    assert memory["bytes_per_checkpoint"] == 2 * 2_580_480


def test_a_recurrent_state_is_float32_on_every_device(tmp_path: Path) -> None:
    sizes = {"value_heads": 32, "key_size": 128, "value_size": 128}
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 1000,
        "linear_num_value_heads": sizes["value_heads"],
        "linear_num_key_heads": 16,
        "linear_key_head_dim": sizes["key_size"],
        "linear_value_head_dim": sizes["value_size"],
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    states, inputs = 3 * 32 * 128 * 128, 3 * 3 * (2 * 16 * 128 + 32 * 128)
    assert memory_of(tmp_path)["bytes_per_sequence"] == 4 * states + 4 * inputs
    assert memory_of(tmp_path, "--device", "cuda")["bytes_per_sequence"] == 4 * states + 2 * inputs

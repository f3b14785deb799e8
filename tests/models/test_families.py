"""Every architecture besides Llama against transformers' answers (tools/oracles.py), as `test_goldens.py` does it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256

import numpy as np
import pytest

from tests.models import run
from tests.models.families import FAMILIES, YARN, family_model, family_questions, make_family
from tests.models.test_goldens import BOUND, errors, golden
from tests.models.variants import NEW_TOKENS
from zerokl import checkpoints, models
from zerokl.config import Config

every_family = pytest.mark.parametrize("family", FAMILIES)
model_of = cache(family_model)


@every_family
def test_a_folder_loads_and_its_weights_are_the_goldens(family, tmp_path):
    folder = make_family(tmp_path / family, family)
    digest = sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == golden(f"families/{family}")[1]["weights"], "the generator's weights have changed: make oracles"
    assert models.load(checkpoints.open(folder), Config()).num_layers == model_of(family).num_layers


@every_family
def test_logits_are_as_near_to_float64_as_transformers_are(family):
    model, (arrays, _) = model_of(family), golden(f"families/{family}")
    for i, question in enumerate(family_questions(family)):
        found = run.logits(model, question.tokens, question.rows)[:, question.ids]
        measured = errors(found, arrays[f"{i}/float32"], arrays[f"{i}/float64"])
        assert max(measured.values()) <= BOUND, measured


@every_family
def test_greedy_tokens_are_transformers(family):
    arrays, _ = golden(f"families/{family}")
    expected = arrays["0/greedy64"].tolist()
    assert run.greedy(model_of(family), [family_questions(family)[0].tokens], NEW_TOKENS) == [expected]


def off(family: str, **defect) -> float:
    """How many times transformers' error the answers of a model with a defect in its config are away, at least."""
    question, (arrays, _) = family_questions(family)[1], golden(f"families/{family}")
    found = run.logits(family_model(family, **defect), question.tokens, question.rows)[:, question.ids]
    return min(errors(found, arrays["1/float32"], arrays["1/float64"]).values())


@pytest.mark.parametrize(
    ("family", "defect"),
    [
        ("mistral", {"sliding_window": 69}),
        ("mistral", {"sliding_window": 71}),
        ("gemma3", {"sliding_window": 23}),
        ("gemma3", {"sliding_window": 25}),
        ("gemma3", {"rope_local_base_freq": 10010.0}),
        ("gemma3", {"rope_theta": 1.001e6}),
        ("gemma3", {"query_pre_attn_scalar": 20.01}),
        ("gemma3-tied", {"final_logit_softcapping": 8.001}),
        ("gemma3-tied", {"rope_scaling": {"rope_type": "linear", "factor": 8.01}}),
        ("gemma3-tied", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
        ("inkling", {"sliding_window_size": 20, "log_scaling_n_floor": 23}),
        ("inkling", {"log_scaling_alpha": 0.1001}),
        ("inkling", {"logits_mup_width_multiplier": 3.001}),
        ("inkling", {"route_scale": 8.01}),
        ("inkling", {"num_experts_per_tok": 4}),
        ("lfm2-adjusted", {"rope_theta": 1.001e6}),
        ("lfm2", {"norm_eps": 2e-5}),
        ("qwen3-next", {"partial_rotary_factor": 0.5}),
        ("qwen3-next", {"rope_theta": 20000.0}),
        ("qwen3-next", {"norm_topk_prob": False}),
        ("granite-hybrid", {"residual_multiplier": 0.6001}),
        ("granite-hybrid", {"attention_multiplier": 0.1501}),
        ("granite-hybrid", {"position_embedding_type": "rope"}),
        ("granite-hybrid-dense", {"time_step_limit": [0.0, 2.0]}),
        ("llama-yarn", {"rope_scaling": YARN | {"beta_fast": 2.0}}),
        ("llama-yarn", {"rope_scaling": YARN | {"beta_fast": 8.0, "attention_factor": 1.1387}}),
        ("qwen2", {"rms_norm_eps": 1.2e-5}),
        ("qwen2-window-yarn", {"max_window_layers": 2}),
        ("qwen2-window-yarn", {"sliding_window": 41}),
        ("phi3", {"sliding_window": 71}),
        ("phi3-short", {"original_max_position_embeddings": 255}),
        ("phi3-short", {"partial_rotary_factor": 0.875, "rope_scaling": None}),
        ("phi3-long", {"original_max_position_embeddings": 17}),
        ("granite", {"embedding_multiplier": 3.001}),
        ("granite", {"attention_multiplier": 0.1501}),
        ("granite-bias", {"residual_multiplier": 0.8001}),
        ("olmo2", {"rms_norm_eps": 1.2e-5}),
        ("stablelm", {"layer_norm_eps": 1.1e-4}),
        ("stablelm", {"partial_rotary_factor": 0.5}),
        ("starcoder2", {"norm_epsilon": 1.1e-4}),
        ("starcoder2", {"sliding_window": 71}),
        ("gpt2", {"layer_norm_epsilon": 2e-5}),
        ("gemma2", {"attn_logit_softcapping": 3.001}),
        ("gemma2", {"final_logit_softcapping": 8.001}),
        ("gemma2", {"sliding_window": 25}),
        ("mixtral", {"num_experts_per_tok": 3}),
        ("qwen3-moe", {"norm_topk_prob": False}),
        ("qwen3-moe-mixed", {"norm_topk_prob": True}),
        ("qwen3-moe", {"num_experts_per_tok": 5}),
    ],
    ids=str,
)
def test_the_bound_is_narrow_enough_to_see(family, defect):
    assert off(family, **defect) > 2 * BOUND


def test_numbers_are_finite_and_far_from_flat():
    for family in FAMILIES:
        values = golden(f"families/{family}")[0]["1/float64"]
        assert np.isfinite(values).all()
        assert values.std() > 0.5, family

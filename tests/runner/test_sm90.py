"""`--cpu-numerics sm90`: the bits of an H200 on every instruction set, for any plan; and a no to what it can't do."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.checkpoints.tiny import make_tiny_llama
from tests.models.families import config_of, family_model, names_of, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor, tiny_checkpoint
from tests.models.run import runner_of
from tests.ops.cpus import every_cpu
from zerokl import LLM, models
from zerokl.config import Config
from zerokl.engine.inspection import inspect
from zerokl.errors import ConfigError, EngineError, UnsupportedModel
from zerokl.runner import known_answers_sm90
from zerokl.runner.known_answers import COMMITTED
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=8, stage="base-a", runner_config="cpu-small")

GOLDENS = Path(__file__).parents[1] / "goldens" / "sm90"
ANSWERS = json.loads(COMMITTED.read_text())["sm90"]


def test_every_instruction_set_gives_the_known_answers_of_the_gpu():
    for cpu in every_cpu():
        found = known_answers_sm90.gpu_answers()
        assert found == {name: ANSWERS[name] for name in found}, cpu


def test_the_cpus_own_numerics_give_other_answers():
    found = known_answers_sm90.gpu_answers("cpu")
    assert all(digest != ANSWERS[name] for name, digest in found.items() if name != "rms_norm")


def test_another_answer_is_an_error_at_start(monkeypatch):
    monkeypatch.setattr(known_answers_sm90, "gpu_answers", lambda: {"linear": "0", "rms_norm": ANSWERS["rms_norm"]})
    with pytest.raises(EngineError, match="arithmetic of 'sm90' differs in: linear"):
        known_answers_sm90.verify_gpu_answers.__wrapped__()


@pytest.mark.model
def test_smollm2_has_the_logprobs_that_an_h200_gave():
    golden = json.loads((GOLDENS / "smollm2.json").read_text())["prompts"]
    with LLM(cpu_numerics="sm90", max_total_tokens=1024) as llm:
        for name, one in golden.items():
            found = [struct.pack(">f", x).hex() for x in llm.score(one["prompt"] + one["text"])[1:]]
            assert found == one["logprobs"].split(), name


TINY = {
    "llama": {"num_attention_heads": 5, "num_key_value_heads": 1},
    "biased": {"num_attention_heads": 5, "num_key_value_heads": 1, "attention_bias": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}
SIZES = {"hidden_size": 320, "intermediate_size": 448, "head_dim": 64, "num_hidden_layers": 2}


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_have_the_tokens_and_logprobs_that_an_h200_gave(tmp_path, name):
    """A text over two chunks, and greedy continuations of eight prompts in one batch."""
    golden = np.load(GOLDENS / "tiny.npz")
    folder = make_tiny_llama(tmp_path, seed=3, **SIZES, **TINY[name])
    text = [(i * i + 5 * i + 3) % 280 for i in range(700)]
    prompts = [[(k * i + 3) % 280 for i in range(5 + 9 * k)] for k in range(1, 9)]
    with LLM(str(folder), cpu_numerics="sm90", max_total_tokens=4096) as llm:
        scores = np.array(llm.score(text)[1:], np.float32)
        answers = llm.generate(prompts, temperature=0, max_new_tokens=24, ignore_eos=True, logprobs=True)
    assert [answer.token_ids for answer in answers] == golden[f"{name}_ids"].tolist()
    assert (np.array([answer.logprobs for answer in answers], np.float32) == golden[f"{name}_lp"]).all()
    assert (scores == golden[f"{name}_long"][1:]).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("sm90") / "model", seed=3))


PROMPT = [(7 * i + 3) % 280 for i in range(90)]


def continued(folder: str, others: int = 0, **options: object) -> tuple[object, ...]:
    """A prompt's logprobs and what follows it, beside some others."""
    asked = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True, "logprobs": True}
    prompts = [PROMPT, *([(k * i + 1) % 280 for i in range(9 * k)] for k in range(1, 1 + others))]
    with LLM(folder, cpu_numerics="sm90", **{"max_total_tokens": 2048, **options}) as llm:
        answer = llm.generate(prompts, **asked)[0]
        return tuple(answer.token_ids), tuple(answer.logprobs), tuple(llm.score(PROMPT)), llm.fingerprint


@pytest.mark.parametrize(
    "options",
    [{"others": 6}, {"chunked_prefill_size": 7}, {"page_size": 16}, {"disable_radix_cache": True}, {"threads": 1}],
    ids=str,
)
def test_neighbours_chunks_pages_caches_and_threads_move_no_bit(folder, options):
    assert continued(folder, **options) == continued(folder)


def test_it_is_another_fingerprint_and_other_bits(folder):
    _, _, scores, fingerprint = continued(folder)
    with LLM(folder, dtype="bfloat16", kv_cache_dtype="bfloat16", max_total_tokens=2048) as llm:
        own = llm.score(PROMPT)
        assert llm.fingerprint != fingerprint
    assert inspect(Config(model=folder, cpu_numerics="sm90")).fingerprint == fingerprint
    apart = np.abs(np.array(own[1:]) - np.array(scores[1:]))
    assert 0.001 < np.median(apart) < 0.05, "bfloat16's noise, and no more"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "--dtype float32: the GPU computes with bfloat16"),
        ({"kv_cache_dtype": "float32"}, "--kv-cache-dtype float32: --cpu-numerics sm90 keeps bfloat16"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ({"tp": 2}, "neither ranks nor leaves"),
        ({"tp_leaves": 2}, "neither ranks nor leaves"),
        ({"device": "cuda"}, "for --device cpu"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        models.load(tiny_checkpoint(), Config(cpu_numerics="sm90", **options))


def test_packed_weights_are_refused_unless_they_are_dequantised():
    checkpoint = tiny_checkpoint()
    tensor = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
    checkpoint.tensors["model.layers.0.mlp.down_proj.weight"] = Packed(tensor)
    with pytest.raises(ConfigError, match="no products with NVFP4 weights; --dtype bfloat16 dequantises them"):
        models.plan(checkpoint, Config(cpu_numerics="sm90"))
    models.plan(checkpoint, Config(cpu_numerics="sm90", dtype="bfloat16"))


class Packed:
    """A tensor that says it is NVFP4."""

    def __init__(self, tensor):
        self.shape, self.dtype = tensor.shape, "NVFP4"


SERVED = ["qwen2", "qwen3", "phi3-short", "mistral-no-window", "llama-yarn"]
NOT_SERVED = {
    "gemma3": "isn't there for Gemma3ForCausalLM: for these only: Llama",
    "mixtral": "for these only",
    "mistral": "MistralForCausalLM: where every layer sees every key",
}


def family_in_memory(family: str, **changes: object) -> MemoryCheckpoint:
    config = config_of(family) | changes
    arrays = tensors_of(config, 1, names_of(family))
    return MemoryCheckpoint(config, {name: MemoryTensor(array) for name, array in arrays.items()})


@pytest.mark.parametrize("family", SERVED)
def test_what_is_promised_before_weights_are_read_is_kept_by_the_runner(family):
    assert runner_of(models.load(family_in_memory(family), Config(cpu_numerics="sm90")), 4).recorded


@pytest.mark.parametrize("family", NOT_SERVED)
def test_a_model_that_does_more_than_a_tape_holds_is_refused_before_a_weight_is_read(family):
    with pytest.raises(UnsupportedModel, match=NOT_SERVED[family]):
        models.plan(family_in_memory(family), Config(cpu_numerics="sm90"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 80}, "heads of 16, 32, 64, 128, 256, not 80"),
        ({"head_dim": 8}, "not 8"),
        ({"hidden_size": 4112, "intermediate_size": 16}, "rows of at most 4096 numbers, not 4112"),
    ],
    ids=str,
)
def test_inspect_says_no_where_a_start_would(tmp_path, changes, message):
    folder = make_tiny_llama(tmp_path, seed=1, num_hidden_layers=1, **changes)
    assert message in inspect(Config(model=str(folder), cpu_numerics="sm90")).problem
    with pytest.raises(UnsupportedModel, match=message):
        LLM(str(folder), cpu_numerics="sm90")


@pytest.mark.parametrize("numerics", ["sm90", "integer"])
def test_ranks_are_refused_before_one_is_started(folder, numerics, monkeypatch):
    monkeypatch.setattr("zerokl.engine.build.gathered", lambda config: pytest.fail("ranks were started"))
    with pytest.raises(ConfigError, match=f"--cpu-numerics {numerics}"):
        LLM(folder, cpu_numerics=numerics, tp=2)


def test_the_runner_refuses_what_its_tape_cannot_hold():
    model = replace(family_model("qwen3", dtype="float32"), numerics="sm90")
    with pytest.raises(UnsupportedModel, match="--cpu-numerics sm90 isn't there for Qwen3ForCausalLM"):
        runner_of(model, 4)

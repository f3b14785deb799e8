"""The fingerprint moves with everything that can move a bit, and with nothing else."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import msgspec
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl.config import Config, options
from zerokl.engine import build, fingerprint
from zerokl.engine.fingerprint import RESOLVED, Evidence

EVIDENCE = Evidence(
    weights="w", weight_dtypes=("bfloat16",), attention_chunk=512, known_answers="k", tokenizer="t", default_seed=0
)
OTHER_EVIDENCE = {
    "weights": "v",
    "weight_dtypes": ("float32",),
    "quantisation": "nvfp4",
    "activation_dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "attention_chunk": 1024,
    "device_family": "sm90",
    "known_answers": "j",
    "tokenizer": "s",
    "rotations": "long",
    "grammars": "0",
    "default_seed": 1,
    "sampling_defaults": {"temperature": 0.5},
}


def of(evidence: Evidence = EVIDENCE, **options: object) -> str:
    return fingerprint.fingerprint(Config(**options), evidence)


@pytest.mark.parametrize("name", Evidence.__struct_fields__)
def test_every_piece_of_evidence_moves_it(name):
    assert of(msgspec.structs.replace(EVIDENCE, **{name: OTHER_EVIDENCE[name]})) != of()


def test_it_is_stable_and_has_one_form():
    assert of() == of()
    assert of().startswith("fp_")
    assert len(of()) == 35


def test_a_new_version_of_the_contract_moves_it(monkeypatch):
    before = of()
    monkeypatch.setattr(fingerprint, "CONTRACT", 2)
    assert of() != before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=0, num_hidden_layers=1)
    (folder / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 0, "eos_token_id": 2}')
    return folder


def built(tiny, **changes: object) -> str:
    """Of a real engine; 512 slots, so that it is made in milliseconds."""
    values = {"model": str(tiny), "max_total_tokens": 512, **changes}
    return build.build(Config(**values)).hello.fingerprint


OTHER_BITS = {
    "dtype": "float16",
    "random_seed": 1,
    "sampling_defaults": "openai",
    "logprobs_mode": "processed",
    "tp_leaves": 2,
    "kv_cache_dtype": "bfloat16",
}
"""chat_template needs a file."""


@pytest.mark.parametrize("name", [one.name for one in options() if one.metadata["bits"]])
def test_every_option_that_can_move_a_bit_moves_it(tiny, tmp_path, name):
    if name == "cpu_numerics":
        assert built(tiny, cpu_numerics="integer") == built(tiny), "weights that aren't blocks have one numerics"
        assert built(tiny, cpu_numerics="sm90") != built(tiny, kv_cache_dtype="bfloat16")
        return
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}!")
    value = str(template) if name == "chat_template" else OTHER_BITS[name]
    assert built(tiny, **{name: value}) != built(tiny)


OTHER_VALUES = {
    "model": None,
    "tokenizer_path": None,
    "revision": "main",
    "served_model_name": "other",
    "quantization": None,
    "load_format": "safetensors",
    "context_length": 100,
    "page_size": 16,
    "max_total_tokens": 128,
    "mem_fraction_static": 0.1,
    "max_running_requests": 3,
    "max_queued_requests": 3,
    "chunked_prefill_size": 7,
    "disable_radix_cache": True,
    "enable_hierarchical_cache": True,
    "hicache_ratio": 3.0,
    "threads": 1,
    "tp": None,
    "device": None,
    "disable_cuda_graph": True,
    "disable_prefill_cuda_graph": True,
    "cuda_graph_bs": "1,8",
    "host": "0.0.0.0",
    "port": 1,
    "frontend": "python",
    "frontend_threads": 3,
    "api_key": ("k",),
    "admin_api_key": "k",
    "allow_origins": ("*",),
    "max_body_bytes": 2000,
    "max_logprobs": 1,
    "disable_playground": True,
    "distributed_executor_backend": "external_launcher",
    "otlp_traces_endpoint": "http://127.0.0.1:9/v1/traces",
    "watchdog_timeout": 9.0,
    "tool_call_parser": "hermes",
    "strict_model": True,
    "incremental_streaming_output": True,
    "weight_version": "2",
    "log_level": "debug",
    "test_clock": 1,
}
"""None: the value is what the test makes (a copy elsewhere), or it needs another machine (a GPU is another family).
More ranks make more leaves unless those are given; tests/parallel compares the fingerprints of any number."""


def test_no_other_option_moves_it(tiny, tmp_path):
    other = [one.name for one in options() if not one.metadata["bits"]]
    assert set(other) == set(OTHER_VALUES), "a new option: say here how it is changed"
    expected = built(tiny)
    for name in other:
        if OTHER_VALUES[name] is not None:
            assert built(tiny, **{name: OTHER_VALUES[name]}) == expected, name
    copy = make_tiny_llama(tmp_path / "copy", seed=0, num_hidden_layers=1)
    (copy / "generation_config.json").write_text((tiny / "generation_config.json").read_text())
    assert built(copy) == expected
    assert built(tiny, tokenizer_path=str(copy)) == expected


def test_other_weights_or_another_template_move_it(tiny, tmp_path):
    other = make_tiny_llama(tmp_path / "other", seed=1, num_hidden_layers=1)
    (other / "generation_config.json").write_text((tiny / "generation_config.json").read_text())
    assert built(other) != built(tiny)


def test_the_same_said_in_another_way_does_not_move_it(tiny):
    assert built(tiny, dtype="bfloat16") == built(tiny, dtype="auto")
    assert built(tiny, random_seed="0") == built(tiny, random_seed=0)
    assert built(tiny, random_seed="random") != built(tiny, random_seed="random")


def test_each_resolved_option_has_its_evidence():
    assert {one.name for one in options() if one.metadata["bits"]} >= set(RESOLVED)


def test_an_installed_version_is_what_python_says(monkeypatch, tmp_path):
    said = importlib.metadata.version("llguidance")
    assert fingerprint.installed_version("llguidance") == said
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))  # as where a package lies elsewhere
    assert fingerprint.installed_version("llguidance") == said

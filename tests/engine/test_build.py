"""Config to engine: what the hello says is what was built, and what isn't there is said in one line."""

from __future__ import annotations

import json
import shutil
import sys
import time

import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.engine.serving import Running, collected
from zerokl import checkpoints, models
from zerokl.checkpoints.chosen_tokenizer import tokenizer_files
from zerokl.config import Config
from zerokl.engine.assembly import sampling_defaults
from zerokl.engine.build import build, build_process
from zerokl.errors import CheckpointError, ConfigError
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.battery import BATTERY
from zerokl.tokenizer.run_folder import write_run_folder
from zerokl.wire.messages import Sampling


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=0, num_hidden_layers=1)


def config(tiny, **changes) -> Config:
    return Config(**{"model": str(tiny), "max_total_tokens": 512, **changes})


def test_the_hello_says_what_was_built(tiny):
    built = build(config(tiny, context_length=300, page_size=16, max_running_requests=5, random_seed=9))
    hello, facts = built.hello, json.loads(built.hello.facts)
    assert (hello.context, hello.page_size, hello.pool_tokens, hello.max_running) == (300, 16, 512, 5)
    assert (hello.vocab, hello.default_seed) == (built.served.vocab, 9)
    assert hello.eos_ids == sorted(built.tokenizer.special.eos_ids)
    assert facts["architectures"] == ["LlamaForCausalLM"]
    assert facts["dtype"] == "bfloat16"
    assert facts["kv_bytes"] == 512 * 2 * 2 * 16 * 4
    matrices = 284 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + 3 * 96 * 64
    assert facts["weight_bytes"] >= 2 * matrices
    assert facts["weight_bytes"] < 2 * 1.1 * matrices, "a tied matrix is counted twice"


def test_a_process_answers_with_a_real_model(tiny, tmp_path):
    path = tmp_path / "engine.sock"
    engine = Running(build_process(config(tiny), None, path), path)
    try:
        records = engine.ask(lambda client: collected(client.submit([1, 2, 3], max_new_tokens=4)))
    finally:
        engine.process.call(lambda: engine.process.drain(0))
    assert sum(len(record.tokens) for record in records) == records[-1].done.completion_tokens >= 1
    assert engine.ended() == 0


def test_with_a_run_folder_the_tokenizer_comes_from_there(tiny, tmp_path):
    checkpoint = checkpoints.open(tiny)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    files = tokenizer_files(config(tiny, chat_template=str(template)), checkpoint)
    write_run_folder(tmp_path / "run", files)
    built = build(config(tiny), tmp_path / "run")
    assert built.tokenizer.chat_template == "{{ messages[0].content }}"
    assert built.hello.fingerprint == build(config(tiny, chat_template=str(template))).hello.fingerprint


@pytest.mark.parametrize("battery", [False, True])
def test_a_run_folder_without_a_tokenizer_gets_it_for_the_frontends(tiny, tmp_path, battery):
    built = build(config(tiny), tmp_path, battery)
    assert Tokenizer.load(tmp_path).digest == built.tokenizer.digest
    assert (tmp_path / BATTERY).exists() == battery
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="not a run folder"):
        build(config(tiny), tmp_path)  # an engine that is started again reads what frontends have


def test_a_tokenizer_that_is_refused_ends_the_reading_of_weights(tiny, tmp_path, monkeypatch):
    read, began = [], models.weights.read
    monkeypatch.setattr(models.weights, "read", lambda *row: (time.sleep(0.05), read.append(row), began(*row))[2])
    bad = shutil.copytree(tiny, tmp_path / "bad")
    content = json.loads((bad / "tokenizer.json").read_text())
    content["model"]["type"] = "unheard of"
    (bad / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        build(config(bad))
    assert 1 <= len(read) <= 4, "two readers, and what was begun"
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "--device cuda"),
        ({"chat_template": "nowhere.jinja"}, "chat_template nowhere.jinja"),
        ({"tokenizer_path": "nowhere"}, "nowhere"),
        ({"context_length": 10**6}, "context-length"),
        ({"max_total_tokens": 1}, "less than one page"),
        ({"random_seed": "soon"}, "random_seed is 'soon'"),
        ({"model": "./nowhere"}, "no such file"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(tiny, changes, message):
    with pytest.raises((ConfigError, CheckpointError), match=message) as caught:
        build(config(tiny, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, Sampling()),
        ({"temperature": 1, "top_k": 0, "top_p": None, "bos_token_id": 1}, Sampling(temperature=1.0, top_k=-1)),
        (
            {"top_k": 50.0, "min_p": 0.1, "repetition_penalty": 1.1},
            Sampling(top_k=50, min_p=0.1, repetition_penalty=1.1),
        ),
    ],
)
def test_sampling_defaults_are_the_models_own(generation, expected):
    assert sampling_defaults(Config(), generation) == expected
    assert sampling_defaults(Config(sampling_defaults="openai"), generation) == Sampling()


def test_a_generation_config_that_is_no_number_is_refused():
    with pytest.raises(CheckpointError, match="temperature is 'hot'"):
        sampling_defaults(Config(), {"temperature": "hot"})

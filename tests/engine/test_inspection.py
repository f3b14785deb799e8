"""What `zerokl inspect` says is what a server of the same options then is, and nothing was read to say it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.checkpoints.gguf_files import toy_tokenizer_keys, write_llama_gguf
from tests.checkpoints.tiny import TINY, make_tiny_llama, tiny_weights
from tests.models.families import FAMILIES, config_of, family_model, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor
from zerokl import models
from zerokl.checkpoints.view import Tensor
from zerokl.cli.main import commands
from zerokl.config import Config
from zerokl.engine.build import build
from zerokl.engine.inspection import inspect
from zerokl.errors import CheckpointError


def tiny_file(folder: Path, kind: str = "F32") -> Path:
    config = TINY | {"vocab_size": 284}
    return write_llama_gguf(folder / "x.gguf", config, tiny_weights(config, 3), kind, **toy_tokenizer_keys())


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("make", [lambda at: make_tiny_llama(at / "m", 3), tiny_file], ids=["folder", "gguf"])
def test_it_says_what_the_server_will_be(tmp_path, make, dtype):
    config = Config(model=str(make(tmp_path)), dtype=dtype, max_total_tokens=1024)
    found, hello = inspect(config), build(config).hello
    facts = json.loads(hello.facts)
    assert found.problem == ""
    assert found.fingerprint == hello.fingerprint
    assert (found.context_length, found.vocabulary) == (hello.context, hello.vocab)
    assert ",".join(found.kept) == facts["dtype"]
    assert found.weight_bytes <= facts["weight_bytes"] < 1.01 * found.weight_bytes  # 284 rows lie in panels of 16
    assert found.bytes_per_token == facts["bytes_per_token"]


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_told_for_every_architecture(family, dtype):
    config = config_of(family)
    tensors = {name: MemoryTensor(array) for name, array in tensors_of(config).items()}
    planned = models.plan(MemoryCheckpoint(config, tensors), Config())
    told = planned.weight_bytes(MemoryCheckpoint(config, tensors), dtype)
    in_memory = family_model(family, dtype=dtype).weight_bytes
    assert told <= in_memory <= 1.15 * told  # rows that fill a last panel of 16: small matrices have few rows


def test_no_tensor_is_read(tmp_path, monkeypatch):
    config = Config(model=str(tiny_file(tmp_path)))
    monkeypatch.setattr(Tensor, "array", lambda tensor: pytest.fail(f"{tensor.name} was read"))
    assert inspect(config).problem == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"architectures": ["LlamaForCausalLm"]}, r"'LlamaForCausalLm' isn't supported; .*; nearest: LlamaForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ({"num_hidden_layers": 3}, r"missing: model\.layers\.2\."),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_wont_run_says_why_and_what_is_known(tmp_path, change, problem):
    folder = make_tiny_llama(tmp_path / "m", 3)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | change))
    found = inspect(Config(model=str(folder)))
    assert re.search(problem, found.problem)
    assert found.parameters > 0
    assert found.fingerprint == ""


def test_the_command_prints_lines_or_json_and_its_status_is_the_answer(tmp_path):
    file = str(tiny_file(tmp_path, "Q8_0"))
    lines = CliRunner().invoke(commands, ["inspect", file])
    assert lines.exit_code == 0
    assert "runs          yes" in lines.output
    assert "Q8_0" in lines.output
    read = CliRunner().invoke(commands, ["inspect", file, "--json", "--dtype", "bfloat16"])
    assert json.loads(read.output)["kept"].keys() == {"bfloat16"}
    refused = CliRunner().invoke(commands, ["inspect", file, "--context-length", "1000000"])
    assert refused.exit_code == 1
    assert "runs          no: --context-length 1000000 is above" in refused.output


def test_nothing_there_is_one_line():
    missing = CliRunner().invoke(commands, ["inspect", "./nothing"])
    assert isinstance(missing.exception, CheckpointError)

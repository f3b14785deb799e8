"""Configs and files with wrong values are read or refused in our own words, for every dense architecture."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.models import formats
from tests.models.families import FAMILIES, config_of, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor
from zerokl import checkpoints, models
from zerokl.config import Config
from zerokl.errors import CallerError

DENSE = [
    name
    for name in FAMILIES
    if name.startswith(("llama", "qwen2", "phi3", "olmo2", "granite-b", "st", "gpt2", "gemma"))
]
VALUES: list[Any] = [None, 0, 1, 2, -1, 3, 10**9, 2**70, 0.5, -1.0, 1e-300, 1e300, "x", "", [], [1], {}, True, False]
VALUES += [{"rope_type": "yarn", "factor": 1e300}, {"type": "longrope", "long_factor": [0], "short_factor": "x"}]


@pytest.mark.parametrize("family", DENSE)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_config_is_a_plan_or_our_error(family: str, data: st.DataObject) -> None:
    config = dict(config_of(family))
    keys = [key for key in config if key not in ("architectures", "torch_dtype")]
    for _ in range(data.draw(st.integers(1, 2))):
        config[data.draw(st.sampled_from(keys))] = data.draw(st.sampled_from(VALUES))
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict) and scaling and data.draw(st.booleans()):
        config["rope_scaling"] = scaling | {
            data.draw(st.sampled_from(sorted(scaling))): data.draw(st.sampled_from(VALUES))
        }
    with contextlib.suppress(CallerError):
        models.plan(MemoryCheckpoint(config, tensors_by_name(family)), Config())


@cache
def tensors_by_name(family: str) -> dict[str, MemoryTensor]:
    return {name: MemoryTensor(array) for name, array in tensors_of(config_of(family)).items()}


@pytest.fixture(scope="module", params=[a for a, form in formats.rows() if form == "GGUF F32"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return formats.write(tmp_path_factory.mktemp("gguf"), request.param, "GGUF F32")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_a_file_is_read_or_is_our_error(file: Path, data: st.DataObject) -> None:
    content = bytearray(file.read_bytes())
    header = content.find(b"blk.1.")  # metadata, and some tensors' names and shapes
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    damaged = file.with_suffix(".damaged")
    damaged.write_bytes(content)
    with contextlib.suppress(CallerError):
        models.plan(checkpoints.open(damaged), Config())

"""Architectures, and how a checkpoint becomes a model that runs.

model = models.load(checkpoint, config)      # checkpoint: zerokl.checkpoints; config: zerokl.config
parts = model.rows(tokens, ragged, kv_layers)
logits = model.logits_of(*(part[wanted_rows] for part in parts))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from zerokl.config import Config
from zerokl.errors import CheckpointError, ConfigError
from zerokl.models import weights
from zerokl.models.memory import CacheFormat
from zerokl.models.model import Model, rotations_of
from zerokl.models.planning import Plan, check_numerics, plan, weight_tables
from zerokl.models.registry import ARCHITECTURES, architecture_of
from zerokl.models.split import ALONE, Team, config_of_rank, share_of

__all__ = [
    "ARCHITECTURES",
    "Model",
    "Plan",
    "Team",
    "cache_format",
    "check_numerics",
    "dtype_of",
    "load",
    "loading",
    "outline",
    "plan",
    "rotations_of",
    "tensor_shapes",
    "weight_tables",
]

MAX_LAYERS, MAX_EXPERTS = 1 << 12, 1 << 14
"""Of a model that there are no weights of to say otherwise."""


def load(checkpoint: weights.Checkpoint, config: Config, team: Team = ALONE) -> Model:
    """What `loading` gives, when it is there."""
    with loading(checkpoint, config, team) as loaded:
        return loaded()


@contextmanager
def loading(checkpoint: weights.Checkpoint, config: Config, team: Team = ALONE) -> Iterator[Callable[[], Model]]:
    """The checkpoint's model, with its weights packed as `config.dtype` says; of a shared model, the rank's part.
    Inside `with` weights are read; the call that it gives waits for them.

    Raises what `plan` raises, and UnsupportedModel for one that ranks can't share.
    """
    planned = plan(checkpoint, config)
    numerics = "sm90" if config.cpu_numerics == "sm90" else "cpu"
    share = share_of(planned.config, team, planned.architecture)
    integer, packs = config.cpu_numerics == "integer", config.dtype == "auto"
    place = weights.Place(dtype_of(config), team.device(config.device), integer, packs)
    own = config_of_rank(planned.config, share)
    cache = cache_format(checkpoint, config, planned.config.num_layers)
    with weights.loading(planned.table, planned.dropped, planned.config, checkpoint, place, share) as loaded:
        yield lambda: Model(
            planned.architecture, planned.module, own, loaded(), planned.context_length, team, cache, numerics
        )


def cache_format(checkpoint: weights.Checkpoint, config: Config, num_layers: int) -> CacheFormat:
    """How keys and values are kept: as --kv-cache-dtype says; the scales of fp8 are the checkpoint's, else 1.

    Raises CheckpointError for scales that aren't positive numbers.
    """
    dtype = kept_in_cache(config)
    if dtype != "fp8_e4m3":
        return CacheFormat(dtype)
    scales = [[1.0, 1.0] for _ in range(num_layers)]
    for name, tensor in getattr(checkpoint, "cache_scales", {}).items():
        found = re.search(r"layers\.(\d+)\..*\.([kv])_scale$", name)
        if found and int(found[1]) < num_layers:
            value = tensor.float32()
            if value.size != 1 or not 0 < value.item() < inf:
                raise CheckpointError(f"tensor {name!r} must be one positive number")
            scales[int(found[1])]["kv".index(found[2])] = float(value.item())
    return CacheFormat(dtype, tuple((k, v) for k, v in scales))


def outline(checkpoint_config: Mapping[str, Any], config: Config) -> Model:
    """The model of a checkpoint's config without its weights: what it would remember, but nothing that runs."""
    name, module = architecture_of(checkpoint_config)
    model_config = module.Config.from_checkpoint(checkpoint_config)
    context_length = config.context_length or model_config.context_length
    cache = CacheFormat(kept_in_cache(config))
    return Model(name, module, model_config, weights.Parameters(), context_length, cache=cache)


def tensor_shapes(checkpoint_config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor of a checkpoint with this config, in one of its naming schemes."""
    _, module = architecture_of(checkpoint_config)
    model_config = module.Config.from_checkpoint(checkpoint_config)
    if model_config.num_layers > MAX_LAYERS or model_config.axes.get("X", 0) > MAX_EXPERTS:
        raise CheckpointError(f"a model of more than {MAX_LAYERS} layers or {MAX_EXPERTS} experts")
    for row in weight_tables(module, ())[0]:
        for layer in row.layers(model_config):
            yield from row.sources(model_config, layer)


def dtype_of(config: Config) -> str:
    """The matrices' type. Raises ConfigError for one that the device has no kernels for."""
    if config.device == "cpu" and config.cpu_numerics != "sm90":
        return config.dtype
    if config.dtype not in ("auto", "bfloat16"):
        raise ConfigError(f"--dtype {config.dtype}: the GPU computes with bfloat16 weights and activations")
    return "bfloat16"


def kept_in_cache(config: Config) -> str:
    """The type of keys and values: on the GPU fp8, or else its one type, which "float32" stands for here."""
    if config.device != "cpu":
        return "fp8_e4m3" if config.kv_cache_dtype == "fp8_e4m3" else "float32"
    if config.cpu_numerics == "sm90":
        if config.kv_cache_dtype not in ("auto", "bfloat16", "bf16"):
            raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: --cpu-numerics sm90 keeps bfloat16")
        return "bfloat16"
    return {"auto": "float32", "bf16": "bfloat16"}.get(config.kv_cache_dtype, config.kv_cache_dtype)

"""What a checkpoint will be as a model, told from its config and its tensors' names alone: nothing is read yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from msgspec import Struct

from zerokl.config import Config
from zerokl.errors import CheckpointError, ConfigError, UnsupportedModel
from zerokl.models import weights
from zerokl.models.memory import LayerMemory, memory_of
from zerokl.models.model import Architecture, ModelConfig
from zerokl.models.registry import architecture_of
from zerokl.models.rope import SERVED
from zerokl.quant import check_option, scheme_of

AS_GPU = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
AS_GPU_HEADS, AS_GPU_COLUMNS = (16, 32, 64, 128, 256), 4096
"""What --cpu-numerics sm90 can run: what a tape holds, in the native code's sizes."""
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Plan(Struct, frozen=True, eq=False):
    """A model that can be loaded."""

    architecture: str
    module: Architecture
    config: ModelConfig
    context_length: int
    table: Sequence[weights.W]
    dropped: Sequence[str]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return memory_of(self.config)

    def matrices(self, checkpoint: weights.Checkpoint, dtype: str) -> dict[str, int]:
        """How many numbers are kept as each type, with `dtype` as in `weights.load`."""
        found: dict[str, int] = {}
        for kept, count, _ in self._kept(checkpoint, dtype):
            found[kept] = found.get(kept, 0) + count
        return found

    def _kept(self, checkpoint: weights.Checkpoint, dtype: str) -> Iterator[tuple[str, int, int]]:
        """(type, numbers, bytes) of each part of each matrix."""
        for row in self.table:
            for layer in row.layers(self.config) if row.how not in weights.VECTORS else ():
                sources = row.sources(self.config, layer)
                tensors = [checkpoint.tensors[name] for name, _ in sources]
                plain = weights.kept_as([tensor.dtype for tensor in tensors], dtype)
                stays_packed = dtype == "auto" and row.how in weights.PACKED
                for tensor, (_, shape) in zip(tensors, sources, strict=True):
                    if stays_packed and getattr(tensor, "packed", None):
                        yield tensor.dtype.lower(), prod(shape), tensor.nbytes  # type: ignore[attr-defined]
                    else:
                        yield plain, prod(shape), prod(shape) * ITEM_BYTES[plain]

    def weight_bytes(self, checkpoint: weights.Checkpoint, dtype: str) -> int:
        """Of all matrices in memory, but for rows that fill a last panel of 16."""
        return sum(num_bytes for _, _, num_bytes in self._kept(checkpoint, dtype))


def plan(checkpoint: weights.Checkpoint, config: Config) -> Plan:
    """Raises UnsupportedModel, CheckpointError (one, that lists every tensor that doesn't fit), and ConfigError for a
    context length above the model's own.
    """
    name, module = architecture_of(checkpoint.config)
    check_quantised(checkpoint, config)
    served = {SERVED: config.context_length} if config.context_length else {}
    num_tensors = len(checkpoint.tensors)
    for key in ("num_hidden_layers", "n_layer"):  # before anything is made per layer
        num_layers = checkpoint.config.get(key)
        if isinstance(num_layers, int) and num_layers > num_tensors:
            raise CheckpointError(f"the config has {num_layers} layers, but the checkpoint only {num_tensors} tensors")
    model_config = module.Config.from_checkpoint({**checkpoint.config, **served})
    context_length = config.context_length or model_config.context_length
    if context_length > model_config.context_length:
        raise ConfigError(f"--context-length {context_length} is above the model's own {model_config.context_length}")
    if config.cpu_numerics == "sm90":
        check_as_gpu(name, model_config)
    table, dropped = weight_tables(module, checkpoint.tensors)
    weights.check_names(table, dropped, model_config, checkpoint.tensors)
    return Plan(name, module, model_config, context_length, table, dropped)


def check_quantised(checkpoint: weights.Checkpoint, config: Config) -> None:
    """Raises ConfigError where --quantization contradicts the checkpoint, or the numerics the ranks."""
    packed = any(getattr(tensor, "packed", None) for tensor in checkpoint.tensors.values())
    scheme = getattr(checkpoint, "scheme", None) or scheme_of(checkpoint.config)
    check_option(config.quantization, scheme, is_gguf=scheme is None and packed)
    check_numerics(config)
    stored = {tensor.dtype for tensor in checkpoint.tensors.values()} & set(weights.PACKED_ON_GPU)
    if config.cpu_numerics == "sm90" and stored and config.dtype == "auto":
        raise ConfigError(
            f"--cpu-numerics sm90 has no products with {', '.join(sorted(stored))} weights; "
            "--dtype bfloat16 dequantises them, here and on the GPU"
        )


def check_numerics(config: Config) -> None:
    """Raises ConfigError where --cpu-numerics contradicts other options, whatever the model."""
    in_leaves = config.tp > 1 or (config.tp_leaves or 1) > 1
    if config.cpu_numerics == "integer" and in_leaves:
        raise ConfigError("--cpu-numerics integer: sums in leaves are exact ones only")
    if config.cpu_numerics == "sm90" and config.device != "cpu":
        raise ConfigError("--cpu-numerics sm90 is for --device cpu: a GPU has no other")
    if config.cpu_numerics == "sm90" and in_leaves:
        raise ConfigError("--cpu-numerics sm90: neither ranks nor leaves")


def check_as_gpu(name: str, config: ModelConfig) -> None:
    """Raises UnsupportedModel, before a weight is read, for a model that the CPU can't run in the GPU's arithmetic."""
    reason = ""
    if name not in AS_GPU:
        reason = f"for these only: {', '.join(AS_GPU)}"
    elif getattr(config, "memory", None) is not None:
        reason = "where every layer sees every key"
    elif config.head_size not in AS_GPU_HEADS:
        reason = f"heads of {', '.join(map(str, AS_GPU_HEADS))}, not {config.head_size}"
    elif config.axes["E"] > AS_GPU_COLUMNS:
        reason = f"rows of at most {AS_GPU_COLUMNS} numbers, not {config.axes['E']}"
    if reason:
        raise UnsupportedModel(f"--cpu-numerics sm90 isn't there for {name}: {reason}")


def weight_tables(module: Architecture, names: Collection[str]) -> tuple[Sequence[weights.W], Sequence[str]]:
    """What is read and what is dropped: an architecture whose files come with several names has `tables(names)`."""
    choose = getattr(module, "tables", None)
    return choose(names) if choose else (module.WEIGHTS, module.DROPPED)

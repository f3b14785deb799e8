"""What a checkpoint is, what it will take and whether it will run, without loading it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from zerokl import checkpoints, models
from zerokl.checkpoints.chosen_tokenizer import tokenizer_files
from zerokl.config import Config
from zerokl.engine.assembly import evidence_of
from zerokl.engine.build import check_device
from zerokl.engine.fingerprint import fingerprint
from zerokl.errors import CallerError
from zerokl.models.memory import windows_of
from zerokl.quant import number_type
from zerokl.runner.sizes import bytes_per_sequence, key_bytes
from zerokl.runner.start import cpu_numerics, kv_dtype
from zerokl.tokenizer import Tokenizer
from zerokl.types import TokenizerFiles


@dataclass(slots=True)
class Inspection:
    """What was found out before the problem, if there is one."""

    path: Path
    problem: str = ""
    """Why it won't run; "": it will."""
    architecture: str = ""
    stored: dict[str, int] = field(default_factory=dict)
    """Bytes of each type on disk, the largest share first."""
    parameters: int = 0
    layers: int = 0
    context_length: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    """Numbers of matrices kept as each type in memory."""
    weight_bytes: int = 0
    bytes_per_token: int = 0
    """Of keys and values, in layers that see all of a text."""
    bytes_per_sliding_token: dict[int, int] = field(default_factory=dict)
    """By window."""
    bytes_per_sequence: int = 0
    """Of states that don't grow with the text."""
    vocabulary: int = 0
    chat_template: bool = False
    weights: str = ""
    """Digest of the files that decide the weights."""
    fingerprint: str = ""
    """What a server started with the same options on this machine will say; "": not known without its device."""


def inspect(config: Config) -> Inspection:
    """Raises CheckpointError only if there is nothing at `config.model`; what is wrong with it is its `problem`."""
    found = Inspection(checkpoints.find(config.model, config.revision))
    try:
        check_device(config)
        checkpoint = checkpoints.open(
            found.path, load_format=config.load_format, shapes_of=models.tensor_shapes, quantization=config.quantization
        )
        found.architecture = ", ".join(map(str, checkpoint.config.get("architectures") or ["unnamed"]))
        measure_files(found, checkpoint)
        plan = models.plan(checkpoint, config)
        measure_model(found, plan, checkpoint, models.dtype_of(config))
        files = tokenizer_files(config, checkpoint)
        found.vocabulary, found.chat_template = files.special.vocab_size, bool(files.chat_template)
        identify(found, plan, checkpoint, config, files)
    except CallerError as error:
        found.problem = str(error)
    return found


def measure_files(found: Inspection, checkpoint: checkpoints.Checkpoint) -> None:
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
        found.parameters += prod(tensor.shape)
    found.stored = dict(sizes.most_common())


def measure_model(found: Inspection, plan: models.Plan, checkpoint: checkpoints.Checkpoint, dtype: str) -> None:
    found.layers, found.context_length = plan.config.num_layers, plan.context_length
    found.kept = dict(sorted(plan.matrices(checkpoint, dtype).items()))
    found.weight_bytes = plan.weight_bytes(checkpoint, dtype)
    found.bytes_per_token = key_bytes(plan.memory, None)
    found.bytes_per_sliding_token = {window: key_bytes(plan.memory, window) for window in windows_of(plan.memory)}
    found.bytes_per_sequence = bytes_per_sequence(plan.memory)


def identify(
    found: Inspection, plan: models.Plan, checkpoint: checkpoints.Checkpoint, config: Config, files: TokenizerFiles
) -> None:
    """Digests read every file once; they are remembered."""
    found.weights = checkpoint.digest
    tokenizer = Tokenizer(files)
    if config.device == "cpu":
        integer = config.cpu_numerics == "integer"
        dtypes = tuple(sorted({number_type(kept, integer) for kept in found.kept}))
        rotations = models.rotations_of(plan.config)
        kept = kv_dtype(models.cache_format(checkpoint, config, plan.config.num_layers))
        numerics = cpu_numerics(kept, config.cpu_numerics)
        evidence = evidence_of(config, checkpoint, tokenizer, dtypes, numerics, rotations)
        found.fingerprint = fingerprint(config, evidence)

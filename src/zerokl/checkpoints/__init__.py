"""Models as stored, in one view: Hugging Face folders, GGUF files, seeded dummy weights; and how a model is found.

checkpoint = checkpoints.open("SmolLM2-135M-Instruct.Q4_1.gguf")
checkpoint.config["hidden_size"], checkpoint.tensors["model.norm.weight"].array()

What reads one kind is loaded by the first that opens one: who only looks for a model (`hub`) needs no numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokl.errors import CheckpointError

if TYPE_CHECKING:
    from zerokl.checkpoints.dummy import ShapesOf
    from zerokl.checkpoints.view import Checkpoint, Tensor

__all__ = ["DEFAULT_MODEL", "Checkpoint", "Tensor", "find", "open", "read_config"]


DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Which one a config means that names none."""


def find(model: str, revision: str = "") -> Path:
    """Where the model lies that a config names: `hub.resolve`, without loading that for a path that is there."""
    if model and (path := Path(model).expanduser()).exists():
        return path
    from zerokl.checkpoints import hub

    return hub.resolve(model, revision)


def open(
    path: str | Path,
    *,
    load_format: str = "auto",
    seed: int = 0,
    shapes_of: ShapesOf = lambda config: (),
    quantization: str = "",
    tokenizer_later: bool = False,
) -> Checkpoint:
    """The checkpoint at `path`: a folder with config.json, or a GGUF file. Checked in full, no weight read yet.

    `tokenizer_later`: the tokenizer is read, and refused if it is bad, when it is asked for.

    `load_format` is the option of that name: "safetensors" and "gguf" insist on that kind; "dummy" makes seeded random
    weights for a folder's config.json, and asks `shapes_of` (`models.tensor_shapes`) for names and shapes, and
    quantises as `quantization` says, which a stored checkpoint says itself. Raises CheckpointError, ConfigError, or
    UnsupportedModel for a kind that isn't read.
    """
    path = Path(path).expanduser()
    checkpoint = _opened(path, load_format, seed, shapes_of, quantization)
    if not tokenizer_later:
        _ = checkpoint.tokenizer
    return checkpoint


def _opened(path: Path, load_format: str, seed: int, shapes_of: ShapesOf, quantization: str) -> Checkpoint:
    is_file = _is_file(path)
    if load_format == "gguf" and not is_file:
        raise CheckpointError(f"{path}: --load-format gguf needs a GGUF file")
    if load_format in ("safetensors", "dummy") and is_file:
        raise CheckpointError(f"{path}: --load-format {load_format} needs a folder")
    if load_format == "dummy":
        from zerokl.checkpoints.dummy import open_dummy

        return open_dummy(path, seed, shapes_of, quantization)
    if is_file:
        from zerokl.checkpoints.gguf_model import open_gguf

        return open_gguf(path)
    from zerokl.checkpoints.folder import open_folder

    return open_folder(path)


def read_config(path: str | Path) -> dict[str, Any]:
    """The config alone, of a folder that need not have weights, or of a GGUF file. Raises CheckpointError."""
    path = Path(path).expanduser()
    if _is_file(path):
        from zerokl.checkpoints.gguf_model import open_gguf

        return open_gguf(path).config
    from zerokl.checkpoints.folder import read_config

    return read_config(path)


def _is_file(path: Path) -> bool:
    """Raises CheckpointError if there is nothing."""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return path.is_file()

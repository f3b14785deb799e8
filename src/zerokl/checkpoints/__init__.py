"""Models as stored, in one view: Hugging Face folders, GGUF files, seeded dummy weights; and how a model is found.

checkpoint = checkpoints.open("SmolLM2-135M-Instruct.Q4_1.gguf")
checkpoint.config["hidden_size"], checkpoint.tensors["model.norm.weight"].array()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokl.checkpoints.dummy import ShapesOf, open_dummy
from zerokl.checkpoints.files import fail
from zerokl.checkpoints.folder import open_folder
from zerokl.checkpoints.folder import read_config as read_folder_config
from zerokl.checkpoints.gguf_model import open_gguf
from zerokl.checkpoints.view import Checkpoint, Tensor

__all__ = ["Checkpoint", "Tensor", "open", "read_config"]


def open(
    path: str | Path,
    *,
    load_format: str = "auto",
    seed: int = 0,
    shapes_of: ShapesOf = lambda config: (),
    quantization: str = "",
) -> Checkpoint:
    """The checkpoint at `path`: a folder with config.json, or a GGUF file. Checked in full, nothing read yet.

    `load_format` is the option of that name: "safetensors" and "gguf" insist on that kind; "dummy" makes seeded random
    weights for a folder's config.json, and asks `shapes_of` (`models.tensor_shapes`) for names and shapes, and
    quantises as `quantization` says, which a stored checkpoint says itself. Raises CheckpointError, ConfigError, or
    UnsupportedModel for a kind that isn't read.
    """
    path = Path(path).expanduser()
    is_file = _exists(path) and path.is_file()
    if load_format == "gguf" and not is_file:
        fail(path, "--load-format gguf needs a GGUF file")
    if load_format in ("safetensors", "dummy") and is_file:
        fail(path, f"--load-format {load_format} needs a folder")
    if load_format == "dummy":
        return open_dummy(path, seed, shapes_of, quantization)
    return open_gguf(path) if is_file else open_folder(path)


def read_config(path: str | Path) -> dict[str, Any]:
    """The config alone, of a folder that need not have weights, or of a GGUF file. Raises CheckpointError."""
    path = Path(path).expanduser()
    return open_gguf(path).config if _exists(path) and path.is_file() else read_folder_config(path)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (OSError, ValueError) as error:
        fail(path, getattr(error, "strerror", None) or str(error), error)
    return True

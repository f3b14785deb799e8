"""A Hugging Face folder: config.json, safetensors, tokenizer.json and its companions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from zerokl.checkpoints import safetensors
from zerokl.checkpoints.companions import cache_scales, with_companions
from zerokl.checkpoints.digest import files_digest
from zerokl.checkpoints.files import fail, read_json
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Checkpoint, Tensor
from zerokl.errors import UnsupportedModel
from zerokl.quant import Scheme, scheme_of

SEPARATE = "hf_quant_config.json"
"""ModelOpt's own file about quantisation."""


def open_folder(folder: Path) -> Checkpoint:
    config = read_config(folder)
    generation = read_generation_config(folder)
    tensors = safetensors.read_folder(folder)
    scheme, whole = read_quantised(folder, config, tensors)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=whole,
        scheme=scheme,
        cache_scales=cache_scales(tensors),
        read_tokenizer=partial(read_tokenizer, folder, config, generation),
        read_generation_config=lambda: generation,
        compute_digest=lambda: files_digest(_digested(folder)),
    )


def read_quantised(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[Scheme | None, dict[str, Tensor]]:
    """(what is said about quantisation, the tensors with quantised ones whole).

    A method that isn't read is refused when the model is planned, so that `zerokl inspect` can say what there is.
    """
    separate = folder / SEPARATE
    try:
        scheme = scheme_of(config, read_json(separate) if separate.exists() else None)
    except UnsupportedModel:
        if not config.get("quantization_config"):
            raise
        return None, tensors
    return scheme, with_companions(folder, tensors, scheme)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        fail(folder, "no config.json: not a Hugging Face model folder")
    return read_json(path)


def read_generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path) if path.exists() else {}


def _digested(folder: Path) -> list[Path]:
    """What decides the weights and how they are run; the tokenizer has a digest of its own."""
    about = [folder / "config.json", *(path for path in [folder / SEPARATE] if path.exists())]
    return [*about, *safetensors.weight_files(folder)]

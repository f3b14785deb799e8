"""A Hugging Face folder: config.json, safetensors, tokenizer.json and its companions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokl.checkpoints import safetensors
from zerokl.checkpoints.digest import files_digest
from zerokl.checkpoints.files import fail, read_json
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Checkpoint


def open_folder(folder: Path) -> Checkpoint:
    config = read_config(folder)
    generation = read_generation_config(folder)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=safetensors.read_folder(folder),
        tokenizer=read_tokenizer(folder, config, generation),
        generation_config=generation,
        compute_digest=lambda: files_digest(_digested(folder)),
    )


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
    return [folder / "config.json", *safetensors.weight_files(folder)]

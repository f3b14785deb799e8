"""The tokenizer of a model that is loaded: made on a thread of its own, by native code, while weights are read."""

from __future__ import annotations

from pathlib import Path

from zerokl.checkpoints.chosen_tokenizer import tokenizer_files
from zerokl.checkpoints.view import Checkpoint
from zerokl.config import Config
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.battery import write_battery
from zerokl.tokenizer.run_folder import is_written, write_run_folder


def tokenizer_of(config: Config, run_folder: str | Path | None, battery: bool, checkpoint: Checkpoint) -> Tokenizer:
    """The one that lies in the run folder; or, where there is none yet, the checkpoint's, put there for the frontends.

    `battery`: with the chats that a Rust frontend must render alike.
    """
    if run_folder is None:
        return Tokenizer(tokenizer_files(config, checkpoint))
    folder = Path(run_folder)
    if is_written(folder):
        return Tokenizer.load(folder)
    files = tokenizer_files(config, checkpoint)
    if not battery:
        write_run_folder(folder, files)  # they make their own while we make ours
        return Tokenizer(files)
    tokenizer = Tokenizer(files)
    write_battery(folder, tokenizer)
    write_run_folder(folder, files)
    return tokenizer

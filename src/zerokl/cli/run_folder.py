"""The run folder: what the processes of one server share. Private, because the config holds its keys.

config.json   tokenizer.json   chat_template.jinja   special_tokens.json   engine.sock   owner

`owner` is locked as long as the supervisor lives. One that is killed can't remove its folder; the next start does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from zerokl.config import Config, options

PREFIX, OWNER, CONFIG = "zerokl-", "owner", "config.json"
TOKENIZER = "special_tokens.json"
"""The last of the tokenizer's files; `tokenizer/run_folder.py` would load the `tokenizers` library to say so."""
POLL_S = 0.005


@contextlib.contextmanager
def new_run_folder() -> Iterator[str]:
    """Only for this user, gone at the end. Its path is short: a socket's may have 100 characters."""
    import tempfile  # not for the children, whose start it would delay

    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        lock = os.open(Path(name) / f"{OWNER}.new", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(name, f"{OWNER}.new").rename(Path(name) / OWNER)  # so nobody finds it unlocked
            yield name
        finally:
            os.close(lock)


def sweep(parent: Path) -> None:
    """Removes the run folders of this user whose supervisor is dead."""
    import shutil

    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # another user's, locked, or swept by another start at this moment
            if owner.stat().st_uid != os.getuid() or owner.parent.is_symlink():
                continue
            lock = os.open(owner, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(lock)


def write_config(folder: Path, config: Config) -> None:
    """What the processes wait for; the engine then puts the tokenizer there, for which frontends wait too."""
    new = folder / (CONFIG + ".new")
    new.touch(mode=0o600)  # it may hold keys, and outlives a supervisor that is killed
    new.write_bytes(orjson.dumps(dataclasses.asdict(config)))
    new.rename(folder / CONFIG)


def await_config(folder: Path) -> Config:
    """The config, when it is there: processes are started, and load their code, while the model is still looked for."""
    await_file(folder / CONFIG)
    return read_config(folder)


def await_file(path: Path) -> None:
    """Another process writes it; if that ends, the supervisor or the lifeline ends this one."""
    while not path.exists():
        time.sleep(POLL_S)


def read_config(folder: Path) -> Config:
    values: dict[str, Any] = orjson.loads((folder / CONFIG).read_bytes())
    lists = {field.name for field in options() if str(field.type).startswith("tuple")}
    values |= {name: tuple(values[name]) for name in lists}
    return Config(**values)

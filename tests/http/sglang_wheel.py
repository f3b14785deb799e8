"""Files out of SGLang's public wheel, loaded as they are. They are never part of this repository."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zerokl.checkpoints.cache_folder import cache_folder

VERSION = "0.5.23"


def wheel() -> Path:
    """Downloaded once, and there only when it is whole: files of tests run side by side."""
    folder = cache_folder() / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    wheels = list(folder.glob(f"sglang-{VERSION}-*.whl"))
    if wheels:
        return wheels[0]
    wanted = f"sglang=={VERSION}"
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", partial, wanted]
        if subprocess.run(command, check=False, timeout=500).returncode:
            pytest.skip(f"{wanted} can't be downloaded, and SGLang's files are not part of this repository")
        [found] = Path(partial).glob("*.whl")
        return found.replace(folder / found.name)


def load(member: str, stubs: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """One module of the wheel; `stubs`: modules that it imports, with the names it wants of them."""
    before = dict(sys.modules)
    try:
        for name, values in (stubs or {}).items():
            stub = types.ModuleType(name)
            vars(stub).update(values)
            sys.modules[name] = stub
        with zipfile.ZipFile(wheel()) as archive, tempfile.TemporaryDirectory() as folder:
            extracted = Path(archive.extract(member, folder))
            spec = importlib.util.spec_from_file_location(f"sglang_wheel_{extracted.stem}", extracted)
            assert spec
            assert spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith("sglang"):
                del sys.modules[name]
    return module

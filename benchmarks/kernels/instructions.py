"""Instructions that the hot kernels execute, counted by callgrind: figures that don't depend on what else runs.

    .venv/bin/python benchmarks/kernels/instructions.py [--only attention sample] [--json result.json]

A process under `valgrind --tool=callgrind` runs one operation some times; another runs it not at all; the difference is
the operation's. Only what the extension itself executes counts: Python's own share differs by more than a small kernel
from run to run. Valgrind has no AVX-512, so the bodies are those of AVX2; one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CALLS = 40
LINEAR = [(rows, 960, 576) for rows in (1, 4, 8, 16, 48)]
ATTENTION = [(1, 512, "float32"), (1, 512, "bfloat16"), (48, 512, "float32")]
OTHERS = ["sample 1 49152", "score 1 49152", "rms_norm 1 576", "rms_norm 16 576"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="operations whose name starts so")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", nargs=2, help="an operation and how often to run it: what runs under callgrind")
    options = parser.parse_args()
    if options.inside:
        run(options.inside[0], int(options.inside[1]))
        return
    names = [f"linear {rows} {outputs} {depth}" for rows, outputs, depth in LINEAR]
    names += [f"attention {rows} {keys} {dtype}" for rows, keys, dtype in ATTENTION] + OTHERS
    found = {}
    for name in (name for name in names if name.startswith(tuple(options.only))):
        found[name] = (count(name, CALLS) - count(name, 0)) / CALLS
        each = found[name] / work_of(name)
        print(f"{name:24} {found[name]:14,.0f} instructions, {each:.4f} per product or number", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def work_of(name: str) -> float:
    kind, *numbers = name.split()
    sizes = [int(number) for number in numbers if number.isdigit()]
    if kind == "attention":
        rows, keys = sizes
        return 2.0 * 9 * 64 * sum(keys - row for row in range(rows))
    return float(np.prod(sizes))


def count(name: str, calls: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", sys.executable, __file__]
        settled = os.environ | {"PYTHONHASHSEED": "0"}
        subprocess.run([*command, "--inside", name, str(calls)], env=settled, capture_output=True, check=True)
        return spent_in("_native", profile.read_text().splitlines())


def spent_in(library: str, profile: list[str]) -> int:
    """The instructions of functions of one library, those that they call not included."""
    names: dict[str, str] = {}
    total, is_ours, of_callee = 0, False, False
    for line in profile:
        if line.startswith("ob="):
            number, _, name = line[3:].partition(" ")
            names[number] = name or names[number]
            is_ours = library in names[number]
        elif line.startswith("cob="):
            number, _, name = line[4:].partition(" ")
            names[number] = name or names[number]
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1] in tuple("0123456789+-*"):
            total += 0 if of_callee or not is_ours else int(line.split()[-1])
            of_callee = False
    return total


def run(name: str, calls: int) -> None:
    from zerokl import _native

    _native.set_threads(1)
    work = prepared(*name.split())
    for _ in range(calls):
        work()


def prepared(kind: str, *sizes: str) -> Callable[[], object]:
    """One call of an operation."""
    from zerokl import ops
    from zerokl.types import LogprobSpec, SamplingParams

    rows, width = int(sizes[0]), int(sizes[1])
    if kind == "linear":
        depth = int(sizes[2])
        weight, x = ops.pack(np.ones((width, depth), np.float32), "bfloat16"), np.ones((rows, depth), np.float32)
        return partial(ops.linear, x, weight)
    if kind == "attention":
        return attention(rows, width, sizes[2])
    # Rising logits would be the worst case of the few largest: each would be one of them for a while.
    numbers = np.random.default_rng(0).standard_normal((rows, width), np.float32)
    if kind == "sample":
        return partial(ops.sample, numbers, [ops.Draw(SamplingParams(temperature=0.0), 1)] * rows)
    if kind == "score":
        return partial(ops.score, numbers, np.zeros(rows, np.int32), LogprobSpec(5))
    return partial(ops.rms_norm, numbers, np.ones(width, np.float32), 1e-5)


def attention(rows: int, keys: int, dtype: str) -> Callable[[], object]:
    from zerokl import ops

    pages = keys // 64
    kind: Any = np.float32 if dtype == "float32" else np.uint16  # the bits of bfloat16
    k, v = np.ones((pages, 3, 64, 64), kind), np.ones((pages, 3, 64, 64), kind)
    positions = np.arange(keys - rows, keys, dtype=np.int32)
    order = np.arange(pages, dtype=np.int32)[None]
    ragged = ops.Ragged(positions, positions, np.array([0, rows], np.int32), order, 64)
    return partial(ops.attention, np.ones((rows, 9, 64), np.float32), ops.LayerKV(k, v, ragged), 0.125)


if __name__ == "__main__":
    main()

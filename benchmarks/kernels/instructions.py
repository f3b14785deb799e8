"""Instructions that the hot kernels execute, counted by callgrind: figures that don't depend on what else runs.

    .venv/bin/python benchmarks/kernels/instructions.py [--json result.json]

A process under `valgrind --tool=callgrind` runs one operation some times; another runs it not at all; the difference is
the operation's. Valgrind has no AVX-512, so the bodies are those of AVX2; one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

CALLS = 40
LINEAR = [(rows, 960, 576) for rows in (1, 4, 8, 16, 48)]
ATTENTION = [(1, 512), (48, 512)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", nargs=2, help="an operation and how often to run it: what runs under callgrind")
    options = parser.parse_args()
    if options.inside:
        run(options.inside[0], int(options.inside[1]))
        return
    names = [f"linear {rows} {outputs} {depth}" for rows, outputs, depth in LINEAR]
    names += [f"attention {rows} {keys}" for rows, keys in ATTENTION] + ["sample 1 49152", "rms_norm 1 576"]
    found = {}
    for name in names:
        found[name] = (count(name, CALLS) - count(name, 0)) / CALLS
        print(f"{name:24} {found[name]:14,.0f} instructions, {found[name] / work_of(name):.4f} per product or number")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def work_of(name: str) -> float:
    kind, *numbers = name.split()
    sizes = [int(number) for number in numbers]
    if kind == "attention":
        rows, keys = sizes
        return 2.0 * 9 * 64 * sum(keys - row for row in range(rows))
    return float(np.prod(sizes))


def count(name: str, calls: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, __file__]
    settled = os.environ | {"PYTHONHASHSEED": "0"}  # or Python itself would count differently from run to run
    inside = ["--inside", name, str(calls)]
    done = subprocess.run([*command, *inside], env=settled, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


def run(name: str, calls: int) -> None:
    from zerokl import _native, ops
    from zerokl.types import SamplingParams

    _native.set_threads(1)
    kind, *numbers = name.split()
    first, *rest = (int(number) for number in numbers)
    work: Callable[[], object]
    if kind == "linear":
        outputs, depth = rest
        weight, x = ops.pack(np.ones((outputs, depth), np.float32), "bfloat16"), np.ones((first, depth), np.float32)
        work = partial(ops.linear, x, weight)
    elif kind == "attention":
        keys = rest[0]
        pages = keys // 64
        k, v = np.ones((pages, 3, 64, 64), np.float32), np.ones((pages, 3, 64, 64), np.float32)
        positions = np.arange(keys - first, keys, dtype=np.int32)
        order = np.arange(pages, dtype=np.int32)[None]
        ragged = ops.Ragged(positions, positions, np.array([0, first], np.int32), order, 64)
        q = np.ones((first, 9, 64), np.float32)
        work = partial(ops.attention, q, ops.LayerKV(k, v, ragged), 0.125)
    elif kind == "sample":
        logits = np.linspace(0, 1, rest[0], dtype=np.float32)[None]
        draw = ops.Draw(SamplingParams(temperature=0.0), 1)
        work = partial(ops.sample, logits, [draw])
    else:
        x, vector = np.ones((first, rest[0]), np.float32), np.ones(rest[0], np.float32)
        work = partial(ops.rms_norm, x, vector, 1e-5)
    for _ in range(calls):
        work()


if __name__ == "__main__":
    main()

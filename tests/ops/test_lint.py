"""A rounding lint: numpy's own sums, products and exponentials change with its SIMD level, so they stay out.

Everything that rounds is in our kernels; `ops/reference.py` may use numpy where the order is its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import zerokl

SOURCE = Path(zerokl.__file__).parent
FOLDERS = ("ops", "models", "runner")
EXEMPT = {Path("ops/reference.py"), Path("ops/reference_hybrid.py"), Path("ops/reference_numbers.py")}
KERNELS = Path("ops/triton")
"""Kernels sum and multiply: their order is their contract, and tests/gpu holds them to it."""

FUNCTIONS = frozenset(
    """
    exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 sum nansum fsum mean average std var dot vdot inner outer
    matmul einsum tensordot linalg fft trapezoid power float_power pow sqrt cbrt reciprocal sin cos tan tanh sinh cosh
    arcsin arccos arctan arctan2 convolve correlate interp
    """.split()  # noqa: SIM905
)
"""As `np.name`, `math.name`, or an import from either."""

METHODS = frozenset({"sum", "mean", "std", "var", "dot", "trace"})
"""As `array.name(...)`."""

INTEGERS = "# integers"
"""Ends a line whose sum is over integers: exact in any order."""


def violations(source: str) -> Iterator[tuple[int, str]]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        name = rounding(node)
        if name is not None and not lines[node.lineno - 1].rstrip().endswith(INTEGERS):
            yield node.lineno, name


def rounding(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="np" | "numpy" | "math"), attr=name) if name in FUNCTIONS:
            return name
        case ast.Attribute(attr=name) if name in METHODS:
            return name
        case ast.ImportFrom(module="numpy" | "math", names=names):
            return next((alias.name for alias in names if alias.name in FUNCTIONS), None)
        case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
            return "@"
    return None


def sources() -> list[Path]:
    found = (path for folder in FOLDERS for path in (SOURCE / folder).rglob("*.py"))
    paths = {path: path.relative_to(SOURCE) for path in found}
    return sorted(path for path, name in paths.items() if name not in EXEMPT and not name.is_relative_to(KERNELS))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_rounds_outside_the_kernels(path):
    assert list(violations(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "y = np.exp(x)",
        "y = x.sum(axis=0)",
        "y = np.mean(x)",
        "y = a @ b",
        "a @= b",
        "from numpy import dot",
        "y = np.linalg.norm(x)",
        "y = math.log2(x)",
        "y = np.add.reduce(np.sqrt(x))",
    ],
)
def test_the_lint_sees_what_it_is_there_for(line):
    assert list(violations(line))


def test_the_lint_lets_exact_things_pass():
    assert not list(violations("y = np.maximum(a, b).max() + sum(counts)\nn = lengths.sum()  # integers\n"))
    assert {Path("ops/attention.py"), Path("ops/score.py")} <= {path.relative_to(SOURCE) for path in sources()}

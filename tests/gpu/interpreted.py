"""Kernels without a GPU: Triton's interpreter runs them as numpy programs, and the runner finds a device that is none.

Activations are float32 there, because numpy has no bfloat16. Two of the interpreter's operations are replaced, since
it computes them with other roundings than the contract's: `tl.fma`, which has one rounding, and `tl.dot`, which here
walks k in order. What is left out: speed, races, memory order, and what a compiler does.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from zerokl.ops import choices
from zerokl.ops.reference_numbers import fma
from zerokl.ops.triton import ways
from zerokl.runner import columns, cuda, graphs


def install() -> None:
    InterpreterBuilder.create_fma = true_fma
    InterpreterBuilder.create_dot = chain_dot
    interpreter._patch_lang_tensor = with_index(interpreter._patch_lang_tensor)
    ways.library = chained
    choices.PACKED_UP_TO = 0  # Gluon has no interpreter
    ways.run_library = lambda x, w, y, ends, bias, added: ways.reference(x, w, y, ends, choices.REFERENCE, bias, added)
    ways.forbid_split_k = cuda.forbid_split_k = lambda: None
    cuda.CudaRunner.device = "cpu"
    graphs.Graphs.capture = capture
    cuda.to_host = columns.to_host = torch.clone
    torch.Tensor.pin_memory = lambda tensor: tensor
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.stream = contextlib.nullcontext
    torch.cuda.current_stream = Nothing
    torch.cuda.empty_cache = lambda: None
    torch.cuda.memory_reserved = lambda: 0


def with_index(patch: Any) -> Any:
    """A loop's bound is an array of one number, which numpy 2.4 no longer takes for a number (Triton 3.6)."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def true_fma(builder: Any, x: Any, y: Any, z: Any) -> TensorHandle:
    shape = np.broadcast(x.data, y.data, z.data).shape
    return TensorHandle(np.asarray(fma(x.data, y.data, z.data), np.float32).reshape(shape), x.dtype)


def chain_dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> TensorHandle:
    left, right, total = a.data.astype(np.float32), b.data.astype(np.float32), d.data.copy()
    for k in range(left.shape[1]):
        total = total + left[:, k, None] * right[None, k]
    return TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def chained(x: Any, w: Any, y: Any, added: bool = False) -> Any:
    """What the library is admitted for: the reference schedule's bits."""
    return ways.run_chain(x, w, y, choices.REFERENCE, added=added)


class Nothing:
    """A stream or an event where everything happens at once."""

    def synchronize(self) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...


class Again:
    """A graph that runs its function again and puts what comes out where it came out at capture."""

    def __init__(self, run: Any, outputs: Any) -> None:
        self.run, self.outputs = run, outputs

    def replay(self) -> None:
        for place, output in zip(self.outputs, self.run(), strict=True):
            place.copy_(output)


def capture(own: graphs.Graphs, key: Any, run: Any, prepare: Any = None, rows: Any = None) -> bool:
    if prepare:
        prepare()
    outputs = run()
    own.captured[key] = Again(run, outputs), outputs
    return True

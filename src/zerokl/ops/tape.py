"""A model's operations, recorded once and then run without Python between them.

    recording   the model's own functions run on `Symbol`s; every operation of `zerokl.ops` that meets one asks
                `device.gpu()` for its body, which is the recorder meanwhile, and the native tape takes a note
    a step      `_native.Tape.run`: the same kernels on the same numbers in the same order, so the same bits

A model that does anything else with its arrays (numpy expressions, operations that tapes don't know, windows, shares of
ranks) has no tape and is run as it always was. tests/runner/test_tape.py says which models must have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zerokl import _native
from zerokl.errors import ZeroklError
from zerokl.ops.device import recorded_by
from zerokl.ops.kv import F32, I32, LayerKV, Ragged
from zerokl.ops.matrix import Matrix


class NotRecorded(Exception):
    """The model does something that a tape can't hold."""


class Symbol:
    """Stands for an array of a row per token while a model is recorded. Only operations can do anything with it."""

    __array_ufunc__ = None
    __slots__ = ("heads", "name")

    def __init__(self, name: int, heads: int = 0) -> None:
        self.name, self.heads = name, heads

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotRecorded("a number of an array that isn't there yet")


class Recorder:
    """The bodies of operations while a model is recorded; as in `ops/triton`, but for what they do.

    `numerics`: "cpu", or "sm90", the arithmetic of that GPU.
    """

    def __init__(self, layers: Sequence[LayerKV], numerics: str) -> None:
        if any(layer.sharing is not None for layer in layers):
            raise NotRecorded("an uneven share of key heads")
        self.tape = _native.Tape([(layer.k, layer.v, layer.scales) for layer in layers], numerics)
        self._layers = {id(layer.k): number for number, layer in enumerate(layers)}

    def embedding(self, weight: Any, ids: Any) -> Symbol:
        return Symbol(self.tape.embedding(matrix(weight)))

    def rope_table(self, positions: Any, inv_freq: np.ndarray, scale: float) -> tuple[Symbol, Symbol]:
        cos, sin = self.tape.rope_table(inv_freq, scale)
        return Symbol(cos), Symbol(sin)

    def rms_norm(self, x: Symbol, weight: F32, eps: float, wide: bool) -> Symbol:
        return Symbol(self.tape.rms_norm(x.name, weight, eps, wide))

    def linear(
        self, x: Symbol, weight: Any, bias: F32 | None, residual: Symbol | None, wide: bool, norm: Any = None
    ) -> Symbol:
        x = x if norm is None else self.rms_norm(x, norm[0], norm[1], False)
        added = residual.name if residual else None
        return Symbol(self.tape.linear(x.name, matrix(weight), bias, added, wide))

    def gated_linear(self, x: Symbol, weight: Any, bias: F32 | None, norm: Any = None) -> Symbol:
        x = x if norm is None else self.rms_norm(x, norm[0], norm[1], False)
        return Symbol(self.tape.gated_linear(x.name, matrix(weight), bias))

    def rotate_and_store(
        self,
        qkv: Symbol,
        kv: LayerKV,
        turns: tuple[Symbol, Symbol],
        num_heads: int,
        q_norm: F32 | None,
        k_norm: F32 | None,
        norm_eps: float,
    ) -> Symbol:
        norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
        names = [one.name for one in turns]
        q = self.tape.rotate_and_store(qkv.name, names, self._layers[id(kv.k)], num_heads, norms, norm_eps)
        return Symbol(q, num_heads)

    def attention(self, q: Symbol, kv: LayerKV, factor: float, *more: Any) -> Symbol:
        if more:
            raise NotRecorded("attention with windows, soft caps, sinks or biases")
        return Symbol(self.tape.attention(q.name, self._layers[id(kv.k)], q.heads, factor))


def matrix(weight: object) -> Matrix:
    if not isinstance(weight, Matrix):
        raise NotRecorded(f"a weight that is a {type(weight).__name__}")
    return weight


class Tape:
    """Recorded operations, and the arrays that the last step's outputs lie in."""

    def __init__(self, recorder: Recorder, outputs: Sequence[Symbol]) -> None:
        self._tape = recorder.tape
        self._tape.finish([output.name for output in outputs])
        self.widths = self._tape.output_widths
        """Numbers in a row of each output."""
        self._outputs = [np.empty((0, width), np.float32) for width in self.widths]

    def run(self, tokens: I32, ragged: Ragged, *inputs: F32) -> list[F32]:
        """The outputs of a step, good until the next one. Raises EngineError as the operations do."""
        rows = len(inputs[0]) if inputs else len(tokens)
        if len(self._outputs[0]) < rows:
            self._outputs = [np.empty((rows, width), np.float32) for width in self.widths]
        outputs = [output[:rows] for output in self._outputs]
        shape = (ragged.positions, ragged.slots, ragged.row_starts, ragged.page_table)
        self._tape.run(tokens, *shape, list(inputs), outputs)
        return outputs

    def take_times(self) -> dict[str, tuple[int, float]]:
        """How often each operation ran since the last call, and its seconds."""
        return {kind: (count, seconds) for kind, count, seconds in self._tape.take_times()}


NO_TOKENS = np.zeros(0, np.int32)
NO_STEP = Ragged(NO_TOKENS, NO_TOKENS, NO_TOKENS, np.zeros((0, 0), np.int32), 1)


def record(
    layers: Sequence[LayerKV], widths: Sequence[int], run: Callable[..., Any], numerics: str = "cpu"
) -> Tape | None:
    """The tape of `run(tokens, ragged, layers, *inputs of these widths)`; None if there is something in it that a tape
    can't hold, or that these `numerics` don't have.
    """
    try:
        recorder = Recorder(layers, numerics)
        symbols: list[Any] = [Symbol(recorder.tape.input(width)) for width in widths]
        nowhere: Any = Symbol(-1)
        ragged = Ragged(nowhere, nowhere, nowhere, nowhere, 1)
        named = [LayerKV(layer.k, layer.v, ragged, None, layer.scales) for layer in layers]
        with recorded_by(recorder):
            outputs = run(nowhere, ragged, named, *symbols)
        return Tape(recorder, [outputs] if isinstance(outputs, Symbol) else outputs)
    except (NotRecorded, AttributeError, TypeError, ValueError, ZeroklError):
        return None

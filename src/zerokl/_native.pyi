"""The native module. Arrays are C-contiguous; outputs are written in place. `zerokl.ops` checks shapes before."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zerokl.ops.sample import Draw

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
Pages = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8]

# Which instruction set and how many threads: speed only, never a bit.
def isas() -> list[str]: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...

# What they could do at most: for `zerokl bench`.
def read_once(data: F32) -> None: ...
def multiply_add(rounds: int) -> int: ...

class Matrix:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def leaves(self) -> list[int]: ...
    @property
    def is_integer(self) -> bool: ...
    def float32(self) -> F32: ...

def pack_blocks(blocks: U8, kind: str, columns: int, integer: bool) -> Matrix: ...
def pack_nvfp4(codes: U8, scales: U8, factor: float | F32, divides: bool) -> Matrix: ...
def pack_fp8(codes: U8, factor: float | F32) -> Matrix: ...
def pack_fp8_blocks(codes: U8, scales: F32) -> Matrix: ...
def stack(parts: list[Matrix]) -> Matrix: ...
def pack(
    weight: NDArray[np.float32] | NDArray[np.uint16], stored: str, dtype: str, leaves: Sequence[int] | None = None
) -> Matrix: ...
def embedding(weight: Matrix, ids: I32, out: F32) -> None: ...
def linear(x: F32, weight: Matrix, bias: F32 | None, residual: F32 | None, out: F32) -> None: ...
def fold(parts: Sequence[F32], bias: F32 | None, residual: F32 | None, out: F32) -> None: ...
def gated_linear(x: F32, weight: Matrix, bias: F32 | None, out: F32) -> None: ...
def rms_norm(x: F32, weight: F32, eps: float, out: F32) -> None: ...
def layer_norm(x: F32, weight: F32, bias: F32, eps: float, out: F32) -> None: ...
def rope_table(positions: I32, inv_freq: NDArray[np.float64], scale: float, cos: F32, sin: F32) -> None: ...
def rope(x: F32, cos: F32, sin: F32, interleaved: bool, out: F32) -> None: ...
def swiglu(gate_up: F32, out: F32) -> None: ...
def rotate_and_store(
    qkv: F32,
    cos: F32,
    sin: F32,
    slots: I32,
    k_pool: Pages,
    v_pool: Pages,
    q_norm: F32 | None,
    k_norm: F32 | None,
    eps: float,
    q: F32,
    scales: tuple[float, float] = ...,
) -> None: ...
def store_kv(k_pool: Pages, v_pool: Pages, slots: I32, k: F32, v: F32, scales: tuple[float, float] = ...) -> None: ...
def attention(
    y: F32,
    q: F32,
    k: Pages,
    v: Pages,
    positions: I32,
    row_starts: I32,
    page_table: I32,
    factor: float,
    cap: float,
    window: int,
    sinks: F32 | None,
    bias: tuple[F32, F32] | None = None,
    scales: tuple[float, float] = ...,
) -> None: ...
def score(logits: F32, targets: I32, ids: I32, chosen: F32, top_ids: I32, top: F32, by_id: F32) -> None: ...
def sample(logits: F32, draws: Sequence[Draw], ids: I32) -> None: ...
def process(logits: F32, draws: Sequence[Draw], processed: F32) -> None: ...
def gated(x: F32, gate: F32, activation: str, out: F32) -> None: ...
def geglu(gate_up: F32, out: F32) -> None: ...
def gelu(x: F32, out: F32) -> None: ...
def scale(x: F32, factors: F32, residual: F32 | None, out: F32) -> None: ...
def softcap(x: F32, cap: float, out: F32) -> None: ...
def route(
    logits: F32,
    scores: str,
    normalised: bool,
    top: int,
    shared: int,
    bias: F32 | None,
    scale: float,
    experts: I32,
    weights: F32,
) -> None: ...
def experts(
    x: F32,
    gate_up: Sequence[object],
    down: Sequence[object],
    chosen: I32,
    weights: F32,
    residual: F32 | None,
    out: F32,
) -> None: ...
def short_conv(
    u: F32,
    taps: F32,
    bias: F32 | None,
    previous: F32,
    row_starts: I32,
    activation: str,
    residual: bool,
    out: F32,
) -> None: ...
def time_steps(raw: F32, bias: F32, log_rate: F32, limits: tuple[float, float], steps: F32, decays: F32) -> None: ...
def gated_delta(
    q: F32,
    k: F32,
    v: F32,
    decay: F32,
    beta: F32,
    row_starts: I32,
    states: F32,
    wanted: list[tuple[int, int]],
    saved: F32,
    out: F32,
) -> None: ...
def selective_scan(
    x: F32,
    b: F32,
    c: F32,
    step: F32,
    decay: F32,
    skip: F32,
    row_starts: I32,
    states: F32,
    wanted: list[tuple[int, int]],
    saved: F32,
    out: F32,
) -> None: ...

# The HTTP frontend. `run` lets go of the GIL for as long as it serves.
class HttpServer:
    def __init__(
        self,
        run_folder: str,
        listener: int,
        *,
        stalled_s: float = 60.0,
        silent_s: float = 20.0,
        drain_s: float = 30.0,
    ) -> None: ...
    def run(self, *, signals: bool) -> None: ...
    def stop(self) -> None: ...

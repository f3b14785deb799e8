"""Elementary functions inside kernels: `math.rs` step by step, so that they have the CPU's bits; and fixed trees.

Each multiply-add is an explicit `tl.fma` or explicitly two operations: kernels are compiled without contraction
(`EXACT`), and division and square root are IEEE's (`tl.div_rn`, `tl.sqrt_rn`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = triton.knobs.runtime.interpret
"""Kernels run as numpy programs, for tests where there is no GPU. Dots of bf16 don't work there."""

NARROW = torch.float32 if INTERPRETED else torch.bfloat16
"""What matrices and attention take. The residual stream between them is float32."""

EXACT = {"enable_fp_fusion": False}
"""Every launch has this: a compiler's own multiply-adds would move bits with its version."""
EARLY = EXACT | ({} if INTERPRETED else {"launch_pdl": True})
"""Launches that may be put on the processors before the kernel ahead has ended; they wait in `begin`. Products with
weights are not launched so: they would fill the processors with waiting programs (docs/log.md)."""
OVERLAPPED = tl.constexpr(not INTERPRETED)

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ROUNDER = tl.constexpr(12582912.0)
"""Added and taken away again it rounds a float32 to an integer, ties to even."""


@triton.jit
def begin():
    """First thing in every kernel: let the next one come, and wait until the one ahead has ended.

    Since every kernel waits before it reads, writes or ends, what ran before the one ahead has ended too.
    """
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def whole_number(x):
    return (x + 12582912.0) - 12582912.0


@triton.jit
def power_of_two(n):
    """2^n for a whole n in [-126, 127], as float32."""
    return ((n + 8388735.0).to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp2(x):
    """2^x, bit for bit `math.rs` exp2. -inf gives 0; a NaN stays."""
    x = tl.where(x < -160.0, -160.0, x)
    x = tl.where(x > 129.0, 129.0, x)
    whole = whole_number(x)
    return scaled(x - whole, whole)


@triton.jit
def exp(x):
    """e^x, bit for bit `math.rs` exp: as exp2, with x log2(e) in two parts."""
    x = tl.where(x < -110.0, -110.0, x)
    x = tl.where(x > 90.0, 90.0, x)
    whole = whole_number(x * 1.4426950408889634)
    return scaled(tl.fma(x, 1.925963e-8, tl.fma(x, 1.4426950408889634, -whole)), whole)


@triton.jit
def scaled(f, whole):
    """2^(f + whole), |f| <= 1/2, by two factors, of which only the second can round."""
    y = tl.fma(f, 0.00015469761, 0.001339089)
    y = tl.fma(y, f, 0.009618031)
    y = tl.fma(y, f, 0.05550357)
    y = tl.fma(y, f, 0.2402265)
    y = tl.fma(y, f, 0.6931471805599453)
    y = tl.fma(f, y, 1.0)
    half = whole_number(whole * 0.5)
    return y * power_of_two(half) * power_of_two(whole - half)


@triton.jit
def tanh(x):
    """Bit for bit `math.rs` tanh: near 0 a polynomial, else (1 - t) / (1 + t) with t = 2^(-2 |x| log2 e)."""
    size, square = tl.abs(x), x * x
    y = tl.fma(square, -0.0062742396, 0.021071678)
    y = tl.fma(y, square, -0.05385231)
    y = tl.fma(y, square, 0.13332586)
    y = tl.fma(y, square, -0.33333316)
    small = tl.fma(size * square, y, size)
    t = exp2(size * -2.885390043258667)
    large = tl.div_rn(1.0 - t, 1.0 + t)
    y = tl.where(size < 0.55, small, large)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    below = 1.0 + exp(-x)
    return tl.div_rn(tl.zeros_like(x) + 1.0, below)


@triton.jit
def silu(x):
    """x / (1 + exp(-x))."""
    return tl.div_rn(x, 1.0 + exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), bit for bit the CPU's."""
    e = exp(-tl.abs(x))
    w = 1.0 + e
    tail = log2(w) * 0.6931471805599453 + tl.div_rn(e - (w - 1.0), w)
    return tl.where(x < 0.0, 0.0, x) + tail


@triton.jit
def log2(x):
    """log2(x), bit for bit `math.rs` log2. 0 gives -inf, below 0 NaN."""
    tiny = x < 1.1754943508222875e-38
    normal = tl.where(tiny, x * 8388608.0, x)
    bits = normal.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    whole = exponent.to(tl.float32)
    whole = tl.where(tiny, whole - 23.0, whole)
    y = tl.fma(f, -0.109951, 0.18617734)
    y = tl.fma(y, f, -0.19106336)
    y = tl.fma(y, f, 0.20460032)
    y = tl.fma(y, f, -0.2396173)
    y = tl.fma(y, f, 0.28856742)
    y = tl.fma(y, f, -0.36069664)
    y = tl.fma(y, f, 0.48089823)
    y = tl.fma(y, f, -0.72134733)
    y = tl.fma(y, f, 1.4426950408889634)
    y = tl.fma(f, y, whole)
    y = tl.where(x < float("inf"), y, x)
    y = tl.where(x < 0.0, float("nan"), y)
    return tl.where(x == 0.0, float("-inf"), y)


@triton.jit
def philox(counter, position, stream, key_low, key_high):
    """Philox4x32-10 of counter blocks (counter, position, stream, 0); four tensors of words, uint32."""
    a = counter
    b = tl.zeros_like(counter) + position
    c = tl.zeros_like(counter) + stream
    d = tl.zeros_like(counter)
    for _ in tl.static_range(10):
        first_low, first_high = a * 0xD2511F53, tl.umulhi(a, tl.zeros_like(a) + 0xD2511F53)
        second_low, second_high = c * 0xCD9E8D57, tl.umulhi(c, tl.zeros_like(c) + 0xCD9E8D57)
        a, b, c, d = second_high ^ b ^ key_low, second_low, first_high ^ d ^ key_high, first_low
        key_low = (key_low + 0x9E3779B9).to(tl.uint32)
        key_high = (key_high + 0xBB67AE85).to(tl.uint32)
    return a, b, c, d


@triton.jit
def gumbel(word):
    """-log(-log(u)), u = (word + 1/2) / 2^32, bit for bit `noise.rs`: the tail near u = 1 keeps all its bits."""
    low = word < 0x80000000
    magnitude = tl.where(low, word, word ^ 0xFFFFFFFF)
    h = (magnitude.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    w = tl.where(low, h, 1.0 - h)
    error = tl.where(low, 0.0, (1.0 - w) - h)
    exponential = -(log2(w) * 0.6931471805599453) - tl.div_rn(error, w)
    return -(log2(exponential) * 0.6931471805599453)


@triton.jit
def halves(x, rows: tl.constexpr, half: tl.constexpr):
    """[rows, 2 half] -> [rows, half]: each number of the first half plus its partner of the second."""
    low, high = tl.split(x.reshape([rows, 2, half]).permute(0, 2, 1))
    return low + high


@triton.jit
def fold16(x, rows: tl.constexpr):
    """[rows, 16] -> [rows]: (i, i+8), (i, i+4), (i, i+2), (0, 1), the CPU's tree, whatever the layout."""
    x = halves(halves(halves(halves(x, rows, 8), rows, 4), rows, 2), rows, 1)
    return x.reshape([rows])


@triton.jit
def fold64(p, rows: tl.constexpr, registers: tl.constexpr, warps: tl.constexpr):
    """[rows, 64] -> [rows]: neighbours (2i, 2i+1), then halves (i, i+16), (i, i+8), (i, i+4), (i, i+2), (0, 1).

    That is how the matrix unit's accumulator lies: a thread has pairs of neighbours, 8 apart, and four threads share a
    row. So the first `registers` folds exchange nothing, the next are between `warps` warps (if several share a row),
    and the last between four threads. A reduction's butterfly takes halves too, as long as no thread holds two of its
    numbers; admission compares the layouts in use, bit for bit. registers = 6 says all of it explicitly.
    """
    even, odd = tl.split(p.reshape([rows, 32, 2]))
    x = halves(even + odd, rows, 16)
    if registers >= 3:
        x = halves(x, rows, 8)
    if registers >= 4:
        x = halves(x, rows, 4)
    if registers == 6:
        x = halves(halves(x, rows, 2), rows, 1).reshape([rows])
    else:
        if warps > 1:
            x = tl.sum(x.reshape([rows, warps, 4]), 1)
        x = tl.sum(x.reshape([rows, 4]), 1)
    return x

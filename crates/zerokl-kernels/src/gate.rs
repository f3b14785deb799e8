//! Gates and factors: what is done to single elements between linear layers.
//!
//! ```text
//! gated       y[t, i] = x[t, i] * f(g[t, i]),  f(g) = g, 1 / (1 + exp(-g)) or g / (1 + exp(-g))
//! geglu       y[t, i] = gelu(x[t, i]) * x[t, F + i], gelu in its tanh form
//! gelu        y[t, i] = gelu(x[t, i]), the same
//! scale       y[t, i] = x[t, i] * factor[t] (+ residual[t, i])
//! softcap     y[t, i] = tanh(x[t, i] / cap) * cap
//! Rounding    each operation named in ops/gate.py once, in f32
//! Same bits   for every T, row position, instruction set and thread count: one element, one result
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::attention::tanh;
use crate::cpu::Cpu;
use crate::math::{exp, log2};
use crate::tiles::rows_per_task;

/// What the gate becomes before it multiplies.
#[derive(Clone, Copy, Debug)]
pub enum Activation {
    Identity,
    Sigmoid,
    Silu,
}

impl Activation {
    #[inline(always)]
    pub fn of<L: Lanes>(self, gate: L) -> L {
        let shrunk = || L::splat(1.0).add(exp(gate.neg()));
        match self {
            Activation::Identity => gate,
            Activation::Sigmoid => L::splat(1.0).div(shrunk()),
            Activation::Silu => gate.div(shrunk()),
        }
    }
}

pub fn gated(cpu: Cpu, x: &[f32], gate: &[f32], activation: Activation, out: &mut [f32]) {
    assert!(x.len() == out.len() && gate.len() == out.len(), "a gate and an output per element");
    let length = rows_per_task(1);
    cpu.for_chunks(out, length, |index, out| {
        let part = index * length..index * length + out.len();
        cpu.run(Gated { x: &x[part.clone()], gate: &gate[part], activation, out });
    });
}

struct Gated<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let pieces = self.x.chunks(LANES).zip(self.gate.chunks(LANES)).zip(self.out.chunks_mut(LANES));
        for ((x, gate), out) in pieces {
            L::load_first(x).mul(self.activation.of(L::load_first(gate))).store_first(out);
        }
    }
}

pub fn geglu(cpu: Cpu, x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len(), "gate and up per output");
    let chunk = rows_per_task(width) * width;
    cpu.for_chunks(out, chunk, |index, out| {
        let x = &x[2 * index * chunk..][..2 * out.len()];
        cpu.run(Geglu { x, width, out });
    });
}

struct Geglu<'a> {
    x: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Geglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, out) in self.x.chunks_exact(2 * self.width).zip(self.out.chunks_exact_mut(self.width)) {
            let (gate, up) = x.split_at(self.width);
            for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                curved(L::load_first(gate)).mul(L::load_first(up)).store_first(out);
            }
        }
    }
}

pub fn gelu(cpu: Cpu, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "an output per input");
    let length = rows_per_task(1);
    cpu.for_chunks(out, length, |index, out| {
        let x = &x[index * length..][..out.len()];
        cpu.run(Gelu { x, out });
    });
}

struct Gelu<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            curved(L::load_first(x)).store_first(out);
        }
    }
}

/// (g / 2) * (1 + tanh(fma(g * g * g, f32(0.044715 c), c * g))), c = f32(sqrt(2 / pi)).
#[inline(always)]
fn curved<L: Lanes>(gate: L) -> L {
    let cube = gate.mul(gate).mul(gate);
    let inside = cube.fma(L::splat(0.035_677_408), gate.mul(L::splat(0.797_884_6)));
    gate.mul(L::splat(0.5)).mul(L::splat(1.0).add(tanh(inside)))
}

/// ln(1 + e^x) = max(x, 0) + ln(w) + (e - (w - 1)) / w, e = exp(-|x|), w = 1 + e: what w rounded away comes back, so a
/// small result is right in its own last place.
#[inline(always)]
pub fn softplus<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let e = exp(x.abs().neg());
    let w = one.add(e);
    let lost = e.sub(w.sub(one)).div(w);
    L::zero().max(x).add(log2(w).mul(L::splat(std::f32::consts::LN_2)).add(lost))
}

/// `factors`: one per row of `width` elements.
pub fn scale(cpu: Cpu, x: &[f32], factors: &[f32], residual: Option<&[f32]>, width: usize, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len() == factors.len() * width, "a factor per row");
    assert!(residual.is_none_or(|residual| residual.len() == out.len()), "a residual per output");
    let rows = rows_per_task(width);
    cpu.for_chunks(out, (rows * width).max(1), |index, out| {
        let part = index * rows * width..index * rows * width + out.len();
        let residual = residual.map(|residual| &residual[part.clone()]);
        cpu.run(Scale { x: &x[part], factors: &factors[index * rows..], residual, width, out });
    });
}

struct Scale<'a> {
    x: &'a [f32],
    factors: &'a [f32],
    residual: Option<&'a [f32]>,
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (row, out) in self.out.chunks_exact_mut(self.width).enumerate() {
            let factor = L::splat(self.factors[row]);
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let part = row * self.width + i * LANES..row * self.width + i * LANES + out.len();
                let mut y = L::load_first(&self.x[part.clone()]).mul(factor);
                if let Some(residual) = self.residual {
                    y = y.add(L::load_first(&residual[part]));
                }
                y.store_first(out);
            }
        }
    }
}

pub fn softcap(cpu: Cpu, x: &[f32], cap: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "an output per input");
    let length = rows_per_task(1);
    cpu.for_chunks(out, length, |index, out| {
        let x = &x[index * length..][..out.len()];
        cpu.run(Softcap { x, cap, out });
    });
}

struct Softcap<'a> {
    x: &'a [f32],
    cap: f32,
    out: &'a mut [f32],
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let cap = L::splat(self.cap);
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            tanh(L::load_first(x).div(cap)).mul(cap).store_first(out);
        }
    }
}

//! Layer normalisation of rows.
//!
//! ```text
//! Maths       y = (x - mean(x)) * (1 / sqrt(mean((x - mean(x))²) + eps)) * w + b
//! Shapes      x [T, E], w, b [E] -> y [T, E], all f32
//! Order       both sums: lane j takes i = j mod 16, i increasing, from +0, by addition (mean) and fma (squares); then the
//!             tree of 16 lanes
//! Rounding    mean = sum / E; d = x - mean; squares of d / E, + eps, square root, 1 / it, d * that; fma(that, w, b)
//! Same bits   for every T, row position, instruction set and thread count
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::tiles::rows_per_task;

pub fn layer_norm(cpu: Cpu, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && weight.len() == bias.len(), "an output per input, a bias per weight");
    let width = weight.len();
    let chunk = rows_per_task(width) * width;
    cpu.for_chunks(out, chunk, |index, out| {
        let x = &x[index * chunk..][..out.len()];
        cpu.run(Rows { x, weight, bias, eps, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            centre::<L>(x, out);
            let factor = 1.0 / (sum_of_squares::<L>(out) / width as f32 + self.eps).sqrt();
            stretch::<L>(out, factor, self.weight, self.bias);
        }
    }
}

/// out = x - mean(x). Lanes past the end hold +0, and no partial sum is -0, so they change nothing.
#[inline(always)]
fn centre<L: Lanes>(x: &[f32], out: &mut [f32]) {
    let mut sum = L::zero();
    for x in x.chunks(LANES) {
        sum = sum.add(L::load_first(x));
    }
    let mean = L::splat(sum.sum() / x.len() as f32);
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        L::load_first(x).sub(mean).store_first(out);
    }
}

#[inline(always)]
fn sum_of_squares<L: Lanes>(x: &[f32]) -> f32 {
    let mut sum = L::zero();
    for x in x.chunks(LANES) {
        let x = L::load_first(x);
        sum = x.fma(x, sum);
    }
    sum.sum()
}

/// fma(out * factor, weight, bias), in place.
#[inline(always)]
fn stretch<L: Lanes>(out: &mut [f32], factor: f32, weight: &[f32], bias: &[f32]) {
    let factor = L::splat(factor);
    for ((out, weight), bias) in out.chunks_mut(LANES).zip(weight.chunks(LANES)).zip(bias.chunks(LANES)) {
        L::load_first(out).mul(factor).fma(L::load_first(weight), L::load_first(bias)).store_first(out);
    }
}

//! Root mean square normalisation of rows.
//!
//! ```text
//! Maths       y = x * (1 / sqrt(mean(x²) + eps)) * w
//! Shapes      x [T, E], w [E] -> y [T, E], all f32
//! Order       squares: lane j sums x[i]² over i = j mod 16, i increasing, by fma from +0; then the tree of 16 lanes
//! Rounding    mean = sum / E, + eps, square root, 1 / it, x * that, * w: each once, in f32
//! Same bits   for every T, row position, instruction set and thread count
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::tiles::rows_per_task;

pub fn rms_norm(cpu: Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "an output per input");
    let width = weight.len();
    let chunk = rows_per_task(width) * width;
    cpu.for_chunks(out, chunk, |index, out| {
        let x = &x[index * chunk..][..out.len()];
        cpu.run(Rows { x, weight, eps, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            row::<L>(x, self.weight, self.eps, out);
        }
    }
}

#[inline(always)]
pub fn row<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of_squares::<L>(x) / weight.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    scale::<L>(x, factor, weight, out);
}

#[inline(always)]
fn sum_of_squares<L: Lanes>(x: &[f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut sum = L::zero();
    for x in whole {
        let x = L::load(x);
        sum = x.fma(x, sum);
    }
    // The lanes past the end square to +0, and no lane is -0: adding it changes nothing.
    let x = L::load_first(rest);
    x.fma(x, sum).sum()
}

#[inline(always)]
fn scale<L: Lanes>(x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
    let ((x, x_rest), (weight, weight_rest), (out, out_rest)) =
        (x.as_chunks::<LANES>(), weight.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    let factor = L::splat(factor);
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        L::load(x).mul(factor).mul(L::load(weight)).store(out);
    }
    L::load_first(x_rest).mul(factor).mul(L::load_first(weight_rest)).store_first(out_rest);
}

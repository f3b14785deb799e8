//! The gate of a gated MLP.
//!
//! ```text
//! Maths       y[t, i] = silu(g) * u, silu(g) = g / (1 + exp(-g)), g = x[t, i], u = x[t, F + i]
//! Shapes      x [T, 2F] -> y [T, F], f32
//! Rounding    exp of math.rs, + 1, division, product: each once, in f32
//! Same bits   for every T, row position, instruction set and thread count: one element, one result
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::math::exp;
use crate::tiles::rows_per_task;

pub fn swiglu(cpu: Cpu, x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len(), "gate and up per output");
    let chunk = rows_per_task(width) * width;
    cpu.for_chunks(out, chunk, |index, out| {
        let x = &x[2 * index * chunk..][..2 * out.len()];
        cpu.run(Rows { x, width, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, out) in self.x.chunks_exact(2 * self.width).zip(self.out.chunks_exact_mut(self.width)) {
            let (gate, up) = x.split_at(self.width);
            row::<L>(gate, up, out);
        }
    }
}

/// One row: gates, ups, outputs.
#[inline(always)]
pub fn row<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let ((gate, gate_rest), (up, up_rest), (out, out_rest)) =
        (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        silu(L::load(gate)).mul(L::load(up)).store(out);
    }
    silu(L::load_first(gate_rest)).mul(L::load_first(up_rest)).store_first(out_rest);
}

#[inline(always)]
fn silu<L: Lanes>(gate: L) -> L {
    gate.div(L::splat(1.0).add(exp(gate.neg())))
}

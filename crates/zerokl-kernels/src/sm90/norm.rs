//! Root mean square normalisation, in the order of `ops/triton/rms_norm.py`.
//!
//! ```text
//! Order       the row, padded with zeros to a power of two, lies in warps of 32 threads of up to 8 neighbours; a thread
//!             sums its squares from left to right, then threads i and i + 16, i + 8 .. i + 1, then warps by halves
//! Rounding    each operation once, f32; then to bfloat16, unless `wide`
//! ```

use super::narrow::narrow;
use crate::cpu::Cpu;
use crate::tiles::rows_per_task;

/// Up to here a thread has 8 neighbours at most.
pub const MOST_COLUMNS: usize = 4096;

const THREADS: usize = 32;

pub fn rms_norm(cpu: Cpu, x: &[f32], weight: &[f32], eps: f32, wide: bool, out: &mut [f32]) {
    let width = weight.len();
    let rows = rows_per_task(width);
    cpu.for_chunks(out, rows * width, |index, out| {
        let x = &x[index * rows * width..][..out.len()];
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mean = sum_of_squares(x) / width as f32;
            let factor = 1.0 / (mean + eps).sqrt();
            out.iter_mut().zip(x).zip(weight).for_each(|((y, x), w)| *y = x * factor * w);
        }
    });
    if !wide {
        narrow(cpu, out);
    }
}

fn sum_of_squares(x: &[f32]) -> f32 {
    let block = x.len().next_power_of_two();
    let warps = (block / 256).max(1);
    let own = (block / (THREADS * warps)).max(1);
    let threads = block / own;
    let mut sums: Vec<f32> = (0..threads).map(|thread| from_left(x, thread * own, own)).collect();
    let lanes = threads / warps;
    for warp in sums.chunks_exact_mut(lanes) {
        fold(warp);
    }
    let mut sums: Vec<f32> = sums.into_iter().step_by(lanes).collect();
    fold(&mut sums);
    sums[0]
}

/// Of a thread's numbers, those that are there; zeros add nothing.
pub fn from_left(x: &[f32], start: usize, count: usize) -> f32 {
    let own = &x[start.min(x.len())..(start + count).min(x.len())];
    own.iter().map(|x| x * x).reduce(|sum, square| sum + square).unwrap_or(0.0)
}

/// The sum of halves, of quarters, and so on, in the first place.
pub fn fold(sums: &mut [f32]) {
    let mut half = sums.len() / 2;
    while half > 0 {
        let (low, high) = sums.split_at_mut(half);
        low.iter_mut().zip(&high[..half]).for_each(|(low, high)| *low += high);
        half /= 2;
    }
}

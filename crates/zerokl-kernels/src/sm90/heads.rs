//! Heads, their norm, their rotation and the cache, as `ops/triton/rope.py` has them.
//!
//! ```text
//! Order       a norm's squares: each half of a head by itself, by 16 threads of neighbours, from left to right; then
//!             threads i and i + 8, i + 4, i + 2, i + 1; then the halves
//! Rounding    f32 from the projection to the one rounding to bfloat16, the cache's too
//! ```

use super::narrow::narrow;
use super::norm::{fold, from_left};
use crate::attention::{PoolMut, Shape};
use crate::cpu::Cpu;
use crate::heads::{self, Norms, Projected};

const THREADS: usize = 16;

/// As `heads::rotate_and_store`.
pub fn rotate_and_store(
    cpu: Cpu,
    shape: Shape,
    step: Projected<'_>,
    pools: (PoolMut<'_>, PoolMut<'_>),
    q: &mut [f32],
) -> Result<(), String> {
    let normed = step.norms.map(|norms| normed(shape, step.qkv, norms));
    let step = Projected { qkv: normed.as_deref().unwrap_or(step.qkv), norms: None, ..step };
    heads::rotate_and_store(cpu, shape, step, pools, q)?;
    narrow(cpu, q);
    Ok(())
}

/// A step's heads, queries and keys normalised.
fn normed(shape: Shape, qkv: &[f32], norms: Norms<'_>) -> Vec<f32> {
    let mut all = qkv.to_vec();
    for row in all.chunks_exact_mut((shape.heads + 2 * shape.kv_heads) * shape.size) {
        for (number, head) in row.chunks_exact_mut(shape.size).take(shape.heads + shape.kv_heads).enumerate() {
            let weight = if number < shape.heads { norms.q } else { norms.k };
            let (first, second) = head.split_at(shape.size / 2);
            let mean = (half(first) + half(second)) / shape.size as f32;
            let factor = 1.0 / (mean + norms.eps).sqrt();
            head.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * factor * w);
        }
    }
    all
}

fn half(x: &[f32]) -> f32 {
    let own = (x.len() / THREADS).max(1);
    let mut sums: Vec<f32> = (0..x.len() / own).map(|thread| from_left(x, thread * own, own)).collect();
    fold(&mut sums);
    sums[0]
}

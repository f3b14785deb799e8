//! Top-k, top-p and min-p. Both of the first two keep a prefix of the ids in the order (logit falling, id rising): the
//! ids before whose weight there is still less than a threshold. Weights are integers, so no order of summing matters
//! and nothing needs to be sorted: the boundary is found digit by digit.

use super::Draw;
use crate::arch::{LANES, Lanes};
use crate::math;
use crate::score::largest;

#[inline(always)]
pub fn apply<L: Lanes>(x: &mut [f32], draw: &Draw<'_>) {
    if draw.top_k > 0 && (draw.top_k as u64) < x.len() as u64 {
        keep_prefix(x, |_| 1, draw.top_k as u64);
    }
    if draw.top_p >= 1.0 && draw.min_p <= 0.0 {
        return;
    }
    let powers = powers::<L>(x);
    if draw.top_p < 1.0 {
        let total: u64 = powers.iter().map(|power| weight(*power)).sum();
        let threshold = (draw.top_p * total as f64).ceil() as u64;
        keep_prefix(x, |id| weight(powers[id]), threshold.max(1));
    }
    if draw.min_p > 0.0 {
        for (x, power) in x.iter_mut().zip(&powers) {
            if *power < draw.min_p {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// exp(x - max) of every id; the largest is 1.
#[inline(always)]
fn powers<L: Lanes>(x: &[f32]) -> Vec<f32> {
    let maximum = L::splat(largest::<L>(x));
    let mut powers = vec![0.0; x.len()];
    for (x, to) in x.chunks(LANES).zip(powers.chunks_mut(LANES)) {
        let exponent = L::load_first(x).sub(maximum).mul(L::splat(std::f32::consts::LOG2_E));
        math::exp2(exponent).store_first(to);
    }
    powers
}

/// floor(power * 2^40): the product is exact.
#[inline(always)]
fn weight(power: f32) -> u64 {
    (power * (1_u64 << 40) as f32) as u64
}

/// Keeps an id if the weight of all ids before it is less than `threshold` (at least 1); the others become -inf.
#[inline(always)]
fn keep_prefix(x: &mut [f32], weight: impl Fn(usize) -> u64, threshold: u64) {
    let Some(Boundary { key, room }) = boundary(x, &weight, threshold) else { return };
    let mut before = 0;
    for (id, x) in x.iter_mut().enumerate() {
        let own = order_key(*x);
        let is_kept = own > key || (own == key && before < room);
        if own == key {
            before += weight(id);
        }
        if !is_kept {
            *x = f32::NEG_INFINITY;
        }
    }
}

/// The logit at which the weight reaches the threshold, and how much weight is left for the ids that have it.
struct Boundary {
    key: u32,
    room: u64,
}

/// None: all weights together stay below the threshold.
#[inline(always)]
fn boundary(x: &[f32], weight: &impl Fn(usize) -> u64, threshold: u64) -> Option<Boundary> {
    let (mut key, mut room) = (0_u32, threshold);
    for shift in [24, 16, 8, 0] {
        let mut weights = [0_u64; 256];
        for (id, x) in x.iter().enumerate() {
            let own = order_key(*x);
            // All digits above this one are those found so far.
            if (own ^ key).checked_shr(shift + 8).unwrap_or(0) == 0 {
                weights[(own >> shift & 0xff) as usize] += weight(id);
            }
        }
        let mut digit = 255;
        while weights[digit] < room {
            room -= weights[digit];
            digit = digit.checked_sub(1)?;
        }
        key |= (digit as u32) << shift;
    }
    Some(Boundary { key, room })
}

/// Ordered as the logits are; the two zeros are one.
#[inline(always)]
fn order_key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

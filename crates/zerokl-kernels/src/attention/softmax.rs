//! Scores to powers of two, with the maximum and the sum.

use std::ops::Range;

use super::CHUNK;
use super::state::safe;
use crate::arch::{LANES, Lanes};
use crate::math;

/// m of one pair. Scores around `keys`, up to whole vectors, become -inf.
#[inline(always)]
pub fn largest<L: Lanes>(scores: &mut [f32; CHUNK], keys: &Range<usize>) -> f32 {
    if keys.is_empty() {
        return f32::NEG_INFINITY;
    }
    let groups = groups_of(scores, keys);
    hide::<L>(groups, keys.start % LANES, keys.end - keys.start / LANES * LANES);
    let (fours, rest) = groups.as_chunks::<4>();
    let mut largest = [L::splat(f32::NEG_INFINITY); 4];
    for four in fours {
        for (largest, group) in largest.iter_mut().zip(four) {
            *largest = L::load(group).max(*largest);
        }
    }
    for group in rest {
        largest[0] = L::load(group).max(largest[0]);
    }
    largest[0].max(largest[1]).max(largest[2].max(largest[3])).largest()
}

/// l of one pair; its scores become powers of two, the hidden ones zero.
#[inline(always)]
pub fn powers<L: Lanes>(scores: &mut [f32; CHUNK], keys: &Range<usize>, m: f32) -> f32 {
    let subtracted = L::splat(safe(m));
    let mut sum = L::zero();
    for group in groups_of(scores, keys) {
        // A hidden key's power is exp2(-inf) = +0 and a lane is never -0: adding it is skipping it.
        let power = math::exp2_below_zero(L::load(group).sub(subtracted));
        power.store(group);
        sum = sum.add(power);
    }
    sum.sum()
}

/// The vectors with these keys.
#[inline(always)]
fn groups_of<'a>(scores: &'a mut [f32; CHUNK], keys: &Range<usize>) -> &'a mut [[f32; LANES]] {
    &mut scores.as_chunks_mut().0[keys.start / LANES..keys.end.div_ceil(LANES)]
}

/// Scores before `start` and from `end` on become -inf: of the first and the last group, no more.
#[inline(always)]
fn hide<L: Lanes>(groups: &mut [[f32; LANES]], start: usize, end: usize) {
    let hidden = L::splat(f32::NEG_INFINITY);
    let (last, first) = (groups.len() - 1, &mut groups[0]);
    if start > 0 {
        L::select(L::first_lanes(start), hidden, L::load(first)).store(first);
    }
    if end < groups.len() * LANES {
        let group = &mut groups[last];
        L::select(L::first_lanes(end - last * LANES), L::load(group), hidden).store(group);
    }
}

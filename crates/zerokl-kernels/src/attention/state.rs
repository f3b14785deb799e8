//! (maximum, sum, weighted values) of the keys seen so far, and how a chunk joins them.

use std::ops::Range;

use super::{Attention, Block};
use crate::arch::{Kernel, LANES, Lanes};
use crate::math;

/// Of each pair of a block. `l` 0 and `m` -inf: nothing seen yet.
#[derive(Default)]
pub struct Partial {
    pub m: Vec<f32>,
    pub l: Vec<f32>,
    /// `[pairs][width]`
    pub o: Vec<f32>,
    /// D, rounded up to whole vectors.
    pub width: usize,
    /// Whether the pair sees any key of the chunk; if not, merging would be an identity but for the sign of a zero.
    pub seen: Vec<bool>,
}

impl Partial {
    /// Nothing seen by any of so many pairs.
    pub fn reset(&mut self, pairs: usize, size: usize) {
        self.width = size.next_multiple_of(LANES);
        refill(&mut self.m, pairs, f32::NEG_INFINITY);
        refill(&mut self.l, pairs, 0.0);
        refill(&mut self.o, pairs * self.width, 0.0);
        refill(&mut self.seen, pairs, false);
    }
}

fn refill<T: Clone>(vector: &mut Vec<T>, length: usize, value: T) {
    vector.clear();
    vector.resize(length, value);
}

/// What is subtracted for a maximum: 0 where it is -inf, so that no inf - inf arises.
#[inline(always)]
pub fn safe(maximum: f32) -> f32 {
    if maximum == f32::NEG_INFINITY { 0.0 } else { maximum }
}

/// `state` and then `new`, for every pair that saw something of `new`.
pub struct MergeKernel<'a> {
    pub state: &'a mut Partial,
    pub new: &'a Partial,
}

impl Kernel for MergeKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let MergeKernel { state, new } = self;
        for first in (0..state.m.len()).step_by(LANES) {
            let pairs = first..state.m.len().min(first + LANES);
            let (m, l) = (L::load_first(&new.m[pairs.clone()]), L::load_first(&new.l[pairs.clone()]));
            let joint = Joint::of(state, pairs.clone(), m, l);
            for pair in pairs {
                if new.seen[pair] {
                    let o = &new.o[pair * new.width..][..new.width];
                    joint.put::<L>(state, pair, Some(o));
                }
            }
        }
    }
}

/// What up to sixteen pairs become: m' = max(m, mc), a = exp2(m - m'), b = exp2(mc - m'), l' = fma(l, a, lc * b).
struct Joint {
    first: usize,
    m: [f32; LANES],
    l: [f32; LANES],
    a: [f32; LANES],
    b: [f32; LANES],
}

impl Joint {
    #[inline(always)]
    fn of<L: Lanes>(state: &Partial, pairs: Range<usize>, m: L, l: L) -> Self {
        let first = pairs.start;
        let (old, sum) = (L::load_first(&state.m[pairs.clone()]), L::load_first(&state.l[pairs]));
        let merged = old.max(m);
        let nothing = merged.equals(L::splat(f32::NEG_INFINITY));
        let subtracted = L::select(nothing, L::zero(), merged);
        let a = math::exp2_below_zero(old.sub(subtracted));
        let b = math::exp2_below_zero(m.sub(subtracted));
        let l = sum.fma(a, l.mul(b));
        Joint { first, m: merged.to_array(), l: l.to_array(), a: a.to_array(), b: b.to_array() }
    }

    /// Of one of them, and O = fma(O, a, Oc * b); None is O = 0.
    #[inline(always)]
    fn put<L: Lanes>(&self, state: &mut Partial, pair: usize, o: Option<&[f32]>) {
        let i = pair - self.first;
        (state.m[pair], state.l[pair]) = (self.m[i], self.l[i]);
        let (a, b) = (L::splat(self.a[i]), L::splat(self.b[i]));
        let (into, _) = state.o[pair * state.width..][..state.width].as_chunks_mut::<LANES>();
        for (i, x) in into.iter_mut().enumerate() {
            let new = o.map_or(L::zero(), |o| load(o, i)).mul(b);
            L::load(x).fma(a, new).store(x);
        }
    }
}

#[inline(always)]
fn load<L: Lanes>(from: &[f32], vector: usize) -> L {
    L::load(from[vector * LANES..].first_chunk().expect("rows are whole vectors"))
}

/// The sink, then O / l, into the rows of the output. A row that sees nothing is +0.
pub struct FinishKernel<'a, 'y> {
    pub step: &'a Attention<'a>,
    pub block: &'a Block,
    pub state: &'a mut Partial,
    pub rows: &'a mut [&'y mut [f32]],
}

impl Kernel for FinishKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let FinishKernel { step, block, state, rows } = self;
        let (size, group) = (step.shape.size, step.shape.group());
        for pair in 0..block.pairs {
            let (row, head) = (pair / group, pair % group);
            let out = &mut rows[row][head * size..][..size];
            if step.positions[block.rows.start + row] < 0 {
                out.fill(0.0);
                continue;
            }
            if let Some(sinks) = step.rule.sinks {
                let sink = sinks[block.kv_head * group + head];
                let (m, l) = (L::splat(sink * std::f32::consts::LOG2_E), L::splat(1.0));
                Joint::of(state, pair..pair + 1, m, l).put::<L>(state, pair, None);
            }
            let total = L::splat(state.l[pair]);
            for (i, y) in out.chunks_mut(LANES).enumerate() {
                load::<L>(&state.o[pair * state.width..], i).div(total).store_first(y);
            }
        }
    }
}

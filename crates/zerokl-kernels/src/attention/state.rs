//! (maximum, sum, weighted values) of the keys seen so far, and how a chunk joins them.

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
        for pair in 0..state.m.len() {
            if new.seen[pair] {
                let o = &new.o[pair * new.width..][..new.width];
                merge_pair::<L>(state, pair, new.m[pair], new.l[pair], Some(o));
            }
        }
    }
}

/// m' = max(m, mc), a = exp2(m - m'), b = exp2(mc - m'), l = fma(l, a, lc * b), O = fma(O, a, Oc * b); None is O = 0.
#[inline(always)]
fn merge_pair<L: Lanes>(state: &mut Partial, pair: usize, m: f32, l: f32, o: Option<&[f32]>) {
    let old = state.m[pair];
    let merged = if old > m { old } else { m };
    let mut powers = [0.0; LANES];
    powers[0] = old - safe(merged);
    powers[1] = m - safe(merged);
    let powers = math::exp2(L::load(&powers)).to_array();
    let (a, b) = (powers[0], powers[1]);
    state.m[pair] = merged;
    state.l[pair] = state.l[pair].mul_add(a, l * b);
    let into = &mut state.o[pair * state.width..][..state.width];
    let (into, _) = into.as_chunks_mut::<LANES>();
    for (i, x) in into.iter_mut().enumerate() {
        let new = o.map_or(L::zero(), |o| load(o, i)).mul(L::splat(b));
        L::load(x).fma(L::splat(a), new).store(x);
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
                merge_pair::<L>(state, pair, sink * std::f32::consts::LOG2_E, 1.0, None);
            }
            let total = L::splat(state.l[pair]);
            for (i, y) in out.chunks_mut(LANES).enumerate() {
                load::<L>(&state.o[pair * state.width..], i).div(total).store_first(y);
            }
        }
    }
}

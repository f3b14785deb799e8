//! Paged attention, as `ops/triton/attention.py` has it.
//!
//! ```text
//! Order       blocks of 64 keys and chunks of 512, at absolute positions. Per pair and block: c = chain over d;
//!             m' = max(m, max c * scale); p = ex2(fma(c, scale, -m')); a = ex2(m - m'); l = fma(l, a, fold of p);
//!             O = chain over the block's keys of bfloat16(p) * v, going on from O * a. Chunks merge in order
//! Rounding    f32; O / l once to bfloat16
//! ```

use super::atom::chain;
use super::narrow::narrowed;
use super::power::power;
use crate::arch::{Kernel, LANES, Lanes};
use crate::attention::{Attention, Block, CHUNK, with_blocks};
use crate::cpu::Cpu;

/// Keys that are scored together.
const KEYS: usize = 64;

/// Writes `y [T, H * D]`; D is a multiple of 16. An error names the first broken entry of the step's shape.
pub fn attention(cpu: Cpu, step: &Attention<'_>, y: &mut [f32]) -> Result<(), String> {
    with_blocks(cpu, step, y, |block, rows| cpu.run(Pairs { step, block, rows }))
}

/// One block's pairs.
struct Pairs<'a, 'y> {
    step: &'a Attention<'a>,
    block: &'a Block,
    rows: &'a mut [&'y mut [f32]],
}

/// (m, l, O) of a pair.
#[derive(Clone)]
struct State {
    m: f32,
    l: f32,
    o: Vec<f32>,
}

impl State {
    fn new(size: usize) -> Self {
        State { m: f32::NEG_INFINITY, l: 0.0, o: vec![0.0; size] }
    }
}

/// What is subtracted for a maximum.
fn base(m: f32) -> f32 {
    if m == f32::NEG_INFINITY { 0.0 } else { m }
}

impl Kernel for Pairs<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Pairs { step, block, rows } = self;
        let (size, group) = (step.shape.size, step.shape.group());
        let mut whole = vec![State::new(size); block.pairs];
        let mut part = whole.clone();
        let (mut keys, mut values) = (vec![0.0; KEYS * size], vec![0.0; KEYS * size]);
        for first in (block.keys.start / KEYS * KEYS..block.keys.end).step_by(KEYS) {
            if first.is_multiple_of(CHUNK) {
                part.fill(State::new(size));
            }
            gather(step, block, first, &mut keys, &mut values);
            for (pair, part) in part.iter_mut().enumerate() {
                let row = block.rows.start + pair / group;
                let visible = usize::try_from(step.positions[row]).map_or(0, |last| last + 1);
                if visible > first {
                    let head = block.kv_head * group + pair % group;
                    let q = &step.q[(row * step.shape.heads + head) * size..][..size];
                    one_block::<L>(part, q, (&keys, &values), step.rule.factor, visible - first);
                }
            }
            if (first + KEYS).is_multiple_of(CHUNK) || first + KEYS >= block.keys.end {
                whole
                    .iter_mut()
                    .zip(&part)
                    .filter(|(_, part)| part.l != 0.0)
                    .for_each(|(whole, part)| merge(whole, part));
            }
        }
        for (pair, state) in whole.iter().enumerate() {
            let out = &mut rows[pair / group][pair % group * size..][..size];
            if step.positions[block.rows.start + pair / group] < 0 {
                out.fill(0.0);
                continue;
            }
            for (o, out) in state.o.chunks(LANES).zip(out.chunks_mut(LANES)) {
                narrowed(L::load_first(o).div(L::splat(state.l)).add(L::zero())).store_first(out);
            }
        }
    }
}

/// Keys as [D][64] and values as [64][D] from position `first` on, zeros where the block sees none.
fn gather(step: &Attention<'_>, block: &Block, first: usize, keys: &mut [f32], values: &mut [f32]) {
    let (page, size) = (step.shape.page, step.shape.size);
    keys.fill(0.0);
    values.fill(0.0);
    for key in 0..KEYS.min(block.keys.end - first) {
        let position = first + key;
        let start = step.start_of(block, position);
        step.v.read(start + position % page * size, &mut values[key * size..][..size]);
        for d in 0..size {
            step.k.read(start + d * page + position % page, &mut keys[d * KEYS + key..][..1]);
        }
    }
}

/// 64 more keys, of which the pair sees the first `visible`.
#[inline(always)]
fn one_block<L: Lanes>(state: &mut State, q: &[f32], (keys, values): (&[f32], &[f32]), scale: f32, visible: usize) {
    let load = |from: &[f32], at: usize| L::load(from[at..].first_chunk().expect("whole vectors"));
    let mut scores = [f32::NEG_INFINITY; KEYS];
    for (group, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        chain(L::zero(), q, |d| load(keys, d * KEYS + group * LANES)).store(scores);
    }
    scores[visible.min(KEYS)..].fill(f32::NEG_INFINITY);
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let m = state.m.max(largest * scale);
    let powers = scores.map(|score| power(score.mul_add(scale, -base(m))));
    let shrink = power(state.m - base(m));
    state.l = state.l.mul_add(shrink, fold(&powers));
    state.m = m;
    let mut narrow = [0.0; KEYS];
    for (p, narrow) in powers.as_chunks::<LANES>().0.iter().zip(narrow.as_chunks_mut::<LANES>().0) {
        narrowed(L::load(p)).store(narrow);
    }
    for (group, o) in state.o.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let old = L::load(o).mul(L::splat(shrink));
        chain(old, &narrow, |key| load(values, key * q.len() + group * LANES)).store(o);
    }
}

/// Neighbours, then halves.
#[inline(always)]
fn fold(powers: &[f32; KEYS]) -> f32 {
    let mut sums: [f32; KEYS / 2] = std::array::from_fn(|i| powers[2 * i] + powers[2 * i + 1]);
    for half in [16, 8, 4, 2, 1] {
        (0..half).for_each(|i| sums[i] += sums[i + half]);
    }
    sums[0]
}

#[inline(always)]
fn merge(state: &mut State, new: &State) {
    let m = state.m.max(new.m);
    let (a, b) = (power(state.m - base(m)), power(new.m - base(m)));
    state.l = state.l.mul_add(a, new.l * b);
    state.o.iter_mut().zip(&new.o).for_each(|(o, new)| *o = o.mul_add(a, new * b));
    state.m = m;
}

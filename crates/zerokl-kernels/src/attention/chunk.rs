//! One chunk of 512 absolute keys for one block of (row, query head) pairs: scores, softmax, weighted values.
//!
//! Pairs go by tiles of up to six, so that a vector of keys or values, once loaded, serves all of them. A tile's
//! accumulators are one f32 chain each, in registers; how many there are is free.

use std::cell::RefCell;
use std::ops::Range;

use super::keys::{Keys, Number};
use super::softcap::tanh;
use super::state::{Partial, safe};
use super::{Attention, Bias, Block, CHUNK, Pool};
use crate::arch::{Kernel, LANES, Lanes, prefetch};
use crate::math;

/// Writes the block's partials for one chunk.
pub struct ChunkKernel<'a> {
    pub step: &'a Attention<'a>,
    pub block: &'a Block,
    pub chunk: usize,
    pub out: &'a mut Partial,
}

/// The most pairs in a tile.
const TILE: usize = 6;

/// Tiles of so few pairs (a decode) wait for memory, not for arithmetic: they ask for the next page while they work on
/// this one. From DRAM: 30 GB/s per core instead of 15, where a plain read of one long array has 34.
pub const STREAMED: usize = 4;

/// Blocks of at most so many pairs read bf16 straight from its pages: half the bytes. More pairs would widen each number
/// more often than once.
const DIRECT: usize = 12;

thread_local! {
    /// Kept between chunks, so that nothing is allocated for one.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Kernel for ChunkKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let ChunkKernel { step, block, chunk, out } = self;
        // Taken, not borrowed in a closure: lanes in a closure that isn't inlined are function calls.
        let mut scratch = SCRATCH.take();
        let mut gathered = std::mem::take(&mut scratch.gathered);
        scratch.query.resize(TILE * step.shape.size, 0.0);
        scratch.scores.resize(TILE, [0.0; CHUNK]);
        let whole = step.shape.page.is_multiple_of(LANES);
        match (step.k, step.v) {
            (Pool::F32(k), Pool::F32(v)) if whole => {
                let keys = &Keys::in_pages(step, (k, v), block, chunk);
                tiles::<L, f32>(Tile { step, block, keys, first_key: chunk * CHUNK, scratch: &mut scratch, out });
            }
            (Pool::Bf16(k), Pool::Bf16(v)) if whole && block.pairs <= DIRECT => {
                let keys = &Keys::in_pages(step, (k, v), block, chunk);
                tiles::<L, u16>(Tile { step, block, keys, first_key: chunk * CHUNK, scratch: &mut scratch, out });
            }
            _ => {
                let keys = &Keys::gathered::<L>(step, block, chunk, &mut gathered);
                tiles::<L, f32>(Tile { step, block, keys, first_key: chunk * CHUNK, scratch: &mut scratch, out });
            }
        }
        scratch.gathered = gathered;
        SCRATCH.set(scratch);
    }
}

#[inline(always)]
fn tiles<L: Lanes, N: Number>(mut tile: Tile<'_, '_, N>) {
    let pairs = tile.block.pairs;
    let mut pair = 0;
    while pair < pairs {
        // Lanes without vectors fill no registers with more, and took longer to compile than all the rest.
        pair += match (pairs - pair, L::REGISTERS) {
            (_, 5..) => tile.run::<L, 1>(pair),
            (6.., _) if N::WIDEST == 6 => tile.run::<L, 6>(pair),
            (4.., _) => tile.run::<L, 4>(pair),
            (3, _) => tile.run::<L, 3>(pair),
            (2, _) => tile.run::<L, 2>(pair),
            _ => tile.run::<L, 1>(pair),
        };
    }
}

#[derive(Default)]
struct Scratch {
    /// `[D][pairs of the tile]`
    query: Vec<f32>,
    /// Per pair of the tile: the scores of the chunk, then their powers.
    scores: Vec<[f32; CHUNK]>,
    gathered: Vec<f32>,
}

struct Tile<'a, 'b, N> {
    step: &'a Attention<'a>,
    block: &'a Block,
    keys: &'a Keys<'b, N>,
    first_key: usize,
    scratch: &'a mut Scratch,
    out: &'a mut Partial,
}

impl<N: Number> Tile<'_, '_, N> {
    /// Pairs `first .. first + R`; returns R.
    #[inline(always)]
    fn run<L: Lanes, const R: usize>(&mut self, first: usize) -> usize {
        let visible: [Range<usize>; R] = std::array::from_fn(|r| self.visible(first + r));
        let start = visible.iter().filter(|keys| !keys.is_empty()).map(|keys| keys.start).min();
        let end = visible.iter().map(|keys| keys.end).max();
        if let (Some(start), Some(end)) = (start, end) {
            self.load_query::<R>(first);
            self.score::<L, R>(first, start / LANES..end.div_ceil(LANES));
        }
        for (r, keys) in visible.iter().enumerate() {
            self.out.seen[first + r] = !keys.is_empty();
            let (m, l) = softmax::<L>(&mut self.scratch.scores[r], keys.clone());
            (self.out.m[first + r], self.out.l[first + r]) = (m, l);
        }
        self.weigh_all::<L, R>(first, &visible);
        R
    }

    /// Keys of the chunk, counted from its start, that a pair sees.
    #[inline(always)]
    fn visible(&self, pair: usize) -> Range<usize> {
        let row = self.block.rows.start + pair / self.step.shape.group();
        let keys = self.step.rule.visible(self.step.positions[row]);
        let inside = |position: usize| position.clamp(self.first_key, self.first_key + CHUNK) - self.first_key;
        inside(keys.start)..inside(keys.end)
    }

    #[inline(always)]
    fn load_query<const R: usize>(&mut self, first: usize) {
        let (size, heads, group) = (self.step.shape.size, self.step.shape.heads, self.step.shape.group());
        for r in 0..R {
            let (row, head) = ((first + r) / group, (first + r) % group);
            let start = ((self.block.rows.start + row) * heads + self.block.kv_head * group + head) * size;
            for (d, value) in self.step.q[start..][..size].iter().enumerate() {
                self.scratch.query[d * R + r] = *value;
            }
        }
    }

    #[inline(always)]
    fn score<L: Lanes, const R: usize>(&mut self, first: usize, groups: Range<usize>) {
        let mut group = groups.start;
        if R <= STREAMED && groups.len() < 4 {
            prefetch(self.keys.values(groups.start * LANES, groups.end * LANES).1);
        }
        if L::REGISTERS == 1 || (L::REGISTERS == 2 && R <= 2) {
            while group + 4 <= groups.end {
                if R <= STREAMED {
                    self.prefetch_after_scoring(group..group + 4, &groups);
                }
                self.score_groups::<L, R, 4>(first, group);
                group += 4;
            }
        }
        while group < groups.end {
            self.score_groups::<L, R, 1>(first, group);
            group += 1;
        }
    }

    /// The next four groups of keys; after the last, the first values.
    #[inline(always)]
    fn prefetch_after_scoring(&self, now: Range<usize>, all: &Range<usize>) {
        prefetch(if now.end + now.len() <= all.end {
            self.keys.key_columns(now.end)
        } else {
            self.keys.values(all.start * LANES, all.end * LANES).1
        });
    }

    /// R pairs by G groups of 16 keys: chains of fma over d, then the factors.
    #[inline(always)]
    fn score_groups<L: Lanes, const R: usize, const G: usize>(&mut self, first: usize, group: usize) {
        let stride = self.keys.stride;
        let columns: [&[N]; G] = std::array::from_fn(|n| self.keys.key_columns(group + n));
        let (query, _) = self.scratch.query[..R * self.step.shape.size].as_chunks::<R>();
        let chains = score_chains(query, &columns, stride, [[L::zero(); G]; R]);
        let (factor, cap) = (L::splat(self.step.rule.factor), self.step.rule.cap);
        for (chains, scores) in chains.iter().zip(&mut self.scratch.scores) {
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            for (chain, score) in chains.iter().zip(&mut scores[group..]) {
                let scaled = chain.mul(factor);
                if cap == 0.0 { scaled } else { tanh(scaled).mul(L::splat(cap)) }.store(score);
            }
        }
        if let Some(bias) = self.step.rule.bias {
            self.add_bias::<L, R>(first, &bias, group..group + G);
        }
    }

    /// score = fma(chain of fma over the bias's rank, log2 e, score).
    #[inline(always)]
    fn add_bias<L: Lanes, const R: usize>(&mut self, first: usize, bias: &Bias<'_>, groups: Range<usize>) {
        let (heads, share) = (self.step.shape.heads, self.step.shape.group());
        let width = bias.profile.len() / bias.rank;
        for r in 0..R {
            let (row, head) = (self.block.rows.start + (first + r) / share, (first + r) % share);
            let query = &bias.queries[(row * heads + self.block.kv_head * share + head) * bias.rank..][..bias.rank];
            let (scores, _) = self.scratch.scores[r].as_chunks_mut::<LANES>();
            for group in groups.clone() {
                let key = self.first_key + group * LANES;
                let Some(start) = bias.start(self.step.positions[row], key) else { continue };
                let mut chain = L::zero();
                for (value, profile) in query.iter().zip(bias.profile.chunks_exact(width)) {
                    chain = L::load_first(&profile[start..start + LANES]).fma(L::splat(*value), chain);
                }
                chain.fma(L::splat(std::f32::consts::LOG2_E), L::load(&scores[group])).store(&mut scores[group]);
            }
        }
    }

    /// O of each pair over the keys that it sees, in their order: what only some of the tile see, one pair at a time.
    #[inline(always)]
    fn weigh_all<L: Lanes, const R: usize>(&mut self, first: usize, visible: &[Range<usize>; R]) {
        let width = self.out.width;
        self.out.o[first * width..][..R * width].fill(0.0);
        let start = visible.iter().map(|keys| keys.start).max().unwrap_or(0);
        let end = visible.iter().map(|keys| keys.end).min().unwrap_or(0).max(start);
        for (r, keys) in visible.iter().enumerate() {
            self.weigh::<L, 1>(first, r, keys.start..keys.end.min(start));
        }
        self.weigh::<L, R>(first, 0, start..end);
        for (r, keys) in visible.iter().enumerate() {
            self.weigh::<L, 1>(first, r, keys.start.max(end)..keys.end);
        }
    }

    /// Pairs `r .. r + R` of the tile over keys that all of them see.
    #[inline(always)]
    fn weigh<L: Lanes, const R: usize>(&mut self, first: usize, r: usize, keys: Range<usize>) {
        let (size, width) = (self.step.shape.size, self.out.width);
        let out = &mut self.out.o[(first + r) * width..][..R * width];
        let mut from = keys.start;
        while from < keys.end {
            let (to, values) = self.keys.values(from, keys.end);
            if R <= STREAMED && to < keys.end {
                prefetch(self.keys.values(to, keys.end).1);
            }
            let powers = Powers { rows: self.scratch.scores[r..].first_chunk().expect("R pairs"), from };
            let mut d = 0;
            if L::REGISTERS == 1 || (L::REGISTERS == 2 && R <= 2) {
                while d + 4 * LANES <= size {
                    weigh_columns::<L, N, R, 4>(powers, values, size, d, out, width);
                    d += 4 * LANES;
                }
            }
            while d + LANES <= size {
                weigh_columns::<L, N, R, 1>(powers, values, size, d, out, width);
                d += LANES;
            }
            if d < size {
                weigh_rest::<L, N, R>(powers, values, size, d, out, width);
            }
            from = to;
        }
    }
}

/// Powers of R pairs, from key `from` of the chunk on: arrays of one length, so that one comparison checks all R.
#[derive(Clone, Copy)]
struct Powers<'a, const R: usize> {
    rows: &'a [[f32; CHUNK]; R],
    from: usize,
}

/// m and l of one pair; its scores become powers of two.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32; CHUNK], keys: Range<usize>) -> (f32, f32) {
    if keys.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    let (groups, _) = scores.as_chunks_mut::<LANES>();
    let first = keys.start / LANES;
    let groups = &mut groups[first..keys.end.div_ceil(LANES)];
    let hidden = L::splat(f32::NEG_INFINITY);
    let mut largest = hidden;
    for (i, group) in groups.iter_mut().enumerate() {
        let start = (first + i) * LANES;
        let mut x = L::load(group);
        if start < keys.start || start + LANES > keys.end {
            x = L::select(L::first_lanes(keys.start.saturating_sub(start)), hidden, x);
            x = L::select(L::first_lanes(keys.end - start), x, hidden);
            x.store(group);
        }
        largest = x.max(largest);
    }
    let m = largest.largest();
    let subtracted = L::splat(safe(m));
    let mut sum = L::zero();
    for group in groups {
        // A hidden key's power is exp2(-inf) = +0 and a lane is never -0: adding it is skipping it.
        let power = math::exp2(L::load(group).sub(subtracted));
        power.store(group);
        sum = sum.add(power);
    }
    (m, sum.sum())
}

/// O[pair][d .. d + 16 C] over the keys of `values`, in order.
#[inline(always)]
fn weigh_columns<L: Lanes, N: Number, const R: usize, const C: usize>(
    powers: Powers<'_, R>,
    values: &[N],
    size: usize,
    d: usize,
    out: &mut [f32],
    width: usize,
) {
    let mut chains = [[L::zero(); C]; R];
    for (chains, out) in chains.iter_mut().zip(out.chunks_exact(width)) {
        for (chain, from) in chains.iter_mut().zip(out[d..].as_chunks::<LANES>().0) {
            *chain = L::load(from);
        }
    }
    let chains = weigh_chains(powers, values, size, d, chains);
    for (chains, out) in chains.iter().zip(out.chunks_exact_mut(width)) {
        for (chain, to) in chains.iter().zip(out[d..].as_chunks_mut::<LANES>().0) {
            chain.store(to);
        }
    }
}

/// chains[r][n] += query[d][r] * columns[n][d], d in order. The accumulators come and go by value, so that they stay in
/// registers: through a reference they were stored at every step, which made the whole three times slower.
#[inline(always)]
fn score_chains<L: Lanes, N: Number, const R: usize, const G: usize>(
    query: &[[f32; R]],
    columns: &[&[N]; G],
    stride: usize,
    mut chains: [[L; G]; R],
) -> [[L; G]; R] {
    for (d, query) in query.iter().enumerate() {
        let mut keys = [L::zero(); G];
        for n in 0..G {
            keys[n] = N::load(columns[n][d * stride..].first_chunk().expect("16 keys in a group"));
        }
        for r in 0..R {
            let value = L::splat(query[r]);
            for n in 0..G {
                chains[r][n] = value.fma(keys[n], chains[r][n]);
            }
        }
    }
    chains
}

/// chains[r][n] += powers[r][key] * values[key][d + 16 n ..], keys in order.
#[inline(always)]
fn weigh_chains<L: Lanes, N: Number, const R: usize, const C: usize>(
    powers: Powers<'_, R>,
    values: &[N],
    size: usize,
    d: usize,
    mut chains: [[L; C]; R],
) -> [[L; C]; R] {
    let from = powers.from;
    for (key, row) in values.chunks_exact(size).enumerate() {
        let row = row[d..][..C * LANES].as_chunks::<LANES>().0;
        let mut numbers = [L::zero(); C];
        for (numbers, row) in numbers.iter_mut().zip(row) {
            *numbers = N::load(row);
        }
        for (powers, chains) in powers.rows.iter().zip(&mut chains) {
            let power = L::splat(powers[from + key]);
            for n in 0..C {
                chains[n] = power.fma(numbers[n], chains[n]);
            }
        }
    }
    chains
}

/// The same for the last `size - d` < 16 dimensions; the lanes beyond stay zero.
#[inline(always)]
fn weigh_rest<L: Lanes, N: Number, const R: usize>(
    powers: Powers<'_, R>,
    values: &[N],
    size: usize,
    d: usize,
    out: &mut [f32],
    width: usize,
) {
    for r in 0..R {
        let to = out[r * width + d..].first_chunk_mut().expect("whole vectors");
        let mut chain = L::load(to);
        for (power, row) in powers.rows[r][powers.from..].iter().zip(values.chunks_exact(size)) {
            chain = L::splat(*power).fma(N::load_first(&row[d..]), chain);
        }
        chain.store(to);
    }
}

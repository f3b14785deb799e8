//! Up to six pairs against one panel of keys or values. A tile's accumulators are one f32 chain each, in registers; how
//! many there are is free.

use std::ops::Range;

use super::chunk::Scores;
use super::keys::{Ahead, Keys, Number};
use super::softcap::tanh;
use super::{Attention, Bias, Block, CHUNK};
use crate::arch::{LANES, Lanes};

/// R pairs of a block, and a chunk's keys.
pub struct Tile<'a, 'b, N, const R: usize> {
    pub step: &'a Attention<'a>,
    pub block: &'a Block,
    pub keys: &'a Keys<'b, N>,
    pub first_key: usize,
    /// The first pair.
    pub first: usize,
    pub visible: &'a [Range<usize>; R],
    pub scores: &'a mut [Scores; R],
    /// Whether the next panel is to be asked for.
    pub ahead: bool,
}

impl<'a, N: Number, const R: usize> Tile<'a, '_, N, R> {
    /// The scores of the panel's keys that any of the pairs sees, and of some that none sees.
    #[inline(always)]
    pub fn score<L: Lanes>(&mut self, panel: &Range<usize>) {
        let start = self.visible.iter().map(|keys| keys.start).min().unwrap_or(CHUNK).max(panel.start);
        let end = self.visible.iter().map(|keys| keys.end).max().unwrap_or(0).min(panel.end);
        if start >= end {
            return;
        }
        let mut ahead = if self.ahead { self.keys.after_keys(panel) } else { Ahead::NOTHING };
        let (mut group, end) = (start / LANES, end.div_ceil(LANES));
        while group < end {
            let left = end - group;
            group += match L::REGISTERS {
                1 if left >= 4 => self.score_groups::<L, 4>(group, &mut ahead),
                2 if R <= 2 && left >= 2 => self.score_groups::<L, 2>(group, &mut ahead),
                _ => self.score_groups::<L, 1>(group, &mut ahead),
            };
        }
    }

    /// R pairs by G groups of 16 keys: chains of fma over d, then the factors. Returns G.
    #[inline(always)]
    fn score_groups<L: Lanes, const G: usize>(&mut self, group: usize, ahead: &mut Ahead) -> usize {
        let (query, columns) = (self.query(), self.keys.key_columns(group, G));
        let scores = self.scores.each_mut().map(|scores| {
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            scores[group..].first_chunk_mut().expect("G groups of the chunk")
        });
        score_chains::<L, N, R, G>(query, columns, self.keys.stride, self.step.rule.factor, ahead, scores);
        self.bend::<L>(group..group + G);
        G
    }

    #[inline(always)]
    fn query(&self) -> [&'a [f32]; R] {
        let (size, heads, group) = (self.step.shape.size, self.step.shape.heads, self.step.shape.group());
        std::array::from_fn(|r| {
            let (row, head) = ((self.first + r) / group, (self.first + r) % group);
            let start = ((self.block.rows.start + row) * heads + self.block.kv_head * group + head) * size;
            &self.step.q[start..][..size]
        })
    }

    /// What few models have: caps and biases.
    #[inline(always)]
    fn bend<L: Lanes>(&mut self, groups: Range<usize>) {
        if self.step.rule.cap != 0.0 {
            let cap = L::splat(self.step.rule.cap);
            for scores in self.scores.iter_mut() {
                for score in &mut scores.as_chunks_mut::<LANES>().0[groups.clone()] {
                    tanh(L::load(score)).mul(cap).store(score);
                }
            }
        }
        if let Some(bias) = self.step.rule.bias {
            self.add_bias::<L>(&bias, groups);
        }
    }

    /// score = fma(chain of fma over the bias's rank, log2 e, score).
    #[inline(always)]
    fn add_bias<L: Lanes>(&mut self, bias: &Bias<'_>, groups: Range<usize>) {
        let (heads, share) = (self.step.shape.heads, self.step.shape.group());
        let width = bias.profile.len() / bias.rank;
        for r in 0..R {
            let (row, head) = (self.block.rows.start + (self.first + r) / share, (self.first + r) % share);
            let query = &bias.queries[(row * heads + self.block.kv_head * share + head) * bias.rank..][..bias.rank];
            let (scores, _) = self.scores[r].as_chunks_mut::<LANES>();
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

    /// O of each pair over the keys that it sees of a run, in their order: what only some of the tile see, one pair at a
    /// time.
    #[inline(always)]
    pub fn weigh<L: Lanes>(&mut self, run: &Range<usize>, o: &mut [f32], width: usize) {
        let inside = |keys: &Range<usize>| keys.start.max(run.start)..keys.end.min(run.end);
        let visible: [Range<usize>; R] = std::array::from_fn(|r| inside(&self.visible[r]));
        let start = visible.iter().map(|keys| keys.start).max().unwrap_or(0);
        let end = visible.iter().map(|keys| keys.end).min().unwrap_or(0).max(start);
        let mut ahead = if self.ahead { self.keys.after_values(run) } else { Ahead::NOTHING };
        let o = &mut o[self.first * width..][..R * width];
        for (r, keys) in visible.iter().enumerate() {
            self.weigh_one::<L>(r, keys.start..keys.end.min(start), o, width);
        }
        self.weigh_keys::<L, R>(0, start..end, o, width, &mut ahead);
        for (r, keys) in visible.iter().enumerate() {
            self.weigh_one::<L>(r, keys.start.max(end)..keys.end, o, width);
        }
    }

    #[inline(always)]
    fn weigh_one<L: Lanes>(&self, r: usize, keys: Range<usize>, o: &mut [f32], width: usize) {
        if keys.start < keys.end {
            let nothing = &mut { Ahead::NOTHING };
            self.weigh_keys::<L, 1>(r, keys, &mut o[r * width..][..width], width, nothing);
        }
    }

    /// Pairs `r .. r + S` of the tile over keys that all of them see.
    #[inline(always)]
    fn weigh_keys<L: Lanes, const S: usize>(
        &self,
        r: usize,
        keys: Range<usize>,
        out: &mut [f32],
        width: usize,
        ahead: &mut Ahead,
    ) {
        if keys.is_empty() {
            return;
        }
        let size = self.step.shape.size;
        let values = self.keys.values(keys.clone());
        let powers = Powers { rows: self.scores[r..].first_chunk::<S>().expect("S pairs"), from: keys.start };
        let mut d = 0;
        if L::REGISTERS == 1 || (L::REGISTERS == 2 && S <= 2) {
            while d + 4 * LANES <= size {
                weigh_columns::<L, N, S, 4>(powers, values, size, d, out, width, ahead);
                d += 4 * LANES;
            }
        }
        while d + LANES <= size {
            weigh_columns::<L, N, S, 1>(powers, values, size, d, out, width, ahead);
            d += LANES;
        }
        if d < size {
            weigh_rest::<L, N, S>(powers, values, size, d, out, width);
        }
    }
}

/// Powers of R pairs, from key `from` of the chunk on: arrays of one length, so that one comparison checks all R.
#[derive(Clone, Copy)]
struct Powers<'a, const R: usize> {
    rows: &'a [Scores; R],
    from: usize,
}

/// scores[r][n] = factor * the chain over d of query[r][d] * columns[d][n]. The accumulators belong to this function, so
/// that they stay in registers: handed on they were copied, and through a reference stored at every step.
#[inline(always)]
fn score_chains<L: Lanes, N: Number, const R: usize, const G: usize>(
    query: [&[f32]; R],
    columns: &[N],
    stride: usize,
    factor: f32,
    ahead: &mut Ahead,
    scores: [&mut [[f32; LANES]; G]; R],
) {
    let mut chains = [[L::zero(); G]; R];
    let size = query[0].len();
    let query: [&[f32]; R] = std::array::from_fn(|r| &query[r][..size]);
    for (d, columns) in (0..size).zip(columns.chunks(stride)) {
        ahead.ask(G * LANES * size_of::<N>());
        let mut keys = [L::zero(); G];
        for (keys, columns) in keys.iter_mut().zip(columns[..G * LANES].as_chunks::<LANES>().0) {
            *keys = N::load(columns);
        }
        for r in 0..R {
            let value = L::splat(query[r][d]);
            for n in 0..G {
                chains[r][n] = value.fma(keys[n], chains[r][n]);
            }
        }
    }
    for (r, scores) in scores.into_iter().enumerate() {
        for n in 0..G {
            chains[r][n].mul(L::splat(factor)).store(&mut scores[n]);
        }
    }
}

/// O[pair][d .. d + 16 C] over the keys of `values`, in order: chains[r][n] += powers[r][key] * values[key][d + 16 n ..].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "as written, accumulators are never addressed: they stay in registers")]
fn weigh_columns<L: Lanes, N: Number, const R: usize, const C: usize>(
    powers: Powers<'_, R>,
    values: &[N],
    size: usize,
    d: usize,
    out: &mut [f32],
    width: usize,
    ahead: &mut Ahead,
) {
    let mut chains = [[L::zero(); C]; R];
    for r in 0..R {
        let from = out[r * width + d..][..C * LANES].as_chunks::<LANES>().0;
        for n in 0..C {
            chains[r][n] = L::load(&from[n]);
        }
    }
    let from = powers.from;
    for (key, row) in values.chunks_exact(size).enumerate() {
        ahead.ask(C * LANES * size_of::<N>());
        let row = row[d..][..C * LANES].as_chunks::<LANES>().0;
        let mut numbers = [L::zero(); C];
        for n in 0..C {
            numbers[n] = N::load(&row[n]);
        }
        for r in 0..R {
            let power = L::splat(powers.rows[r][from + key]);
            for n in 0..C {
                chains[r][n] = power.fma(numbers[n], chains[r][n]);
            }
        }
    }
    for r in 0..R {
        let to = out[r * width + d..][..C * LANES].as_chunks_mut::<LANES>().0;
        for n in 0..C {
            chains[r][n].store(&mut to[n]);
        }
    }
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

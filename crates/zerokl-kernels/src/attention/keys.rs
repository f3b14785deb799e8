//! Where the keys of one chunk lie: straight in their pages, or gathered where they are not float32 there or a page is no
//! multiple of 16 slots.

use std::ops::Range;

use super::{Attention, Block, CHUNK, Pool};
use crate::arch::LANES;

/// Between the columns of gathered keys: not a power of two, or all columns would fall into the same cache sets.
const STRIDE: usize = CHUNK + LANES;

/// The groups of 16 keys of one chunk of one sequence and head. Key `j` of the chunk is `group j / 16, lane j % 16`.
pub struct Keys<'a> {
    k: &'a [f32],
    v: &'a [f32],
    /// From one `d` to the next in `k`.
    pub stride: usize,
    size: usize,
    /// Per group: where its first key starts in `k` and in `v`.
    starts: [(usize, usize); CHUNK / LANES],
}

impl<'a> Keys<'a> {
    /// The keys of the chunk that the block sees. `scratch` is filled if they must be gathered.
    pub fn new(step: &Attention<'a>, block: &Block, chunk: usize, scratch: &'a mut Vec<f32>) -> Self {
        let first = chunk * CHUNK;
        let (start, end) = (block.keys.start.max(first) - first, block.keys.end.min(first + CHUNK) - first);
        match (step.k, step.v) {
            (Pool::F32(k), Pool::F32(v)) if step.shape.page.is_multiple_of(LANES) => {
                Self::in_pages(step, (k, v), block, first, start..end)
            }
            _ => Self::gathered(step, block, first, start, end, scratch),
        }
    }

    fn in_pages(
        step: &Attention<'a>,
        (k, v): (&'a [f32], &'a [f32]),
        block: &Block,
        first: usize,
        keys: Range<usize>,
    ) -> Self {
        let Range { start, end } = keys;
        let (size, page) = (step.shape.size, step.shape.page);
        let mut starts = [(usize::MAX, usize::MAX); CHUNK / LANES];
        let groups = start / LANES..end.div_ceil(LANES);
        for (at, group) in starts[groups.clone()].iter_mut().zip(groups) {
            let position = first + group * LANES;
            let base = head_start(step, block, position);
            *at = (base + position % page, base + position % page * size);
        }
        Keys { k, v, stride: page, size, starts }
    }

    /// The same layout as one page of 512 slots. Keys that nobody sees stay zero.
    fn gathered(
        step: &Attention<'a>,
        block: &Block,
        first: usize,
        start: usize,
        end: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Self {
        let (size, page) = (step.shape.size, step.shape.page);
        scratch.clear();
        scratch.resize(size * (STRIDE + CHUNK), 0.0);
        let (k, v) = scratch.split_at_mut(size * STRIDE);
        let mut j = start;
        while j < end {
            let (base, offset) = (head_start(step, block, first + j), (first + j) % page);
            let count = (end - j).min(page - offset);
            for d in 0..size {
                step.k.read(base + d * page + offset, &mut k[d * STRIDE + j..][..count]);
            }
            step.v.read(base + offset * size, &mut v[j * size..][..count * size]);
            j += count;
        }
        let starts = std::array::from_fn(|group| (group * LANES, group * LANES * size));
        Keys { k, v, stride: STRIDE, size, starts }
    }

    /// `k[d][16 keys ...]` of one group, `stride` apart.
    #[inline(always)]
    pub fn key_columns(&self, group: usize) -> &'a [f32] {
        &self.k[self.starts[group].0..][..(self.size - 1) * self.stride + LANES]
    }

    /// The longest run of keys from `from`, up to `to`, whose values lie one after the other: (end, values).
    #[inline(always)]
    pub fn values(&self, from: usize, to: usize) -> (usize, &'a [f32]) {
        let mut group = from / LANES;
        let start = self.starts[group].1 + from % LANES * self.size;
        while (group + 1) * LANES < to && self.starts[group + 1].1 == self.starts[group].1 + LANES * self.size {
            group += 1;
        }
        let end = to.min((group + 1) * LANES);
        (end, &self.v[start..][..(end - from) * self.size])
    }
}

/// Where a position's page starts for the block's key head, in `k` and `v` alike.
fn head_start(step: &Attention<'_>, block: &Block, position: usize) -> usize {
    let page = step.pages(block.segment)[position / step.shape.page] as usize;
    (page * step.shape.kv_heads + block.kv_head) * step.shape.size * step.shape.page
}

//! Where the keys of one chunk lie: straight in their pages, or gathered as float32, where a page is no multiple of 16
//! slots or narrower numbers would be widened again and again.

use std::ops::Range;

use super::{Attention, Block, CHUNK, Pool};
use crate::arch::{LANES, Lanes, prefetch};

/// A number as it is kept, and as lanes.
pub trait Number: Copy + Default {
    /// The most pairs in a tile: of few pairs per key there are no more at hand.
    const WIDEST: usize;

    fn load<L: Lanes>(from: &[Self; LANES]) -> L;

    /// The first lanes from a slice of at most 16, the others zero.
    #[inline(always)]
    fn load_first<L: Lanes>(from: &[Self]) -> L {
        let mut lanes = [Self::default(); LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self::load(&lanes)
    }
}

impl Number for f32 {
    const WIDEST: usize = 6;

    #[inline(always)]
    fn load<L: Lanes>(from: &[f32; LANES]) -> L {
        L::load(from)
    }
}

/// The bits of a bfloat16.
impl Number for u16 {
    const WIDEST: usize = 4;

    #[inline(always)]
    fn load<L: Lanes>(from: &[u16; LANES]) -> L {
        L::load_bf16(from)
    }
}

/// Between the columns of gathered keys: not a power of two, or all columns would fall into the same cache sets.
const STRIDE: usize = CHUNK + LANES;

/// The groups of 16 keys of one chunk of one sequence and head. Key `j` of the chunk is `group j / 16, lane j % 16`.
pub struct Keys<'a, N> {
    k: &'a [N],
    v: &'a [N],
    /// From one `d` to the next in `k`.
    pub stride: usize,
    size: usize,
    /// Per group: where its first key starts in `k` and in `v`.
    starts: [(usize, usize); CHUNK / LANES],
}

/// The keys of a chunk that a block sees, counted from the chunk's start.
fn seen(block: &Block, chunk: usize) -> Range<usize> {
    let first = chunk * CHUNK;
    block.keys.start.max(first) - first..block.keys.end.min(first + CHUNK) - first
}

impl<'a, N> Keys<'a, N> {
    /// Where they lie. Pages must hold whole groups.
    pub fn in_pages(step: &Attention<'a>, (k, v): (&'a [N], &'a [N]), block: &Block, chunk: usize) -> Self {
        let (first, Range { start, end }) = (chunk * CHUNK, seen(block, chunk));
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

    /// `k[d][16 keys ...]` of one group, `stride` apart.
    #[inline(always)]
    pub fn key_columns(&self, group: usize) -> &'a [N] {
        &self.k[self.starts[group].0..][..(self.size - 1) * self.stride + LANES]
    }

    /// The longest run of keys from `from`, up to `to`, whose values lie one after the other: (end, values).
    #[inline(always)]
    pub fn values(&self, from: usize, to: usize) -> (usize, &'a [N]) {
        let mut group = from / LANES;
        let start = self.starts[group].1 + from % LANES * self.size;
        while (group + 1) * LANES < to && self.starts[group + 1].1 == self.starts[group].1 + LANES * self.size {
            group += 1;
        }
        let end = to.min((group + 1) * LANES);
        (end, &self.v[start..][..(end - from) * self.size])
    }
}

impl<'a> Keys<'a, f32> {
    /// The same layout as one page of 512 slots, in `scratch`. Keys that nobody sees are zero or left from before.
    #[inline(always)]
    pub fn gathered<L: Lanes>(step: &Attention<'_>, block: &Block, chunk: usize, scratch: &'a mut Vec<f32>) -> Self {
        let (first, Range { start, end }) = (chunk * CHUNK, seen(block, chunk));
        let (size, page) = (step.shape.size, step.shape.page);
        scratch.resize(size * (STRIDE + CHUNK), 0.0);
        let (k, v) = scratch.split_at_mut(size * STRIDE);
        let mut j = start;
        while j < end {
            let (base, offset) = (head_start(step, block, first + j), (first + j) % page);
            let count = (end - j).min(page - offset);
            for d in 0..size {
                read::<L>(&step.k, base + d * page + offset, &mut k[d * STRIDE + j..][..count]);
            }
            read::<L>(&step.v, base + offset * size, &mut v[j * size..][..count * size]);
            j += count;
        }
        let starts = std::array::from_fn(|group| (group * LANES, group * LANES * size));
        Keys { k, v, stride: STRIDE, size, starts }
    }
}

/// The numbers of a pool from `start` on.
#[inline(always)]
fn read<L: Lanes>(pool: &Pool<'_>, start: usize, out: &mut [f32]) {
    match pool {
        Pool::Bf16(bits) => {
            let bits = &bits[start..][..out.len()];
            for (bits, out) in bits.chunks(LANES).zip(out.chunks_mut(LANES)) {
                match bits.try_into() {
                    Ok(bits) => L::load_bf16(bits),
                    Err(_) => u16::load_first::<L>(bits),
                }
                .store_first(out);
            }
        }
        pool => pool.read(start, out),
    }
}

/// Asks for the page with the first keys that a block sees.
pub fn prefetch_keys(step: &Attention<'_>, block: &Block) {
    let first = block.keys.start;
    if block.keys.is_empty() || !step.shape.page.is_multiple_of(LANES) {
        return;
    }
    let (size, page) = (step.shape.size, step.shape.page);
    let (start, used) = (head_start(step, block, first), page.min(block.keys.end - first / page * page));
    match step.k {
        Pool::F32(k) => prefetch_columns(&k[start..][..size * page], page, used),
        Pool::Bf16(k) => prefetch_columns(&k[start..][..size * page], page, used),
        Pool::Fp8(k, _) => prefetch_columns(&k[start..][..size * page], page, used),
    }
}

/// The first `used` numbers of each row of a page.
fn prefetch_columns<N>(k: &[N], page: usize, used: usize) {
    k.chunks_exact(page).for_each(|row| prefetch(&row[..used]));
}

/// Where a position's page starts for the block's key head, in `k` and `v` alike.
fn head_start(step: &Attention<'_>, block: &Block, position: usize) -> usize {
    let page = step.pages(block.segment)[position / step.shape.page] as usize;
    (page * step.shape.kv_heads + block.kv_head) * step.shape.size * step.shape.page
}

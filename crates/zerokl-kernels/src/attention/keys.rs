//! Where the keys of one chunk lie: straight in their pages, or gathered as float32, where a page is no multiple of 16
//! slots or narrower numbers would be widened again and again.

use std::ops::Range;

use super::{Attention, Block, CHUNK, Pool};
use crate::arch::{LANES, Lanes, prefetch_line};

/// A number as it is kept, and as lanes.
pub trait Number: Copy + Default {
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
    #[inline(always)]
    fn load<L: Lanes>(from: &[f32; LANES]) -> L {
        L::load(from)
    }
}

/// The bits of a bfloat16.
impl Number for u16 {
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
    /// Those that the block sees, counted from the chunk's start.
    pub seen: Range<usize>,
    /// From one `d` to the next in `k`.
    pub stride: usize,
    /// Keys that lie side by side, 64 at most, from multiples of so many on: what is worked on at a time.
    pub panel: usize,
    size: usize,
    /// Per group: where its first key starts in `k` and in `v`.
    starts: [(usize, usize); CHUNK / LANES],
    /// Where the keys start that are wanted after this chunk's values.
    next: usize,
}

/// The keys of a chunk that a block sees, counted from the chunk's start.
fn seen(block: &Block, chunk: usize) -> Range<usize> {
    let first = chunk * CHUNK;
    block.keys.start.max(first) - first..block.keys.end.min(first + CHUNK) - first
}

/// The most keys of a panel: as many as stay in the first-level cache, with their values.
pub const PANEL: usize = 64;

/// Of pages of so many slots: a power of two that divides it.
pub fn panel_of(page: usize) -> usize {
    PANEL.min(1 << page.trailing_zeros())
}

impl<'a, N> Keys<'a, N> {
    /// Where they lie. Pages must hold whole groups.
    #[inline(always)]
    pub fn in_pages(
        step: &Attention<'a>,
        (k, v): (&'a [N], &'a [N]),
        block: &Block,
        chunk: usize,
        next: Option<(&Block, usize)>,
    ) -> Self {
        let (first, seen) = (chunk * CHUNK, seen(block, chunk));
        let (size, page) = (step.shape.size, step.shape.page);
        let mut starts = [(usize::MAX, usize::MAX); CHUNK / LANES];
        let groups = seen.start / LANES..seen.end.div_ceil(LANES);
        for (at, group) in starts[groups.clone()].iter_mut().zip(groups) {
            let position = first + group * LANES;
            let base = step.start_of(block, position);
            *at = (base + position % page, base + position % page * size);
        }
        let start_of = |(block, chunk): (&Block, usize)| step.start_of(block, block.keys.start.max(chunk * CHUNK));
        Keys { k, v, seen, stride: page, panel: panel_of(page), size, starts, next: next.map_or(usize::MAX, start_of) }
    }

    /// `k[d][16 keys of each group ...]`, `stride` apart.
    #[inline(always)]
    pub fn key_columns(&self, group: usize, count: usize) -> &'a [N] {
        &self.k[self.starts[group].0..][..(self.size - 1) * self.stride + count * LANES]
    }

    /// Where the run of keys from `from` ends, `to` at most, whose values lie one after the other.
    #[inline(always)]
    pub fn end_of_run(&self, from: usize, to: usize) -> usize {
        let mut group = from / LANES;
        while (group + 1) * LANES < to && self.starts[group + 1].1 == self.starts[group].1 + LANES * self.size {
            group += 1;
        }
        to.min((group + 1) * LANES)
    }

    /// The values of a run, or of a part of it.
    #[inline(always)]
    pub fn values(&self, run: Range<usize>) -> &'a [N] {
        let start = self.starts[run.start / LANES].1 + run.start % LANES * self.size;
        &self.v[start..][..run.len() * self.size]
    }

    /// What to ask for while the keys of a panel are scored: as many of the keys after them, else of the first values.
    #[inline(always)]
    pub fn after_keys(&self, panel: &Range<usize>) -> Ahead {
        match self.page_after(panel) {
            Some(page) => self.share(self.k, page - page % (self.size * self.stride), panel),
            None => self.share(self.v, self.page_of(self.seen.start), panel),
        }
    }

    /// What to ask for while the values of a run are weighed: as many of the values after them, else of the next keys.
    #[inline(always)]
    pub fn after_values(&self, run: &Range<usize>) -> Ahead {
        match self.page_after(run) {
            Some(page) => self.share(self.v, page, run),
            None => self.share(self.k, self.next, run),
        }
    }

    /// Where the page of a key of the chunk starts.
    #[inline(always)]
    fn page_of(&self, key: usize) -> usize {
        let start = self.starts[key / LANES].0;
        start - start % (self.size * self.stride)
    }

    /// Where the page after that of these keys starts, if the block sees it.
    #[inline(always)]
    fn page_after(&self, keys: &Range<usize>) -> Option<usize> {
        let next = keys.end.max((keys.start / self.stride + 1) * self.stride);
        (next < self.seen.end).then(|| self.page_of(next))
    }

    /// The part of a page that these keys are of theirs.
    #[inline(always)]
    fn share(&self, pool: &[N], page: usize, keys: &Range<usize>) -> Ahead {
        if page == usize::MAX {
            return Ahead::NOTHING;
        }
        let slots = keys.start % self.stride..keys.start % self.stride + keys.len();
        let at = |slot: usize| pool.as_ptr().wrapping_add(page + slot * self.size).cast();
        Ahead { at: at(slots.start), end: at(slots.end) }
    }
}

/// Memory to ask for, piece by piece.
pub struct Ahead {
    at: *const u8,
    end: *const u8,
}

impl Ahead {
    pub const NOTHING: Ahead = Ahead { at: std::ptr::null(), end: std::ptr::null() };

    /// Starts to bring the next bytes near.
    #[inline(always)]
    pub fn ask(&mut self, bytes: usize) {
        if self.at < self.end {
            (0..bytes).step_by(64).for_each(|line| prefetch_line(self.at.wrapping_add(line)));
            self.at = self.at.wrapping_add(bytes);
        }
    }
}

impl<'a> Keys<'a, f32> {
    /// Of the scratch.
    pub fn gathered_length(size: usize) -> usize {
        size * (STRIDE + CHUNK)
    }

    /// The same layout as one page of 512 slots, in `scratch`. Keys that nobody sees are zero or left from before.
    #[inline(always)]
    pub fn gathered<L: Lanes>(step: &Attention<'_>, block: &Block, chunk: usize, scratch: &'a mut [f32]) -> Self {
        let (first, seen) = (chunk * CHUNK, seen(block, chunk));
        let (size, page) = (step.shape.size, step.shape.page);
        let (k, v) = scratch.split_at_mut(size * STRIDE);
        let mut j = seen.start;
        while j < seen.end {
            let (base, offset) = (step.start_of(block, first + j), (first + j) % page);
            let count = (seen.end - j).min(page - offset);
            for d in 0..size {
                read::<L>(&step.k, base + d * page + offset, &mut k[d * STRIDE + j..][..count]);
            }
            read::<L>(&step.v, base + offset * size, &mut v[j * size..][..count * size]);
            j += count;
        }
        let starts = std::array::from_fn(|group| (group * LANES, group * LANES * size));
        Keys { k, v, seen, stride: STRIDE, panel: panel_of(CHUNK), size, starts, next: usize::MAX }
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

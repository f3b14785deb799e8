//! One chunk of 512 absolute keys for one block of (row, query head) pairs: scores, softmax, weighted values.
//!
//! ```text
//! panels of 64 keys    ▸ tiles of up to six pairs: a panel of keys, once near, serves all tiles
//! pairs                ▸ their scores become powers of two
//! panels of 64 values  ▸ tiles, as above
//! ```
//!
//! A vector of keys or values, once loaded, serves all pairs of a tile (`tile.rs`).

use std::cell::RefCell;
use std::ops::Range;

use super::keys::{Keys, Number, PANEL, panel_of};
use super::softmax::{largest, powers};
use super::state::Partial;
use super::tile::Tile;
use super::{Attention, Block, CHUNK, Pool};
use crate::arch::{Kernel, LANES, Lanes, Room};

/// Writes the block's partials for one chunk.
pub struct ChunkKernel<'a> {
    pub step: &'a Attention<'a>,
    pub block: &'a Block,
    pub chunk: usize,
    /// What this thread will probably do next: a stream asks for its first keys.
    pub next: Option<(&'a Block, usize)>,
    pub out: &'a mut Partial,
}

/// Blocks of at most so many pairs (decodes) wait for memory, not for arithmetic: they ask for the next panel, line by
/// line, while they work on this one. From DRAM: 30 GB/s per core instead of 15, where a read of one long array has 34.
pub const STREAMED: usize = 16;

/// The scores of one pair, then their powers.
pub type Scores = [f32; CHUNK];

#[derive(Default)]
struct Scratch {
    /// Scores of all pairs, then gathered keys and values.
    numbers: Room,
    visible: Vec<Range<usize>>,
}

thread_local! {
    /// Kept between chunks, so that nothing is allocated for one.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Kernel for ChunkKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let ChunkKernel { step, block, chunk, next, out } = self;
        // Taken, not borrowed in a closure: lanes in a closure that isn't inlined are function calls.
        let mut scratch = SCRATCH.take();
        let Scratch { numbers, visible } = &mut scratch;
        let length = block.pairs * CHUNK;
        let (scores, gathered) = numbers.lend(length + Keys::gathered_length(step.shape.size)).split_at_mut(length);
        let (scores, _) = scores.as_chunks_mut();
        visible.clear();
        visible.extend((0..block.pairs).map(|pair| seen_by(step, block, chunk * CHUNK, pair)));
        // Pages of few slots leave few chains for many pairs.
        let panel = panel_of(step.shape.page);
        let whole = panel == PANEL || (panel >= LANES && block.pairs <= STREAMED);
        match (step.k, step.v) {
            (Pool::F32(k), Pool::F32(v)) if whole => {
                let keys = &Keys::in_pages(step, (k, v), block, chunk, next);
                Chunk { step, block, keys, first_key: chunk * CHUNK, visible, scores, out }.run::<L>();
            }
            (Pool::Bf16(k), Pool::Bf16(v)) if whole => {
                let keys = &Keys::in_pages(step, (k, v), block, chunk, next);
                Chunk { step, block, keys, first_key: chunk * CHUNK, visible, scores, out }.run::<L>();
            }
            _ => {
                let keys = &Keys::gathered::<L>(step, block, chunk, gathered);
                Chunk { step, block, keys, first_key: chunk * CHUNK, visible, scores, out }.run::<L>();
            }
        }
        SCRATCH.set(scratch);
    }
}

/// Keys of the chunk, counted from its start, that a pair sees.
fn seen_by(step: &Attention<'_>, block: &Block, first_key: usize, pair: usize) -> Range<usize> {
    let row = block.rows.start + pair / step.shape.group();
    let keys = step.rule.visible(step.positions[row]);
    let inside = |position: usize| position.clamp(first_key, first_key + CHUNK) - first_key;
    inside(keys.start)..inside(keys.end)
}

/// One chunk's work.
struct Chunk<'a, 'b, N> {
    step: &'a Attention<'a>,
    block: &'a Block,
    keys: &'a Keys<'b, N>,
    first_key: usize,
    /// Of each pair of the block.
    visible: &'a [Range<usize>],
    scores: &'a mut [Scores],
    out: &'a mut Partial,
}

/// What is done with all tiles.
enum Pass {
    Score,
    Weigh,
}

impl<N: Number> Chunk<'_, '_, N> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        self.out.o.fill(0.0);
        let seen = self.keys.seen.clone();
        let panel = self.keys.panel;
        for first in (seen.start / panel * panel..seen.end).step_by(panel) {
            self.tiles::<L>(&Pass::Score, first..seen.end.min(first + panel));
        }
        // All maxima first: a reduction takes long, and none waits for another.
        for (pair, keys) in self.visible.iter().enumerate() {
            self.out.seen[pair] = !keys.is_empty();
            self.out.m[pair] = largest::<L>(&mut self.scores[pair], keys);
        }
        for (pair, keys) in self.visible.iter().enumerate() {
            self.out.l[pair] = powers::<L>(&mut self.scores[pair], keys, self.out.m[pair]);
        }
        let mut from = seen.start;
        while from < seen.end {
            let to = self.keys.end_of_run(from, seen.end.min((from / panel + 1) * panel));
            self.tiles::<L>(&Pass::Weigh, from..to);
            from = to;
        }
    }

    #[inline(always)]
    fn tiles<L: Lanes>(&mut self, pass: &Pass, panel: Range<usize>) {
        let pairs = self.block.pairs;
        let mut pair = 0;
        while pair < pairs {
            // Lanes without vectors fill no registers with more, and took longer to compile than all the rest.
            pair += match (pairs - pair, L::REGISTERS) {
                (_, 5..) => self.tile::<L, 1>(pass, pair, &panel),
                (6.., _) => self.tile::<L, 6>(pass, pair, &panel),
                (4.., _) => self.tile::<L, 4>(pass, pair, &panel),
                (3, _) => self.tile::<L, 3>(pass, pair, &panel),
                (2, _) => self.tile::<L, 2>(pass, pair, &panel),
                _ => self.tile::<L, 1>(pass, pair, &panel),
            };
        }
    }

    /// Pairs `first .. first + R`; returns R.
    #[inline(always)]
    fn tile<L: Lanes, const R: usize>(&mut self, pass: &Pass, first: usize, panel: &Range<usize>) -> usize {
        let mut tile = Tile::<N, R> {
            step: self.step,
            block: self.block,
            keys: self.keys,
            first_key: self.first_key,
            first,
            visible: self.visible[first..].first_chunk().expect("R pairs"),
            scores: self.scores[first..].first_chunk_mut().expect("R pairs"),
            ahead: first == 0 && self.block.pairs <= STREAMED,
        };
        match pass {
            Pass::Score => tile.score::<L>(panel),
            Pass::Weigh => tile.weigh::<L>(panel, &mut self.out.o, self.out.width),
        }
        R
    }
}

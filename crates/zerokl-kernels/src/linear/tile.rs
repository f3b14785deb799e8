//! A tile of a product: leaves of K, in them blocks of K, in them register blocks.

use std::cell::RefCell;
use std::ops::Range;

use super::Epilogue;
use super::leaves::{Tree, levels};
use super::rows::{GROUP, group_size};
use crate::arch::{Kernel, Lanes};
use crate::matrix::{PANEL, Scale};
use crate::tiles::Tile;

/// Depth of a K block, a multiple of every format's piece: 12 panels of bf16 are 576 KB then, the rows of a tile 144 KB,
/// and both stay in a second level cache of 1 MB. (Within a factor of two of any of the three the speed differs by 3 %.)
const BLOCK_DEPTH: usize = 1536;

/// How rows meet panels: exactly, or through int8.
pub trait Multiply {
    /// Whether there are integer accumulators beside those of the chains, and byte products to be had.
    const INTEGER: bool;
    /// Made for one row only: more rows share what `unpack.rs` makes, whose kernels are the same for all formats.
    const ONE_ROW: bool;

    /// Chains of R rows and P panels taken on over a block of K. The rows are `row ..` of the G that start at `group`.
    fn chains<L: Lanes, const G: usize, const R: usize, const P: usize>(
        &self,
        group: usize,
        row: usize,
        panel: usize,
        k: &Range<usize>,
        acc: [[L; P]; R],
    ) -> [[L; P]; R];
}

/// The part of x times a transposed shard that a tile covers. Columns of the tile are outputs of the matrix.
pub struct TileProduct<'a, 'o, M> {
    pub factors: M,
    /// The part of K that is summed now.
    pub k: Range<usize>,
    /// Where each leaf of that part ends.
    pub leaves: &'a [usize],
    /// The first leaf's chains go on from the output; the last one's end here, or are kept there.
    pub resumes: bool,
    pub finishes: bool,
    /// N of the matrix.
    pub outputs: usize,
    /// Where the shard's outputs start in it.
    pub first: usize,
    pub scale: &'a Scale,
    pub epilogue: Epilogue<'a>,
    pub tile: &'a mut Tile<'o, f32>,
}

thread_local! {
    /// Sums of finished leaves that wait for their siblings: a tile for each level of the tree.
    static WAITING: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What becomes of the chains at the end of a block.
#[derive(Clone, Copy)]
enum Then {
    /// The leaf goes on: they are kept in the output.
    Resume,
    /// A leaf is done.
    Leaf(usize),
    /// The last leaf is done: the tree is folded; then the scale, bias and residual.
    Finish(usize),
}

/// One block of K of one leaf.
#[derive(Clone)]
struct Block {
    k: Range<usize>,
    resumes: bool,
    then: Then,
}

impl<M: Multiply> Kernel for TileProduct<'_, '_, M> {
    type Output = ();
    const DOTS: bool = M::INTEGER;

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let last = self.leaves.len() - 1;
        let area = self.tile.rows.len() * self.tile.columns.len();
        // Taken, not borrowed in a closure: lanes in a closure that isn't inlined are function calls.
        let mut waiting = WAITING.take();
        waiting.resize(waiting.len().max(levels(last) * area), 0.0);
        let mut start = self.k.start;
        for (leaf, &end) in self.leaves.iter().enumerate() {
            let first = start;
            loop {
                let stop = (start + BLOCK_DEPTH).min(end);
                let then = match stop == end {
                    true if leaf < last => Then::Leaf(leaf),
                    true if self.finishes => Then::Finish(leaf),
                    _ => Then::Resume,
                };
                let resumes = start > first || (leaf == 0 && self.resumes);
                self.rows::<L>(&mut waiting, &Block { k: start..stop, resumes, then });
                start = stop;
                if stop == end {
                    break;
                }
            }
        }
        WAITING.set(waiting);
    }
}

impl<M: Multiply> TileProduct<'_, '_, M> {
    #[inline(always)]
    fn rows<L: Lanes>(&mut self, waiting: &mut [f32], k: &Block) {
        let Range { mut start, end } = self.tile.rows.clone();
        if M::ONE_ROW {
            return self.panels::<L, 1, 1, 6>(start, waiting, k);
        }
        while start < end {
            let group = group_size(end - start);
            // Accumulators: at least 8 against the latency of an fma, at most 24 of 32 registers or 12 of 16; integer
            // ones as many again.
            match (group, L::REGISTERS, M::INTEGER) {
                (GROUP, 1, false) => self.panels::<L, GROUP, 12, 2>(start, waiting, k),
                (8, 1, false) => self.panels::<L, 8, 8, 3>(start, waiting, k),
                (4, 1, false) => self.panels::<L, 4, 4, 6>(start, waiting, k),
                (2, 1, false) => self.panels::<L, 2, 2, 6>(start, waiting, k),
                (GROUP, 1, true) => self.panels::<L, GROUP, 12, 1>(start, waiting, k),
                (8, 1, true) => self.panels::<L, 8, 8, 1>(start, waiting, k),
                (4, 1, true) => self.panels::<L, 4, 4, 2>(start, waiting, k),
                (2, 1, true) => self.panels::<L, 2, 2, 4>(start, waiting, k),
                (GROUP, _, _) => self.panels::<L, GROUP, 6, 1>(start, waiting, k),
                (8, _, _) => self.panels::<L, 8, 4, 1>(start, waiting, k),
                (4, _, _) => self.panels::<L, 4, 4, 1>(start, waiting, k),
                (2, _, _) => self.panels::<L, 2, 2, 2>(start, waiting, k),
                _ => self.panels::<L, 1, 1, 6>(start, waiting, k),
            }
            start += group;
        }
    }

    /// All panels of the tile for a group of G rows, in blocks of R rows and P panels.
    #[inline(always)]
    fn panels<L: Lanes, const G: usize, const R: usize, const P: usize>(
        &mut self,
        group: usize,
        waiting: &mut [f32],
        k: &Block,
    ) {
        let end = (self.tile.columns.end - self.first).div_ceil(PANEL);
        let mut panel = (self.tile.columns.start - self.first) / PANEL;
        while panel < end {
            let whole = panel + P <= end;
            for row in (0..G).step_by(R) {
                if whole {
                    self.block::<L, G, R, P>(group, row, panel, waiting, k);
                } else {
                    self.block::<L, G, R, 1>(group, row, panel, waiting, k);
                }
            }
            panel += if whole { P } else { 1 };
        }
    }

    /// Chains of R rows (from `row` of the group on) and P panels over a block of K, in registers.
    #[inline(always)]
    fn block<L: Lanes, const G: usize, const R: usize, const P: usize>(
        &mut self,
        group: usize,
        row: usize,
        panel: usize,
        waiting: &mut [f32],
        block: &Block,
    ) {
        let mut acc = [[L::zero(); P]; R];
        if block.resumes {
            self.each_output(group + row, panel, &mut acc, |lanes, out, _| *lanes = L::load_first(out));
        }
        let mut acc = self.factors.chains::<L, G, R, P>(group, row, panel, &block.k, acc);
        let tree = Tree { area: self.tile.rows.len() * self.tile.columns.len() };
        match block.then {
            Then::Leaf(leaf) => {
                return self.each_output(group + row, panel, &mut acc, |lanes, out, place| {
                    tree.put::<L>(waiting, leaf, *lanes, place.of_tile..place.of_tile + out.len());
                });
            }
            Then::Finish(leaf) if leaf > 0 => {
                self.each_output(group + row, panel, &mut acc, |lanes, out, place| {
                    *lanes = tree.fold::<L>(waiting, leaf, *lanes, place.of_tile..place.of_tile + out.len());
                });
            }
            _ => {}
        }
        let (Epilogue { bias, residual }, scale, first) = (self.epilogue, self.scale, self.first);
        let last = matches!(block.then, Then::Finish(_));
        self.each_output(group + row, panel, &mut acc, |lanes, out, place| {
            let mut y = if last { scaled(*lanes, scale, place.column - first, out.len()) } else { *lanes };
            if last && let Some(bias) = bias {
                y = y.add(L::load_first(&bias[place.column..][..out.len()]));
            }
            if last && let Some(residual) = residual {
                y = y.add(L::load_first(&residual[place.of_all..][..out.len()]));
            }
            y.store_first(out);
        });
    }

    /// `visit(accumulator, its outputs, where they are)`.
    #[inline(always)]
    fn each_output<L: Lanes, const R: usize, const P: usize>(
        &mut self,
        row: usize,
        panel: usize,
        acc: &mut [[L; P]; R],
        mut visit: impl FnMut(&mut L, &mut [f32], Place),
    ) {
        let (start, width, top) = (self.tile.columns.start, self.tile.columns.len(), self.tile.rows.start);
        for (r, lanes) in acc.iter_mut().enumerate() {
            let out = self.tile.row(row + r);
            for (p, lanes) in lanes.iter_mut().enumerate() {
                let column = self.first + (panel + p) * PANEL;
                let out = &mut out[column - start..];
                let lanes_used = out.len().min(PANEL);
                let of_tile = (row + r - top) * width + column - start;
                let place = Place { column, of_tile, of_all: (row + r) * self.outputs + column };
                visit(lanes, &mut out[..lanes_used], place);
            }
        }
    }
}

/// The first of neighbouring outputs: its column, and its index in the tile and in the whole output.
struct Place {
    column: usize,
    of_tile: usize,
    of_all: usize,
}

/// What comes after the chains, and before bias and residual.
#[inline(always)]
fn scaled<L: Lanes>(chain: L, scale: &Scale, output: usize, width: usize) -> L {
    match scale {
        Scale::One => chain,
        Scale::Times(factor) => chain.mul(L::splat(*factor)),
        Scale::Over(divisor) => chain.div(L::splat(*divisor)),
        Scale::Each(factors) => chain.mul(L::load_first(&factors[output..][..width])),
    }
}

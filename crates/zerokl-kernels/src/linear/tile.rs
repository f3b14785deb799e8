//! A tile of a product: leaves of K, in them blocks of K, in them register blocks.

use std::cell::RefCell;
use std::ops::Range;

use super::Epilogue;
use super::leaves::{Tree, levels};
use super::rows::{GROUP, group_size};
use crate::arch::{Kernel, Lanes};
use crate::formats::Stored;
use crate::matrix::{PANEL, pieces};
use crate::tiles::Tile;

/// Depth of a K block, a multiple of all steps: 12 panels of bf16 are 576 KB then, the rows of a tile 144 KB, and both
/// stay in a second level cache of 1 MB. (Within a factor of two of any of the three the speed differs by 3 %.)
const BLOCK_DEPTH: usize = 1536;

/// The part of x times the transposed weight that a tile covers. Columns of the tile are outputs of the weight.
pub struct TileProduct<'a, 'o, W> {
    /// All rows, interleaved.
    pub x: &'a [f32],
    /// All panels.
    pub panels: &'a [W],
    /// K.
    pub depth: usize,
    /// The part of K that is summed, which the rows of x are: one leaf, or all of them.
    pub k: Range<usize>,
    /// Where each leaf of that part ends.
    pub leaves: &'a [usize],
    /// N.
    pub outputs: usize,
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
    /// The last leaf is done: the tree is folded, bias and residual are added.
    Finish(usize),
}

/// One block of K of one leaf.
#[derive(Clone)]
struct Block {
    k: Range<usize>,
    resumes: bool,
    then: Then,
}

impl<W: Stored> Kernel for TileProduct<'_, '_, W> {
    type Output = ();

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
                    false => Then::Resume,
                    true if leaf == last => Then::Finish(leaf),
                    true => Then::Leaf(leaf),
                };
                self.rows::<L>(&mut waiting, &Block { k: start..stop, resumes: start > first, then });
                start = stop;
                if stop == end {
                    break;
                }
            }
        }
        WAITING.set(waiting);
    }
}

impl<W: Stored> TileProduct<'_, '_, W> {
    #[inline(always)]
    fn rows<L: Lanes>(&mut self, waiting: &mut [f32], k: &Block) {
        let Range { mut start, end } = self.tile.rows.clone();
        while start < end {
            let group = group_size(end - start);
            // Accumulators: at least 8 against the latency of an fma, at most 24 of 32 registers or 8 of 16.
            match (group, L::REGISTERS) {
                (GROUP, 1) => self.panels::<L, GROUP, 12, 2>(start, waiting, k),
                (8, 1) => self.panels::<L, 8, 8, 3>(start, waiting, k),
                (4, 1) => self.panels::<L, 4, 4, 4>(start, waiting, k),
                (2, 1) => self.panels::<L, 2, 2, 6>(start, waiting, k),
                (1, 1) => self.panels::<L, 1, 1, 6>(start, waiting, k),
                (GROUP, _) => self.panels::<L, GROUP, 4, 1>(start, waiting, k),
                (8, _) => self.panels::<L, 8, 4, 1>(start, waiting, k),
                (4, _) => self.panels::<L, 4, 4, 1>(start, waiting, k),
                (2, _) => self.panels::<L, 2, 2, 2>(start, waiting, k),
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
        let end = self.tile.columns.end.div_ceil(PANEL);
        let mut panel = self.tile.columns.start / PANEL;
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
        let Range { start, end } = block.k;
        let width = self.k.len();
        let x = &self.x[group * width..][..G * width].as_chunks::<G>().0[start - self.k.start..end - self.k.start];
        let pieces = pieces::<W>(self.depth);
        let wanted = start / W::STEP..end.div_ceil(W::STEP);
        let panels = std::array::from_fn(|p| &self.panels[(panel + p) * pieces..][wanted.clone()]);
        let mut acc = [[L::zero(); P]; R];
        if block.resumes {
            self.each_output(group + row, panel, &mut acc, |lanes, out, _| *lanes = L::load_first(out));
        }
        let mut acc = chains(x, row, panels, acc);
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
        let Epilogue { bias, residual } = self.epilogue;
        let last = matches!(block.then, Then::Finish(_));
        self.each_output(group + row, panel, &mut acc, |lanes, out, place| {
            let mut y = *lanes;
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
        let (first, width, top) = (self.tile.columns.start, self.tile.columns.len(), self.tile.rows.start);
        for (r, lanes) in acc.iter_mut().enumerate() {
            let out = self.tile.row(row + r);
            for (p, lanes) in lanes.iter_mut().enumerate() {
                let column = (panel + p) * PANEL;
                let out = &mut out[column - first..];
                let lanes_used = out.len().min(PANEL);
                let of_tile = (row + r - top) * width + column - first;
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

/// The innermost loop: one fma per output and k, k increasing. Takes rows `first..first + R` of the group.
#[inline(always)]
fn chains<L: Lanes, W: Stored, const G: usize, const R: usize, const P: usize>(
    x: &[[f32; G]],
    first: usize,
    panels: [&[W]; P],
    mut acc: [[L; P]; R],
) -> [[L; P]; R] {
    let panels = panels.map(|panel| &panel[..x.len().div_ceil(W::STEP)]);
    let (whole, rest) = x.split_at(x.len() / W::STEP * W::STEP);
    for (piece, x) in whole.chunks_exact(W::STEP).enumerate() {
        for (k, x) in x.iter().enumerate() {
            step(x, first, load(panels, piece, k), &mut acc);
        }
    }
    for (k, x) in rest.iter().enumerate() {
        step(x, first, load(panels, whole.len() / W::STEP, k), &mut acc);
    }
    acc
}

/// A loop, not `array::map`: its closure was not always inlined, and lanes outside of `Isa::run` are function calls.
#[inline(always)]
fn load<L: Lanes, W: Stored, const P: usize>(panels: [&[W]; P], piece: usize, k: usize) -> [L; P] {
    let mut weights = [L::zero(); P];
    for (weights, panel) in weights.iter_mut().zip(panels) {
        *weights = panel[piece].load(k);
    }
    weights
}

#[inline(always)]
fn step<L: Lanes, const G: usize, const R: usize, const P: usize>(
    x: &[f32; G],
    first: usize,
    weights: [L; P],
    acc: &mut [[L; P]; R],
) {
    for (acc, x) in acc.iter_mut().zip(&x[first..first + R]) {
        let x = L::splat(*x);
        for (acc, weight) in acc.iter_mut().zip(weights) {
            *acc = weight.fma(x, *acc);
        }
    }
}

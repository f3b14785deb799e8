//! A tile of a product: leaves of K, in them blocks of K, in them register blocks.

use std::cell::RefCell;
use std::ops::Range;

use super::Epilogue;
use super::leaves::{Tree, levels};
use super::rows::{GROUP, group_size};
use crate::arch::{Kernel, Lanes, prefetch_line};
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
    /// Weights as `Lanes::bf16_chains` reads them.
    const BF16: bool;

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
    pub outcome: Outcome<'a, 'o>,
}

/// Where chains go, and what becomes of them on the way.
pub struct Outcome<'a, 'o> {
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
        let area = self.outcome.tile.rows.len() * self.outcome.tile.columns.len();
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
        let Range { mut start, end } = self.outcome.tile.rows.clone();
        if M::ONE_ROW {
            return self.panels::<L, 1, 1, 6>(start, waiting, k);
        }
        while start < end {
            let group = group_size(end - start);
            // Accumulators: at least 8 against the latency of an fma; of 32 registers at most 24 and two for each panel
            // (4 by 6 left some in memory: a third of the speed), or 8 of 16; integer ones as many again. `if const`: what
            // is never run is not even compiled.
            if const { L::BF16_CHAINS && M::BF16 } {
                match group {
                    GROUP => self.panels::<L, GROUP, 4, 3>(start, waiting, k),
                    8 => self.panels::<L, 8, 4, 3>(start, waiting, k),
                    // Fewer rows wait for memory, which one panel after the other reads best.
                    4 => self.panels::<L, 4, 4, 1>(start, waiting, k),
                    _ => L::call(OneRow { product: self, row: start, waiting, k }),
                }
            } else if const { L::REGISTERS > 1 } {
                match group {
                    GROUP => self.panels::<L, GROUP, 4, 1>(start, waiting, k),
                    8 => self.panels::<L, 8, 4, 1>(start, waiting, k),
                    4 => self.panels::<L, 4, 4, 1>(start, waiting, k),
                    _ => self.panels::<L, 1, 1, 6>(start, waiting, k),
                }
            } else if const { M::INTEGER } {
                match group {
                    GROUP => self.panels::<L, GROUP, 12, 1>(start, waiting, k),
                    8 => self.panels::<L, 8, 8, 1>(start, waiting, k),
                    4 => self.panels::<L, 4, 4, 2>(start, waiting, k),
                    _ => self.panels::<L, 1, 1, 6>(start, waiting, k),
                }
            } else {
                match group {
                    GROUP => self.panels::<L, GROUP, 12, 2>(start, waiting, k),
                    8 => self.panels::<L, 8, 8, 3>(start, waiting, k),
                    4 => self.panels::<L, 4, 4, 3>(start, waiting, k),
                    _ => self.panels::<L, 1, 1, 6>(start, waiting, k),
                }
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
        let (columns, first) = (&self.outcome.tile.columns, self.outcome.first);
        let end = (columns.end - first).div_ceil(PANEL);
        let mut panel = (columns.start - first) / PANEL;
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
        if R > 1 {
            self.outcome.ask_for(group + row, panel, R, P, matches!(block.then, Then::Finish(_)));
        }
        let mut numbers = [[[0.0; PANEL]; P]; R];
        let mut acc = [[L::zero(); P]; R];
        let outcome = &mut self.outcome;
        if block.resumes {
            let chains = numbers.as_flattened_mut();
            L::call(Taken { outcome, row: group + row, panel, panels: P, chains });
            for (acc, numbers) in acc.iter_mut().zip(&numbers) {
                for (acc, numbers) in acc.iter_mut().zip(numbers) {
                    *acc = L::load(numbers);
                }
            }
        }
        let acc = self.factors.chains::<L, G, R, P>(group, row, panel, &block.k, acc);
        for (acc, numbers) in acc.iter().zip(&mut numbers) {
            for (acc, numbers) in acc.iter().zip(numbers) {
                acc.store(numbers);
            }
        }
        let (outcome, chains) = (&mut self.outcome, numbers.as_flattened_mut());
        let settled = Settled { outcome, row: group + row, panel, panels: P, chains, waiting, then: block.then };
        L::call(settled);
    }
}

/// One row, as a function of its own: among the other blocks the compiler kept its twelve accumulators in memory.
struct OneRow<'t, 'a, 'o, M> {
    product: &'t mut TileProduct<'a, 'o, M>,
    row: usize,
    waiting: &'t mut [f32],
    k: &'t Block,
}

impl<M: Multiply> Kernel for OneRow<'_, '_, '_, M> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        self.product.panels::<L, 1, 1, 6>(self.row, self.waiting, self.k);
    }
}

/// Chains of some rows, from `row` on, and some panels, from `panel` on, as the output has them.
struct Taken<'a, 'b, 'o> {
    outcome: &'a mut Outcome<'b, 'o>,
    row: usize,
    panel: usize,
    panels: usize,
    chains: &'a mut [[f32; PANEL]],
}

impl Kernel for Taken<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Taken { outcome, row, panel, panels, chains } = self;
        outcome.each_output(row, panel, panels, chains, |chain, out, _| L::load_first(out).store(chain));
    }
}

/// The same chains at the end of a block of K.
struct Settled<'a, 'b, 'o> {
    outcome: &'a mut Outcome<'b, 'o>,
    row: usize,
    panel: usize,
    panels: usize,
    chains: &'a mut [[f32; PANEL]],
    waiting: &'a mut [f32],
    then: Then,
}

impl Kernel for Settled<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Settled { outcome, row, panel, panels, chains, waiting, then } = self;
        if outcome.is_plain(panel + panels, then) {
            return outcome.store::<L>(row, panel, panels, chains, matches!(then, Then::Finish(_)));
        }
        let tree = Tree { area: outcome.tile.rows.len() * outcome.tile.columns.len() };
        let (Epilogue { bias, residual }, scale, first) = (outcome.epilogue, outcome.scale, outcome.first);
        outcome.each_output(row, panel, panels, chains, |chain, out, place| {
            let mut y = L::load(chain);
            let of_tile = place.of_tile..place.of_tile + out.len();
            match then {
                Then::Resume => {}
                Then::Leaf(leaf) => return tree.put::<L>(waiting, leaf, y, of_tile),
                Then::Finish(leaf) => {
                    if leaf > 0 {
                        y = tree.fold::<L>(waiting, leaf, y, of_tile);
                    }
                    y = scaled(y, scale, place.column - first, out.len());
                    if let Some(bias) = bias {
                        y = y.add(L::load_first(&bias[place.column..][..out.len()]));
                    }
                    if let Some(residual) = residual {
                        y = y.add(L::load_first(&residual[place.of_all..][..out.len()]));
                    }
                }
            }
            y.store_first(out);
        });
    }
}

impl Outcome<'_, '_> {
    /// Asks for what is written, and added, when these chains are done: each row is another line, far from the last. (A
    /// prefill waited 4 % of its time for residuals, and experts a quarter for lines that they only write.)
    #[inline(never)]
    fn ask_for(&mut self, row: usize, panel: usize, rows: usize, panels: usize, finishes: bool) {
        let column = self.first + panel * PANEL;
        let start = column - self.tile.columns.start;
        let residual = self.epilogue.residual.filter(|_| finishes);
        for row in row..self.tile.rows.end.min(row + rows) {
            let out = self.tile.row(row)[start..].as_ptr();
            (0..panels).for_each(|panel| prefetch_line(out.wrapping_add(panel * PANEL)));
            if let Some(residual) = residual {
                let at = residual.as_ptr().wrapping_add(row * self.outputs + column);
                (0..panels).for_each(|panel| prefetch_line(at.wrapping_add(panel * PANEL)));
            }
        }
    }

    /// Whether whole panels up to `end` become outputs as they are, but for a residual.
    #[inline(always)]
    fn is_plain(&self, end: usize, then: Then) -> bool {
        let nothing_comes = match then {
            Then::Resume => true,
            Then::Leaf(_) => false,
            Then::Finish(leaf) => leaf == 0 && matches!(self.scale, Scale::One) && self.epilogue.bias.is_none(),
        };
        nothing_comes && self.first + end * PANEL <= self.tile.columns.end
    }

    #[inline(always)]
    fn store<L: Lanes>(&mut self, row: usize, panel: usize, panels: usize, chains: &[[f32; PANEL]], finishes: bool) {
        let column = self.first + panel * PANEL;
        let start = column - self.tile.columns.start;
        let residual = self.epilogue.residual.filter(|_| finishes);
        for (row, chains) in (row..self.tile.rows.end).zip(chains.chunks_exact(panels)) {
            let out = self.tile.row(row)[start..].as_chunks_mut().0;
            if let Some(residual) = residual {
                let residual = residual[row * self.outputs + column..].as_chunks().0;
                for ((chain, residual), out) in chains.iter().zip(residual).zip(out) {
                    L::load(chain).add(L::load(residual)).store(out);
                }
            } else {
                for (chain, out) in chains.iter().zip(out) {
                    L::load(chain).store(out);
                }
            }
        }
    }

    /// `visit(chains of 16 outputs, those outputs, where they are)`.
    #[inline(always)]
    fn each_output(
        &mut self,
        row: usize,
        panel: usize,
        panels: usize,
        chains: &mut [[f32; PANEL]],
        mut visit: impl FnMut(&mut [f32; PANEL], &mut [f32], Place),
    ) {
        let (start, width, top) = (self.tile.columns.start, self.tile.columns.len(), self.tile.rows.start);
        let rows = self.tile.rows.end - row;
        for (r, chains) in chains.chunks_exact_mut(panels).take(rows).enumerate() {
            let out = self.tile.row(row + r);
            for (p, chain) in chains.iter_mut().enumerate() {
                let column = self.first + (panel + p) * PANEL;
                let out = &mut out[column - start..];
                let lanes_used = out.len().min(PANEL);
                let of_tile = (row + r - top) * width + column - start;
                let place = Place { column, of_tile, of_all: (row + r) * self.outputs + column };
                visit(chain, &mut out[..lanes_used], place);
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

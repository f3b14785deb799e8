//! A tile of a product: blocks of K, in them register blocks.

use std::ops::Range;

use super::Epilogue;
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
    /// N.
    pub outputs: usize,
    pub epilogue: Epilogue<'a>,
    pub tile: &'a mut Tile<'o, f32>,
}

impl<W: Stored> Kernel for TileProduct<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let mut start = 0;
        loop {
            let end = (start + BLOCK_DEPTH).min(self.depth);
            self.rows::<L>(start..end);
            if end == self.depth {
                break;
            }
            start = end;
        }
    }
}

impl<W: Stored> TileProduct<'_, '_, W> {
    #[inline(always)]
    fn rows<L: Lanes>(&mut self, k: Range<usize>) {
        let Range { mut start, end } = self.tile.rows.clone();
        while start < end {
            let group = group_size(end - start);
            // Accumulators: at least 8 against the latency of an fma, at most 24 of 32 registers or 8 of 16.
            match (group, L::REGISTERS) {
                (GROUP, 1) => self.panels::<L, GROUP, 12, 2>(start, &k),
                (8, 1) => self.panels::<L, 8, 8, 3>(start, &k),
                (4, 1) => self.panels::<L, 4, 4, 4>(start, &k),
                (2, 1) => self.panels::<L, 2, 2, 6>(start, &k),
                (1, 1) => self.panels::<L, 1, 1, 6>(start, &k),
                (GROUP, _) => self.panels::<L, GROUP, 4, 1>(start, &k),
                (8, _) => self.panels::<L, 8, 4, 1>(start, &k),
                (4, _) => self.panels::<L, 4, 4, 1>(start, &k),
                (2, _) => self.panels::<L, 2, 2, 2>(start, &k),
                _ => self.panels::<L, 1, 1, 6>(start, &k),
            }
            start += group;
        }
    }

    /// All panels of the tile for a group of G rows, in blocks of R rows and P panels.
    #[inline(always)]
    fn panels<L: Lanes, const G: usize, const R: usize, const P: usize>(&mut self, group: usize, k: &Range<usize>) {
        let end = self.tile.columns.end.div_ceil(PANEL);
        let mut panel = self.tile.columns.start / PANEL;
        while panel < end {
            let whole = panel + P <= end;
            for row in (0..G).step_by(R) {
                if whole {
                    self.block::<L, G, R, P>(group, row, panel, k);
                } else {
                    self.block::<L, G, R, 1>(group, row, panel, k);
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
        k: &Range<usize>,
    ) {
        let x = &self.x[group * self.depth..][..G * self.depth].as_chunks::<G>().0[k.clone()];
        let pieces = pieces::<W>(self.depth);
        let block = k.start / W::STEP..k.end.div_ceil(W::STEP);
        let panels = std::array::from_fn(|p| &self.panels[(panel + p) * pieces..][block.clone()]);
        let mut acc = [[L::zero(); P]; R];
        if k.start > 0 {
            self.each_output(group + row, panel, &mut acc, |lanes, out, _, _| *lanes = L::load_first(out));
        }
        let mut acc = chains(x, row, panels, acc);
        let last = k.end == self.depth;
        let Epilogue { bias, residual } = self.epilogue;
        self.each_output(group + row, panel, &mut acc, |lanes, out, column, index| {
            let mut y = *lanes;
            if last && let Some(bias) = bias {
                y = y.add(L::load_first(&bias[column..][..out.len()]));
            }
            if last && let Some(residual) = residual {
                y = y.add(L::load_first(&residual[index..][..out.len()]));
            }
            y.store_first(out);
        });
    }

    /// `visit(accumulator, its outputs, their column, their index in the whole output)`.
    #[inline(always)]
    fn each_output<L: Lanes, const R: usize, const P: usize>(
        &mut self,
        row: usize,
        panel: usize,
        acc: &mut [[L; P]; R],
        visit: impl Fn(&mut L, &mut [f32], usize, usize),
    ) {
        let first = self.tile.columns.start;
        for (r, lanes) in acc.iter_mut().enumerate() {
            let out = self.tile.row(row + r);
            for (p, lanes) in lanes.iter_mut().enumerate() {
                let column = (panel + p) * PANEL;
                let out = &mut out[column - first..];
                let width = out.len().min(PANEL);
                visit(lanes, &mut out[..width], column, (row + r) * self.outputs + column);
            }
        }
    }
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

//! Linear layers.
//!
//! ```text
//! Maths       y[m, n] = chain over k of x[m, k] * w[n, k], then + bias[n], then + residual[m, n]
//! Shapes      x [M, K] f32, w [N, K] in any format (widened exactly), bias [N], residual [M, N] -> y [M, N] f32
//! Order       acc = fma(x[m, k], w[n, k], acc) for k = 0 .. K-1, from +0; bias and residual are plain additions
//! Rounding    once per fma, once per addition, all f32
//! Same bits   for every M, row position, instruction set and thread count
//! Free        ROWS x PANELS of a block, the tile, the depth of a K block, who computes which tile
//! Frozen      one chain per output: vectors run over n, never over k
//! ```
//!
//! The work is cut three times: tiles (one task each), blocks of K (so that a tile's weights stay in the second level
//! cache; the chain resumes from the output), blocks of ROWS x PANELS accumulators in registers.

use std::cell::RefCell;
use std::ops::Range;

use crate::arch::{Kernel, Lanes};
use crate::cpu::Cpu;
use crate::formats::Stored;
use crate::matrix::{Matrix, PANEL, Panels, pieces};
use crate::tiles::Tile;

/// What is added after the chain.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub bias: Option<&'a [f32]>,
    pub residual: Option<&'a [f32]>,
}

pub fn linear(cpu: Cpu, x: &[f32], weight: &Matrix, epilogue: Epilogue<'_>, out: &mut [f32]) {
    if weight.rows == 0 || out.is_empty() {
        return;
    }
    let rows = out.len() / weight.rows;
    assert_eq!(out.len(), rows * weight.rows, "whole rows of output");
    assert_eq!(x.len(), rows * weight.columns, "whole rows of input");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() == weight.rows), "one bias per output");
    assert!(epilogue.residual.is_none_or(|residual| residual.len() == out.len()), "a residual per output");
    match &weight.panels {
        Panels::F32(panels) => product(cpu, x, panels, weight, epilogue, out),
        Panels::F16(panels) => product(cpu, x, panels, weight, epilogue, out),
        Panels::Bf16(panels) => product(cpu, x, panels, weight, epilogue, out),
    }
}

/// Rows that are stored together, k by k.
const GROUP: usize = 12;
/// Rows of a tile: whole groups, so that tiles cut between them.
const TILE_ROWS: usize = 4 * GROUP;
/// Depth of a K block, a multiple of all steps: 12 panels of bf16 are 576 KB then, the rows of a tile 288 KB, and both
/// stay in a second level cache of 1 MB. (Halving or doubling any of the three cost up to 6 % at SmolLM2's shapes.)
const BLOCK_DEPTH: usize = 1536;

/// Panels of a tile. Few rows: a task is then six streams of weights, small enough that threads end together.
fn tile_panels(rows: usize) -> usize {
    if rows <= TILE_ROWS { 6 } else { 12 }
}

fn product<W: Stored>(cpu: Cpu, x: &[f32], panels: &[W], weight: &Matrix, epilogue: Epilogue<'_>, out: &mut [f32]) {
    let depth = weight.columns;
    let rows = out.len() / weight.rows;
    INTERLEAVED.with_borrow_mut(|scratch| {
        let x = interleave(cpu, x, rows, depth, scratch);
        cpu.for_tiles(out, weight.rows, TILE_ROWS, tile_panels(rows) * PANEL, |tile| {
            cpu.run(TileProduct { x, panels, depth, outputs: weight.rows, epilogue, tile });
        });
    });
}

thread_local! {
    /// The rows of the current call, kept between calls so that nothing is allocated per step.
    static INTERLEAVED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Rows in groups (see `group_size`), each group stored k by k: a register block reads one short array per k.
fn interleave<'a>(cpu: Cpu, x: &'a [f32], rows: usize, depth: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
    if rows == 1 {
        return x;
    }
    if scratch.len() < x.len() {
        scratch.resize(x.len(), 0.0);
    }
    let out = &mut scratch[..x.len()];
    cpu.for_chunks(out, (GROUP * depth).max(1), |index, mut chunk| {
        let mut rows = &x[index * GROUP * depth..][..chunk.len()];
        while !chunk.is_empty() {
            let group = group_size(chunk.len() / depth);
            let (from, rest) = rows.split_at(group * depth);
            let (to, rest_to) = chunk.split_at_mut(group * depth);
            match group {
                GROUP => transpose::<GROUP>(from, to),
                8 => transpose::<8>(from, to),
                4 => transpose::<4>(from, to),
                2 => transpose::<2>(from, to),
                _ => to.copy_from_slice(from),
            }
            (rows, chunk) = (rest, rest_to);
        }
    });
    out
}

/// R rows to one array of R per k, in squares of 4 by 4, which the compiler turns into shuffles. (An element at a time
/// cost as much as an eighth of the product.)
fn transpose<const R: usize>(from: &[f32], to: &mut [f32]) {
    let depth = from.len() / R;
    let (squares, whole) = (depth / 4, depth / 4 * 4);
    for first in (0..R / 4 * 4).step_by(4) {
        let rows: [&[[f32; 4]]; 4] = std::array::from_fn(|r| from[(first + r) * depth..][..depth].as_chunks().0);
        let [a, b, c, d] = rows.map(|row| &row[..squares]);
        for (square, to) in to.chunks_exact_mut(4 * R).enumerate() {
            let (a, b, c, d) = (a[square], b[square], c[square], d[square]);
            for k in 0..4 {
                to[k * R + first..][..4].copy_from_slice(&[a[k], b[k], c[k], d[k]]);
            }
        }
    }
    for r in 0..R {
        let done = if r < R / 4 * 4 { whole } else { 0 };
        for k in done..depth {
            to[k * R + r] = from[r * depth + k];
        }
    }
}

/// How many of the rows left the next register block takes.
#[inline(always)]
fn group_size(left: usize) -> usize {
    match left {
        GROUP.. => GROUP,
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

struct TileProduct<'a, 'o, W> {
    x: &'a [f32],
    panels: &'a [W],
    depth: usize,
    outputs: usize,
    epilogue: Epilogue<'a>,
    tile: &'a mut Tile<'o, f32>,
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

#[cfg(test)]
mod tests;

//! Linear layers.
//!
//! ```text
//! Maths       y[m, n] = chain over k of x[m, k] * w[n, k], then + bias[n], then + residual[m, n]
//! Shapes      x [M, K] f32, w [N, K] in any format (widened exactly), bias [N], residual [M, N] -> y [M, N] f32
//! Order       acc = fma(x[m, k], w[n, k], acc) for rising k, from +0 in each leaf of K; leaves by a balanced tree; then
//!             bias and residual as plain additions
//! Rounding    once per fma, once per addition, all f32
//! Same bits   for every M, row position, instruction set and thread count
//! Free        ROWS x PANELS of a block, the tile, the depth of a K block, who computes which tile
//! Frozen      one chain per output and leaf: vectors run over n, never over k
//! ```
//!
//! The work is cut three times: tiles (one task each), blocks of K (so that a tile's weights stay in the second level
//! cache; the chain resumes from the output), blocks of ROWS x PANELS accumulators in registers.

mod gated;
pub mod leaves;
mod rows;
mod tile;

use std::ops::Range;

use crate::cpu::Cpu;
use crate::formats::Stored;
use crate::matrix::{Matrix, PANEL, Panels};
pub use gated::{gated_linear, gated_rows};
pub use rows::Rows;
use rows::{GROUP, with_interleaved};
use tile::TileProduct;

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
    let part = Part { k: 0..weight.columns, leaves: &weight.leaves };
    by_format(cpu, x, part, weight, epilogue, out);
}

/// One leaf's chains: x has the leaf's part of K only.
pub fn leaf(cpu: Cpu, x: &[f32], weight: &Matrix, leaf: usize, out: &mut [f32]) {
    if weight.rows == 0 || out.is_empty() {
        return;
    }
    let start = if leaf == 0 { 0 } else { weight.leaves[leaf - 1] };
    let part = Part { k: start..weight.leaves[leaf], leaves: &weight.leaves[leaf..=leaf] };
    assert_eq!(x.len(), out.len() / weight.rows * part.k.len(), "whole rows of input");
    by_format(cpu, x, part, weight, Epilogue::default(), out);
}

fn by_format(cpu: Cpu, x: &[f32], part: Part<'_>, weight: &Matrix, epilogue: Epilogue<'_>, out: &mut [f32]) {
    match &weight.panels {
        Panels::F32(panels) => product(cpu, x, part, panels, weight, epilogue, out),
        Panels::F16(panels) => product(cpu, x, part, panels, weight, epilogue, out),
        Panels::Bf16(panels) => product(cpu, x, part, panels, weight, epilogue, out),
    }
}

/// What of K is summed, and where its leaves end.
struct Part<'a> {
    k: Range<usize>,
    leaves: &'a [usize],
}

/// Rows of a tile: whole groups, so that tiles cut between them.
const TILE_ROWS: usize = 2 * GROUP;

/// Panels of a tile. Few rows: a task is then six streams of weights, small enough that threads end together.
fn tile_panels(rows: usize) -> usize {
    if rows <= TILE_ROWS { 6 } else { 12 }
}

fn product<W: Stored>(
    cpu: Cpu,
    x: &[f32],
    part: Part<'_>,
    panels: &[W],
    weight: &Matrix,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    let (outputs, depth) = (weight.rows, weight.columns);
    let rows = out.len() / outputs;
    with_interleaved(cpu, Rows::all(x, x.len() / rows), |x| {
        cpu.for_tiles(out, outputs, TILE_ROWS, tile_panels(rows) * PANEL, |tile| {
            let (k, leaves) = (part.k.clone(), part.leaves);
            cpu.run(TileProduct { x, panels, depth, k, leaves, outputs, epilogue, tile });
        });
    });
}

#[cfg(test)]
mod tests;

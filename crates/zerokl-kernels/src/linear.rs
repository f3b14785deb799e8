//! Linear layers.
//!
//! ```text
//! Maths       y[m, n] = chain over k of x[m, k] * w[n, k], times the shard's scale, then + bias[n], + residual[m, n]
//! Shapes      x [M, K] f32, w [N, K] in any format (widened exactly), bias [N], residual [M, N] -> y [M, N] f32
//! Order       acc = fma(x[m, k], w[n, k], acc) for rising k, from +0 in each leaf of K; leaves by a balanced tree; FP8
//!             under a scale per block: a chain per 128 k, joined by acc = fma(scale, chain, acc); integer shards: see
//!             integer.rs; then the scale, bias and residual as plain operations
//! Rounding    once per fma, once for the scale, once per addition, all f32
//! Same bits   for every M, row position, instruction set and thread count
//! Free        ROWS x PANELS of a block, the tile, the depth of a K block, who computes which tile
//! Frozen      one chain per output and leaf: vectors run over n, never over k
//! ```
//!
//! The work is cut three times: tiles (one task each), blocks of K (so that a tile's weights stay in the second level
//! cache; the chain resumes from the output), blocks of ROWS x PANELS accumulators in registers.

mod exact;
mod gated;
mod integer;
pub mod leaves;
mod product;
mod rows;
mod tile;
mod unpack;

use std::ops::Range;

use crate::cpu::Cpu;
use crate::matrix::{Matrix, PANEL};
pub use gated::{gated_linear, gated_rows};
use product::with_inputs;
pub use rows::Rows;
use rows::TILE_ROWS;

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
    by_shards(cpu, x, &part, weight, epilogue, out);
}

/// One leaf's chains: x has the leaf's part of K only.
pub fn leaf(cpu: Cpu, x: &[f32], weight: &Matrix, leaf: usize, out: &mut [f32]) {
    if weight.rows == 0 || out.is_empty() {
        return;
    }
    let start = if leaf == 0 { 0 } else { weight.leaves[leaf - 1] };
    let part = Part { k: start..weight.leaves[leaf], leaves: &weight.leaves[leaf..=leaf] };
    assert_eq!(x.len(), out.len() / weight.rows * part.k.len(), "whole rows of input");
    by_shards(cpu, x, &part, weight, Epilogue::default(), out);
}

fn by_shards(cpu: Cpu, x: &[f32], part: &Part<'_>, weight: &Matrix, epilogue: Epilogue<'_>, out: &mut [f32]) {
    let rows = out.len() / weight.rows;
    let cuts = weight.cuts(0..weight.rows, tile_panels(rows) * PANEL);
    let columns: Vec<Range<usize>> = cuts.iter().map(|cut| cut.outputs.clone()).collect();
    with_inputs(cpu, Rows::all(x, x.len() / rows), part, weight, |inputs| {
        cpu.for_cut_tiles(out, weight.rows, TILE_ROWS, &columns, |cut, tile| {
            inputs.product(cpu, &cuts[cut], 0, epilogue, tile);
        });
    });
}

/// What of K is summed, and where its leaves end.
struct Part<'a> {
    k: Range<usize>,
    leaves: &'a [usize],
}

/// Panels of a tile. Few rows: a task is then six streams of weights, small enough that threads end together.
fn tile_panels(rows: usize) -> usize {
    if rows <= TILE_ROWS { 6 } else { 12 }
}

#[cfg(test)]
pub(crate) mod tests;

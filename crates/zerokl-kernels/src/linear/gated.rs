//! The first half of a gated MLP: a linear layer whose outputs are gates and ups, and swiglu of the two.
//!
//! ```text
//! Maths       y = swiglu(linear(x, w) + bias), w [2F, K] with the gates first -> y [T, F]
//! Same bits   as the two operations: the same chains, bias and swiglu, one tile after the other
//! ```
//!
//! A task computes its tile of gates and its tile of ups in its own scratch, so the [T, 2F] between the two operations,
//! six megabytes for 512 rows of SmolLM2, is never written to memory.

use std::cell::RefCell;

use super::rows::{Rows, with_interleaved};
use super::tile::TileProduct;
use super::{Epilogue, TILE_ROWS, linear, tile_panels};
use crate::arch::{Kernel, Lanes};
use crate::cpu::Cpu;
use crate::formats::Stored;
use crate::matrix::{Matrix, PANEL, Panels};
use crate::swiglu::{self, swiglu};
use crate::tiles::Tile;

pub fn gated_linear(cpu: Cpu, x: &[f32], weight: &Matrix, bias: Option<&[f32]>, out: &mut [f32]) {
    gated_rows(cpu, Rows::all(x, weight.columns), weight, bias, out);
}

/// The same of some rows of a matrix, which are gathered while they are interleaved.
pub fn gated_rows(cpu: Cpu, x: Rows<'_>, weight: &Matrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let width = weight.rows / 2;
    if out.is_empty() {
        return;
    }
    assert!(weight.rows == 2 * width && out.len().is_multiple_of(width), "whole rows of output");
    assert!(x.depth == weight.columns && x.count() * width == out.len(), "whole rows of input");
    assert!(bias.is_none_or(|bias| bias.len() == weight.rows), "one bias per output");
    let epilogue = Epilogue { bias, residual: None };
    if !width.is_multiple_of(PANEL) {
        // The ups start inside a panel: rare, so the plain way will do.
        let mut both = vec![0.0; 2 * out.len()];
        linear(cpu, &x.gathered(), weight, epilogue, &mut both);
        return swiglu(cpu, &both, width, out);
    }
    match &weight.panels {
        Panels::F32(panels) => product(cpu, x, panels, weight, epilogue, out),
        Panels::F16(panels) => product(cpu, x, panels, weight, epilogue, out),
        Panels::Bf16(panels) => product(cpu, x, panels, weight, epilogue, out),
    }
}

thread_local! {
    /// A tile of gates and one of ups.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

fn product<W: Stored>(cpu: Cpu, x: Rows<'_>, panels: &[W], weight: &Matrix, epilogue: Epilogue<'_>, out: &mut [f32]) {
    let (outputs, depth, leaves) = (weight.rows, weight.columns, &weight.leaves[..]);
    let width = outputs / 2;
    let rows = out.len() / width;
    with_interleaved(cpu, x, |x| {
        cpu.for_tiles(out, width, TILE_ROWS, tile_panels(rows) * PANEL, |tile| {
            SCRATCH.with_borrow_mut(|scratch| {
                let area = tile.rows.len() * tile.columns.len();
                scratch.resize(2 * area, 0.0);
                let (gates, ups) = scratch.split_at_mut(area);
                for (half, part) in [(0, &mut *gates), (width, &mut *ups)] {
                    let columns = half + tile.columns.start..half + tile.columns.end;
                    let tile = &mut Tile::over(part, tile.rows.clone(), columns);
                    cpu.run(TileProduct { x, panels, depth, k: 0..depth, leaves, outputs, epilogue, tile });
                }
                cpu.run(Swiglu { gates, ups, tile });
            });
        });
    });
}

struct Swiglu<'a, 'o> {
    gates: &'a [f32],
    ups: &'a [f32],
    tile: &'a mut Tile<'o, f32>,
}

impl Kernel for Swiglu<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.tile.columns.len();
        let halves = self.gates.chunks_exact(width).zip(self.ups.chunks_exact(width));
        for (row, (gates, ups)) in self.tile.rows.clone().zip(halves) {
            swiglu::row::<L>(gates, ups, self.tile.row(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cpus, numbers};
    use super::*;
    use crate::formats::Format;
    use crate::matrix::Source;

    /// Widths: whole panels in one tile and in several, and one that ends inside a panel.
    #[test]
    fn one_operation_gives_the_bits_of_the_two() {
        for (width, depth) in [(16, 5), (224, 33), (20, 40), (16, 1601)] {
            let weight = numbers(2 * width * depth, 7);
            let matrix = Matrix::pack(Cpu::detect(), Source::F32(&weight), 2 * width, depth, Format::Bf16);
            for rows in [1, 2, 13, 50] {
                let (x, bias) = (numbers(rows * depth, 1), numbers(2 * width, 2));
                for bias in [None, Some(&bias[..])] {
                    let (mut both, mut expected) = (vec![0.0; 2 * rows * width], vec![0.0; rows * width]);
                    linear(Cpu::detect(), &x, &matrix, Epilogue { bias, residual: None }, &mut both);
                    swiglu(Cpu::detect(), &both, width, &mut expected);
                    for cpu in cpus() {
                        let mut out = vec![f32::NAN; rows * width];
                        gated_linear(cpu, &x, &matrix, bias, &mut out);
                        let same = out.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits());
                        assert!(same, "{rows} x {width} x {depth}, {cpu:?}");
                    }
                }
            }
        }
    }
}

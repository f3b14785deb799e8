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

use super::rows::Rows;
use super::{Epilogue, Part, TILE_ROWS, linear, tile_panels, with_inputs};
use crate::arch::{Kernel, Lanes};
use crate::cpu::Cpu;
use crate::matrix::{Cut, Matrix, PANEL};
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
    let rows = out.len() / width;
    let Some((gates, ups)) = halves(weight, tile_panels(rows) * PANEL) else {
        let mut both = vec![0.0; 2 * out.len()];
        linear(cpu, &x.gathered(), weight, epilogue, &mut both);
        return swiglu(cpu, &both, width, out);
    };
    let columns: Vec<_> = gates.iter().map(|cut| cut.outputs.clone()).collect();
    let part = Part { k: 0..weight.columns, leaves: &weight.leaves };
    with_inputs(cpu, x, &part, weight, |inputs| {
        cpu.for_cut_tiles(out, width, TILE_ROWS, &columns, |cut, tile| {
            SCRATCH.with_borrow_mut(|scratch| {
                let area = tile.rows.len() * tile.columns.len();
                scratch.resize(2 * area, 0.0);
                let (gate, up) = scratch.split_at_mut(area);
                let next = gates.get(cut + 1).unwrap_or(&gates[cut]);
                let halves = [(&gates[cut], &ups[cut], &mut *gate), (&ups[cut], next, &mut *up)];
                for (cut, next, part) in halves {
                    let tile = &mut Tile::over(part, tile.rows.clone(), cut.outputs.clone());
                    inputs.product(cpu, cut, cut.skipped(next), epilogue, tile);
                }
                cpu.run(Swiglu { gates: gate, ups: up, tile });
            });
        });
    });
}

/// Gates and ups in cuts of `length`, each with its like. None if the ups start inside a panel, or their shards are other
/// ones: rare, so the plain way will do.
fn halves(weight: &Matrix, length: usize) -> Option<(Vec<Cut<'_>>, Vec<Cut<'_>>)> {
    let width = weight.rows / 2;
    let (gates, ups) = (weight.cuts(0..width, length), weight.cuts(width..2 * width, length));
    let alike = |(gate, up): (&Cut<'_>, &Cut<'_>)| {
        let at_panel = (up.outputs.start - up.first).is_multiple_of(PANEL);
        at_panel && gate.outputs.start + width == up.outputs.start && gate.outputs.end + width == up.outputs.end
    };
    (gates.len() == ups.len() && gates.iter().zip(&ups).all(alike)).then_some((gates, ups))
}

thread_local! {
    /// A tile of gates and one of ups.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
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

    #[test]
    fn only_halves_that_meet_inside_a_panel_go_the_plain_way() {
        let of = |width: usize| {
            let weight = numbers(2 * width * 3, 7);
            Matrix::pack(Cpu::detect(), Source::F32(&weight), 2 * width, 3, Format::Bf16)
        };
        for width in [16, 256, 768, 1792] {
            let whole = of(width);
            assert!(halves(&whole, 6 * PANEL).is_some() && halves(&whole, 12 * PANEL).is_some(), "{width}");
            assert!(halves(&Matrix::stack(&[&whole, &whole]), 12 * PANEL).is_some(), "{width}, stacked");
        }
        assert!(halves(&of(20), 12 * PANEL).is_none());
    }

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

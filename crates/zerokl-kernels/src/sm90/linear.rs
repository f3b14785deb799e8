//! Linear layers, and the gate, as `ops/triton/chain.py` has them.
//!
//! ```text
//! Order       one chain of atoms per output, k rising; then + bias, + residual, plain f32
//! Rounding    once to bfloat16, unless `wide` or added to a residual; gate and up before the gate
//! Free        tiles, rows of a block
//! ```

use super::atom::{DEPTH, Factors, step};
use super::narrow::narrowed;
use super::power::power;
use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::formats::{Bf16Piece, Stored};
use crate::linear::Epilogue;
use crate::matrix::{Cut, Matrix, PANEL, Panels, pieces};
use crate::tiles::{Tile, rows_per_task};

/// Rows that share a load of weights.
const ROWS: usize = 4;

const TILE_ROWS: usize = 32;

/// Panics if the weight is not plain bfloat16 in one leaf.
pub fn linear(cpu: Cpu, x: &[f32], weight: &Matrix, epilogue: Epilogue<'_>, wide: bool, out: &mut [f32]) {
    assert_eq!(weight.leaves.len(), 1, "one leaf");
    let cuts = weight.cuts(0..weight.rows, 2 * PANEL);
    let columns: Vec<_> = cuts.iter().map(|cut| cut.outputs.clone()).collect();
    let wide = wide || epilogue.residual.is_some();
    cpu.for_cut_tiles(out, weight.rows, TILE_ROWS, &columns, |cut, tile| {
        cpu.run(Product { x, depth: weight.columns, outputs: weight.rows, cut: &cuts[cut], epilogue, wide, tile });
    });
}

struct Product<'a, 't, 'o> {
    x: &'a [f32],
    depth: usize,
    outputs: usize,
    cut: &'a Cut<'a>,
    epilogue: Epilogue<'a>,
    wide: bool,
    tile: &'t mut Tile<'o, f32>,
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Product { x, depth, outputs, cut, epilogue, wide, tile } = self;
        let Panels::Bf16(panels) = &cut.shard.panels else { panic!("weights are bfloat16") };
        let length = pieces::<Bf16Piece>(depth);
        let (all_rows, row_of) = (tile.rows.clone(), |row: usize| &x[row * depth..][..depth]);
        for first in cut.outputs.clone().step_by(PANEL) {
            let panel = &panels[(first - cut.first) / PANEL * length..][..length];
            let inside = first - cut.outputs.start..(first - cut.outputs.start + PANEL).min(cut.outputs.len());
            let bias = epilogue.bias.map(|bias| L::load_first(&bias[first..][..inside.len()]));
            let mut finish = |row: usize, sum: L| {
                let sum = bias.map_or(sum, |bias| sum.add(bias));
                let added = epilogue.residual.map(|all| &all[row * outputs + first..][..inside.len()]);
                let sum = added.map_or(sum, |added| sum.add(L::load_first(added)));
                let sum = if wide { sum } else { narrowed(sum) };
                sum.store_first(&mut tile.row(row)[inside.clone()]);
            };
            let mut rows = all_rows.clone();
            while rows.len() >= ROWS {
                let sums = chains::<L, ROWS>(panel, std::array::from_fn(|r| row_of(rows.start + r)));
                rows.clone().zip(sums).for_each(|(row, sum)| finish(row, sum));
                rows.start += ROWS;
            }
            for row in rows {
                let [sum] = chains::<L, 1>(panel, [row_of(row)]);
                finish(row, sum);
            }
        }
    }
}

/// Sixteen outputs of each row.
#[inline(always)]
fn chains<L: Lanes, const R: usize>(panel: &[Bf16Piece], rows: [&[f32]; R]) -> [L; R] {
    let mut sums = [L::zero(); R];
    for (atom, pieces) in panel.chunks(DEPTH / Bf16Piece::STEP).enumerate() {
        let mut weights = [L::zero(); DEPTH];
        for (pair, piece) in weights.chunks_exact_mut(2).zip(pieces) {
            let mut word = piece.word::<L>(0);
            pair[0] = Bf16Piece::number(&mut word, 0, ());
            pair[1] = Bf16Piece::number(&mut word, 1, ());
        }
        for (sum, row) in sums.iter_mut().zip(rows) {
            let part = &row[atom * DEPTH..row.len().min((atom + 1) * DEPTH)];
            *sum = step(*sum, &Factors::of(part), &weights);
        }
    }
    sums
}

/// swiglu(linear(x)): gates first, then ups.
pub fn gated_linear(cpu: Cpu, x: &[f32], weight: &Matrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let width = weight.rows / 2;
    let mut both = vec![0.0; 2 * out.len()];
    linear(cpu, x, weight, Epilogue { bias, residual: None }, false, &mut both);
    let rows = rows_per_task(width);
    cpu.for_chunks(out, rows * width, |index, out| {
        let both = &both[2 * index * rows * width..][..2 * out.len()];
        cpu.run(Gate { both, width, out });
    });
}

struct Gate<'a> {
    both: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (both, out) in self.both.chunks_exact(2 * self.width).zip(self.out.chunks_exact_mut(self.width)) {
            let (gates, ups) = both.split_at(self.width);
            for ((gate, up), out) in gates.chunks(LANES).zip(ups.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                let gate = L::load_first(gate);
                let powers = L::load(&gate.mul(L::splat(-std::f32::consts::LOG2_E)).to_array().map(power));
                narrowed(gate.div(L::splat(1.0).add(powers)).mul(L::load_first(up))).store_first(out);
            }
        }
    }
}

//! A weight [N, K], packed once: panels of 16 outputs, so that one vector holds 16 outputs of one k.
//!
//! ```text
//! panel p, lane j, place k  =  weight[16 p + j][k]      [N/16][K][16] (bf16: [N/16][K/2][16][2])
//! ```
//!
//! The last panel is padded with zeros to 16 outputs, and a panel of bf16 to an even K; neither is ever used.

use crate::arch::Weights;
use crate::cpu::Cpu;
use crate::formats::{Bf16Piece, F16Piece, F32Piece, Format, Stored, widen_bf16, widen_f16};

/// Outputs per panel.
pub const PANEL: usize = crate::arch::LANES;

pub struct Matrix {
    /// N: outputs of a linear layer, entries of an embedding.
    pub rows: usize,
    /// K: what one output sums over.
    pub columns: usize,
    /// Where the leaves of K end, rising; the last is K. One leaf: a plain chain.
    pub leaves: Vec<usize>,
    pub(crate) panels: Panels,
}

/// All panels one after the other, by format.
pub(crate) enum Panels {
    F32(Weights<F32Piece>),
    F16(Weights<F16Piece>),
    Bf16(Weights<Bf16Piece>),
}

/// A weight as a checkpoint stores it, row-major.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
}

impl Source<'_> {
    fn len(self) -> usize {
        match self {
            Source::F32(values) => values.len(),
            Source::F16(bits) | Source::Bf16(bits) => bits.len(),
        }
    }

    fn get(self, index: usize) -> f32 {
        match self {
            Source::F32(values) => values[index],
            Source::F16(bits) => widen_f16(bits[index]),
            Source::Bf16(bits) => widen_bf16(bits[index]),
        }
    }
}

impl Matrix {
    /// Packs a row-major [rows, columns] weight into `format`, rounding once if that is narrower than the source.
    pub fn pack(cpu: Cpu, source: Source<'_>, rows: usize, columns: usize, format: Format) -> Self {
        assert_eq!(source.len(), rows * columns, "rows times columns");
        let panels = match format {
            Format::F32 => Panels::F32(pack(cpu, source, rows, columns)),
            Format::F16 => Panels::F16(pack(cpu, source, rows, columns)),
            Format::Bf16 => Panels::Bf16(pack(cpu, source, rows, columns)),
        };
        Matrix { rows, columns, leaves: vec![columns], panels }
    }

    /// The same weight, its sums cut where these leaves end; none of them is empty.
    pub fn in_leaves(self, leaves: Vec<usize>) -> Self {
        assert!(leaves.windows(2).all(|ends| ends[0] < ends[1]), "leaves end one after the other");
        assert_eq!(leaves.last(), Some(&self.columns), "the last leaf ends with K");
        Matrix { leaves, ..self }
    }

    pub fn format(&self) -> Format {
        match self.panels {
            Panels::F32(_) => Format::F32,
            Panels::F16(_) => Format::F16,
            Panels::Bf16(_) => Format::Bf16,
        }
    }

    /// The stored numbers, row-major again.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.panels {
            Panels::F32(panels) => self.unpack(panels),
            Panels::F16(panels) => self.unpack(panels),
            Panels::Bf16(panels) => self.unpack(panels),
        }
    }

    fn unpack<W: Stored>(&self, panels: &[W]) -> Vec<f32> {
        let pieces = pieces::<W>(self.columns);
        let at = |n: usize, k: usize| panels[n / PANEL * pieces + k / W::STEP].get(k % W::STEP, n % PANEL);
        (0..self.rows).flat_map(|n| (0..self.columns).map(move |k| at(n, k))).collect()
    }

    /// Memory of the packed weight.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(rows) => size_of_val(&rows[..]),
            Panels::F16(rows) => size_of_val(&rows[..]),
            Panels::Bf16(rows) => size_of_val(&rows[..]),
        }
    }
}

/// Pieces of one panel.
pub(crate) fn pieces<W: Stored>(columns: usize) -> usize {
    columns.div_ceil(W::STEP)
}

fn pack<W: Stored>(cpu: Cpu, source: Source<'_>, rows: usize, columns: usize) -> Weights<W> {
    let pieces = pieces::<W>(columns);
    Weights::new(rows.div_ceil(PANEL) * pieces, W::default(), |packed| {
        cpu.for_chunks(packed, pieces.max(1), |panel, chunk| {
            for lane in 0..PANEL.min(rows - panel * PANEL) {
                let first = (panel * PANEL + lane) * columns;
                for k in 0..columns {
                    chunk[k / W::STEP].set(k % W::STEP, lane, source.get(first + k));
                }
            }
        });
    })
}

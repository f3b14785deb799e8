//! A weight [N, K], packed once: panels of 16 outputs, so that one vector holds 16 outputs of one k.
//!
//! ```text
//! panel p, lane j, place k  =  weight[16 p + j][k]      [N/16][K][16] (bf16: [N/16][K/2][16][2])
//! ```
//!
//! The last panel is padded with zeros to 16 outputs, and a panel to whole pieces of K; neither is ever used.
//!
//! A matrix is one shard, or several one under the other (queries, keys, values): each has its own format and scale.

mod pack;

use std::ops::Range;
use std::sync::Arc;

use crate::arch::Weights;
use crate::formats::fp8::{Fp8, Fp8Block};
use crate::formats::gguf::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::formats::nvfp4::Nvfp4;
use crate::formats::{Bf16Piece, F16Piece, F32Piece, Format, Stored};
pub use pack::{Source, is_block_type};

/// Outputs per panel.
pub const PANEL: usize = crate::arch::LANES;

pub struct Matrix {
    /// N: outputs of a linear layer, entries of an embedding.
    pub rows: usize,
    /// K: what one output sums over.
    pub columns: usize,
    /// Where the leaves of K end, rising; the last is K. One leaf: a plain chain.
    pub leaves: Vec<usize>,
    pub(crate) shards: Vec<Arc<Shard>>,
}

/// Outputs of one format.
pub(crate) struct Shard {
    pub rows: usize,
    pub panels: Panels,
    pub scale: Scale,
    /// Products with int8 activations instead of exact ones; only block types of GGUF have them.
    pub integer: bool,
}

/// What a finished chain is multiplied with, or divided by, once.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    One,
    Times(f32),
    Over(f32),
    /// One factor per output.
    Each(Vec<f32>),
}

impl Scale {
    fn apply(&self, output: usize, value: f32) -> f32 {
        match self {
            Scale::One => value,
            Scale::Times(factor) => value * factor,
            Scale::Over(divisor) => value / divisor,
            Scale::Each(factors) => value * factors[output],
        }
    }
}

/// All panels one after the other, by format.
pub(crate) enum Panels {
    F32(Weights<F32Piece>),
    F16(Weights<F16Piece>),
    Bf16(Weights<Bf16Piece>),
    Q4_0(Weights<Q4_0>),
    Q4_1(Weights<Q4_1>),
    Q5_0(Weights<Q5_0>),
    Q5_1(Weights<Q5_1>),
    Q8_0(Weights<Q8_0>),
    Q4K(Weights<Q4K>),
    Q5K(Weights<Q5K>),
    Q6K(Weights<Q6K>),
    Nvfp4(Weights<Nvfp4>),
    Fp8(Weights<Fp8>),
    Fp8Block(Weights<Fp8Block>),
}

/// Runs a body once, with the panels of whatever format they are.
macro_rules! with_panels {
    ($panels:expr, $name:ident => $body:expr) => {
        match $panels {
            $crate::matrix::Panels::F32($name) => $body,
            $crate::matrix::Panels::F16($name) => $body,
            $crate::matrix::Panels::Bf16($name) => $body,
            $crate::matrix::Panels::Q4_0($name) => $body,
            $crate::matrix::Panels::Q4_1($name) => $body,
            $crate::matrix::Panels::Q5_0($name) => $body,
            $crate::matrix::Panels::Q5_1($name) => $body,
            $crate::matrix::Panels::Q8_0($name) => $body,
            $crate::matrix::Panels::Q4K($name) => $body,
            $crate::matrix::Panels::Q5K($name) => $body,
            $crate::matrix::Panels::Q6K($name) => $body,
            $crate::matrix::Panels::Nvfp4($name) => $body,
            $crate::matrix::Panels::Fp8($name) => $body,
            $crate::matrix::Panels::Fp8Block($name) => $body,
        }
    };
}
pub(crate) use with_panels;

impl Matrix {
    /// The same weight, its sums cut where these leaves end; none of them is empty, and blocks of a quantised format
    /// can't be cut.
    pub fn in_leaves(self, leaves: Vec<usize>) -> Self {
        assert!(leaves.windows(2).all(|ends| ends[0] < ends[1]), "leaves end one after the other");
        assert_eq!(leaves.last(), Some(&self.columns), "the last leaf ends with K");
        assert!(leaves.len() == 1 || self.formats().all(Format::is_plain), "only plain numbers have leaves");
        Matrix { leaves, ..self }
    }

    /// Several matrices of equal K, one under the other; nothing is copied. Panics if K differs.
    pub fn stack(parts: &[&Matrix]) -> Self {
        let columns = parts.first().map_or(0, |part| part.columns);
        assert!(parts.iter().all(|part| part.columns == columns), "parts of one depth");
        let shards: Vec<_> = parts.iter().flat_map(|part| part.shards.iter().cloned()).collect();
        Matrix { rows: shards.iter().map(|shard| shard.rows).sum(), columns, leaves: vec![columns], shards }
    }

    fn of(rows: usize, columns: usize, panels: Panels, scale: Scale, integer: bool) -> Self {
        assert!(!matches!(&scale, Scale::Each(factors) if factors.len() != rows), "a factor per output");
        let leaves = vec![columns];
        Matrix { rows, columns, leaves, shards: vec![Arc::new(Shard { rows, panels, scale, integer })] }
    }

    /// (shard, its first output), in order.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&Shard, usize)> {
        self.shards.iter().scan(0, |next, shard| {
            let first = *next;
            *next += shard.rows;
            Some((&**shard, first))
        })
    }

    /// The outputs `within`, in cuts of `length`, whole panels, counted from their start or from a shard's.
    pub(crate) fn cuts(&self, within: Range<usize>, length: usize) -> Vec<Cut<'_>> {
        let mut cuts = Vec::with_capacity(within.len() / length + self.shards.len());
        for (shard, first) in self.placed() {
            let end = within.end.min(first + shard.rows);
            let mut start = within.start.max(first);
            while start < end {
                let next = (first + (start - first) / PANEL * PANEL + length).min(end);
                cuts.push(Cut { shard, first, outputs: start..next });
                start = next;
            }
        }
        cuts
    }

    /// The format of each shard.
    pub fn formats(&self) -> impl Iterator<Item = Format> {
        self.shards.iter().map(|shard| shard.format())
    }

    /// Whether some shard's products are integer ones.
    pub fn is_integer(&self) -> bool {
        self.shards.iter().any(|shard| shard.integer)
    }

    /// The stored numbers times their scales, row-major again.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut all = Vec::with_capacity(self.rows * self.columns);
        for shard in &self.shards {
            with_panels!(&shard.panels, panels => {
                for n in 0..shard.rows {
                    all.extend((0..self.columns).map(|k| shard.scale.apply(n, at(panels, self.columns, n, k))));
                }
            });
        }
        all
    }

    /// Memory of the packed weight.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| with_panels!(&shard.panels, panels => size_of_val(&panels[..]))).sum()
    }
}

/// Neighbouring outputs of one shard.
pub(crate) struct Cut<'a> {
    pub shard: &'a Shard,
    /// The shard's first output in the matrix.
    pub first: usize,
    /// Counted in the matrix.
    pub outputs: Range<usize>,
}

impl Cut<'_> {
    /// Panels between the end of this cut and the start of the next that a thread computes; 0 in another shard.
    pub fn skipped(&self, next: &Cut<'_>) -> isize {
        if !std::ptr::eq(self.shard, next.shard) {
            return 0;
        }
        let panel = |output: usize| ((output - self.first).div_ceil(PANEL)).cast_signed();
        panel(next.outputs.start) - panel(self.outputs.end)
    }
}

impl Shard {
    pub fn format(&self) -> Format {
        match self.panels {
            Panels::F32(_) => Format::F32,
            Panels::F16(_) => Format::F16,
            Panels::Bf16(_) => Format::Bf16,
            Panels::Q4_0(_) => Format::Q4_0,
            Panels::Q4_1(_) => Format::Q4_1,
            Panels::Q5_0(_) => Format::Q5_0,
            Panels::Q5_1(_) => Format::Q5_1,
            Panels::Q8_0(_) => Format::Q8_0,
            Panels::Q4K(_) => Format::Q4K,
            Panels::Q5K(_) => Format::Q5K,
            Panels::Q6K(_) => Format::Q6K,
            Panels::Nvfp4(_) => Format::Nvfp4,
            Panels::Fp8(_) => Format::Fp8,
            Panels::Fp8Block(_) => Format::Fp8Block,
        }
    }

    /// Output `n` of the shard, in `out`.
    pub fn row(&self, columns: usize, n: usize, out: &mut [f32]) {
        with_panels!(&self.panels, panels => {
            for (k, out) in out.iter_mut().enumerate() {
                *out = self.scale.apply(n, at(panels, columns, n, k));
            }
        });
    }
}

#[inline]
fn at<W: Stored>(panels: &[W], columns: usize, n: usize, k: usize) -> f32 {
    panels[n / PANEL * pieces::<W>(columns) + k / W::STEP].get(k % W::STEP, n % PANEL)
}

/// Pieces of one panel.
pub(crate) fn pieces<W: Stored>(columns: usize) -> usize {
    columns.div_ceil(W::STEP)
}

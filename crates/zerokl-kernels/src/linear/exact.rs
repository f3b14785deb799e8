//! f32 rows times weights of any format: one fma per output and k, k increasing.

use std::ops::Range;

use super::tile::Multiply;
use crate::arch::{Lanes, prefetch_at, prefetch_line};
use crate::formats::Stored;
use crate::matrix::pieces;

/// Bytes of weights that are asked for before they are needed, by P panels side by side. The hardware's own guesses stop
/// where a panel ends, every 18 KB in a small model: SmolLM2's weights took 8 rows 15.7 ms on one thread, and 9.3 so.
const fn ahead(panels: usize) -> usize {
    if panels >= 6 { 6 << 10 } else { 9 << 10 }
}

/// The same of rows.
const ROWS_AHEAD: usize = 4 << 10;

pub struct Exact<'a, W> {
    /// All rows, interleaved (`rows.rs`), and the k that they have.
    pub x: &'a [f32],
    pub given: Range<usize>,
    /// All panels of the shard; or of some, some k.
    pub panels: &'a [W],
    /// The first of them, and the k that each holds.
    pub first: usize,
    pub held: Range<usize>,
}

impl<W: Stored> Multiply for Exact<'_, W> {
    const INTEGER: bool = false;
    const ONE_ROW: bool = !W::SHARED;

    #[inline(always)]
    fn chains<L: Lanes, const G: usize, const R: usize, const P: usize>(
        &self,
        group: usize,
        row: usize,
        panel: usize,
        k: &Range<usize>,
        mut acc: [[L; P]; R],
    ) -> [[L; P]; R] {
        let width = self.given.len();
        let x = &self.x[group * width..][..G * width].as_chunks::<G>().0;
        let x = &x[k.start - self.given.start..k.end - self.given.start];
        let pieces = pieces::<W>(self.held.len());
        let block = (k.start - self.held.start) / W::STEP..(k.end - self.held.start).div_ceil(W::STEP);
        let panel = panel - self.first;
        let panels: [&[W]; P] = std::array::from_fn(|p| &self.panels[(panel + p) * pieces..][block.clone()]);
        let panels = panels.map(|panel| &panel[..x.len().div_ceil(W::STEP)]);
        let (whole, rest) = x.split_at(x.len() / W::STEP * W::STEP);
        let (length, ahead) = (panels[0].len(), (ahead(P) / (P * size_of::<W>())).max(1));
        // From the end of these panels' block to the start of the next ones'.
        let jump = P * pieces - length;
        for (piece, x) in whole.chunks_exact(W::STEP).enumerate() {
            let wanted = if piece + ahead < length { piece + ahead } else { piece + ahead + jump };
            for panel in panels {
                let at = panel.as_ptr().wrapping_add(wanted);
                if size_of::<W>() <= 64 { prefetch_line(at) } else { prefetch_at(at, size_of::<W>()) }
            }
            if G >= 4 {
                // Another thread has just interleaved the rows: from its cache, line after line took 26 ns each.
                prefetch_line(x.as_ptr().wrapping_add(ROWS_AHEAD / (4 * G)));
            }
            one_piece(x, row, panels, piece, &mut acc);
        }
        if !rest.is_empty() {
            one_piece(rest, row, panels, whole.len() / W::STEP, &mut acc);
        }
        acc
    }
}

/// The numbers of a piece, or its first ones. (Loops, not `array::map`: its closure was not always inlined, and lanes
/// outside of `Isa::run` are function calls.)
#[inline(always)]
fn one_piece<L: Lanes, W: Stored, const G: usize, const R: usize, const P: usize>(
    x: &[[f32; G]],
    first: usize,
    panels: [&[W]; P],
    piece: usize,
    acc: &mut [[L; P]; R],
) {
    for (group, x) in x.chunks(W::GROUP).enumerate() {
        let mut scales = [panels[0][piece].scales::<L>(group); P];
        for (scales, panel) in scales.iter_mut().zip(panels).skip(1) {
            *scales = panel[piece].scales(group);
        }
        if W::SUMMED {
            let mut sums = [[L::zero(); P]; R];
            one_group(x, first, panels, piece, group, scales, &mut sums);
            for (acc, sums) in acc.iter_mut().zip(sums) {
                for ((acc, sum), scales) in acc.iter_mut().zip(sums).zip(scales) {
                    *acc = W::join(scales, sum, *acc);
                }
            }
        } else {
            one_group(x, first, panels, piece, group, scales, acc);
        }
    }
}

#[inline(always)]
fn one_group<L: Lanes, W: Stored, const G: usize, const R: usize, const P: usize>(
    x: &[[f32; G]],
    first: usize,
    panels: [&[W]; P],
    piece: usize,
    group: usize,
    scales: [W::Scales<L>; P],
    acc: &mut [[L; P]; R],
) {
    for (word, x) in x.chunks(W::WORD).enumerate() {
        let mut words = [L::zero(); P];
        for (loaded, panel) in words.iter_mut().zip(panels) {
            *loaded = panel[piece].word(group * (W::GROUP / W::WORD) + word);
        }
        for (k, x) in x.iter().enumerate() {
            let mut weights = [L::zero(); P];
            for ((weight, word), scales) in weights.iter_mut().zip(&mut words).zip(scales) {
                *weight = W::number(word, k, scales);
            }
            step(x, first, weights, acc);
        }
    }
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

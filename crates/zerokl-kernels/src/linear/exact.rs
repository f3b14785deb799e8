//! f32 rows times weights of any format: one fma per output and k, k increasing.

use std::ops::Range;

use super::tile::Multiply;
use crate::arch::{LANES, Lanes, Line, prefetch_at, prefetch_line};
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
    /// Which of a tile's panels is the last, and how many panels after it the thread's next ones start.
    pub next: Next,
}

/// Where a thread goes on after a tile.
#[derive(Clone, Copy, Default)]
pub struct Next {
    pub end: usize,
    pub skipped: isize,
}

impl<W: Stored> Multiply for Exact<'_, W> {
    const INTEGER: bool = false;
    const ONE_ROW: bool = !W::SHARED;
    const BF16: bool = W::BF16;

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
        // From these panels to the next ones.
        let skipped = if panel + P == self.next.end { self.next.skipped } else { 0 };
        let stride = (P.cast_signed() + skipped) * pieces.cast_signed();
        let panel = panel - self.first;
        let panels: [&[W]; P] = std::array::from_fn(|p| &self.panels[(panel + p) * pieces..][block.clone()]);
        let panels = panels.map(|panel| &panel[..x.len().div_ceil(W::STEP)]);
        let (whole, rest) = x.split_at(x.len() / W::STEP * W::STEP);
        if const { L::BF16_CHAINS && W::BF16 && R == 4 && P == 3 } {
            by_hand(panels.map(W::lines), stride, whole, row, &mut acc);
            if !rest.is_empty() {
                one_piece(rest, row, panels, whole.len() / W::STEP, &mut acc);
            }
            return acc;
        }
        let (length, ahead) = (panels[0].len(), (ahead(P) / (P * size_of::<W>())).max(1));
        // From the end of these panels' block to the start of the next ones'. (One row on two threads reads as much as memory
        // gives, and was slower by a sixth when it looked where the tile ends.)
        let stride = if R > 1 { stride } else { (P * pieces).cast_signed() };
        let jump = stride.wrapping_sub_unsigned(length).cast_unsigned();
        for (piece, x) in whole.chunks_exact(W::STEP).enumerate() {
            let wanted = if piece + ahead < length { piece + ahead } else { (piece + ahead).wrapping_add(jump) };
            for panel in panels {
                let at = panel.as_ptr().wrapping_add(wanted);
                if size_of::<W>() <= 64 { prefetch_line(at) } else { prefetch_at(at, size_of::<W>()) }
            }
            if G >= 4 {
                // Of many rows another thread has interleaved some: from its cache, line after line took 26 ns each.
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

/// The same for 4 rows and 3 panels of whole pairs, which are two walks through them.
#[inline(always)]
fn by_hand<L: Lanes, const G: usize, const R: usize, const P: usize>(
    panels: [&[Line]; P],
    stride: isize,
    x: &[[f32; G]],
    row: usize,
    acc: &mut [[L; P]; R],
) {
    let mut numbers = [[0.0; LANES]; 12];
    for (numbers, acc) in numbers.iter_mut().zip(acc.as_flattened()) {
        acc.store(numbers);
    }
    let length = x.len() / 2;
    let near = (PAIRS_AHEAD / G).min(length);
    for part in [0..length - near, length - near..length] {
        let ask = [0, 1].map(|half| asked::<G, R, P>(panels, stride, &part, near, 2 * row / R + half));
        let panels = std::array::from_fn(|p| &panels[p][part.clone()]);
        L::bf16_chains(panels, &x[2 * part.start..2 * part.end], row, ask, &mut numbers);
    }
    for (numbers, acc) in numbers.iter().zip(acc.as_flattened_mut()) {
        *acc = L::load(numbers);
    }
}

/// Rows times the pairs of k that a walk is ahead of itself, where it asks for its own panels.
const PAIRS_AHEAD: usize = 384;

/// What a walk of the 2 G / R through these panels asks for on a part of its way. The first two ask for what they will need
/// themselves, as a thread has to begin somewhere, and the others share the next panels, `stride` on, evenly: all of it at
/// once was more than memory gives. Few rows have no others.
#[inline(always)]
fn asked<const G: usize, const R: usize, const P: usize>(
    panels: [&[Line]; P],
    stride: isize,
    part: &Range<usize>,
    near: usize,
    walk: usize,
) -> [*const Line; 2] {
    let (length, others) = (panels[0].len(), 2 * G / R - 1);
    let own = |panel: &[Line]| {
        let to = part.start + near;
        if to < length {
            return panel.as_ptr().wrapping_add(to);
        }
        panel.as_ptr().wrapping_offset(stride).wrapping_add(to - length)
    };
    let next =
        |share: usize| panels.get(share).map(|panel| panel.as_ptr().wrapping_offset(stride).wrapping_add(part.start));
    let nothing = panels[0].as_ptr();
    if walk == 0 {
        return [own(panels[0]), own(panels[1])];
    }
    let share = (walk - 1) * P / others..walk * P / others;
    let first = if share.is_empty() || G == R { None } else { next(share.start) };
    [first.unwrap_or(nothing), if walk == 1 { own(panels[2]) } else { nothing }]
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

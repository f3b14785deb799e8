//! Rows rounded to int8 times the integer codes of a block type.
//!
//! ```text
//! per row and 32 k   d = max |x| / 127,  q = round(x * (127 / max |x|)), to even
//! per group          dot = sum of (code - ZERO) * q, an integer, exact in any order
//!                    acc = fma(scale * d, dot, acc); where the type has offsets: acc = fma(offset, d * sum of q, acc)
//! ```
//!
//! Groups in order, from +0: the chain of the exact products, over groups instead of k. A row's rounding looks at that
//! row only, so neighbours move nothing.

use std::ops::Range;

use super::rows::{Rows as Picked, TILE_ROWS, group_size, room};
use super::tile::Multiply;
use crate::arch::{Kernel, Lanes};
use crate::cpu::Cpu;
use crate::formats::gguf::Codes;

/// k that share a scale.
pub const BLOCK: usize = 32;
const LARGEST: f32 = 127.0;
/// Added to a small number, it leaves the rounded integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Rows as int8, kept between calls. Rows lie in the groups of `rows.rs`, a group of G rows as [..][G].
#[derive(Default)]
pub struct Rounded {
    depth: usize,
    /// Four k to a word, the first in the lowest byte: [K/4][G].
    codes: Vec<u32>,
    /// [K/32][G]: d, and d times the sum of q.
    scales: Vec<f32>,
    offsets: Vec<f32>,
    /// Of q: [K/16][G].
    sums: Vec<i32>,
}

impl Rounded {
    pub fn fill(&mut self, cpu: Cpu, x: Picked<'_>) {
        self.depth = x.depth;
        let blocks = room(x.count()) * x.depth / BLOCK;
        self.codes.resize(8 * blocks, 0);
        self.scales.resize(blocks, 0.0);
        self.offsets.resize(blocks, 0.0);
        self.sums.resize(2 * blocks, 0);
        cpu.run(Round { x, to: self });
    }
}

struct Round<'a> {
    x: Picked<'a>,
    to: &'a mut Rounded,
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let depth = self.to.depth;
        let mut start = 0;
        let rows = self.x.count();
        while start < rows {
            let tile_end = rows.min((start / TILE_ROWS + 1) * TILE_ROWS);
            let group = group_size(tile_end - start);
            for r in 0..group {
                let row = self.x.row((start + r).min(rows - 1));
                for (block, x) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let (codes, d, sums) = round(x);
                    let at = start * depth / BLOCK + block * group + r;
                    self.to.scales[at] = d;
                    self.to.offsets[at] = d * (sums[0] + sums[1]) as f32;
                    for (half, sum) in sums.into_iter().enumerate() {
                        self.to.sums[2 * start * depth / BLOCK + (2 * block + half) * group + r] = sum;
                    }
                    for (i, word) in codes.as_chunks().0.iter().enumerate() {
                        self.to.codes[start * depth / 4 + (8 * block + i) * group + r] = u32::from_le_bytes(*word);
                    }
                }
            }
            start += group;
        }
    }
}

/// (q, d, the sums of each half of q).
#[inline(always)]
fn round(x: &[f32; BLOCK]) -> ([u8; BLOCK], f32, [i32; 2]) {
    // As integers, so that a NaN is the largest, and then all of the group is one.
    let largest = f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
    let inverse = if largest == 0.0 { 0.0 } else { LARGEST / largest };
    let mut codes = [0; BLOCK];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse + ROUND).to_bits() as u8;
    }
    let sum = |half: &[u8]| half.iter().map(|code| i32::from(code.cast_signed())).sum();
    (codes, largest / LARGEST, [sum(&codes[..BLOCK / 2]), sum(&codes[BLOCK / 2..])])
}

pub struct Integer<'a, C> {
    pub x: &'a Rounded,
    /// All panels of the shard; or, from the `first` on, of some k that each holds.
    pub panels: &'a [C],
    pub first: usize,
    pub held: Range<usize>,
    /// What codes are counted from.
    pub zero: u8,
}

impl<C: Codes> Multiply for Integer<'_, C> {
    const INTEGER: bool = true;
    const ONE_ROW: bool = !C::SHARED;
    const BF16: bool = false;

    #[inline(always)]
    fn chains<L: Lanes, const G: usize, const R: usize, const P: usize>(
        &self,
        group: usize,
        row: usize,
        panel: usize,
        k: &Range<usize>,
        mut acc: [[L; P]; R],
    ) -> [[L; P]; R] {
        let depth = self.x.depth;
        let rows = Rows::<G> {
            codes: self.x.codes[group * depth / 4..][..G * depth / 4].as_chunks().0,
            scales: self.x.scales[group * depth / BLOCK..][..G * depth / BLOCK].as_chunks().0,
            offsets: self.x.offsets[group * depth / BLOCK..][..G * depth / BLOCK].as_chunks().0,
            sums: self.x.sums[2 * group * depth / BLOCK..][..2 * G * depth / BLOCK].as_chunks().0,
            first: row,
            zero: i32::from(self.zero),
        };
        let (pieces, panel) = (self.held.len() / C::VALUES, panel - self.first);
        for start in k.clone().step_by(C::VALUES) {
            let piece = (start - self.held.start) / C::VALUES;
            let mut panels = [&self.panels[panel * pieces + piece]; P];
            for (p, one) in panels.iter_mut().enumerate().skip(1) {
                *one = &self.panels[(panel + p) * pieces + piece];
            }
            for group in 0..C::VALUES / C::GROUP {
                one_group(&rows, panels, start, group, &mut acc);
            }
        }
        acc
    }
}

/// G rows, of which those from `first` on are wanted.
struct Rows<'a, const G: usize> {
    codes: &'a [[u32; G]],
    scales: &'a [[f32; G]],
    offsets: &'a [[f32; G]],
    sums: &'a [[i32; G]],
    first: usize,
    zero: i32,
}

/// A group of the pieces that start at `start`.
#[inline(always)]
fn one_group<L: Lanes, C: Codes, const G: usize, const R: usize, const P: usize>(
    rows: &Rows<'_, G>,
    panels: [&C; P],
    start: usize,
    group: usize,
    acc: &mut [[L; P]; R],
) {
    let start = start + group * C::GROUP;
    let mut dots = [[L::zero(); P]; R];
    if !C::OFFSET {
        let sums = &rows.sums[start / 16..][..C::GROUP / 16];
        for (r, dots) in dots.iter_mut().enumerate() {
            let sum: i32 = sums.iter().map(|sums| sums[rows.first + r]).sum();
            *dots = [L::splat_bits((-rows.zero * sum).cast_unsigned()); P];
        }
    }
    for (quad, x) in rows.codes[start / 4..][..C::GROUP / 4].iter().enumerate() {
        let mut codes = [L::zero(); P];
        for (codes, panel) in codes.iter_mut().zip(panels) {
            *codes = panel.codes(group * (C::GROUP / 4) + quad);
        }
        for (dots, x) in dots.iter_mut().zip(&x[rows.first..rows.first + R]) {
            for (dot, codes) in dots.iter_mut().zip(codes) {
                *dot = dot.dot_bytes(codes, L::splat_bits(*x));
            }
        }
    }
    let (mut scales, mut offsets) = ([L::zero(); P], [L::zero(); P]);
    for ((scale, offset), panel) in scales.iter_mut().zip(&mut offsets).zip(panels) {
        (*scale, *offset) = (panel.scale(group), panel.offset(group));
    }
    let (d, shifts) = (&rows.scales[start / BLOCK], &rows.offsets[start / BLOCK]);
    for (r, (acc, dots)) in acc.iter_mut().zip(dots).enumerate() {
        let (d, shift) = (L::splat(d[rows.first + r]), L::splat(shifts[rows.first + r]));
        for (p, (acc, dot)) in acc.iter_mut().zip(dots).enumerate() {
            *acc = dot.integer_to_float().fma(scales[p].mul(d), *acc);
            if C::OFFSET {
                *acc = offsets[p].fma(shift, *acc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_the_nearest_and_ties_to_even() {
        let mut x = [0.0; BLOCK];
        (x[0], x[1], x[2], x[3], x[16]) = (-127.0, 0.5, 1.5, -2.5, 126.4);
        let (codes, d, sums) = round(&x);
        assert_eq!((d, sums), (1.0, [-127 + 2 - 2, 126]));
        assert_eq!(codes.map(u8::cast_signed)[..4], [-127, 0, 2, -2]);
        assert_eq!(round(&[0.0; BLOCK]).1, 0.0);
        x[5] = f32::NAN;
        assert!(round(&x).1.is_nan(), "a NaN makes the whole group one");
    }
}

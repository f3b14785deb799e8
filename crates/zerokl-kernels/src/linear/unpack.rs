//! Part of a packed shard as its products read it fastest: what many rows share is unpacked once.
//!
//! ```text
//! exact      numbers, as F32Piece                                 one kernel for all formats: that of float32
//! integer    codes as bytes, scales and offsets as f32            one kernel for each way to share scales
//! ```
//!
//! A body of its own for every format, block shape and instruction set took two minutes to compile.

use std::ops::Range;

use crate::arch::{Kernel, LANES, Lanes};
use crate::formats::gguf::Codes;
use crate::formats::{F32Piece, Stored};
use crate::matrix::pieces;

/// k that are unpacked at a time, whole pieces of every format: with 12 panels 400 KB, which stay in the second level
/// cache.
pub const DEPTH: usize = 512;

/// Fills `to` with the numbers of some panels over `k`, panel after panel.
pub struct Unpack<'a, W> {
    /// All panels of the shard.
    pub panels: &'a [W],
    /// K.
    pub depth: usize,
    pub wanted: Range<usize>,
    /// From a multiple of W::STEP on.
    pub k: Range<usize>,
    pub to: &'a mut [F32Piece],
}

impl<W: Stored> Kernel for Unpack<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let pieces = pieces::<W>(self.depth);
        let within = self.k.start / W::STEP..self.k.end.div_ceil(W::STEP);
        for (panel, to) in self.wanted.zip(self.to.chunks_exact_mut(self.k.len())) {
            let from = &self.panels[panel * pieces..][within.clone()];
            for (piece, to) in from.iter().zip(to.chunks_mut(W::STEP)) {
                for (group, to) in to.chunks_mut(W::GROUP).enumerate() {
                    let scales = piece.scales::<L>(group);
                    for (index, to) in to.chunks_mut(W::WORD).enumerate() {
                        let mut word = piece.word::<L>(group * (W::GROUP / W::WORD) + index);
                        for (k, to) in to.iter_mut().enumerate() {
                            *to = F32Piece::of(W::number(&mut word, k, scales));
                        }
                    }
                }
            }
        }
    }
}

/// A group of a block type. OFFSET: with one, and then codes count from 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Group<const LENGTH: usize, const OFFSET: bool> {
    codes: [[u32; LANES]; 8],
    scale: [f32; LANES],
    offset: [f32; LANES],
}

impl<const LENGTH: usize, const OFFSET: bool> Default for Group<LENGTH, OFFSET> {
    fn default() -> Self {
        Group { codes: [[0; LANES]; 8], scale: [0.0; LANES], offset: [0.0; LANES] }
    }
}

impl<const LENGTH: usize, const OFFSET: bool> Codes for Group<LENGTH, OFFSET> {
    const VALUES: usize = LENGTH;
    const BYTES: usize = 0;
    const GROUP: usize = LENGTH;
    const ZERO: u8 = 0;
    const OFFSET: bool = OFFSET;
    const SHARED: bool = true;

    fn fill(&mut self, _: usize, _: &[u8]) {
        unreachable!("made by UnpackCodes, not from a file");
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        L::load_bits(&self.codes[index])
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load(&self.scale)
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, _: usize) -> L {
        L::load(&self.offset)
    }
    fn value(&self, _: usize, _: usize) -> f32 {
        unreachable!("products only");
    }
}

/// As `Unpack`, in groups.
pub struct UnpackCodes<'a, C, const LENGTH: usize, const OFFSET: bool> {
    pub panels: &'a [C],
    pub depth: usize,
    pub wanted: Range<usize>,
    pub k: Range<usize>,
    pub to: &'a mut [Group<LENGTH, OFFSET>],
}

impl<C: Codes, const LENGTH: usize, const OFFSET: bool> Kernel for UnpackCodes<'_, C, LENGTH, OFFSET> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let pieces = self.depth / C::VALUES;
        let within = self.k.start / C::VALUES..self.k.end / C::VALUES;
        for (panel, to) in self.wanted.zip(self.to.chunks_exact_mut(self.k.len() / LENGTH)) {
            let from = &self.panels[panel * pieces..][within.clone()];
            for (piece, to) in from.iter().zip(to.chunks_exact_mut(C::VALUES / LENGTH)) {
                for (group, to) in to.iter_mut().enumerate() {
                    piece.scale::<L>(group).store(&mut to.scale);
                    piece.offset::<L>(group).store(&mut to.offset);
                    for (index, to) in to.codes[..LENGTH / 4].iter_mut().enumerate() {
                        *to = piece.codes::<L>(group * (LENGTH / 4) + index).to_array().map(f32::to_bits);
                    }
                }
            }
        }
    }
}

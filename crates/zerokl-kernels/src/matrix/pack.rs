//! From what checkpoints store to panels.

use std::ops::Range;

use super::{Matrix, PANEL, Panels, Scale, pieces};
use crate::arch::Weights;
use crate::cpu::Cpu;
use crate::formats::fp8::{self, Fp8, Fp8Block};
use crate::formats::gguf::Codes;
use crate::formats::nvfp4::{self, Nvfp4};
use crate::formats::{Format, Plain, Stored, widen_f16};

/// A weight of plain numbers as a checkpoint stores it, row-major.
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

    fn part(self, place: Range<usize>) -> Self {
        match self {
            Source::F32(values) => Source::F32(&values[place]),
            Source::F16(bits) => Source::F16(&bits[place]),
            Source::Bf16(bits) => Source::Bf16(&bits[place]),
        }
    }
}

/// Whether `Matrix::pack_blocks` takes it.
pub fn is_block_type(format: Format) -> bool {
    use Format::*;
    matches!(format, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4K | Q5K | Q6K)
}

impl Matrix {
    /// Packs a row-major [rows, columns] weight into `format`, rounding once if that is narrower than the source.
    ///
    /// Panics for a format that isn't one of plain numbers.
    pub fn pack(cpu: Cpu, source: Source<'_>, rows: usize, columns: usize, format: Format) -> Self {
        Self::pack_parts(cpu, &[source], rows, columns, format)
    }

    /// Packs several weights of `columns`, one under the other, as if they were one.
    pub fn pack_parts(cpu: Cpu, parts: &[Source<'_>], rows: usize, columns: usize, format: Format) -> Self {
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), rows * columns, "rows times columns");
        let panels = match format {
            Format::F32 => Panels::F32(plain(cpu, parts, rows, columns)),
            Format::F16 => Panels::F16(plain(cpu, parts, rows, columns)),
            Format::Bf16 => Panels::Bf16(plain(cpu, parts, rows, columns)),
            _ => panic!("{format:?} needs scales"),
        };
        Self::of(rows, columns, panels, Scale::One, false)
    }

    /// Packs GGUF blocks as they lie in the file, row by row, those of one part after those of another. `integer`:
    /// products with int8 activations.
    pub fn pack_blocks(cpu: Cpu, format: Format, parts: &[&[u8]], rows: usize, columns: usize, integer: bool) -> Self {
        let panels = match format {
            Format::Q4_0 => Panels::Q4_0(blocks(cpu, parts, rows, columns)),
            Format::Q4_1 => Panels::Q4_1(blocks(cpu, parts, rows, columns)),
            Format::Q5_0 => Panels::Q5_0(blocks(cpu, parts, rows, columns)),
            Format::Q5_1 => Panels::Q5_1(blocks(cpu, parts, rows, columns)),
            Format::Q8_0 => Panels::Q8_0(blocks(cpu, parts, rows, columns)),
            Format::Q4K => Panels::Q4K(blocks(cpu, parts, rows, columns)),
            Format::Q5K => Panels::Q5K(blocks(cpu, parts, rows, columns)),
            Format::Q6K => Panels::Q6K(blocks(cpu, parts, rows, columns)),
            _ => panic!("{format:?} is no block type"),
        };
        Self::of(rows, columns, panels, Scale::One, integer)
    }

    /// Packs NVFP4: codes [rows, columns / 2], the even k in the low halves; scales [rows, columns / 16] of type e4m3.
    pub fn pack_nvfp4(cpu: Cpu, codes: &[u8], scales: &[u8], rows: usize, columns: usize, scale: Scale) -> Self {
        assert!(columns.is_multiple_of(nvfp4::BLOCK), "whole blocks");
        assert_eq!(codes.len(), rows * columns / 2, "two codes a byte");
        assert_eq!(scales.len(), rows * columns / nvfp4::BLOCK, "a scale per block");
        let panels = panels(cpu, rows, columns, |row, piece, lane, packed: &mut Nvfp4| {
            let block = row * columns / nvfp4::BLOCK + piece;
            packed.fill(lane, &codes[block * nvfp4::BLOCK / 2..][..nvfp4::BLOCK / 2], scales[block]);
        });
        Self::of(rows, columns, Panels::Nvfp4(panels), scale, false)
    }

    /// Packs e4m3 codes [rows, columns] under a scale of the whole or one per output.
    pub fn pack_fp8(cpu: Cpu, codes: &[u8], rows: usize, columns: usize, scale: Scale) -> Self {
        assert_eq!(codes.len(), rows * columns, "rows times columns");
        let panels = panels(cpu, rows, columns, |row, piece, lane, packed: &mut Fp8| {
            let codes = &codes[row * columns..][..columns];
            codes[4 * piece..].iter().take(4).enumerate().for_each(|(k, code)| packed.set(k, lane, *code));
        });
        Self::of(rows, columns, Panels::Fp8(panels), scale, false)
    }

    /// The same with a scale per 128 outputs by 128 k, [ceil(rows / 128), ceil(columns / 128)].
    pub fn pack_fp8_blocks(cpu: Cpu, codes: &[u8], scales: &[f32], rows: usize, columns: usize) -> Self {
        let across = columns.div_ceil(fp8::BLOCK);
        assert_eq!(codes.len(), rows * columns, "rows times columns");
        assert_eq!(scales.len(), rows.div_ceil(fp8::BLOCK) * across, "a scale per block");
        let panels = panels(cpu, rows, columns, |row, piece, lane, packed: &mut Fp8Block| {
            packed.set_scale(scales[row / fp8::BLOCK * across + piece]);
            let codes = &codes[row * columns..][..columns];
            let block = codes[fp8::BLOCK * piece..].iter().take(fp8::BLOCK);
            block.enumerate().for_each(|(k, code)| packed.set(k, lane, *code));
        });
        Self::of(rows, columns, Panels::Fp8Block(panels), Scale::One, false)
    }
}

fn plain<W: Plain>(cpu: Cpu, parts: &[Source<'_>], rows: usize, columns: usize) -> Weights<W> {
    panels_by_row(cpu, rows, columns, |row, lane, panel: &mut [W]| {
        let (part, place) = place_of(parts, |part| part.len(), row, columns);
        match part.part(place) {
            Source::F32(values) => W::set_row(panel, lane, values.iter().copied()),
            Source::F16(bits) => W::set_row(panel, lane, bits.iter().copied().map(widen_f16)),
            Source::Bf16(bits) => W::set_bf16_row(panel, lane, bits),
        }
    })
}

fn blocks<C: Codes>(cpu: Cpu, parts: &[&[u8]], rows: usize, columns: usize) -> Weights<C> {
    assert!(columns.is_multiple_of(C::VALUES), "whole blocks");
    let width = columns / C::VALUES * C::BYTES;
    assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), rows * width, "a row of blocks per output");
    panels_by_row(cpu, rows, columns, |row, lane, panel: &mut [C]| {
        let (part, place) = place_of(parts, |part| part.len(), row, width);
        panel.iter_mut().zip(part[place].chunks_exact(C::BYTES)).for_each(|(packed, block)| packed.fill(lane, block));
    })
}

/// The part that has a row of all parts together, and the row's place in it.
fn place_of<P: Copy>(parts: &[P], length: impl Fn(P) -> usize, row: usize, width: usize) -> (P, Range<usize>) {
    let mut start = row * width;
    for part in parts {
        if start < length(*part) {
            return (*part, start..start + width);
        }
        start -= length(*part);
    }
    panic!("row {row} is past the last part");
}

/// Panels in which `fill(row, piece, lane, packed)` has put each row's part of each piece.
fn panels<W: Stored>(
    cpu: Cpu,
    rows: usize,
    columns: usize,
    fill: impl Fn(usize, usize, usize, &mut W) + Sync,
) -> Weights<W> {
    panels_by_row(cpu, rows, columns, |row, lane, panel: &mut [W]| {
        panel.iter_mut().enumerate().for_each(|(piece, packed)| fill(row, piece, lane, packed));
    })
}

/// Panels in which `fill(row, lane, panel)` has put each row.
fn panels_by_row<W: Stored>(
    cpu: Cpu,
    rows: usize,
    columns: usize,
    fill: impl Fn(usize, usize, &mut [W]) + Sync,
) -> Weights<W> {
    let pieces = pieces::<W>(columns);
    Weights::new(cpu, rows.div_ceil(PANEL) * pieces, pieces.max(1), W::default(), |panel, packed| {
        for lane in 0..PANEL.min(rows - panel * PANEL) {
            fill(panel * PANEL + lane, lane, packed);
        }
    })
}

//! Storage formats of weights and their exact meaning as f32.

pub mod fp8;
pub mod gguf;
pub mod nvfp4;

pub use crate::arch::widen_f16;
use crate::arch::{Lanes, Line};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    Nvfp4,
    Fp8,
    Fp8Block,
}

impl Format {
    pub const ALL: [Format; 14] = {
        use Format::*;
        [F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, Nvfp4, Fp8, Fp8Block]
    };

    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "float32",
            Format::F16 => "float16",
            Format::Bf16 => "bfloat16",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q8_0 => "q8_0",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Nvfp4 => "nvfp4",
            Format::Fp8 => "fp8",
            Format::Fp8Block => "fp8_block",
        }
    }

    /// Numbers without scales.
    pub fn is_plain(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::Bf16)
    }

    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// The smallest piece of a panel: 16 outputs of STEP neighbouring k, aligned so that few loads cross a cache line.
///
/// ```text
/// piece   STEP k = groups of GROUP k = words of WORD k;  number(word, k, scales) = w[.., k], 16 outputs of it
/// ```
pub trait Stored: Copy + Default + Send + Sync + 'static {
    const STEP: usize;
    /// Neighbouring k that share scales.
    const GROUP: usize = Self::STEP;
    /// Neighbouring k that are loaded at once.
    const WORD: usize = 1;
    /// A group is a chain of its own from zero, and `join` adds it: where a number times its scale is not exact.
    const SUMMED: bool = false;
    /// Products of many rows read it as it is; else it is unpacked for them, once per tile.
    const SHARED: bool = false;
    /// Its pieces are lines as `Lanes::bf16_chains` reads them.
    const BF16: bool = false;
    /// What the numbers of a group share.
    type Scales<L: Lanes>: Copy;

    fn scales<L: Lanes>(&self, group: usize) -> Self::Scales<L>;
    /// Counted from the piece's first.
    fn word<L: Lanes>(&self, index: usize) -> L;
    /// The numbers of one k, as f32. Called for k = 0, 1, .. WORD - 1, each once: it may move the word on.
    fn number<L: Lanes>(word: &mut L, k: usize, scales: Self::Scales<L>) -> L;
    /// Where BF16: the lines.
    #[inline(always)]
    fn lines(_: &[Self]) -> &[Line] {
        &[]
    }
    /// Where SUMMED: the running sum and a group's chain.
    #[inline(always)]
    fn join<L: Lanes>(_: Self::Scales<L>, chain: L, _: L) -> L {
        chain
    }
    /// One number, exactly (where SUMMED: rounded once). `k` counts inside the piece.
    fn get(&self, k: usize, lane: usize) -> f32;
}

/// A format of numbers without scales.
pub trait Plain: Stored {
    /// Rounds once, to nearest even, where the format is narrower; a NaN stays a NaN, too large becomes inf.
    fn set(&mut self, k: usize, lane: usize, value: f32);
    /// One output of a panel that is still zero: its numbers, k rising.
    fn set_row(panel: &mut [Self], lane: usize, numbers: impl Iterator<Item = f32>) {
        for (k, number) in numbers.enumerate() {
            panel[k / Self::STEP].set(k % Self::STEP, lane, number);
        }
    }
    /// The same of the bits of bf16.
    fn set_bf16_row(panel: &mut [Self], lane: usize, bits: &[u16]) {
        Self::set_row(panel, lane, bits.iter().copied().map(widen_bf16));
    }
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct F32Piece([f32; 16]);

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct F16Piece([u16; 16]);

/// Two k: the even one in the low halves, the odd one in the high halves. So one whole cache line is loaded, and a shift
/// or a mask widens it: converting 16 bf16 at a time took a tenth of the time of a large product.
pub type Bf16Piece = Line;

impl F32Piece {
    #[inline(always)]
    pub fn of<L: Lanes>(lanes: L) -> Self {
        F32Piece(lanes.to_array())
    }
}

impl Stored for F32Piece {
    const STEP: usize = 1;
    const SHARED: bool = true;
    type Scales<L: Lanes> = ();
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) {}
    #[inline(always)]
    fn word<L: Lanes>(&self, _: usize) -> L {
        L::load(&self.0)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, _: usize, (): ()) -> L {
        *word
    }
    fn get(&self, _: usize, lane: usize) -> f32 {
        self.0[lane]
    }
}

impl Plain for F32Piece {
    fn set(&mut self, _: usize, lane: usize, value: f32) {
        self.0[lane] = value;
    }
}

impl Stored for F16Piece {
    const STEP: usize = 1;
    const SHARED: bool = true;
    type Scales<L: Lanes> = ();
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) {}
    #[inline(always)]
    fn word<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.0)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, _: usize, (): ()) -> L {
        *word
    }
    fn get(&self, _: usize, lane: usize) -> f32 {
        widen_f16(self.0[lane])
    }
}

impl Plain for F16Piece {
    fn set(&mut self, _: usize, lane: usize, value: f32) {
        self.0[lane] = round_to_f16(value);
    }
}

impl Stored for Bf16Piece {
    const STEP: usize = 2;
    const SHARED: bool = true;
    const WORD: usize = 2;
    const BF16: bool = true;
    type Scales<L: Lanes> = ();
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) {}
    #[inline(always)]
    fn word<L: Lanes>(&self, _: usize) -> L {
        L::load_bits(&self.0)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, k: usize, (): ()) -> L {
        if k == 0 { word.shift_left::<16>() } else { word.and_bits(0xffff_0000) }
    }
    #[inline(always)]
    fn lines(pieces: &[Self]) -> &[Line] {
        pieces
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        widen_bf16((self.0[lane] >> (16 * k)) as u16)
    }
}

impl Plain for Bf16Piece {
    fn set(&mut self, k: usize, lane: usize, value: f32) {
        let shift = 16 * k;
        let bits = u32::from(round_to_bf16(value)) << shift;
        self.0[lane] = self.0[lane] & !(0xffff << shift) | bits;
    }
    /// Two numbers a store: most weights come so, and one number at a time took a third of the time to load a model.
    fn set_bf16_row(panel: &mut [Self], lane: usize, bits: &[u16]) {
        let (pairs, last) = bits.as_chunks::<2>();
        for (piece, [even, odd]) in panel.iter_mut().zip(pairs) {
            piece.0[lane] = u32::from(quiet_bf16(*even)) | u32::from(quiet_bf16(*odd)) << 16;
        }
        if let [even] = last {
            panel[pairs.len()].0[lane] = u32::from(quiet_bf16(*even));
        }
    }
}

/// What `round_to_bf16` makes of a number that is bf16 already: itself, and a NaN a quiet one.
fn quiet_bf16(bits: u16) -> u16 {
    if bits & 0x7fff > 0x7f80 { bits | 0x40 } else { bits }
}

pub fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half of the last kept place, less one if that place is even: ties fall to the even neighbour.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub fn round_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = match magnitude {
        0x7f80_0001.. => 0x7e00 | (magnitude >> 13 & 0x3ff),
        // From 65520, halfway from the largest to the next power of two, on.
        0x477f_f000.. => 0x7c00,
        // Below the smallest normal, 2^-14: adding 1/2 puts the last place of f16 at the last place of f32.
        ..0x3880_0000 => (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000,
        _ => (magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13,
    };
    sign | rounded as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_formats_survive_a_round_trip() {
        for bits in 0..=u16::MAX {
            let quiet =
                |narrow: u16, bit: u16, infinity: u16| if narrow & 0x7fff > infinity { narrow | bit } else { narrow };
            assert_eq!(round_to_f16(widen_f16(bits)), quiet(bits, 0x200, 0x7c00), "{bits:#x}");
            assert_eq!(round_to_bf16(widen_bf16(bits)), quiet(bits, 0x40, 0x7f80), "{bits:#x}");
        }
    }

    #[test]
    fn rounding_goes_to_the_nearest_and_ties_to_even() {
        fn check(round: fn(f32) -> u16, widen: fn(u16) -> f32, last_finite: u16) {
            for low in 0..last_finite {
                let (a, b) = (widen(low), widen(low + 1));
                let middle = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
                let even = low + (low & 1);
                assert_eq!(round(middle), even, "{middle:e}");
                assert_eq!(round(-middle), even | 0x8000, "{middle:e}");
                assert_eq!(round(middle.next_down()), low, "{middle:e}");
                assert_eq!(round(middle.next_up()), low + 1, "{middle:e}");
            }
            assert_eq!(round(f32::INFINITY), last_finite + 1);
            assert!(widen(round(f32::NAN)).is_nan());
        }
        check(round_to_f16, widen_f16, 0x7bff);
        check(round_to_bf16, widen_bf16, 0x7f7f);
        assert_eq!((round_to_f16(65_519.9), round_to_f16(65_520.0)), (0x7bff, 0x7c00));
        assert_eq!(round_to_bf16(f32::MAX), 0x7f80);
    }
}

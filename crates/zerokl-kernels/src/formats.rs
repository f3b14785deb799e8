//! Storage formats of weights and their exact meaning as f32.

use crate::arch::Lanes;
pub use crate::arch::widen_f16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
}

/// The smallest piece of a panel: 16 outputs of STEP neighbouring k, aligned so that no load crosses a cache line.
pub trait Stored: Copy + Default + Send + Sync + 'static {
    const STEP: usize;
    /// The 16 numbers of one k, as f32. `k` counts inside the piece.
    fn load<L: Lanes>(&self, k: usize) -> L;
    /// Rounds once, to nearest even, where the format is narrower; a NaN stays a NaN, too large becomes inf.
    fn set(&mut self, k: usize, lane: usize, value: f32);
    fn get(&self, k: usize, lane: usize) -> f32;
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct F32Piece([f32; 16]);

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct F16Piece([u16; 16]);

/// Two k: the even one in the low halves, the odd one in the high halves. So one whole cache line is loaded, and a shift
/// or a mask widens it: converting 16 bf16 at a time took a tenth of the time of a large product.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Bf16Piece([u32; 16]);

impl Stored for F32Piece {
    const STEP: usize = 1;
    #[inline(always)]
    fn load<L: Lanes>(&self, _: usize) -> L {
        L::load(&self.0)
    }
    fn set(&mut self, _: usize, lane: usize, value: f32) {
        self.0[lane] = value;
    }
    fn get(&self, _: usize, lane: usize) -> f32 {
        self.0[lane]
    }
}

impl Stored for F16Piece {
    const STEP: usize = 1;
    #[inline(always)]
    fn load<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.0)
    }
    fn set(&mut self, _: usize, lane: usize, value: f32) {
        self.0[lane] = round_to_f16(value);
    }
    fn get(&self, _: usize, lane: usize) -> f32 {
        widen_f16(self.0[lane])
    }
}

impl Stored for Bf16Piece {
    const STEP: usize = 2;
    #[inline(always)]
    fn load<L: Lanes>(&self, k: usize) -> L {
        let both = L::load_bits(&self.0);
        if k == 0 { both.shift_left::<16>() } else { both.and_bits(0xffff_0000) }
    }
    fn set(&mut self, k: usize, lane: usize, value: f32) {
        let shift = 16 * k;
        let bits = u32::from(round_to_bf16(value)) << shift;
        self.0[lane] = self.0[lane] & !(0xffff << shift) | bits;
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        widen_bf16((self.0[lane] >> (16 * k)) as u16)
    }
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

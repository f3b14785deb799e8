//! Eight-bit floats: e4m3 ("fn": no infinity, NaN only as 0x7f and 0xff).
//!
//! ```text
//! Fp8        w = e4m3(code)                   scales of a matrix or of an output are applied to the finished chain
//! Fp8Block   w = e4m3(code) * scale           one scale per 128 k (and 128 outputs): a chain per 128 k from +0,
//!                                             then acc = fma(scale, chain, acc), because code times scale would round
//! ```

use super::Stored;
use crate::arch::{LANES, Lanes};

/// The k and outputs that share a scale in `Fp8Block`.
pub const BLOCK: usize = 128;

/// Four k, the first in the top byte.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Fp8([u32; LANES]);

/// 128 k as `Fp8`, and their scale.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Fp8Block {
    codes: [Fp8; BLOCK / 4],
    scale: f32,
}

impl Default for Fp8Block {
    fn default() -> Self {
        Fp8Block { codes: [Fp8::default(); BLOCK / 4], scale: 0.0 }
    }
}

impl Fp8 {
    pub fn set(&mut self, k: usize, lane: usize, code: u8) {
        let shift = 24 - 8 * k;
        self.0[lane] = self.0[lane] & !(0xff << shift) | u32::from(code) << shift;
    }
}

impl Fp8Block {
    pub fn set(&mut self, k: usize, lane: usize, code: u8) {
        self.codes[k / 4].set(k % 4, lane, code);
    }

    pub fn set_scale(&mut self, scale: f32) {
        self.scale = scale;
    }
}

/// The exact value of a code; for a NaN some finite number (loaders refuse them).
pub fn widen(code: u8) -> f32 {
    let code = u32::from(code);
    f32::from_bits((code & 0x80) << 24 | (code & 0x7f) << 20) * TO_RANGE
}

/// The nearest code, ties to even; what is beyond 448 becomes 448, a NaN stays one.
pub fn round(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24 & 0x80) as u8;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    let code = if magnitude < 0.015_625 {
        // Below the smallest normal, 2^-6, the codes count steps of 2^-9.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        let bits = magnitude.min(LARGEST).to_bits();
        // Half of the last kept place, less one if that place is even.
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | code as u8
}

const LARGEST: f32 = 448.0;

/// As `widen`, of the codes in the top bytes of the lanes.
#[inline(always)]
pub fn widen_top<L: Lanes>(codes: L) -> L {
    codes.shift_right::<4>().and_bits(0x87f0_0000).mul(L::splat(TO_RANGE))
}

/// 2^120: the exponent field of e4m3, moved to that of f32, counts from another bias. Subnormals come out right too.
const TO_RANGE: f32 = f32::from_bits((120 + 127) << 23);

impl Stored for Fp8 {
    const STEP: usize = 4;
    const WORD: usize = 4;
    type Scales<L: Lanes> = ();
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) {}
    #[inline(always)]
    fn word<L: Lanes>(&self, _: usize) -> L {
        L::load_bits(&self.0)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, _: usize, (): ()) -> L {
        let number = widen_top(*word);
        *word = word.shift_left::<8>();
        number
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        widen((self.0[lane] >> (24 - 8 * k)) as u8)
    }
}

impl Stored for Fp8Block {
    const STEP: usize = BLOCK;
    const WORD: usize = 4;
    const SUMMED: bool = true;
    const SHARED: bool = true;
    type Scales<L: Lanes> = L;
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) -> L {
        L::splat(self.scale)
    }
    #[inline(always)]
    fn word<L: Lanes>(&self, index: usize) -> L {
        self.codes[index].word(0)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, k: usize, _: L) -> L {
        Fp8::number(word, k, ())
    }
    #[inline(always)]
    fn join<L: Lanes>(scale: L, chain: L, sum: L) -> L {
        chain.fma(scale, sum)
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        self.codes[k / 4].get(k % 4, lane) * self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_value() {
        for code in (0..=255_u8).filter(|code| code & 0x7f != 0x7f) {
            let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-9),
                _ => (8.0 + fraction) * 2f64.powi(exponent - 10),
            };
            let value = if code >> 7 == 1 { -magnitude } else { magnitude };
            assert_eq!(f64::from(widen(code)).to_bits(), value.to_bits(), "{code:#x}");
            assert_eq!(round(widen(code)), code);
        }
    }

    #[test]
    fn rounding_goes_to_the_nearest_and_ties_to_even() {
        for low in 0..0x7e_u8 {
            let (a, b) = (widen(low), widen(low + 1));
            let middle = (a + b) / 2.0;
            assert_eq!(round(middle), low + (low & 1), "{middle}");
            assert_eq!(round(-middle), (low + (low & 1)) | 0x80, "{middle}");
            assert_eq!((round(middle.next_down()), round(middle.next_up())), (low, low + 1), "{middle}");
        }
        assert_eq!((round(1e9), round(f32::NEG_INFINITY), round(f32::NAN)), (0x7e, 0xfe, 0x7f));
    }
}

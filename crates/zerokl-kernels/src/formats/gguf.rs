//! GGUF's block types: integer codes of a few bits, with scales that 16 or 32 neighbouring k share.
//!
//! ```text
//! w = scale * (code - ZERO)                 Q4_0, Q5_0, Q8_0, Q6_K: exact in f32
//! w = fma(scale, code, offset)              Q4_1, Q5_1, Q4_K, Q5_K: the product is exact, the sum rounds once
//! ```
//!
//! These are the bits that dequantising to f32 gives. In the K family a scale is itself a product of an f16 and a small
//! integer, exact too. What a block is on disk, `fill` knows; in memory the codes of 16 outputs stand side by side.

mod blocks;
mod k_family;

use super::Stored;
use crate::arch::{LANES, Lanes};
pub use blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use k_family::{Q4K, Q5K, Q6K};

/// A block type, 16 outputs of it.
pub trait Codes: Copy + Default + Send + Sync + 'static {
    /// Values of a block, and its bytes on disk.
    const VALUES: usize;
    const BYTES: usize;
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    const ZERO: u8;
    /// Whether an offset is added.
    const OFFSET: bool = false;
    /// See `Stored::SHARED`, for integer products.
    const SHARED: bool = false;
    /// Codes are below 16, so that a table turns them into numbers.
    const NIBBLES: bool = false;

    /// One output's block, as on disk.
    fn fill(&mut self, lane: usize, block: &[u8]);
    /// The codes of k = 4 * index .. + 4, one per byte, the first in the lowest.
    fn codes<L: Lanes>(&self, index: usize) -> L;
    fn scale<L: Lanes>(&self, group: usize) -> L;
    #[inline(always)]
    fn offset<L: Lanes>(&self, _: usize) -> L {
        L::zero()
    }
    /// One number.
    fn value(&self, k: usize, lane: usize) -> f32;
}

impl<C: Codes> Stored for C {
    const STEP: usize = C::VALUES;
    const GROUP: usize = C::GROUP;
    const WORD: usize = 4;
    type Scales<L: Lanes> = (L, L);
    #[inline(always)]
    fn scales<L: Lanes>(&self, group: usize) -> (L, L) {
        (self.scale(group), self.offset(group))
    }
    #[inline(always)]
    fn word<L: Lanes>(&self, index: usize) -> L {
        self.codes(index)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, _: usize, (scale, offset): (L, L)) -> L {
        let code = if C::NIBBLES {
            word.look_up(L::load(&const { table(C::ZERO) }))
        } else {
            // The code as the last places of 2^23.
            word.and_bits(0xff).or_bits(0x4b00_0000).sub(L::splat(8_388_608.0 + f32::from(C::ZERO)))
        };
        *word = word.shift_right::<8>();
        if C::OFFSET { code.fma(scale, offset) } else { code.mul(scale) }
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        self.value(k, lane)
    }
}

/// What codes below 16 stand for.
const fn table(zero: u8) -> [f32; LANES] {
    let (mut numbers, mut code) = ([0.0; LANES], 0);
    while code < LANES {
        numbers[code] = code as f32 - zero as f32;
        code += 1;
    }
    numbers
}

/// W words per output of eight codes of four bits: k = 8 i + b in the low half of byte b of word i, 8 i + 4 + b in the
/// high one. Half a word, masked, is then four neighbouring k.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Nibbles<const W: usize>([[u32; LANES]; W]);

/// The same for codes of two bits: 16 to a word, k = 16 i + 4 j + b in bits 2 j of byte b.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pairs<const W: usize>([[u32; LANES]; W]);

/// And for one bit: 32 to a word, k = 32 i + 4 j + b in bit j of byte b.
#[derive(Clone, Copy)]
#[repr(C)]
struct Bits<const W: usize>([[u32; LANES]; W]);

/// Whole bytes: k = 4 i + b.
#[derive(Clone, Copy)]
#[repr(C)]
struct Bytes<const W: usize>([[u32; LANES]; W]);

macro_rules! packed_codes {
    ($name:ident, $bits:literal, $mask:literal) => {
        impl<const W: usize> Default for $name<W> {
            fn default() -> Self {
                $name([[0; LANES]; W])
            }
        }

        #[allow(clippy::modulo_one, reason = "whole bytes have one quad to a word")]
        impl<const W: usize> $name<W> {
            const QUADS: usize = 8 / $bits;

            /// The codes of k = 4 * index .. + 4, one per byte.
            #[inline(always)]
            pub fn quad<L: Lanes>(&self, index: usize) -> L {
                let word = L::load_bits(&self.0[index / Self::QUADS]);
                word.shift_right_by(($bits * (index % Self::QUADS)) as u32).and_bits($mask)
            }

            pub fn get(&self, k: usize, lane: usize) -> u8 {
                let quad = k / 4;
                let shift = 8 * (k % 4) + $bits * (quad % Self::QUADS);
                (self.0[quad / Self::QUADS][lane] >> shift & ($mask & 0xff)) as u8
            }

            /// Of a place that is still zero.
            pub fn set(&mut self, k: usize, lane: usize, code: u8) {
                let quad = k / 4;
                let shift = 8 * (k % 4) + $bits * (quad % Self::QUADS);
                self.0[quad / Self::QUADS][lane] |= u32::from(code) << shift;
            }
        }
    };
}

packed_codes!(Nibbles, 4, 0x0f0f_0f0f_u32);
packed_codes!(Pairs, 2, 0x0303_0303_u32);
packed_codes!(Bits, 1, 0x0101_0101_u32);
packed_codes!(Bytes, 8, 0xffff_ffff_u32);

/// Little-endian, as in a block.
fn half(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

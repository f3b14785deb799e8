//! Blocks of 256 values under one or two f16, in groups with small integer scales.
//!
//! ```text
//! Q4_K   f16 d, f16 least, 8 pairs (scale, offset) of six bits, 128 bytes         (d * scale) * q - least * offset
//! Q5_K   the same with 256 fifth bits                                             the same
//! Q6_K   128 bytes, 64 bytes of upper pairs of bits, 16 signed scales, f16 d      (d * scale) * (q - 32)
//! ```

use super::{Bits, Codes, Nibbles, Pairs, half};
use crate::arch::{LANES, Lanes, widen_f16};

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Q4K {
    factors: Factors,
    q: Nibbles<32>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Q5K {
    factors: Factors,
    q: Nibbles<32>,
    fifth: Bits<8>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Q6K {
    d: [u16; LANES],
    /// Kept as scale + 128.
    scales: [[u8; LANES]; 16],
    q: Nibbles<32>,
    upper: Pairs<16>,
}

/// What Q4_K and Q5_K share.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Factors {
    d: [u16; LANES],
    least: [u16; LANES],
    scales: [[u8; LANES]; 8],
    offsets: [[u8; LANES]; 8],
}

impl Factors {
    /// From the first 16 bytes of a block. Of the twelve with the pairs, 0..3 hold scales 0..3 in their low six bits,
    /// 4..7 offsets 0..3, 8..11 the low halves of scales and offsets 4..7, whose upper two bits are left in 0..7.
    fn fill(&mut self, lane: usize, block: &[u8]) {
        (self.d[lane], self.least[lane]) = (half(block, 0), half(block, 2));
        let (first, second, third) = (&block[4..8], &block[8..12], &block[12..16]);
        for i in 0..4 {
            (self.scales[i][lane], self.offsets[i][lane]) = (first[i] & 63, second[i] & 63);
            self.scales[i + 4][lane] = third[i] & 15 | first[i] >> 6 << 4;
            self.offsets[i + 4][lane] = third[i] >> 4 | second[i] >> 6 << 4;
        }
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, group: usize) -> L {
        L::load_f16(&self.d).mul(L::load_bytes(&self.scales[group]).integer_to_float())
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, group: usize) -> L {
        L::load_f16(&self.least).mul(L::load_bytes(&self.offsets[group]).integer_to_float()).neg()
    }
    fn value(&self, k: usize, lane: usize, code: u8) -> f32 {
        let scale = widen_f16(self.d[lane]) * f32::from(self.scales[k / 32][lane]);
        let offset = widen_f16(self.least[lane]) * f32::from(self.offsets[k / 32][lane]);
        scale.mul_add(f32::from(code), -offset)
    }
}

impl Codes for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;
    const ZERO: u8 = 0;
    const OFFSET: bool = true;
    const NIBBLES: bool = true;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        self.factors.fill(lane, block);
        fill_nibbles(&mut self.q, lane, &block[16..], 32);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad(index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, group: usize) -> L {
        self.factors.scale(group)
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, group: usize) -> L {
        self.factors.offset(group)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        self.factors.value(k, lane, self.q.get(k, lane))
    }
}

impl Codes for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;
    const ZERO: u8 = 0;
    const OFFSET: bool = true;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        self.factors.fill(lane, block);
        (0..256).for_each(|k| self.fifth.set(k, lane, block[16 + k % 32] >> (k / 32) & 1));
        fill_nibbles(&mut self.q, lane, &block[48..], 32);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad::<L>(index).add_bits(self.fifth.quad::<L>(index).shift_left::<4>())
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, group: usize) -> L {
        self.factors.scale(group)
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, group: usize) -> L {
        self.factors.offset(group)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        self.factors.value(k, lane, self.q.get(k, lane) | self.fifth.get(k, lane) << 4)
    }
}

impl Codes for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;
    const GROUP: usize = 16;
    const ZERO: u8 = 32;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        fill_nibbles(&mut self.q, lane, &block[..128], 64);
        for k in 0..256 {
            let byte = block[128 + k / 128 * 32 + k % 32];
            self.upper.set(k, lane, byte >> (k % 128 / 32 * 2) & 3);
        }
        (0..16).for_each(|group| self.scales[group][lane] = block[192 + group] ^ 0x80);
        self.d[lane] = half(block, 208);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad::<L>(index).add_bits(self.upper.quad::<L>(index).shift_left::<4>())
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, group: usize) -> L {
        let scale = L::load_bytes(&self.scales[group]).integer_to_float().sub(L::splat(128.0));
        L::load_f16(&self.d).mul(scale)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        let code = self.q.get(k, lane) | self.upper.get(k, lane) << 4;
        let scale = widen_f16(self.d[lane]) * (f32::from(self.scales[k / 16][lane]) - 128.0);
        scale * (f32::from(code) - 32.0)
    }
}

/// Low halves of `half` bytes are that many values, their high halves the next ones, and so on.
fn fill_nibbles(codes: &mut Nibbles<32>, lane: usize, bytes: &[u8], half: usize) {
    for (i, byte) in bytes.iter().enumerate() {
        let k = i / half * 2 * half + i % half;
        codes.set(k, lane, byte & 15);
        codes.set(k + half, lane, byte >> 4);
    }
}

//! Blocks of 32 values under one scale.
//!
//! ```text
//! Q4_0   f16 d, 16 bytes: low halves are values 0..15, high ones 16..31         d * (q - 8)
//! Q4_1   f16 d, f16 m, 16 bytes                                                 d * q + m
//! Q5_0   f16 d, 32 fifth bits, 16 bytes                                         d * (q - 16)
//! Q5_1   f16 d, f16 m, 32 fifth bits, 16 bytes                                  d * q + m
//! Q8_0   f16 d, 32 signed bytes (kept here as q + 128)                          d * q
//! ```

use super::{Bits, Bytes, Codes, Nibbles, half};
use crate::arch::{LANES, Lanes, widen_f16};

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Q4_0 {
    d: [u16; LANES],
    q: Nibbles<4>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Q4_1 {
    d: [u16; LANES],
    m: [u16; LANES],
    q: Nibbles<4>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Q5_0 {
    d: [u16; LANES],
    q: Nibbles<4>,
    fifth: Bits<1>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Q5_1 {
    d: [u16; LANES],
    m: [u16; LANES],
    q: Nibbles<4>,
    fifth: Bits<1>,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Q8_0 {
    d: [u16; LANES],
    q: Bytes<8>,
}

impl Codes for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: u8 = 8;
    const NIBBLES: bool = true;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        self.d[lane] = half(block, 0);
        fill_nibbles(&mut self.q, lane, &block[2..]);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad(index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.d)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        widen_f16(self.d[lane]) * (f32::from(self.q.get(k, lane)) - 8.0)
    }
}

impl Codes for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;
    const GROUP: usize = 32;
    const ZERO: u8 = 0;
    const OFFSET: bool = true;
    const NIBBLES: bool = true;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        (self.d[lane], self.m[lane]) = (half(block, 0), half(block, 2));
        fill_nibbles(&mut self.q, lane, &block[4..]);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad(index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.d)
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.m)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        widen_f16(self.d[lane]).mul_add(f32::from(self.q.get(k, lane)), widen_f16(self.m[lane]))
    }
}

impl Codes for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;
    const GROUP: usize = 32;
    const ZERO: u8 = 16;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        self.d[lane] = half(block, 0);
        fill_fifth(&mut self.fifth, lane, &block[2..6]);
        fill_nibbles(&mut self.q, lane, &block[6..]);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        with_fifth(&self.q, &self.fifth, index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.d)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        let code = self.q.get(k, lane) | self.fifth.get(k, lane) << 4;
        widen_f16(self.d[lane]) * (f32::from(code) - 16.0)
    }
}

impl Codes for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;
    const GROUP: usize = 32;
    const ZERO: u8 = 0;
    const OFFSET: bool = true;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        (self.d[lane], self.m[lane]) = (half(block, 0), half(block, 2));
        fill_fifth(&mut self.fifth, lane, &block[4..8]);
        fill_nibbles(&mut self.q, lane, &block[8..]);
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        with_fifth(&self.q, &self.fifth, index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.d)
    }
    #[inline(always)]
    fn offset<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.m)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        let code = self.q.get(k, lane) | self.fifth.get(k, lane) << 4;
        widen_f16(self.d[lane]).mul_add(f32::from(code), widen_f16(self.m[lane]))
    }
}

impl Codes for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;
    const GROUP: usize = 32;
    const ZERO: u8 = 128;

    fn fill(&mut self, lane: usize, block: &[u8]) {
        self.d[lane] = half(block, 0);
        block[2..].iter().enumerate().for_each(|(k, code)| self.q.set(k, lane, code ^ 0x80));
    }
    #[inline(always)]
    fn codes<L: Lanes>(&self, index: usize) -> L {
        self.q.quad(index)
    }
    #[inline(always)]
    fn scale<L: Lanes>(&self, _: usize) -> L {
        L::load_f16(&self.d)
    }
    fn value(&self, k: usize, lane: usize) -> f32 {
        widen_f16(self.d[lane]) * (f32::from(self.q.get(k, lane)) - 128.0)
    }
}

#[inline(always)]
fn with_fifth<L: Lanes>(low: &Nibbles<4>, fifth: &Bits<1>, index: usize) -> L {
    // The halves don't overlap, so a sum is an or.
    low.quad::<L>(index).add_bits(fifth.quad::<L>(index).shift_left::<4>())
}

fn fill_nibbles(codes: &mut Nibbles<4>, lane: usize, bytes: &[u8]) {
    for (k, byte) in bytes.iter().enumerate() {
        codes.set(k, lane, byte & 15);
        codes.set(k + 16, lane, byte >> 4);
    }
}

fn fill_fifth(bits: &mut Bits<1>, lane: usize, bytes: &[u8]) {
    (0..32).for_each(|k| bits.set(k, lane, bytes[k / 8] >> (k % 8) & 1));
}

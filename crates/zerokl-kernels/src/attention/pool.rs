//! How keys and values are kept: as they are, or rounded once when they are stored.
//!
//! ```text
//! f32     the number
//! bf16    to the nearest, ties to even
//! fp8     e4m3(x / scale), to the nearest, ties to even, saturating at 448; read as code * scale, rounded once.
//!         The scale is a constant of the layer, so a number's bits don't depend on its neighbours'
//! ```

use crate::arch::prefetch_line;
use crate::formats::fp8;
use crate::formats::{round_to_bf16, widen_bf16};

/// Keys or values of all pages.
#[derive(Clone, Copy, Debug)]
pub enum Pool<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    Fp8(&'a [u8], f32),
}

/// The same, to be written.
pub enum PoolMut<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u16]),
    Fp8(&'a mut [u8], f32),
}

impl Pool<'_> {
    pub fn len(&self) -> usize {
        match self {
            Pool::F32(numbers) => numbers.len(),
            Pool::Bf16(bits) => bits.len(),
            Pool::Fp8(codes, _) => codes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers from `start` on, one by one.
    pub fn read(&self, start: usize, out: &mut [f32]) {
        match self {
            Pool::F32(numbers) => out.copy_from_slice(&numbers[start..][..out.len()]),
            Pool::Bf16(bits) => {
                let bits = &bits[start..][..out.len()];
                out.iter_mut().zip(bits).for_each(|(out, bits)| *out = widen_bf16(*bits));
            }
            Pool::Fp8(codes, scale) => {
                let codes = &codes[start..][..out.len()];
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = fp8::widen(*code) * scale);
            }
        }
    }
}

impl PoolMut<'_> {
    /// To be read for a while.
    pub fn shared(&self) -> Pool<'_> {
        match self {
            PoolMut::F32(numbers) => Pool::F32(numbers),
            PoolMut::Bf16(bits) => Pool::Bf16(bits),
            PoolMut::Fp8(codes, scale) => Pool::Fp8(codes, *scale),
        }
    }

    /// To be written for a while.
    pub fn lend(&mut self) -> PoolMut<'_> {
        match self {
            PoolMut::F32(numbers) => PoolMut::F32(numbers),
            PoolMut::Bf16(bits) => PoolMut::Bf16(bits),
            PoolMut::Fp8(codes, scale) => PoolMut::Fp8(codes, *scale),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            PoolMut::F32(numbers) => numbers.len(),
            PoolMut::Bf16(bits) => bits.len(),
            PoolMut::Fp8(codes, _) => codes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for the line of one number.
    pub fn prefetch(&self, index: usize) {
        match self {
            PoolMut::F32(numbers) => prefetch_line(numbers.as_ptr().wrapping_add(index)),
            PoolMut::Bf16(bits) => prefetch_line(bits.as_ptr().wrapping_add(index)),
            PoolMut::Fp8(codes, _) => prefetch_line(codes.as_ptr().wrapping_add(index)),
        }
    }

    /// Numbers from `start` on, `step` apart.
    pub fn write(&mut self, start: usize, step: usize, numbers: &[f32]) {
        match self {
            PoolMut::F32(to) if step == 1 => to[start..][..numbers.len()].copy_from_slice(numbers),
            PoolMut::F32(to) => to[start..].iter_mut().step_by(step).zip(numbers).for_each(|(to, x)| *to = *x),
            PoolMut::Bf16(to) => {
                to[start..].iter_mut().step_by(step).zip(numbers).for_each(|(to, x)| *to = round_to_bf16(*x));
            }
            PoolMut::Fp8(to, scale) => {
                let to = to[start..].iter_mut().step_by(step);
                to.zip(numbers).for_each(|(to, x)| *to = fp8::round(*x / *scale));
            }
        }
    }
}

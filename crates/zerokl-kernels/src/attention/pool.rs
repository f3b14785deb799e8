//! How keys and values are kept: as they are, or rounded once when they are stored.
//!
//! ```text
//! f32     the number
//! bf16    to the nearest, ties to even
//! fp8     e4m3(x / scale), to the nearest, ties to even, saturating at 448; read as code * scale, rounded once.
//!         The scale is a constant of the layer, so a number's bits don't depend on its neighbours'
//! ```

use std::marker::PhantomData;

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
    F32(Numbers<'a, f32>),
    Bf16(Numbers<'a, u16>),
    Fp8(Numbers<'a, u8>, f32),
}

/// All from a pool's first number to its last, to be written. Between its pages may lie those of other pools, so
/// several of these may span the same memory.
pub struct Numbers<'a, T> {
    first: *mut T,
    length: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: as a mutable slice, which `new` promises that it may stand for.
unsafe impl<T: Send> Send for Numbers<'_, T> {}
// SAFETY: shared, they are only read.
unsafe impl<T: Sync> Sync for Numbers<'_, T> {}

impl<'a, T: Copy> Numbers<'a, T> {
    /// # Safety
    ///
    /// So many numbers lie there as long as `'a`, and while one of the pools that span them is written, or read
    /// through `shared`, no other is written.
    pub unsafe fn new(first: *mut T, length: usize) -> Self {
        Numbers { first, length, lent: PhantomData }
    }

    fn lend(&mut self) -> Numbers<'_, T> {
        Numbers { first: self.first, length: self.length, lent: PhantomData }
    }

    fn shared(&self) -> &[T] {
        // SAFETY: they are there, as `new` promises, and nobody writes any of them as long as this is borrowed.
        unsafe { std::slice::from_raw_parts(self.first, self.length) }
    }

    /// Panics unless all are inside.
    #[inline(always)]
    fn set(&mut self, start: usize, step: usize, numbers: impl ExactSizeIterator<Item = T>) {
        let Some(last) = numbers.len().checked_sub(1) else { return };
        assert!(start + last * step < self.length, "a slot of the pool");
        // SAFETY: the last one is inside, as was just checked.
        numbers.enumerate().for_each(|(place, number)| unsafe { self.first.add(start + place * step).write(number) });
    }
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
            PoolMut::F32(numbers) => Pool::F32(numbers.shared()),
            PoolMut::Bf16(bits) => Pool::Bf16(bits.shared()),
            PoolMut::Fp8(codes, scale) => Pool::Fp8(codes.shared(), *scale),
        }
    }

    /// To be written for a while.
    pub fn lend(&mut self) -> PoolMut<'_> {
        match self {
            PoolMut::F32(numbers) => PoolMut::F32(numbers.lend()),
            PoolMut::Bf16(bits) => PoolMut::Bf16(bits.lend()),
            PoolMut::Fp8(codes, scale) => PoolMut::Fp8(codes.lend(), *scale),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            PoolMut::F32(numbers) => numbers.length,
            PoolMut::Bf16(bits) => bits.length,
            PoolMut::Fp8(codes, _) => codes.length,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for the line of one number.
    pub fn prefetch(&self, index: usize) {
        match self {
            PoolMut::F32(numbers) => prefetch_line(numbers.first.wrapping_add(index)),
            PoolMut::Bf16(bits) => prefetch_line(bits.first.wrapping_add(index)),
            PoolMut::Fp8(codes, _) => prefetch_line(codes.first.wrapping_add(index)),
        }
    }

    /// Numbers from `start` on, `step` apart.
    pub fn write(&mut self, start: usize, step: usize, numbers: &[f32]) {
        let numbers = numbers.iter().copied();
        match self {
            PoolMut::F32(to) if step == 1 => to.set(start, 1, numbers),
            PoolMut::F32(to) => to.set(start, step, numbers),
            PoolMut::Bf16(to) => to.set(start, step, numbers.map(round_to_bf16)),
            PoolMut::Fp8(to, scale) => to.set(start, step, numbers.map(|x| fp8::round(x / *scale))),
        }
    }
}

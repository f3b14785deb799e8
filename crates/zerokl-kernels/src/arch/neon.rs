//! NEON, which every 64-bit ARM has: sixteen lanes are four registers of four.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::{Kernel, LANES, Lanes};

#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

/// Runs the body with these lanes.
#[inline]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon>()
}

/// The same, never part of another body.
#[inline(never)]
fn run_apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon>()
}

/// The same intrinsic on each of the four registers of its operands.
macro_rules! each {
    ($intrinsic:ident, $($operand:expr),+) => {
        // SAFETY: NEON is part of this architecture, and registers are read and written only.
        from_fn(|i| unsafe { $intrinsic($($operand[i]),+) })
    };
}

#[inline(always)]
fn bits(lanes: Neon) -> [uint32x4_t; 4] {
    each!(vreinterpretq_u32_f32, lanes.0)
}

#[inline(always)]
fn signed(lanes: Neon) -> [int32x4_t; 4] {
    each!(vreinterpretq_s32_f32, lanes.0)
}

#[inline(always)]
fn of_bits(bits: [uint32x4_t; 4]) -> Neon {
    Neon(each!(vreinterpretq_f32_u32, bits))
}

#[inline(always)]
fn of_signed(integers: [int32x4_t; 4]) -> Neon {
    Neon(each!(vreinterpretq_f32_s32, integers))
}

#[inline(always)]
fn splat_u32(value: u32) -> [uint32x4_t; 4] {
    // SAFETY: as in `each`.
    [unsafe { vdupq_n_u32(value) }; 4]
}

impl Lanes for Neon {
    type Mask = [uint32x4_t; 4];
    const REGISTERS: usize = 4;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        run_apart(kernel)
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: as in `each`.
        Neon([unsafe { vdupq_n_f32(value) }; 4])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: four times four numbers are the sixteen of the array.
        Neon(from_fn(|i| unsafe { vld1q_f32(from.as_ptr().add(4 * i)) }))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        for (to, register) in to.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            // SAFETY: four numbers into an array of four.
            unsafe { vst1q_f32(to.as_mut_ptr(), register) };
        }
    }
    #[inline(always)]
    fn load_bits(from: &[u32; LANES]) -> Self {
        // SAFETY: as `load`.
        of_bits(from_fn(|i| unsafe { vld1q_u32(from.as_ptr().add(4 * i)) }))
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        Neon(from_fn(|i| {
            let wide: float32x4_t;
            // SAFETY: reads four of the array's sixteen patterns; the instruction only moves registers. (Its intrinsic
            // needs a newer compiler than ours may be.)
            unsafe {
                let halves = vld1_u16(from.as_ptr().add(4 * i));
                asm!(
                    "fcvtl {wide:v}.4s, {halves:v}.4h",
                    halves = in(vreg) halves,
                    wide = lateout(vreg) wide,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            wide
        }))
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        // SAFETY: as `load`.
        of_bits(from_fn(|i| unsafe { vshll_n_u16::<16>(vld1_u16(from.as_ptr().add(4 * i))) }))
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; LANES]) -> Self {
        // SAFETY: sixteen bytes of an array of sixteen.
        of_bits(unsafe {
            let bytes = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
        })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Neon(each!(vaddq_f32, self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Neon(each!(vsubq_f32, self.0, other.0))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Neon(each!(vmulq_f32, self.0, other.0))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Neon(each!(vdivq_f32, self.0, other.0))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Neon(each!(vsqrtq_f32, self.0))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Neon(each!(vfmaq_f32, addend.0, self.0, factor.0))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self::select(other.less_than(self), self, other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self::select(self.less_than(other), self, other)
    }

    #[inline(always)]
    fn less_than(self, other: Self) -> Self::Mask {
        each!(vcltq_f32, self.0, other.0)
    }
    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        each!(vceqq_f32, self.0, other.0)
    }
    #[inline(always)]
    fn first_lanes(count: usize) -> Self::Mask {
        let numbers = Self::load(&[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.]);
        numbers.less_than(Self::splat(count.min(LANES) as f32))
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        Neon(each!(vbslq_f32, mask, yes.0, no.0))
    }

    #[inline(always)]
    fn and_bits(self, pattern: u32) -> Self {
        of_bits(each!(vandq_u32, bits(self), splat_u32(pattern)))
    }
    #[inline(always)]
    fn or_bits(self, pattern: u32) -> Self {
        of_bits(each!(vorrq_u32, bits(self), splat_u32(pattern)))
    }
    #[inline(always)]
    fn xor_bits(self, pattern: u32) -> Self {
        of_bits(each!(veorq_u32, bits(self), splat_u32(pattern)))
    }
    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        of_bits(each!(vaddq_u32, bits(self), bits(other)))
    }
    #[inline(always)]
    fn sub_bits(self, other: Self) -> Self {
        of_bits(each!(vsubq_u32, bits(self), bits(other)))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        // SAFETY: as in `each`.
        of_bits(bits(self).map(|x| unsafe { vshlq_n_u32::<N>(x) }))
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        // SAFETY: as in `each`.
        of_signed(signed(self).map(|x| unsafe { vshrq_n_s32::<N>(x) }))
    }
    #[inline(always)]
    fn shift_right_by(self, count: u32) -> Self {
        // SAFETY: as in `each`. A shift to the left by less than nothing is one to the right.
        of_bits(bits(self).map(|x| unsafe { vshlq_u32(x, vdupq_n_s32(-count.cast_signed())) }))
    }
    #[inline(always)]
    fn look_up(self, table: Self) -> Self {
        // SAFETY: as in `each`. The table is 64 bytes, and each index becomes the numbers of its entry's four.
        unsafe {
            let [a, b, c, d] = bits(table).map(|x| vreinterpretq_u8_u32(x));
            let table = uint8x16x4_t(a, b, c, d);
            of_bits(bits(self).map(|x| {
                let entry = vandq_u32(x, vdupq_n_u32(15));
                let bytes = vmlaq_u32(vdupq_n_u32(0x0302_0100), entry, vdupq_n_u32(0x0404_0404));
                vreinterpretq_u32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            }))
        }
    }
    #[inline(always)]
    fn dot_bytes(self, unsigned: Self, factors: Self) -> Self {
        let (sums, unsigned, factors) = (signed(self), bits(unsigned), bits(factors));
        // SAFETY: as in `each`. A product of a byte and a signed byte fits into 16 bits.
        of_signed(from_fn(|i| unsafe {
            let (u, s) = (vreinterpretq_u8_u32(unsigned[i]), vreinterpretq_s8_u32(factors[i]));
            let low = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u))), vmovl_s8(vget_low_s8(s)));
            let high = vmulq_s16(vreinterpretq_s16_u16(vmovl_high_u8(u)), vmovl_high_s8(s));
            vaddq_s32(sums[i], vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
        }))
    }
    #[inline(always)]
    fn integer_to_float(self) -> Self {
        Neon(each!(vcvtq_f32_s32, signed(self)))
    }
    #[inline(always)]
    fn float_to_integer(self) -> Self {
        // SAFETY: as in `each`. The instruction itself gives what lies beyond the ends the end's number.
        of_signed(self.0.map(|x| unsafe {
            let fits = vcltq_f32(vabsq_f32(x), vdupq_n_f32(2_147_483_648.0));
            vbslq_s32(fits, vcvtq_s32_f32(x), vdupq_n_s32(i32::MIN))
        }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: as in `each`.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}

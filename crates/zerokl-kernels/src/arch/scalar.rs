//! Plain Rust: the meaning of every lane operation, and what runs where no vector body exists.

use super::{Kernel, LANES, Lanes};

#[derive(Clone, Copy)]
pub struct Scalar([f32; LANES]);

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> Scalar {
    Scalar(std::array::from_fn(f))
}

#[inline(always)]
fn each_bits(f: impl Fn(usize) -> u32) -> Scalar {
    each(|i| f32::from_bits(f(i)))
}

impl Lanes for Scalar {
    type Mask = [bool; LANES];
    const REGISTERS: usize = LANES;

    #[inline(never)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Scalar([value; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Scalar(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn load_bits(from: &[u32; LANES]) -> Self {
        each_bits(|i| from[i])
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        each(|i| widen_f16(from[i]))
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        each_bits(|i| u32::from(from[i]) << 16)
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; LANES]) -> Self {
        each_bits(|i| u32::from(from[i]))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        each(|i| self.0[i] + other.0[i])
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        each(|i| self.0[i] - other.0[i])
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        each(|i| self.0[i] * other.0[i])
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        each(|i| self.0[i] / other.0[i])
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        each(|i| self.0[i].sqrt())
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        each(|i| self.0[i].mul_add(factor.0[i], addend.0[i]))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        each(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        each(|i| if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] })
    }

    #[inline(always)]
    fn less_than(self, other: Self) -> Self::Mask {
        std::array::from_fn(|i| self.0[i] < other.0[i])
    }
    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        std::array::from_fn(|i| self.0[i] == other.0[i])
    }
    #[inline(always)]
    fn first_lanes(count: usize) -> Self::Mask {
        std::array::from_fn(|i| i < count)
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        each(|i| if mask[i] { yes.0[i] } else { no.0[i] })
    }

    #[inline(always)]
    fn and_bits(self, bits: u32) -> Self {
        each_bits(|i| self.0[i].to_bits() & bits)
    }
    #[inline(always)]
    fn or_bits(self, bits: u32) -> Self {
        each_bits(|i| self.0[i].to_bits() | bits)
    }
    #[inline(always)]
    fn xor_bits(self, bits: u32) -> Self {
        each_bits(|i| self.0[i].to_bits() ^ bits)
    }
    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        each_bits(|i| self.0[i].to_bits().wrapping_add(other.0[i].to_bits()))
    }
    #[inline(always)]
    fn sub_bits(self, other: Self) -> Self {
        each_bits(|i| self.0[i].to_bits().wrapping_sub(other.0[i].to_bits()))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        each_bits(|i| self.0[i].to_bits() << N)
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        each_bits(|i| (self.0[i].to_bits().cast_signed() >> N).cast_unsigned())
    }
    #[inline(always)]
    fn shift_right_by(self, count: u32) -> Self {
        each_bits(|i| self.0[i].to_bits() >> count)
    }
    #[inline(always)]
    fn integer_to_float(self) -> Self {
        each(|i| self.0[i].to_bits().cast_signed() as f32)
    }
    #[inline(always)]
    fn float_to_integer(self) -> Self {
        let fits = |x: f32| x.abs() < 2_147_483_648.0;
        each_bits(|i| if fits(self.0[i]) { (self.0[i] as i32).cast_unsigned() } else { 1 << 31 })
    }
    #[inline(always)]
    fn look_up(self, table: Self) -> Self {
        each(|i| table.0[(self.0[i].to_bits() & 15) as usize])
    }
    #[inline(always)]
    fn dot_bytes(self, unsigned: Self, signed: Self) -> Self {
        each_bits(|i| {
            let (u, s) = (unsigned.0[i].to_bits().to_le_bytes(), signed.0[i].to_bits().to_le_bytes());
            let products = u.into_iter().zip(s).map(|(u, s)| i32::from(u) * i32::from(s.cast_signed()));
            self.0[i].to_bits().wrapping_add(products.sum::<i32>().cast_unsigned())
        })
    }
}

/// Exact f16 -> f32, as the F16C instruction does it.
#[inline(always)]
pub fn widen_f16(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    let magnitude = match exponent {
        // A subnormal is fraction * 2^-24, and both are exact in f32.
        0 => (fraction as f32 * 5.960_464_5e-8).to_bits(),
        0x1f if fraction == 0 => 0x7f80_0000,
        0x1f => 0x7fc0_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

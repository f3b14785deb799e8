//! AVX2, FMA and F16C: sixteen lanes are two registers of eight.

use std::arch::x86_64::*;

use super::avx2_blocks;
use super::{Kernel, LANES, Lanes, Line};

#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// Runs the body compiled for these features.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// The same, never part of another body.
///
/// # Safety
/// As `run`.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// An intrinsic that needs no more than the features of this file (and pointers into whole arrays).
macro_rules! avx2 {
    ($call:expr) => {
        // SAFETY: lanes of this type are made inside `run` only, so the features are there; pointers come from
        // references to arrays of sixteen, and unaligned loads and stores stay inside.
        unsafe { $call }
    };
}

/// Both halves through the same two-operand intrinsic.
macro_rules! pairwise {
    ($intrinsic:ident, $a:expr, $b:expr) => {
        avx2!(Avx2($intrinsic($a.0, $b.0), $intrinsic($a.1, $b.1)))
    };
}

impl Avx2 {
    #[inline(always)]
    fn map_bits(self, f: impl Fn(__m256i) -> __m256i) -> Self {
        avx2!(Avx2(
            _mm256_castsi256_ps(f(_mm256_castps_si256(self.0))),
            _mm256_castsi256_ps(f(_mm256_castps_si256(self.1))),
        ))
    }

    #[inline(always)]
    fn zip_bits(self, other: Self, f: impl Fn(__m256i, __m256i) -> __m256i) -> Self {
        avx2!(Avx2(
            _mm256_castsi256_ps(f(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0))),
            _mm256_castsi256_ps(f(_mm256_castps_si256(self.1), _mm256_castps_si256(other.1))),
        ))
    }
}

impl Lanes for Avx2 {
    type Mask = (__m256, __m256);
    const REGISTERS: usize = 2;
    const BF16_CHAINS: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        avx2!(run_apart(kernel))
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        avx2!({
            let half = _mm256_set1_ps(value);
            Avx2(half, half)
        })
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        avx2!(Avx2(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        avx2!({
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
        });
    }
    #[inline(always)]
    fn load_bits(from: &[u32; LANES]) -> Self {
        avx2!(Avx2(_mm256_loadu_ps(from.as_ptr().cast()), _mm256_loadu_ps(from.as_ptr().add(8).cast())))
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        avx2!(Avx2(
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ))
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        avx2!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast()));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        })
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; LANES]) -> Self {
        avx2!(Avx2(
            _mm256_castsi256_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))),
            _mm256_castsi256_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast()))),
        ))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        pairwise!(_mm256_add_ps, self, other)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        pairwise!(_mm256_sub_ps, self, other)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        pairwise!(_mm256_mul_ps, self, other)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        pairwise!(_mm256_div_ps, self, other)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        avx2!(Avx2(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        avx2!(Avx2(_mm256_fmadd_ps(self.0, factor.0, addend.0), _mm256_fmadd_ps(self.1, factor.1, addend.1)))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        pairwise!(_mm256_max_ps, self, other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        pairwise!(_mm256_min_ps, self, other)
    }

    #[inline(always)]
    fn less_than(self, other: Self) -> Self::Mask {
        avx2!((_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, other.1)))
    }
    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        avx2!((_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_EQ_OQ>(self.1, other.1)))
    }
    #[inline(always)]
    fn first_lanes(count: usize) -> Self::Mask {
        let numbers = Self::load(&[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.]);
        numbers.less_than(Self::splat(count.min(LANES) as f32))
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        avx2!(Avx2(_mm256_blendv_ps(no.0, yes.0, mask.0), _mm256_blendv_ps(no.1, yes.1, mask.1)))
    }

    #[inline(always)]
    fn and_bits(self, bits: u32) -> Self {
        self.map_bits(|x| avx2!(_mm256_and_si256(x, _mm256_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn or_bits(self, bits: u32) -> Self {
        self.map_bits(|x| avx2!(_mm256_or_si256(x, _mm256_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn xor_bits(self, bits: u32) -> Self {
        self.map_bits(|x| avx2!(_mm256_xor_si256(x, _mm256_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        self.zip_bits(other, |a, b| avx2!(_mm256_add_epi32(a, b)))
    }
    #[inline(always)]
    fn sub_bits(self, other: Self) -> Self {
        self.zip_bits(other, |a, b| avx2!(_mm256_sub_epi32(a, b)))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        self.map_bits(|x| avx2!(_mm256_slli_epi32::<N>(x)))
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        self.map_bits(|x| avx2!(_mm256_srai_epi32::<N>(x)))
    }
    #[inline(always)]
    fn shift_right_by(self, count: u32) -> Self {
        self.map_bits(|x| avx2!(_mm256_srl_epi32(x, _mm_cvtsi32_si128(count.cast_signed()))))
    }
    #[inline(always)]
    fn look_up(self, table: Self) -> Self {
        let one = |index: __m256| {
            avx2!({
                let index = _mm256_castps_si256(index);
                let (low, high) = (_mm256_permutevar8x32_ps(table.0, index), _mm256_permutevar8x32_ps(table.1, index));
                _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
            })
        };
        Avx2(one(self.0), one(self.1))
    }
    #[inline(always)]
    fn dot_bytes(self, unsigned: Self, signed: Self) -> Self {
        let products = unsigned.zip_bits(signed, |u, s| {
            avx2!({
                // In pairs of 16 bits: `maddubs` would saturate.
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(u), _mm256_srai_epi16::<8>(s));
                let even = _mm256_and_si256(u, _mm256_set1_epi16(0xff));
                _mm256_add_epi32(odd, _mm256_madd_epi16(even, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(s))))
            })
        });
        self.add_bits(products)
    }
    #[inline(always)]
    fn integer_to_float(self) -> Self {
        avx2!(Avx2(_mm256_cvtepi32_ps(_mm256_castps_si256(self.0)), _mm256_cvtepi32_ps(_mm256_castps_si256(self.1)),))
    }
    #[inline(always)]
    fn float_to_integer(self) -> Self {
        avx2!(Avx2(_mm256_castsi256_ps(_mm256_cvttps_epi32(self.0)), _mm256_castsi256_ps(_mm256_cvttps_epi32(self.1)),))
    }

    #[inline(always)]
    fn bf16_chains<const G: usize>(
        panels: [&[Line]; 3],
        x: &[[f32; G]],
        row: usize,
        ask: [[*const Line; 2]; 2],
        acc: &mut [[f32; LANES]; 12],
    ) {
        avx2!(avx2_blocks::bf16_chains(panels, x, row, ask, acc));
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        avx2!({
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        avx2!({
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}

//! AVX-512: sixteen lanes are one register.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Lanes};

/// DOTS: with VNNI.
#[derive(Clone, Copy)]
pub struct Avx512<const DOTS: bool>(__m512);

/// Runs the body compiled for these features.
///
/// # Safety
/// The machine must have AVX-512 F, VL, BW and DQ, and what `avx2::run` asks for.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
pub unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

/// The same, never part of another body.
///
/// # Safety
/// As `run`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
unsafe fn run_apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

/// The same with VNNI.
///
/// # Safety
/// As `run`, and AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn run_dots<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true>>()
}

/// An intrinsic that needs no more than the features of this file (and pointers into whole arrays or slices).
macro_rules! avx512 {
    ($call:expr) => {
        // SAFETY: lanes of this type are made inside `run` only, so the features are there; pointers come from
        // references to arrays of sixteen, or the mask is as long as the slice, so accesses stay inside.
        unsafe { $call }
    };
}

impl<const DOTS: bool> Avx512<DOTS> {
    #[inline(always)]
    fn bits(self) -> __m512i {
        avx512!(_mm512_castps_si512(self.0))
    }
    #[inline(always)]
    fn from_bits(bits: __m512i) -> Self {
        avx512!(Avx512(_mm512_castsi512_ps(bits)))
    }
}

impl<const DOTS: bool> Lanes for Avx512<DOTS> {
    type Mask = __mmask16;
    const REGISTERS: usize = 1;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        avx512!(run_apart(kernel))
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        avx512!(Avx512(_mm512_set1_ps(value)))
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        avx512!(Avx512(_mm512_loadu_ps(from.as_ptr())))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        avx512!(_mm512_storeu_ps(to.as_mut_ptr(), self.0));
    }
    #[inline(always)]
    fn load_bits(from: &[u32; LANES]) -> Self {
        avx512!(Avx512(_mm512_loadu_ps(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        avx512!(Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        avx512!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            Self::from_bits(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; LANES]) -> Self {
        avx512!(Self::from_bits(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn load_first(from: &[f32]) -> Self {
        assert!(from.len() <= LANES, "at most 16 lanes");
        avx512!(Avx512(_mm512_maskz_loadu_ps(Self::first_lanes(from.len()), from.as_ptr())))
    }
    #[inline(always)]
    fn store_first(self, to: &mut [f32]) {
        assert!(to.len() <= LANES, "at most 16 lanes");
        avx512!(_mm512_mask_storeu_ps(to.as_mut_ptr(), Self::first_lanes(to.len()), self.0));
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        avx512!(Avx512(_mm512_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        avx512!(Avx512(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        avx512!(Avx512(_mm512_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn less_than(self, other: Self) -> Self::Mask {
        avx512!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0))
    }
    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        avx512!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0))
    }
    #[inline(always)]
    fn first_lanes(count: usize) -> Self::Mask {
        ((1_u32 << count.min(LANES)) - 1) as u16
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        avx512!(Avx512(_mm512_mask_blend_ps(mask, no.0, yes.0)))
    }

    #[inline(always)]
    fn and_bits(self, bits: u32) -> Self {
        avx512!(Self::from_bits(_mm512_and_epi32(self.bits(), _mm512_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn or_bits(self, bits: u32) -> Self {
        avx512!(Self::from_bits(_mm512_or_epi32(self.bits(), _mm512_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn xor_bits(self, bits: u32) -> Self {
        avx512!(Self::from_bits(_mm512_xor_epi32(self.bits(), _mm512_set1_epi32(bits.cast_signed()))))
    }
    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        avx512!(Self::from_bits(_mm512_add_epi32(self.bits(), other.bits())))
    }
    #[inline(always)]
    fn sub_bits(self, other: Self) -> Self {
        avx512!(Self::from_bits(_mm512_sub_epi32(self.bits(), other.bits())))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        avx512!(Self::from_bits(_mm512_sll_epi32(self.bits(), _mm_cvtsi32_si128(N))))
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        avx512!(Self::from_bits(_mm512_sra_epi32(self.bits(), _mm_cvtsi32_si128(N))))
    }
    #[inline(always)]
    fn shift_right_by(self, count: u32) -> Self {
        avx512!(Self::from_bits(_mm512_srl_epi32(self.bits(), _mm_cvtsi32_si128(count.cast_signed()))))
    }
    #[inline(always)]
    fn look_up(self, table: Self) -> Self {
        avx512!(Avx512(_mm512_permutexvar_ps(self.bits(), table.0)))
    }
    #[inline(always)]
    fn dot_bytes(self, unsigned: Self, signed: Self) -> Self {
        let (u, s) = (unsigned.bits(), signed.bits());
        if DOTS {
            return avx512!(Self::from_bits(_mm512_dpbusd_epi32(self.bits(), u, s)));
        }
        avx512!({
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(u), _mm512_srai_epi16::<8>(s));
            let even = _mm512_and_si512(u, _mm512_set1_epi16(0xff));
            let even = _mm512_madd_epi16(even, _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(s)));
            Self::from_bits(_mm512_add_epi32(self.bits(), _mm512_add_epi32(odd, even)))
        })
    }
    #[inline(always)]
    fn integer_to_float(self) -> Self {
        avx512!(Avx512(_mm512_cvtepi32_ps(self.bits())))
    }
    #[inline(always)]
    fn float_to_integer(self) -> Self {
        avx512!(Self::from_bits(_mm512_cvttps_epi32(self.0)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        avx512!({
            let low = _mm512_castps512_ps256(self.0);
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            let eight = _mm256_add_ps(low, high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        avx512!({
            let low = _mm512_castps512_ps256(self.0);
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            let eight = _mm256_max_ps(low, high);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}

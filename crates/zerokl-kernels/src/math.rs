//! Our own elementary functions: the same bits on every machine, because they are IEEE operations in a fixed order.
//!
//! f32 over lanes: `exp2` (worst error 0.8 units in the last place), `exp` (1.0), `log2` (1.5); see `math/tests.rs`.
//! f64 on plain numbers, no fma: `sin_cos`, for rotary tables on the host. Polynomials in f32 are minimax fits.

use crate::arch::Lanes;

/// log2(e) as the sum of two f32.
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LOG2_E_TAIL: f32 = 1.925_963e-8;

/// Added and taken away again, it rounds to an integer, ties to even (for magnitudes below 2^22).
const ROUNDER: f32 = 12_582_912.0;

/// (2^f - 1) / f for |f| <= 1/2, within 2^-27.
const EXP2: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_031, 0.001_339_089, 0.000_154_697_61];

/// log2(1 + f) / f for sqrt(1/2) <= 1 + f <= sqrt(2), within 2^-27.8 of itself.
const LOG2: [f32; 10] = [
    LOG2_E,
    -0.721_347_33,
    0.480_898_23,
    -0.360_696_64,
    0.288_567_42,
    -0.239_617_3,
    0.204_600_32,
    -0.191_063_36,
    0.186_177_34,
    -0.109_951,
];

/// 2^x. Exact for whole x, subnormal results rounded once; -inf gives 0, above 128 gives inf, NaN gives NaN.
#[inline(always)]
pub fn exp2<L: Lanes>(x: L) -> L {
    // Beyond the ends the result is already 0 or inf; the constant first, so that a NaN passes.
    let x = L::splat(129.0).min(L::splat(-160.0).max(x));
    let whole = round(x);
    scale(exp2_fraction(x.sub(whole)), whole)
}

/// `exp2`, bit for bit, of x that is not above 0 (or is NaN): fewer operations.
#[inline(always)]
pub fn exp2_below_zero<L: Lanes>(x: L) -> L {
    // The integer's bits, raised by 192 = 127 + 65, are the exponent of 2^(whole + 65) when moved up: from 2^-95 to 2^65.
    const RAISED: f32 = ROUNDER + 192.0;
    let x = L::splat(-160.0).max(x);
    let raised = x.add(L::splat(RAISED));
    let whole = raised.sub(L::splat(RAISED));
    // Exact, and then the one rounding.
    let y = exp2_fraction(x.sub(whole)).mul(raised.shift_left::<23>());
    y.mul(L::splat(1.0 / 36_893_488_147_419_103_232.0))
}

/// e^x. As exp2, but x * log2(e) is carried in two parts, so the error does not grow with x.
#[inline(always)]
pub fn exp<L: Lanes>(x: L) -> L {
    let x = L::splat(90.0).min(L::splat(-110.0).max(x));
    let whole = round(x.mul(L::splat(LOG2_E)));
    let fraction = x.fma(L::splat(LOG2_E_TAIL), x.fma(L::splat(LOG2_E), whole.neg()));
    scale(exp2_fraction(fraction), whole)
}

/// log2(x). Exact at powers of two; 0 gives -inf, inf gives inf, below 0 and NaN give NaN.
#[inline(always)]
pub fn log2<L: Lanes>(x: L) -> L {
    let tiny = x.less_than(L::splat(f32::MIN_POSITIVE));
    let normal = L::select(tiny, x.mul(L::splat(8_388_608.0)), x);
    // exponent = floor(log2(normal / sqrt(1/2))), as an integer in the bits.
    let exponent = normal.sub_bits(L::splat(std::f32::consts::FRAC_1_SQRT_2)).shift_right::<23>();
    let fraction = normal.sub_bits(exponent.shift_left::<23>()).sub(L::splat(1.0));
    let exponent = exponent.integer_to_float();
    let exponent = L::select(tiny, exponent.sub(L::splat(23.0)), exponent);
    let y = fraction.fma(horner(fraction, &LOG2), exponent);

    let y = L::select(x.less_than(L::splat(f32::INFINITY)), y, x); // inf and NaN stay
    let y = L::select(x.less_than(L::zero()), L::splat(f32::NAN), y);
    L::select(x.equals(L::zero()), L::splat(f32::NEG_INFINITY), y)
}

/// The nearest integer, ties to even.
#[inline(always)]
fn round<L: Lanes>(x: L) -> L {
    x.add(L::splat(ROUNDER)).sub(L::splat(ROUNDER))
}

#[inline(always)]
fn exp2_fraction<L: Lanes>(f: L) -> L {
    f.fma(horner(f, &EXP2), L::splat(1.0))
}

/// c[0] + x * (c[1] + x * (...)), one fma per step from the last coefficient on.
#[inline(always)]
fn horner<L: Lanes, const N: usize>(x: L, coefficients: &[f32; N]) -> L {
    let mut y = L::splat(coefficients[N - 1]);
    for c in coefficients[..N - 1].iter().rev() {
        y = y.fma(x, L::splat(*c));
    }
    y
}

/// y * 2^whole for y near 1 and whole in [-160, 130]: two factors, of which only the second can round.
#[inline(always)]
fn scale<L: Lanes>(y: L, whole: L) -> L {
    let half = round(whole.mul(L::splat(0.5)));
    y.mul(power_of_two(half)).mul(power_of_two(whole.sub(half)))
}

/// 2^n for a whole n in [-126, 127]: 2^23 + 127 + n has 127 + n in its low bits, which move up to be the exponent.
#[inline(always)]
fn power_of_two<L: Lanes>(n: L) -> L {
    n.add(L::splat(8_388_735.0)).shift_left::<23>()
}

/// (sin x, cos x) for |x| < 2^31, within 2^-50 up to 2^20 and 2^-40 beyond. Plain f64 operations, no fma.
pub fn sin_cos(x: f64) -> (f64, f64) {
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let quarter = shifted - ROUNDER;
    let r = HALF_PI.iter().fold(x, |rest, part| rest - quarter * part);
    let square = r * r;
    let sin = r + r * square * taylor(square, &SIN);
    let cos = 1.0 + square * taylor(square, &COS);
    match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// pi / 2 in parts of 22 bits, so that a whole number below 2^31 times a part is exact; the last part is the rest.
const HALF_PI: [f64; 4] =
    [1.570_796_012_878_418, 3.139_164_164_167_596e-7, 6.223_371_969_669_989e-14, 2.022_266_248_795_950_6e-21];

/// -1/3!, 1/5!, -1/7!, ...: below pi/4 the first term left out is under 2^-63.
const SIN: [f64; 8] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
];

/// -1/2!, 1/4!, -1/6!, ...
const COS: [f64; 9] = [
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
    -1.0 / 6_402_373_705_728_000.0,
];

fn taylor(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |y, c| y * x + c)
}

#[cfg(test)]
mod tests;

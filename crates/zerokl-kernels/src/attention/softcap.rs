//! tanh, for capped scores.

use crate::arch::Lanes;
use crate::math;

/// (tanh(u) / u - 1) / u^2 in u^2, for |u| < 0.55: a minimax fit, within 2^-29.8 of tanh(u).
const SMALL: [f32; 5] = [-0.333_333_16, 0.133_325_86, -0.053_852_31, 0.021_071_678, -0.006_274_239_6];

/// tanh(u), odd to the bit: near 0 a polynomial, else (1 - t) / (1 + t) with t = exp2(|u| * f32(-2 log2 e)).
#[inline(always)]
pub fn tanh<L: Lanes>(u: L) -> L {
    let (size, square) = (u.abs(), u.mul(u));
    let polynomial = SMALL[..4].iter().rev().fold(L::splat(SMALL[4]), |y, c| y.fma(square, L::splat(*c)));
    let small = size.mul(square).fma(polynomial, size);
    let t = math::exp2_below_zero(size.mul(L::splat(-2.0 * std::f32::consts::LOG2_E)));
    let large = L::splat(1.0).sub(t).div(L::splat(1.0).add(t));
    let y = L::select(size.less_than(L::splat(0.55)), small, large);
    L::select(u.less_than(L::zero()), y.neg(), y)
}

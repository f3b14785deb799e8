//! One step of the matrix unit: an accumulator and sixteen products of bfloat16 numbers.
//!
//! ```text
//! e       the largest exponent of the accumulator and of the products, a product's being the sum of its factors'
//! cut     each of the seventeen to a multiple of 2^(e - 25), towards zero
//! sum     exactly, then cut to f32, towards zero
//! ```
//!
//! So do mma.sync and wgmma of the family, whatever the shape (MMA-Sim, arXiv 2511.10909, measured it on every
//! architecture; the known answers confirm it). Below 2^-100 nothing is kept of what lies 2^-25 below that.

use crate::arch::{LANES, Lanes};

/// Products per step.
pub const DEPTH: usize = 16;

const EXPONENT: u32 = 0x7f80_0000;
/// 2^-100: from here down exponents count as this one, so that scales are normal numbers.
const LEAST: u32 = 27 << 23;
/// The bits of 2^(25 - e), plus those of 2^e.
const TURNED: u32 = (25 + 2 * 127) << 23;
const KEPT: u32 = 25 << 23;

/// The same sixteen factors for all lanes, with their exponents.
pub struct Factors {
    x: [f32; DEPTH],
    powers: [f32; DEPTH],
}

impl Factors {
    /// At most sixteen; the others are zeros.
    #[inline(always)]
    pub fn of(numbers: &[f32]) -> Self {
        let mut x = [0.0; DEPTH];
        x[..numbers.len()].copy_from_slice(numbers);
        Factors { x, powers: x.map(|x| f32::from_bits(x.to_bits() & EXPONENT)) }
    }
}

/// Lane by lane: the accumulator after sixteen more products.
#[inline(always)]
pub fn step<L: Lanes>(accumulator: L, factors: &Factors, weights: &[L; DEPTH]) -> L {
    let mut largest = accumulator.and_bits(EXPONENT).max(L::splat_bits(LEAST));
    for (w, &power) in weights.iter().zip(&factors.powers) {
        largest = w.and_bits(EXPONENT).mul(L::splat(power)).max(largest);
    }
    let scale = L::splat_bits(TURNED).sub_bits(largest);
    // Two sums: seventeen numbers below 2^27 may need one bit more than there is.
    let mut sums = [L::zero(), accumulator.mul(scale).float_to_integer()];
    // A NaN or an infinity anywhere makes this a NaN; else it is zero.
    let mut poison = accumulator.mul(L::zero());
    for (k, (w, &x)) in weights.iter().zip(&factors.x).enumerate() {
        let product = w.mul(L::splat(x));
        poison = product.fma(L::zero(), poison);
        sums[k / (DEPTH / 2)] = sums[k / (DEPTH / 2)].add_bits(product.mul(scale).float_to_integer());
    }
    towards_zero(sums).mul(largest.sub_bits(L::splat_bits(KEPT))).add(poison)
}

/// The sum of two integers as the f32 next to it, towards zero.
#[inline(always)]
fn towards_zero<L: Lanes>([a, b]: [L; 2]) -> L {
    let low = a.and_bits(0xff).add_bits(b.and_bits(0xff));
    let high = a.shift_right::<8>().add_bits(b.shift_right::<8>()).add_bits(low.shift_right::<8>());
    let (high, low) = (high.integer_to_float().mul(L::splat(256.0)), low.and_bits(0xff).integer_to_float());
    let near = high.add(low);
    // What `near` lacks, exactly: where it points back to zero, `near` lies beyond the sum.
    let beyond = low.sub(near.sub(high)).mul(near).less_than(L::zero());
    near.sub_bits(L::select(beyond, L::splat_bits(1), L::splat_bits(0)))
}

/// As many steps as there are numbers; `weights(k)` are those of one k, and asked for below the numbers' count only.
#[inline(always)]
pub fn chain<L: Lanes>(accumulator: L, numbers: &[f32], weights: impl Fn(usize) -> L) -> L {
    let mut sum = accumulator;
    for first in (0..numbers.len()).step_by(DEPTH) {
        let part = &numbers[first..numbers.len().min(first + DEPTH)];
        let mut own = [L::zero(); DEPTH];
        own.iter_mut().zip(0..part.len()).for_each(|(own, k)| *own = weights(first + k));
        sum = step(sum, &Factors::of(part), &own);
    }
    sum
}

const _: () = assert!(LANES == DEPTH, "an array of lanes is one step's factors");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Isa, Kernel};
    use crate::linear::tests::numbers;

    /// Lane 0 of one step.
    struct Step<'a>(f32, &'a [f32], &'a [f32]);

    impl Kernel for Step<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<L: Lanes>(self) -> f32 {
            chain(L::splat(self.0), self.1, |k| L::splat(self.2[k])).to_array()[0]
        }
    }

    fn exponent(x: f32) -> i32 {
        (x.to_bits() >> 23 & 0xff) as i32 - 127
    }

    /// The same in wide integers; every number is a multiple of 2^-60.
    fn expected(accumulator: f32, x: &[f32], w: &[f32], kept: i32) -> f32 {
        let products = x.iter().zip(w).map(|(x, w)| (f64::from(*x) * f64::from(*w), exponent(*x) + exponent(*w)));
        let all: Vec<(f64, i32)> = products.chain([(f64::from(accumulator), exponent(accumulator))]).collect();
        let largest = all.iter().map(|(_, e)| *e).max().expect("there are some");
        let unit = 2.0_f64.powi(largest - kept);
        let sum: i128 = all.iter().map(|(value, _)| (value / unit).trunc() as i128).sum();
        let near = sum as f64 * unit;
        let rounded = near as f32;
        if f64::from(rounded).abs() > near.abs() { f32::from_bits(rounded.to_bits() - 1) } else { rounded }
    }

    /// Sixteen bfloat16 numbers over some powers of two.
    fn some(seed: u32, spread: i32) -> Vec<f32> {
        let spread = |(i, x): (usize, f32)| x * 2.0_f32.powi((i as i32 * 7 + seed as i32) % (2 * spread + 1) - spread);
        let narrow = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
        numbers(DEPTH, seed).into_iter().enumerate().map(spread).map(narrow).collect()
    }

    #[test]
    fn a_step_is_the_sum_in_integers_on_every_instruction_set() {
        let mut others = 0;
        for seed in 1..400 {
            let (x, w) = (some(seed, seed as i32 % 9), some(seed + 1000, seed as i32 % 5));
            let accumulator = numbers(1, seed + 2000)[0] * 2.0_f32.powi(seed as i32 % 24 - 12);
            let right = expected(accumulator, &x, &w, 25);
            others += u32::from(expected(accumulator, &x, &w, 24) != right);
            for isa in Isa::available() {
                assert_eq!(isa.run(Step(accumulator, &x, &w)).to_bits(), right.to_bits(), "{seed} {}", isa.name());
            }
        }
        assert!(others > 30, "one bit less is another sum: {others}");
    }

    #[test]
    fn the_largest_sum_has_room_and_cancelled_ones_are_zero() {
        let large = [1.992_187_5_f32; DEPTH];
        for isa in Isa::available() {
            for sign in [1.0, -1.0] {
                let accumulator = sign * 1.999_999_9;
                let w = large.map(|w| w * sign);
                assert_eq!(isa.run(Step(accumulator, &large, &w)), expected(accumulator, &large, &w, 25));
            }
            let w: Vec<f32> = (0..DEPTH).map(|k| if k % 2 == 0 { 1.5 } else { -1.5 }).collect();
            assert_eq!(isa.run(Step(0.0, &large, &w)).to_bits(), 0);
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let (ones, mut bad) = ([1.0; DEPTH], [0.0; DEPTH]);
        bad[3] = f32::NAN;
        for isa in Isa::available() {
            assert!(isa.run(Step(0.0, &bad, &ones)).is_nan());
            assert!(isa.run(Step(0.0, &ones, &bad)).is_nan());
            assert!(isa.run(Step(f32::INFINITY, &ones, &ones)).is_nan());
        }
    }
}

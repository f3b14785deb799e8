use super::*;
use crate::arch::{Isa, Kernel, LANES};

/// A function of one f32, over 16 lanes.
#[derive(Clone, Copy)]
enum Function {
    Exp2,
    Exp2BelowZero,
    Exp,
    Log2,
}

struct Apply(Function, [f32; LANES]);

impl Kernel for Apply {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<L: Lanes>(self) -> Self::Output {
        let x = L::load(&self.1);
        match self.0 {
            Function::Exp2 => exp2(x).to_array(),
            Function::Exp2BelowZero => exp2_below_zero(x).to_array(),
            Function::Exp => exp(x).to_array(),
            Function::Log2 => log2(x).to_array(),
        }
    }
}

fn one(function: Function, x: f32) -> f32 {
    Isa::best().run(Apply(function, [x; LANES]))[3]
}

/// Every 997th bit pattern: all exponents, both signs, infinities and NaNs among them.
fn patterns() -> impl Iterator<Item = [f32; LANES]> {
    let bits = (0..u32::MAX).step_by(997).chain([0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000]);
    let all: Vec<f32> = bits.map(f32::from_bits).collect();
    all.as_chunks::<LANES>().0.to_vec().into_iter()
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for function in [Function::Exp2, Function::Exp, Function::Log2] {
        for x in patterns().step_by(61) {
            let expected = Isa::Scalar.run(Apply(function, x)).map(f32::to_bits);
            for isa in Isa::available() {
                assert_eq!(isa.run(Apply(function, x)).map(f32::to_bits), expected, "{} {x:?}", isa.name());
            }
        }
    }
}

#[test]
fn exp2_below_zero_gives_the_bits_of_exp2() {
    let edges = (0..=1300).flat_map(|i| [-127.0 - i as f32 / 32.0, -i as f32 / 8.0]);
    let edges: Vec<f32> = edges.chain([-0.0, f32::NEG_INFINITY, f32::MIN, -1e-45, f32::NAN, -f32::NAN]).collect();
    let edges: Vec<[f32; LANES]> = edges.chunks(LANES).map(|x| std::array::from_fn(|i| x[i % x.len()])).collect();
    for x in patterns().step_by(5).chain(edges) {
        // A NaN keeps its bits; a number above 0 isn't asked for.
        let x = x.map(|x| if x > 0.0 { -x } else { x });
        for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
            let [expected, found] =
                [Function::Exp2, Function::Exp2BelowZero].map(|function| isa.run(Apply(function, x)));
            assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits), "{} {x:?}", isa.name());
        }
    }
}

/// The worst error in units in the last place of the result, against f64.
fn worst_error(function: Function, exact: impl Fn(f64) -> f64) -> f64 {
    let mut worst = 0.0_f64;
    for x in patterns() {
        for (x, y) in x.iter().zip(Isa::best().run(Apply(function, x))) {
            let expected = exact(f64::from(*x));
            let rounded = expected as f32;
            if !rounded.is_finite() || rounded == 0.0 {
                assert!(y == rounded || (y.is_nan() && rounded.is_nan()), "{x:e}: {y:e} for {rounded:e}");
                continue;
            }
            let unit = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
            worst = worst.max((f64::from(y) - expected).abs() / unit);
        }
    }
    worst
}

#[test]
fn errors_stay_within_what_is_promised() {
    let exp2_error = worst_error(Function::Exp2, f64::exp2);
    let exp_error = worst_error(Function::Exp, f64::exp);
    let log2_error = worst_error(Function::Log2, f64::log2);
    println!("units in the last place: exp2 {exp2_error:.3}, exp {exp_error:.3}, log2 {log2_error:.3}");
    assert!(exp2_error < 1.0 && exp_error < 1.0 && log2_error < 1.5);
}

#[test]
fn special_values_are_right() {
    assert_eq!(one(Function::Exp2, f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(one(Function::Exp2, f32::INFINITY), f32::INFINITY);
    assert_eq!(one(Function::Exp2, 128.0), f32::INFINITY);
    assert_eq!(one(Function::Exp2, -149.0).to_bits(), 1);
    assert!(one(Function::Exp2, f32::NAN).is_nan());
    assert_eq!(one(Function::Exp, f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(one(Function::Exp, 0.0), 1.0);
    assert_eq!(one(Function::Log2, 0.0), f32::NEG_INFINITY);
    assert_eq!(one(Function::Log2, -0.0), f32::NEG_INFINITY);
    assert_eq!(one(Function::Log2, f32::INFINITY), f32::INFINITY);
    assert!(one(Function::Log2, -1.0).is_nan() && one(Function::Log2, f32::NAN).is_nan());
    for exponent in -126..=127 {
        let power = 2f32.powi(exponent);
        assert_eq!(one(Function::Exp2, exponent as f32), power);
        assert_eq!(one(Function::Log2, power), exponent as f32);
    }
    assert_eq!(one(Function::Log2, f32::from_bits(1)), -149.0);
}

#[test]
fn sine_and_cosine_agree_with_the_platform_at_all_sizes() {
    let mut x = 1e-8_f64;
    while x < 2e9 {
        for x in [x, -x] {
            let (sin, cos) = sin_cos(x);
            let bound = if x.abs() < 1e6 { 1e-15 } else { 1e-12 };
            assert!((sin - x.sin()).abs() < bound && (cos - x.cos()).abs() < bound, "{x}");
        }
        x *= 1.0137;
    }
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
}

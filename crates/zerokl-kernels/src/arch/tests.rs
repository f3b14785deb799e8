//! Every lane operation gives the scalar body's bits on every instruction set of this machine.

use super::*;

/// Ordinary numbers, both zeros, subnormals, extremes, infinities, a NaN: three vectors' worth.
fn samples() -> Vec<[f32; LANES]> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-40,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.1,
        -3.5,
        8_388_607.5,
        1e-30,
    ];
    let mut state = 12345_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits((state & 0x87ff_ffff) | 0x3000_0000)
    };
    let mut rows = vec![special];
    let mut rotated = special;
    rotated.rotate_left(5);
    rows.push(rotated);
    rows.extend((0..6).map(|_| std::array::from_fn(|_| random())));
    rows
}

struct AllOperations<'a>(&'a [[f32; LANES]]);

impl Kernel for AllOperations<'_> {
    type Output = Vec<u32>;
    const DOTS: bool = true;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<u32> {
        let mut out: Vec<u32> = Vec::new();
        for a in self.0 {
            for b in self.0 {
                for c in &self.0[..3] {
                    operations::<L>(a, b, c, &mut out);
                }
            }
        }
        out
    }
}

#[inline(always)]
fn operations<L: Lanes>(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES], out: &mut Vec<u32>) {
    let (x, y, z) = (L::load(a), L::load(b), L::load(c));
    let halves: [u16; LANES] = std::array::from_fn(|i| (a[i].to_bits() >> 16) as u16 ^ (i as u16));
    let results = [
        x.add(y),
        x.sub(y),
        x.mul(y),
        x.div(y),
        x.sqrt(),
        x.fma(y, z),
        x.max(y),
        x.min(y),
        L::select(x.less_than(y), x, z),
        L::select(x.equals(y), y, z),
        L::select(L::first_lanes(5), x, y),
        L::select(L::first_lanes(16), x, y),
        L::select(L::first_lanes(99), x, y),
        L::select(L::first_lanes(0), x, y),
        x.and_bits(0x7f80_0000),
        x.or_bits(1),
        x.xor_bits(0x8000_0001),
        x.add_bits(y),
        x.sub_bits(y),
        x.shift_right_by(4),
        x.shift_right_by(0),
        x.look_up(y),
        x.dot_bytes(y, z),
        L::load_bytes(&std::array::from_fn(|i| (a[i].to_bits() >> 13) as u8)),
        x.shift_left::<9>(),
        x.shift_right::<23>(),
        x.integer_to_float(),
        x.float_to_integer(),
        x.neg(),
        x.abs(),
        L::load_bits(&a.map(f32::to_bits)),
        L::load_f16(&halves),
        L::load_bf16(&halves),
        L::splat(a[3]),
        L::load_first(&a[..7]),
        L::zero(),
    ];
    for result in results {
        out.extend(result.to_array().map(canonical));
    }
    out.extend([x.sum(), x.largest()].map(canonical));
    let mut tail = [9.0; 9];
    x.store_first(&mut tail[..8]);
    out.extend(tail.map(canonical));
}

/// Which NaN an operation makes is the machine's affair (an x86 product of two NaNs keeps the first); that it is a NaN is ours.
fn canonical(value: f32) -> u32 {
    if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }
}

#[test]
fn every_instruction_set_gives_the_scalar_bits() {
    let samples = samples();
    let expected = Isa::Scalar.run(AllOperations(&samples));
    for isa in Isa::available().flat_map(|isa| [isa, isa.plain()]) {
        assert!(isa.run(AllOperations(&samples)) == expected, "{isa:?}");
    }
}

#[test]
fn f16_widens_exactly_for_all_patterns() {
    struct Widen([u16; LANES]);
    impl Kernel for Widen {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self) -> Self::Output {
            L::load_f16(&self.0).to_array()
        }
    }
    let value = |half: u16| {
        let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            0x1f => f64::INFINITY,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        };
        if half >> 15 == 1 { -magnitude } else { magnitude }
    };
    for isa in Isa::available() {
        for start in (0..=u16::MAX).step_by(LANES) {
            let halves = std::array::from_fn(|i| start + i as u16);
            for (half, wide) in halves.iter().zip(isa.run(Widen(halves))) {
                if half & 0x7c00 == 0x7c00 && half & 0x3ff != 0 {
                    assert!(wide.is_nan());
                } else {
                    assert_eq!(f64::from(wide).to_bits(), value(*half).to_bits(), "{half:#x}");
                }
            }
        }
    }
}

#[test]
fn strict_floats_undoes_flush_to_zero_and_puts_it_back() {
    #[cfg(target_arch = "x86_64")]
    {
        let subnormal = std::hint::black_box(1e-40_f32);
        // As bits: with flushed inputs even a comparison takes a subnormal for zero.
        let halved = || std::hint::black_box(std::hint::black_box(subnormal) * 0.5).to_bits();
        let exact = halved();
        assert_ne!(exact, 0);
        float_mode::with_flush_to_zero(|| {
            assert_eq!(halved(), 0, "the planted mode flushes");
            assert_eq!(strict_floats(halved), exact);
            assert_eq!(halved(), 0, "and is put back");
        });
        assert_eq!(halved(), exact);
    }
}

#[test]
fn the_best_instruction_set_comes_first_and_scalar_always_exists() {
    assert_eq!(Isa::best(), Isa::available().next().unwrap());
    assert_eq!(Isa::named("scalar"), Some(Isa::Scalar));
    assert_eq!(Isa::named("mmx"), None);
}

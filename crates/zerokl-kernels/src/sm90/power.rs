//! ex2.approx.ftz.f32: 2^x by quadratic interpolation in integers, as the chip's function unit does it.
//!
//! ```text
//! x       cut to a whole number and 23 bits of a fraction in [0, 1); below zero the bits' complement, one less
//! piece   the fraction's first 6 bits choose (c0, c1, c2), the other 17 are d
//! 2^f     c0 * 2^32 + c1 * d * 2^19 + c2 * square(d) + ROUNDER, of which 23 bits below 2^57 are kept
//! square  of d, without the partial products below 2^19
//! ```
//!
//! Numbers too small to be normal are zero. The structure is Oberman and Siu's (ARITH 2005). An H200 gave all 2^23
//! fractions: each piece's three integers are the only ones that fit.

/// 2^x.
pub fn power(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x >= 128.0 {
        return f32::INFINITY;
    }
    let whole = x.trunc();
    let bits = ((x - whole).abs() * FRACTION as f32) as u32;
    let (whole, bits) = if x < 0.0 && bits > 0 { (whole - 1.0, FRACTION - 1 - bits) } else { (whole, bits) };
    if whole < -126.0 {
        return 0.0;
    }
    f32::from_bits(((whole as i32 + 127).cast_unsigned() << 23) | fraction(bits))
}

const FRACTION: u32 = 1 << 23;
const ROUNDER: u64 = 0x6fc4 << 18;

/// The last 23 bits of 2^(bits / 2^23).
fn fraction(bits: u32) -> u32 {
    let (piece, d) = ((bits >> 17) as usize, u64::from(bits & 0x1_ffff));
    let [c0, c1, c2] = PIECES[piece].map(u64::from);
    let sum = (c0 << 32) + ((c1 * d) << 19) + c2 * square(d) + ROUNDER;
    (sum >> 34) as u32 & (FRACTION - 1)
}

/// x * x without the partial products below 2^19.
fn square(x: u64) -> u64 {
    const KEPT: u64 = !0x7_ffff;
    let mut sum = 0;
    for i in 0..17 {
        if x >> i & 1 == 1 {
            // The bit itself, and twice its product with every bit above it.
            let above = x >> (i + 1) << (i + 1);
            sum += ((1_u64 << (2 * i)) & KEPT) + ((above << (i + 1)) & KEPT);
        }
    }
    sum
}

const PIECES: [[u32; 3]; 64] = [
    [0x2000002, 0x58b9, 0x1ee],
    [0x2059349, 0x59b0, 0x1f5],
    [0x20b361d, 0x5aaa, 0x1fa],
    [0x210e8a4, 0x5ba7, 0x1ff],
    [0x216ab11, 0x5ca6, 0x206],
    [0x21c7d88, 0x5da9, 0x209],
    [0x222603b, 0x5eae, 0x20f],
    [0x2285358, 0x5fb6, 0x214],
    [0x22e570b, 0x60c0, 0x21d],
    [0x2346b80, 0x61ce, 0x222],
    [0x23a90e7, 0x62df, 0x227],
    [0x240c774, 0x63f2, 0x22f],
    [0x2470f50, 0x6509, 0x234],
    [0x24d68af, 0x6623, 0x238],
    [0x253d3c2, 0x673f, 0x241],
    [0x25a50b8, 0x685f, 0x247],
    [0x260dfc4, 0x6982, 0x24d],
    [0x2678119, 0x6aa8, 0x254],
    [0x26e34e8, 0x6bd2, 0x258],
    [0x274fb69, 0x6cfe, 0x261],
    [0x27bd4cb, 0x6e2e, 0x267],
    [0x282c147, 0x6f61, 0x26e],
    [0x289c10d, 0x7098, 0x273],
    [0x290d458, 0x71d2, 0x279],
    [0x297fb5c, 0x730f, 0x281],
    [0x29f3650, 0x7450, 0x287],
    [0x2a6856c, 0x7594, 0x28f],
    [0x2ade8e9, 0x76dc, 0x295],
    [0x2b560fd, 0x7827, 0x29e],
    [0x2bcede4, 0x7976, 0x2a5],
    [0x2c48fd9, 0x7ac8, 0x2ae],
    [0x2cc4712, 0x7c1f, 0x2b3],
    [0x2d413ce, 0x7d79, 0x2bb],
    [0x2dbf64a, 0x7ed7, 0x2c1],
    [0x2e3eec0, 0x8038, 0x2cb],
    [0x2ebfd6c, 0x819e, 0x2d1],
    [0x2f42290, 0x8307, 0x2da],
    [0x2fc5e69, 0x8474, 0x2e3],
    [0x304b136, 0x85e5, 0x2ec],
    [0x30d1b35, 0x875b, 0x2f1],
    [0x3159caa, 0x88d4, 0x2fb],
    [0x31e35d5, 0x8a51, 0x305],
    [0x326e6f9, 0x8bd3, 0x30b],
    [0x32fb056, 0x8d59, 0x313],
    [0x3389232, 0x8ee3, 0x31c],
    [0x3418cd1, 0x9071, 0x326],
    [0x34aa078, 0x9204, 0x32d],
    [0x353cd6c, 0x939b, 0x336],
    [0x35d13f6, 0x9536, 0x341],
    [0x3667459, 0x96d6, 0x34a],
    [0x36feee0, 0x987b, 0x351],
    [0x37983d5, 0x9a24, 0x35a],
    [0x383337f, 0x9bd1, 0x366],
    [0x38cfe29, 0x9d84, 0x36d],
    [0x396e41e, 0x9f3b, 0x377],
    [0x3a0e5ac, 0xa0f7, 0x380],
    [0x3ab031f, 0xa2b7, 0x38d],
    [0x3b53cc3, 0xa47d, 0x395],
    [0x3bf92e9, 0xa648, 0x39d],
    [0x3ca05df, 0xa817, 0x3aa],
    [0x3d495f7, 0xa9ec, 0x3b2],
    [0x3df4381, 0xabc5, 0x3bf],
    [0x3ea0ece, 0xada4, 0x3c9],
    [0x3f4f833, 0xaf88, 0x3d4],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_that_an_h200_gave() {
        let powers = (0..FRACTION).step_by(7).map(|i| power(i as f32 / FRACTION as f32 - 1.0).to_bits());
        let digest = powers.fold(0_u64, |digest, bits| digest.wrapping_mul(31).wrapping_add(u64::from(bits)));
        assert_eq!(digest, 0x71bf_842f_f4ee_a363);
    }

    #[test]
    fn the_ends_are_exact() {
        for (x, y) in [(0.0, 1.0), (-0.0, 1.0), (-1.0, 0.5), (7.0, 128.0), (-126.0, f32::MIN_POSITIVE), (-127.0, 0.0)] {
            assert_eq!(power(x).to_bits(), y.to_bits(), "{x}");
        }
        assert_eq!((power(f32::NEG_INFINITY), power(200.0), power(-1e-9)), (0.0, f32::INFINITY, 1.0));
        assert!(power(f32::NAN).is_nan());
    }
}

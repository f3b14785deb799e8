//! Gumbel noise of (seed, stream, position, id): the same for an id whatever else is in the row or the batch.

use super::Draw;
use crate::arch::{LANES, Lanes};
use crate::math;

/// Ids whose noise is made together: 16 counter blocks of 4 words.
pub const WIDTH: usize = 4 * LANES;

/// No noise reaches this: the highest is -log(2^-33) = 22.87.
pub const HIGHEST: f32 = 24.0;

/// A stream of noise, one number per id.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
    position: u32,
    stream: u32,
}

impl Noise {
    pub fn of(draw: &Draw<'_>) -> Self {
        let key = [draw.seed as u32, (draw.seed >> 32) as u32];
        Noise { key, position: draw.position, stream: draw.stream }
    }

    /// Of ids `first_id .. first_id + WIDTH`; `first_id` is a multiple of WIDTH.
    #[inline(always)]
    pub fn block<L: Lanes>(&self, first_id: usize) -> [f32; WIDTH] {
        let mut noise = [0.0; WIDTH];
        let words = self.words(first_id as u32 / 4);
        for (to, words) in noise.as_chunks_mut::<LANES>().0.iter_mut().zip(words.as_chunks::<LANES>().0) {
            gumbel::<L>(words).store(to);
        }
        noise
    }

    /// 16 counter blocks from `first_block` on; their words in the order of ids.
    #[inline(always)]
    fn words(&self, first_block: u32) -> [u32; WIDTH] {
        let blocks = std::array::from_fn(|i| first_block + i as u32);
        let counter = [blocks, [self.position; LANES], [self.stream; LANES], [0; LANES]];
        let by_word = philox(counter, self.key);
        std::array::from_fn(|i| by_word[i % 4][i / 4])
    }
}

/// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011) on 16 counters at once.
#[inline(always)]
fn philox(mut counter: [[u32; LANES]; 4], mut key: [u32; 2]) -> [[u32; LANES]; 4] {
    for _ in 0..10 {
        let mut next = [[0; LANES]; 4];
        for i in 0..LANES {
            let first = u64::from(counter[0][i]) * 0xD251_1F53;
            let second = u64::from(counter[2][i]) * 0xCD9E_8D57;
            next[0][i] = (second >> 32) as u32 ^ counter[1][i] ^ key[0];
            next[1][i] = second as u32;
            next[2][i] = (first >> 32) as u32 ^ counter[3][i] ^ key[1];
            next[3][i] = first as u32;
        }
        counter = next;
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// -log(E), E = -log(u), u = (r + 1/2) / 2^32.
///
/// `h` is u or 1 - u, whichever is below 1/2. If it is 1 - u, then log(u) = log(w) + error / w with w = 1 - h as
/// rounded and error = (1 - w) - h, both exact: the tail of likely winners (u near 1) keeps all its 32 bits.
#[inline(always)]
fn gumbel<L: Lanes>(words: &[u32; LANES]) -> L {
    let (mut w, mut error) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..LANES {
        let is_low = words[i] < 1 << 31;
        let magnitude = if is_low { words[i] } else { !words[i] };
        let h = (magnitude.cast_signed() as f32 + 0.5) * (0.5 / (1_u32 << 31) as f32);
        w[i] = if is_low { h } else { 1.0 - h };
        error[i] = if is_low { 0.0 } else { (1.0 - w[i]) - h };
    }
    let (w, error, ln_2) = (L::load(&w), L::load(&error), L::splat(std::f32::consts::LN_2));
    let exponential = math::log2(w).mul(ln_2).neg().sub(error.div(w));
    math::log2(exponential).mul(ln_2).neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Isa;

    /// The known answers that the authors published with their code (Random123, kat_vectors).
    #[test]
    fn philox_gives_the_published_answers() {
        let ones = u32::MAX;
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            let found = philox(counter.map(|word| [word; LANES]), key);
            assert_eq!(found.map(|words| words[5]), expected);
        }
    }

    struct Gumbel([u32; LANES]);

    impl crate::arch::Kernel for Gumbel {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self) -> Self::Output {
            gumbel::<L>(&self.0).to_array()
        }
    }

    #[test]
    fn noise_is_exact_to_the_last_word_at_both_ends_and_below_its_bound() {
        let middle = 1_u32 << 31;
        for first in [0, middle - 8, u32::MAX - 15, u32::MAX - 5000] {
            let words = std::array::from_fn(|i| first + i as u32);
            for isa in Isa::available() {
                for (word, noise) in words.iter().zip(isa.run(Gumbel(words))) {
                    let rest = (f64::from(!word) + 0.5) / 4_294_967_296.0; // 1 - u
                    let expected = -(-(-rest).ln_1p()).ln();
                    assert!((f64::from(noise) - expected).abs() < 4e-6, "{} {word}: {noise} {expected}", isa.name());
                    assert!(noise < HIGHEST - 1.0);
                }
            }
        }
    }
}

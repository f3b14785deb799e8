//! NVFP4: e2m1 numbers of four bits, a scale of type e4m3 for each 16 neighbouring k.
//!
//! ```text
//! w = e2m1(code) * e4m3(scale)     exact, even in bf16; the scale of the whole matrix is applied to the finished chain
//! ```

use super::Stored;
use super::fp8::{widen, widen_top};
use super::gguf::Nibbles;
use crate::arch::{LANES, Lanes};

/// The k that share a scale.
pub const BLOCK: usize = 16;

/// By code: bit 3 is the sign.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub struct Nvfp4 {
    scales: [u8; LANES],
    codes: Nibbles<2>,
}

impl Nvfp4 {
    /// One output's block: two codes per byte, the low one first, and their scale.
    pub fn fill(&mut self, lane: usize, codes: &[u8], scale: u8) {
        self.scales[lane] = scale;
        for (i, byte) in codes.iter().enumerate() {
            self.codes.set(2 * i, lane, byte & 15);
            self.codes.set(2 * i + 1, lane, byte >> 4);
        }
    }
}

impl Stored for Nvfp4 {
    const STEP: usize = BLOCK;
    const WORD: usize = 4;
    type Scales<L: Lanes> = L;
    #[inline(always)]
    fn scales<L: Lanes>(&self, _: usize) -> L {
        widen_top(L::load_bytes(&self.scales).shift_left::<24>())
    }
    #[inline(always)]
    fn word<L: Lanes>(&self, index: usize) -> L {
        self.codes.quad(index)
    }
    #[inline(always)]
    fn number<L: Lanes>(word: &mut L, _: usize, scale: L) -> L {
        let number = word.look_up(L::load(&E2M1)).mul(scale);
        *word = word.shift_right::<8>();
        number
    }
    fn get(&self, k: usize, lane: usize) -> f32 {
        E2M1[usize::from(self.codes.get(k, lane))] * widen(self.scales[lane])
    }
}

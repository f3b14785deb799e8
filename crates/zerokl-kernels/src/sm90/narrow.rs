//! Rounded to bfloat16, and kept as f32: to the nearest, ties to even; too large becomes inf, a NaN stays one.

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::tiles::rows_per_task;

/// In place.
pub fn narrow(cpu: Cpu, numbers: &mut [f32]) {
    cpu.for_chunks(numbers, rows_per_task(1), |_, numbers| cpu.run(Narrow(numbers)));
}

struct Narrow<'a>(&'a mut [f32]);

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        self.0.chunks_mut(LANES).for_each(|x| narrowed(L::load_first(x)).store_first(x));
    }
}

/// `formats::round_to_bf16`, widened.
#[inline(always)]
pub fn narrowed<L: Lanes>(x: L) -> L {
    const KEPT: u32 = 0xffff_0000;
    // Half of the last kept place, less one if that place is even: ties fall to the even neighbour.
    let odd = x.shift_right_by(16).and_bits(1);
    let rounded = x.add_bits(L::splat_bits(0x7fff)).add_bits(odd).and_bits(KEPT);
    L::select(x.equals(x), rounded, x.or_bits(0x0040_0000).and_bits(KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Isa;
    use crate::formats::{round_to_bf16, widen_bf16};

    #[test]
    fn every_instruction_set_rounds_as_the_cache_does() {
        let ties = (0..=u16::MAX).map(|bits| u32::from(bits) << 16 | 0x8000);
        let any = (0..u32::MAX).step_by(9_973).chain([0x7f80_0001, 0xffff_ffff, 0x7fff_ffff]);
        let x: Vec<f32> = ties.chain(any).map(f32::from_bits).collect();
        let expected: Vec<u32> = x.iter().map(|&x| widen_bf16(round_to_bf16(x)).to_bits()).collect();
        for isa in Isa::available() {
            let mut y = x.clone();
            narrow(Cpu { isa, threads: 2 }, &mut y);
            assert!(y.iter().map(|y| y.to_bits()).eq(expected.iter().copied()), "{}", isa.name());
        }
    }
}

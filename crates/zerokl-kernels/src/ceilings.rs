//! What the machine can do at most: the two lines of a roofline, drawn with the lanes and threads that kernels use.

use std::hint::black_box;

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;

/// Floats of one piece of `read`: 256 KiB, so that threads take turns and none is left with a long rest.
const PIECE: usize = 1 << 16;

/// Reads every number once. The caller takes the time; data far larger than the caches shows the memory's rate.
pub fn read(cpu: Cpu, data: &[f32]) {
    cpu.parallel_for(data.len().div_ceil(PIECE), |piece| {
        let data = &data[piece * PIECE..];
        black_box(cpu.run(Sum { data: &data[..data.len().min(PIECE)] }));
    });
}

/// Runs `rounds` rounds of independent multiply-adds in registers on every thread; returns how many floating-point
/// operations that were, a multiply-add being two.
pub fn multiply_add(cpu: Cpu, rounds: usize) -> usize {
    cpu.parallel_for(cpu.threads, |_| {
        black_box(cpu.run(Chains { rounds }));
    });
    cpu.threads * rounds * CHAINS * LANES * 2
}

struct Sum<'a> {
    data: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let mut sums = [L::zero(); 4];
        let (blocks, _) = self.data.as_chunks::<{ 4 * LANES }>();
        for block in blocks {
            for (sum, lanes) in sums.iter_mut().zip(block.as_chunks::<LANES>().0) {
                *sum = sum.add(L::load(lanes));
            }
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

/// Enough to hide the latency of a multiply-add (4 cycles, two units); in 12 registers of the machine at most.
const CHAINS: usize = 12;

struct Chains {
    rounds: usize,
}

impl Kernel for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let (factor, addend) = (L::splat(black_box(0.5)), L::splat(black_box(0.25)));
        match L::REGISTERS {
            1 => chains::<L, CHAINS>(self.rounds, factor, addend),
            _ => chains::<L, { CHAINS / 2 }>(2 * self.rounds, factor, addend),
        }
    }
}

#[inline(always)]
fn chains<L: Lanes, const N: usize>(rounds: usize, factor: L, addend: L) -> f32 {
    let mut values = [factor; N];
    for _ in 0..rounds {
        for value in &mut values {
            *value = value.fma(factor, addend);
        }
    }
    values.iter().fold(L::zero(), |sum, value| sum.add(*value)).sum()
}

//! Sums of leaves: a balanced binary tree, folded as the leaves come.
//!
//! ```text
//! leaf        0     1     2     3     4          a sum waits on the level of the subtree that it completes
//!             └──+──┘     └──+──┘     │          after leaf i the levels of the set bits of i + 1 wait
//!                └─────+─────┘        │          leaves that are missing at the end: their sibling passes through
//!                      └───────+──────┘
//! ```

use std::ops::Range;

use super::Epilogue;
use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::tiles::rows_per_task;

/// The sum of leaves, or of neighbouring subtrees of one size, that lie apart; then bias and residual.
pub fn fold(cpu: Cpu, parts: &[&[f32]], width: usize, epilogue: Epilogue<'_>, out: &mut [f32]) {
    assert!(!parts.is_empty() && parts.len() <= 1 << (MOST_LEVELS - 1), "some parts, and not too many");
    assert!(parts.iter().all(|part| part.len() == out.len()), "parts of one size");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() == width), "one bias per output");
    assert!(epilogue.residual.is_none_or(|residual| residual.len() == out.len()), "a residual per output");
    let rows = rows_per_task(width);
    cpu.for_chunks(out, (rows * width).max(1), |index, out| {
        let first = index * rows * width;
        cpu.run(Fold { parts, width, epilogue, first, out });
    });
}

/// 64 parts.
const MOST_LEVELS: usize = 7;

struct Fold<'a> {
    parts: &'a [&'a [f32]],
    width: usize,
    epilogue: Epilogue<'a>,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let last = self.parts.len() - 1;
        let Epilogue { bias, residual } = self.epilogue;
        for (row, out) in self.out.chunks_mut(self.width).enumerate() {
            for (number, out) in out.chunks_mut(LANES).enumerate() {
                let column = number * LANES;
                let place = self.first + row * self.width + column;
                let mut waiting = [L::zero(); MOST_LEVELS];
                let mut sum = L::zero();
                for (leaf, part) in self.parts.iter().enumerate() {
                    sum = L::load_first(&part[place..place + out.len()]);
                    let completes = if leaf < last { (1 << leaf.trailing_ones()) - 1 } else { leaf };
                    for (level, left) in waiting.iter().enumerate() {
                        if completes >> level & 1 == 1 {
                            sum = left.add(sum);
                        }
                    }
                    waiting[leaf.trailing_ones() as usize] = sum;
                }
                if let Some(bias) = bias {
                    sum = sum.add(L::load_first(&bias[column..column + out.len()]));
                }
                if let Some(residual) = residual {
                    sum = sum.add(L::load_first(&residual[place..place + out.len()]));
                }
                sum.store_first(out);
            }
        }
    }
}

/// How many levels wait at most, if the last leaf is this one.
pub fn levels(last: usize) -> usize {
    (usize::BITS - last.leading_zeros()) as usize
}

/// Sums of `area` elements that wait, level by level, in a slice of its own.
#[derive(Clone, Copy)]
pub struct Tree {
    pub area: usize,
}

impl Tree {
    /// Leaf `leaf` of some neighbouring elements is done.
    #[inline(always)]
    pub fn put<L: Lanes>(self, waiting: &mut [f32], leaf: usize, mut sum: L, elements: Range<usize>) {
        let completed = leaf.trailing_ones() as usize;
        for level in 0..completed {
            sum = self.left::<L>(waiting, level, &elements).add(sum);
        }
        sum.store_first(&mut waiting[completed * self.area..][elements]);
    }

    /// The whole sum, `leaf` being the last.
    #[inline(always)]
    pub fn fold<L: Lanes>(self, waiting: &[f32], leaf: usize, mut sum: L, elements: Range<usize>) -> L {
        for level in (0..levels(leaf)).filter(|level| leaf >> level & 1 == 1) {
            sum = self.left::<L>(waiting, level, &elements).add(sum);
        }
        sum
    }

    #[inline(always)]
    fn left<L: Lanes>(self, waiting: &[f32], level: usize, elements: &Range<usize>) -> L {
        L::load_first(&waiting[level * self.area..][elements.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cpus, numbers};
    use super::*;
    use crate::formats::Format;
    use crate::linear::{leaf, linear};
    use crate::matrix::{Matrix, Source};

    /// The tree as it is defined: halves of a power of two, an empty half passing the other through.
    fn tree(leaves: &[f32], width: usize) -> Option<f32> {
        match (leaves.len(), width) {
            (0, _) => None,
            (1, 1) => Some(leaves[0]),
            _ => {
                let (left, right) = leaves.split_at(leaves.len().min(width / 2));
                match (tree(left, width / 2), tree(right, width / 2)) {
                    (Some(left), Some(right)) => Some(left + right),
                    (left, right) => left.or(right),
                }
            }
        }
    }

    fn chain(x: &[f32], w: &[f32]) -> f32 {
        x.iter().zip(w).fold(0.0_f32, |acc, (x, w)| x.mul_add(*w, acc))
    }

    /// Depths: leaves of equal and of unequal length, one longer than a block of K. Counts: all, and some missing.
    #[test]
    fn every_isa_and_shape_folds_the_leaves_by_the_tree() {
        let cuts: [&[usize]; 6] =
            [&[16, 32], &[48, 80, 112, 130], &[16, 32, 40], &[16, 32, 48, 64, 80], &[1600, 3200, 3216], &[7]];
        for ends in cuts {
            let (outputs, depth, width) = (37, ends[ends.len() - 1], ends.len().next_power_of_two());
            let matrix =
                Matrix::pack(Cpu::detect(), Source::F32(&numbers(outputs * depth, 7)), outputs, depth, Format::Bf16);
            let matrix = matrix.in_leaves(ends.to_vec());
            let stored = matrix.to_f32();
            for rows in [1, 3, 13, 30] {
                let (x, bias, residual) = (numbers(rows * depth, 1), numbers(outputs, 2), numbers(rows * outputs, 3));
                let leaves_of = |m: usize, n: usize| -> Vec<f32> {
                    let starts = std::iter::once(0).chain(ends.iter().copied());
                    let part = |(start, &end): (usize, &usize)| {
                        chain(&x[m * depth + start..m * depth + end], &stored[n * depth + start..n * depth + end])
                    };
                    starts.zip(ends).map(part).collect()
                };
                let each = |m: usize| (0..outputs).map(move |n| (m, n));
                let all: Vec<(usize, usize)> = (0..rows).flat_map(each).collect();
                let expected: Vec<u32> = all
                    .iter()
                    .map(|&(m, n)| {
                        let sum = tree(&leaves_of(m, n), width).expect("some leaf");
                        (sum + bias[n] + residual[m * outputs + n]).to_bits()
                    })
                    .collect();
                let epilogue = Epilogue { bias: Some(&bias), residual: Some(&residual) };
                for cpu in cpus() {
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(cpu, &x, &matrix, epilogue, &mut out);
                    assert!(out.iter().map(|y| y.to_bits()).eq(expected.iter().copied()), "{ends:?} {rows} {cpu:?}");
                    let parts: Vec<Vec<f32>> = (0..ends.len())
                        .map(|number| {
                            let start = if number == 0 { 0 } else { ends[number - 1] };
                            let part: Vec<f32> =
                                x.chunks(depth).flat_map(|row| row[start..ends[number]].to_vec()).collect();
                            let mut out = vec![f32::NAN; rows * outputs];
                            leaf(cpu, &part, &matrix, number, &mut out);
                            out
                        })
                        .collect();
                    let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
                    let mut out = vec![f32::NAN; rows * outputs];
                    fold(cpu, &parts, outputs, epilogue, &mut out);
                    assert!(
                        out.iter().map(|y| y.to_bits()).eq(expected.iter().copied()),
                        "fold {ends:?} {rows} {cpu:?}"
                    );
                }
            }
        }
    }
}

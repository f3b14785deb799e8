//! The rows of x as the register blocks read them: in groups, each stored k by k.
//!
//! ```text
//! 27 rows = groups of 12, 12, 2, 1; a group of G is [K][G], so that a block reads one short array per k
//! 40 rows = groups of 12, 12, 8, 8: of 16 at the end of a tile, equal halves are fastest
//! ```

use std::cell::RefCell;

use crate::arch::transpose_4x4;
use crate::cpu::Cpu;

/// Rows of a full group.
pub const GROUP: usize = 12;

/// Rows of a tile: whole groups, so that tiles cut between them.
pub const TILE_ROWS: usize = 2 * GROUP;

thread_local! {
    /// The rows of the current call, kept between calls so that nothing is allocated per step.
    static INTERLEAVED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The rows of a matrix [N, K], all of them or those that are picked, in that order.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub x: &'a [f32],
    /// K.
    pub depth: usize,
    pub picked: Option<&'a [usize]>,
}

impl<'a> Rows<'a> {
    pub fn all(x: &'a [f32], depth: usize) -> Self {
        Rows { x, depth, picked: None }
    }

    pub fn count(&self) -> usize {
        self.picked.map_or(self.x.len() / self.depth.max(1), <[usize]>::len)
    }

    /// One after the other.
    pub fn gathered(&self) -> Vec<f32> {
        (0..self.count()).flat_map(|index| self.row(index)).copied().collect()
    }

    #[inline(always)]
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.x[self.picked.map_or(index, |picked| picked[index]) * self.depth..][..self.depth]
    }
}

/// Calls `run` with the rows, interleaved.
pub fn with_interleaved<R>(cpu: Cpu, rows: Rows<'_>, run: impl FnOnce(&[f32]) -> R) -> R {
    if rows.count() == 1 {
        return run(rows.row(0));
    }
    INTERLEAVED.with_borrow_mut(|scratch| {
        let length = rows.count() * rows.depth;
        if scratch.len() < length {
            scratch.resize(length, 0.0);
        }
        let out = &mut scratch[..length];
        interleave(cpu, rows, out);
        run(out)
    })
}

/// How many of a tile's rows that are left the next register block takes.
#[inline(always)]
pub fn group_size(left: usize) -> usize {
    match left {
        16 => 8,
        GROUP.. => GROUP,
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

fn interleave(cpu: Cpu, rows: Rows<'_>, out: &mut [f32]) {
    let depth = rows.depth;
    cpu.for_chunks(out, (TILE_ROWS * depth).max(1), |index, mut chunk| {
        let mut first = index * TILE_ROWS;
        while !chunk.is_empty() {
            let group = group_size(chunk.len() / depth);
            let (to, rest) = chunk.split_at_mut(group * depth);
            match group {
                GROUP => transpose::<GROUP>(rows, first, to),
                8 => transpose::<8>(rows, first, to),
                4 => transpose::<4>(rows, first, to),
                2 => transpose::<2>(rows, first, to),
                _ => to.copy_from_slice(rows.row(first)),
            }
            (first, chunk) = (first + group, rest);
        }
    });
}

/// R rows, from `start` on, to one array of R per k, in squares of 4 by 4. (An element at a time
/// cost as much as an eighth of the product.)
fn transpose<const R: usize>(from: Rows<'_>, start: usize, to: &mut [f32]) {
    let depth = from.depth;
    let from: [&[f32]; R] = std::array::from_fn(|r| from.row(start + r));
    let (squares, whole) = (depth / 4, depth / 4 * 4);
    for first in (0..R / 4 * 4).step_by(4) {
        let rows: [&[[f32; 4]]; 4] = std::array::from_fn(|r| from[first + r].as_chunks().0);
        let [a, b, c, d] = rows.map(|row| &row[..squares]);
        for (square, to) in to.chunks_exact_mut(4 * R).enumerate() {
            let (a, b, c, d) = (&a[square], &b[square], &c[square], &d[square]);
            for (to, column) in to.chunks_exact_mut(R).zip(transpose_4x4([a, b, c, d])) {
                to[first..first + 4].copy_from_slice(&column);
            }
        }
    }
    for r in 0..R {
        let done = if r < R / 4 * 4 { whole } else { 0 };
        for k in done..depth {
            to[k * R + r] = from[r][k];
        }
    }
}

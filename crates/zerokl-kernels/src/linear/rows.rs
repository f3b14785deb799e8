//! The rows of x as the register blocks read them: in groups, each stored k by k.
//!
//! ```text
//! 27 rows = groups of 12, 12, 2, 1; a group of G is [K][G], so that a block reads one short array per k
//! ```

use std::cell::RefCell;

use crate::cpu::Cpu;

/// Rows of a full group.
pub const GROUP: usize = 12;

thread_local! {
    /// The rows of the current call, kept between calls so that nothing is allocated per step.
    static INTERLEAVED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `run` with the rows of x, interleaved.
pub fn with_interleaved<R>(cpu: Cpu, x: &[f32], rows: usize, run: impl FnOnce(&[f32]) -> R) -> R {
    if rows <= 1 {
        return run(x);
    }
    INTERLEAVED.with_borrow_mut(|scratch| {
        if scratch.len() < x.len() {
            scratch.resize(x.len(), 0.0);
        }
        let out = &mut scratch[..x.len()];
        interleave(cpu, x, x.len() / rows, out);
        run(out)
    })
}

/// How many of the rows left the next register block takes.
#[inline(always)]
pub fn group_size(left: usize) -> usize {
    match left {
        GROUP.. => GROUP,
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

fn interleave(cpu: Cpu, x: &[f32], depth: usize, out: &mut [f32]) {
    cpu.for_chunks(out, (GROUP * depth).max(1), |index, mut chunk| {
        let mut rows = &x[index * GROUP * depth..][..chunk.len()];
        while !chunk.is_empty() {
            let group = group_size(chunk.len() / depth);
            let (from, rest) = rows.split_at(group * depth);
            let (to, rest_to) = chunk.split_at_mut(group * depth);
            match group {
                GROUP => transpose::<GROUP>(from, to),
                8 => transpose::<8>(from, to),
                4 => transpose::<4>(from, to),
                2 => transpose::<2>(from, to),
                _ => to.copy_from_slice(from),
            }
            (rows, chunk) = (rest, rest_to);
        }
    });
}

/// R rows to one array of R per k, in squares of 4 by 4, which the compiler turns into shuffles. (An element at a time
/// cost as much as an eighth of the product.)
fn transpose<const R: usize>(from: &[f32], to: &mut [f32]) {
    let depth = from.len() / R;
    let (squares, whole) = (depth / 4, depth / 4 * 4);
    for first in (0..R / 4 * 4).step_by(4) {
        let rows: [&[[f32; 4]]; 4] = std::array::from_fn(|r| from[(first + r) * depth..][..depth].as_chunks().0);
        let [a, b, c, d] = rows.map(|row| &row[..squares]);
        for (square, to) in to.chunks_exact_mut(4 * R).enumerate() {
            let (a, b, c, d) = (a[square], b[square], c[square], d[square]);
            for k in 0..4 {
                to[k * R + first..][..4].copy_from_slice(&[a[k], b[k], c[k], d[k]]);
            }
        }
    }
    for r in 0..R {
        let done = if r < R / 4 * 4 { whole } else { 0 };
        for k in done..depth {
            to[k * R + r] = from[r * depth + k];
        }
    }
}

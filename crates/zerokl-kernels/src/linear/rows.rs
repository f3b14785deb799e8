//! The rows of x as the register blocks read them: in groups, each stored k by k.
//!
//! ```text
//! 27 rows = groups of 12, 12, 4; a group of G is [K][G], so that a block reads one short array per k
//! 40 rows = groups of 12, 12, 8, 8: of 16 at the end of a tile, equal halves are fastest
//! ```
//!
//! A group that rows don't fill repeats the last one, and nobody looks at what becomes of that: 7 rows as a group of 8 take
//! 8.2 ms where groups of 4, 2 and 1 took 18, and each size is a body to compile.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arch::{prefetch_line, transpose_4x4};
use crate::cpu::Cpu;

/// Rows of a full group.
pub const GROUP: usize = 12;

/// Rows of a tile: whole groups, so that tiles cut between them.
pub const TILE_ROWS: usize = 2 * GROUP;

thread_local! {
    /// The rows of the current call, kept between calls so that nothing is allocated per step.
    static INTERLEAVED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// The same of a call's few rows, and which call it was.
    static OWN: RefCell<(u64, Vec<f32>)> = const { RefCell::new((0, Vec::new())) };
}

/// How many calls there were with few rows.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The rows of a call, for its tasks.
pub enum Interleaved<'a> {
    Done(&'a [f32]),
    /// Each thread does it for itself: two threads have few rows sooner so than one has them for both.
    Own {
        rows: Rows<'a>,
        call: u64,
    },
}

impl Interleaved<'_> {
    pub fn with<R>(&self, run: impl FnOnce(&[f32]) -> R) -> R {
        match *self {
            Interleaved::Done(rows) => run(rows),
            Interleaved::Own { rows, call } => OWN.with_borrow_mut(|(done, numbers)| {
                let length = room(rows.count()) * rows.depth;
                if *done != call {
                    numbers.resize(numbers.len().max(length), 0.0);
                    interleave_tile(rows, 0, &mut numbers[..length]);
                    *done = call;
                }
                run(&numbers[..length])
            }),
        }
    }
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
pub fn with_interleaved<R>(cpu: Cpu, rows: Rows<'_>, run: impl FnOnce(&Interleaved<'_>) -> R) -> R {
    if rows.count() == 1 {
        return run(&Interleaved::Done(rows.row(0)));
    }
    if rows.count() <= TILE_ROWS {
        return run(&Interleaved::Own { rows, call: CALLS.fetch_add(1, Relaxed) + 1 });
    }
    INTERLEAVED.with_borrow_mut(|scratch| {
        let length = room(rows.count()) * rows.depth;
        if scratch.len() < length {
            scratch.resize(length, 0.0);
        }
        let out = &mut scratch[..length];
        interleave(cpu, rows, out);
        run(&Interleaved::Done(out))
    })
}

/// How many rows the next register block has room for, of a tile of which so many are left.
#[inline(always)]
pub fn group_size(left: usize) -> usize {
    match left {
        1 => 1,
        2..=4 => 4,
        5..=8 | 13..=16 => 8,
        _ => GROUP,
    }
}

/// Rows that all groups have room for.
pub fn room(rows: usize) -> usize {
    let last = rows % TILE_ROWS;
    let mut filled = 0;
    while filled < last {
        filled += group_size(last - filled);
    }
    rows - last + filled
}

fn interleave(cpu: Cpu, rows: Rows<'_>, out: &mut [f32]) {
    let depth = rows.depth;
    cpu.for_chunks(out, (TILE_ROWS * depth).max(1), |index, to| interleave_tile(rows, index * TILE_ROWS, to));
}

/// The rows of one tile, from `first` on.
fn interleave_tile(rows: Rows<'_>, mut first: usize, mut to: &mut [f32]) {
    let end = rows.count().min(first + TILE_ROWS);
    while first < end {
        let group = group_size(end - first);
        let (part, rest) = to.split_at_mut(group * rows.depth);
        match group {
            GROUP => transpose::<GROUP>(rows, first, part),
            8 => transpose::<8>(rows, first, part),
            4 => transpose::<4>(rows, first, part),
            _ => part.copy_from_slice(rows.row(first)),
        }
        (first, to) = (first + group, rest);
    }
}

/// R rows (4, 8 or 12), from `start` on, to one array of R per k: a cache line of each row after the other, in squares of
/// 4 by 4. (An element at a time cost as much as an eighth of the product; four whole rows at a time, a third more than
/// this.)
fn transpose<const R: usize>(from: Rows<'_>, start: usize, to: &mut [f32]) {
    let last = from.count() - 1;
    let rows: [&[f32]; R] = std::array::from_fn(|r| from.row((start + r).min(last)));
    let next: [&[f32]; R] = std::array::from_fn(|r| from.row((start + R + r).min(last)));
    let lines: [&[[[f32; 4]; LINE / 4]]; R] = std::array::from_fn(|r| rows[r].as_chunks().0.as_chunks().0);
    let count = from.depth / LINE;
    for (line, to) in to.chunks_exact_mut(LINE * R).enumerate() {
        let ahead = line + LINES_AHEAD;
        for (row, next) in rows.iter().zip(&next) {
            let (row, line) = if ahead < count { (row, ahead) } else { (next, ahead - count) };
            prefetch_line(row.as_ptr().wrapping_add(line * LINE));
        }
        for first in (0..R).step_by(4) {
            let quad: [&[[f32; 4]; LINE / 4]; 4] = std::array::from_fn(|r| &lines[first + r][line]);
            for (square, to) in to.chunks_exact_mut(4 * R).enumerate() {
                let columns = transpose_4x4(std::array::from_fn(|r| &quad[r][square]));
                for (to, column) in to.chunks_exact_mut(R).zip(columns) {
                    to[first..first + 4].copy_from_slice(&column);
                }
            }
        }
    }
    for k in count * LINE..from.depth {
        for r in 0..R {
            to[k * R + r] = rows[r][k];
        }
    }
}

/// f32 of a cache line.
const LINE: usize = 16;
/// Lines of each row that are asked for ahead: picked rows lie anywhere, and each starts on another page.
const LINES_AHEAD: usize = 4;

#[test]
fn groups_have_room_for_all_rows_and_for_few_more() {
    for rows in 0..200 {
        assert!((rows..rows + 4).contains(&room(rows)), "{rows} in {}", room(rows));
    }
}

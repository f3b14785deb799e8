//! Outputs cut in pieces, each lent to one task of the pool: how kernels write in parallel without `unsafe`.

use std::marker::PhantomData;
use std::ops::Range;

use crate::pool::{parallel_for, parallel_ranges};

/// `task(i, chunk)` for each run of `length` elements (the last may be shorter).
pub fn for_chunks<T: Send>(threads: usize, out: &mut [T], length: usize, task: impl Fn(usize, &mut [T]) + Sync) {
    let width = out.len();
    for_tiles(threads, out, width, 1, length, |tile| {
        let index = tile.columns.start / length;
        task(index, tile.row(0));
    });
}

/// Rows of `width` elements that make a task worth waking another thread for: a few microseconds of light work.
pub fn rows_per_task(width: usize) -> usize {
    (16_384 / width.max(1)).max(1)
}

/// A row-major matrix of `width` columns, cut in tiles of `tile_rows` by `tile_columns` (less at the right and
/// bottom edges). `task` runs once per tile; tiles below each other are neighbours in time.
pub fn for_tiles<T: Send>(
    threads: usize,
    out: &mut [T],
    width: usize,
    tile_rows: usize,
    tile_columns: usize,
    task: impl Fn(&mut Tile<'_, T>) + Sync,
) {
    if out.is_empty() {
        return;
    }
    assert!(tile_rows > 0 && tile_columns > 0, "tiles have an area");
    assert!(out.len().is_multiple_of(width), "whole rows");
    let rows = out.len() / width;
    let (down, across) = (rows.div_ceil(tile_rows), width.div_ceil(tile_columns));
    let base = Base(out.as_mut_ptr());
    parallel_for(threads, down * across, |index| {
        let (row, column) = (index % down * tile_rows, index / down * tile_columns);
        let mut tile = Tile {
            base: base.get(),
            width,
            rows: row..(row + tile_rows).min(rows),
            columns: column..(column + tile_columns).min(width),
            lent: PhantomData,
        };
        task(&mut tile);
    });
}

/// As `for_tiles`, with the columns of tiles given: rising, apart from each other. `task` gets their number too. A thread
/// has neighbouring columns.
pub fn for_cut_tiles<T: Send>(
    threads: usize,
    out: &mut [T],
    width: usize,
    tile_rows: usize,
    columns: &[Range<usize>],
    task: impl Fn(usize, &mut Tile<'_, T>) + Sync,
) {
    if out.is_empty() {
        return;
    }
    assert!(columns.iter().all(|cut| cut.start <= cut.end && cut.end <= width), "columns of the matrix");
    assert!(columns.windows(2).all(|pair| pair[0].end <= pair[1].start), "columns apart from each other");
    assert!(tile_rows > 0 && out.len().is_multiple_of(width), "whole rows");
    let rows = out.len() / width;
    let down = rows.div_ceil(tile_rows);
    let base = Base(out.as_mut_ptr());
    parallel_ranges(threads, down * columns.len(), |index| {
        let (row, cut) = (index % down * tile_rows, index / down);
        let mut tile = Tile {
            base: base.get(),
            width,
            rows: row..(row + tile_rows).min(rows),
            columns: columns[cut].clone(),
            lent: PhantomData,
        };
        task(cut, &mut tile);
    });
}

/// One task's part of a matrix: no other tile shares an element with it.
pub struct Tile<'a, T> {
    base: *mut T,
    width: usize,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    lent: PhantomData<&'a mut [T]>,
}

impl<'a, T> Tile<'a, T> {
    /// A slice in the place of this part of a matrix: a task's own scratch, addressed as the whole would be.
    pub fn over(part: &'a mut [T], rows: Range<usize>, columns: Range<usize>) -> Self {
        assert_eq!(part.len(), rows.len() * columns.len(), "rows times columns");
        let before = rows.start * columns.len() + columns.start;
        Tile { base: part.as_mut_ptr().wrapping_sub(before), width: columns.len(), rows, columns, lent: PhantomData }
    }

    /// The tile's columns of one of its rows, by the row's number in the whole matrix.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row of another tile");
        let start = self.base.wrapping_add(row * self.width + self.columns.start);
        // SAFETY: the row lies inside the borrowed slice: `for_tiles` cut it there, `over` has as many as it needs.
        // Tiles don't overlap, each index of `parallel_for` runs once, and `&mut self` lends one row at a time.
        unsafe { std::slice::from_raw_parts_mut(start, self.columns.len()) }
    }
}

/// The start of the lent slice, on its way to the tasks.
struct Base<T>(*mut T);

impl<T> Base<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: it is only used to make tiles, which are disjoint; their elements may move between threads (T: Send).
unsafe impl<T: Send> Sync for Base<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_a_matrix_once() {
        for (rows, width, tile_rows, tile_columns) in [(1, 1, 1, 1), (5, 7, 2, 3), (4, 8, 4, 8), (3, 10, 100, 4)] {
            let mut out = vec![0_u32; rows * width];
            for_tiles(3, &mut out, width, tile_rows, tile_columns, |tile| {
                for row in tile.rows.clone() {
                    let first = row * width + tile.columns.start;
                    for (i, cell) in tile.row(row).iter_mut().enumerate() {
                        *cell += (first + i) as u32 + 1;
                    }
                }
            });
            assert_eq!(out, (1..=(rows * width) as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn given_columns_are_covered_once_and_others_not_at_all() {
        let mut out = vec![0; 3 * 10];
        for_cut_tiles(2, &mut out, 10, 2, &[1..4, 4..5, 8..10], |cut, tile| {
            tile.rows.clone().for_each(|row| tile.row(row).iter_mut().for_each(|cell| *cell += cut + 1));
        });
        assert_eq!(out, [0, 1, 1, 1, 2, 0, 0, 0, 3, 3].repeat(3));
    }

    #[test]
    #[should_panic(expected = "columns apart from each other")]
    fn columns_that_overlap_are_no_tiles() {
        for_cut_tiles(1, &mut [0; 4], 4, 1, &[0..3, 2..4], |_, _| ());
    }

    #[test]
    fn chunks_are_numbered_in_order_and_the_last_is_short() {
        let mut out = vec![0; 10];
        for_chunks(2, &mut out, 4, |index, chunk| chunk.fill((index, chunk.len()).0 * 10 + chunk.len()));
        assert_eq!(out, [4, 4, 4, 4, 14, 14, 14, 14, 22, 22]);
    }

    #[test]
    fn scratch_in_the_place_of_a_tile_is_filled_row_by_row() {
        let mut scratch = [0; 6];
        let mut tile = Tile::over(&mut scratch, 5..7, 10..13);
        for row in 5..7 {
            tile.row(row).fill(row);
        }
        assert_eq!(scratch, [5, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn an_empty_output_has_no_tiles() {
        for_tiles(2, &mut [] as &mut [f32], 0, 1, 1, |_| panic!("no tile"));
    }

    #[test]
    #[should_panic(expected = "row of another tile")]
    fn a_tile_lends_only_its_own_rows() {
        for_tiles(1, &mut [0.0; 4], 2, 1, 2, |tile| tile.row(1 - tile.rows.start)[0] = 1.0);
    }
}

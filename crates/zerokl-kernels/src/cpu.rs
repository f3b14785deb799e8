//! What a kernel is given to run with. Neither choice moves a bit; both are only speed.

use std::ops::Range;

use crate::arch::{Isa, Kernel};
use crate::tiles::{self, Tile};

/// An instruction set that this machine has, and how many threads may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub isa: Isa,
    pub threads: usize,
}

impl Cpu {
    /// The best instruction set, and as many threads as this process may use.
    pub fn detect() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Cpu { isa: Isa::best(), threads }
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        self.isa.run(kernel)
    }

    /// `task(i)` once for each `i < count`: see `pool::parallel_for`.
    pub fn parallel_for(self, count: usize, task: impl Fn(usize) + Sync) {
        crate::pool::parallel_for(self.threads, count, task);
    }

    /// See `tiles::for_chunks`.
    pub fn for_chunks<T: Send>(self, out: &mut [T], length: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        tiles::for_chunks(self.threads, out, length, task);
    }

    /// See `tiles::for_tiles`.
    pub fn for_tiles<T: Send>(
        self,
        out: &mut [T],
        width: usize,
        tile_rows: usize,
        tile_columns: usize,
        task: impl Fn(&mut Tile<'_, T>) + Sync,
    ) {
        tiles::for_tiles(self.threads, out, width, tile_rows, tile_columns, task);
    }

    /// See `tiles::for_cut_tiles`.
    pub fn for_cut_tiles<T: Send>(
        self,
        out: &mut [T],
        width: usize,
        tile_rows: usize,
        columns: &[Range<usize>],
        task: impl Fn(usize, &mut Tile<'_, T>) + Sync,
    ) {
        tiles::for_cut_tiles(self.threads, out, width, tile_rows, columns, task);
    }
}

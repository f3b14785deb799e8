//! Which kernel computes a tile: by the shard's format, and by whether there is more than one row.

use std::cell::RefCell;
use std::ops::Range;

use super::exact::{Exact, Next};
use super::integer::{Integer, Rounded};
use super::rows::{Interleaved, Rows, with_interleaved};
use super::tile::{Multiply, Outcome, TileProduct};
use super::unpack::{DEPTH, Group, Unpack, UnpackCodes};
use super::{Epilogue, Part};
use crate::cpu::Cpu;
use crate::formats::gguf::Codes;
use crate::formats::{F32Piece, Stored};
use crate::matrix::{Cut, Matrix, PANEL, Panels, Shard, with_panels};
use crate::tiles::Tile;

/// The rows of x, as the shards of one matrix want them.
pub struct Inputs<'a> {
    weight: &'a Matrix,
    part: &'a Part<'a>,
    interleaved: &'a Interleaved<'a>,
    rounded: &'a Rounded,
}

thread_local! {
    /// The rounded rows of the current call.
    static ROUNDED: RefCell<Rounded> = RefCell::default();
    /// What a task unpacks.
    static NUMBERS: RefCell<Vec<F32Piece>> = const { RefCell::new(Vec::new()) };
    static LONG: RefCell<Vec<Group<32, false>>> = const { RefCell::new(Vec::new()) };
    static OFFSET: RefCell<Vec<Group<32, true>>> = const { RefCell::new(Vec::new()) };
    static SHORT: RefCell<Vec<Group<16, false>>> = const { RefCell::new(Vec::new()) };
}

pub fn with_inputs<R>(
    cpu: Cpu,
    x: Rows<'_>,
    part: &Part<'_>,
    weight: &Matrix,
    run: impl FnOnce(&Inputs<'_>) -> R,
) -> R {
    ROUNDED.with_borrow_mut(|rounded| {
        if weight.is_integer() {
            rounded.fill(cpu, x);
        }
        let rounded = &*rounded;
        if weight.shards.iter().all(|shard| shard.integer) {
            return run(&Inputs { weight, part, interleaved: &Interleaved::Done(&[]), rounded });
        }
        with_interleaved(cpu, x, |interleaved| run(&Inputs { weight, part, interleaved, rounded }))
    })
}

impl Inputs<'_> {
    /// The outputs of a shard that a tile covers. `skipped`: panels between the cut and what this thread goes on with.
    pub fn product(&self, cpu: Cpu, cut: &Cut<'_>, skipped: isize, epilogue: Epilogue<'_>, tile: &mut Tile<'_, f32>) {
        let (shard, first) = (cut.shard, cut.first);
        let mut task = Task { cpu, inputs: self, shard, first, skipped, epilogue, tile };
        if !shard.integer {
            return with_panels!(&shard.panels, panels => self.interleaved.with(|x| task.exact(x, panels)));
        }
        match &shard.panels {
            Panels::Q4_0(panels) => LONG.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q5_0(panels) => LONG.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q8_0(panels) => LONG.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q4_1(panels) => OFFSET.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q5_1(panels) => OFFSET.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q4K(panels) => OFFSET.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q5K(panels) => OFFSET.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            Panels::Q6K(panels) => SHORT.with_borrow_mut(|scratch| task.integer(panels, scratch)),
            _ => unreachable!("only block types are integer"),
        }
    }
}

/// One tile's work.
struct Task<'a, 'o> {
    cpu: Cpu,
    inputs: &'a Inputs<'a>,
    shard: &'a Shard,
    first: usize,
    skipped: isize,
    epilogue: Epilogue<'a>,
    tile: &'a mut Tile<'o, f32>,
}

impl Task<'_, '_> {
    fn exact<W: Stored>(&mut self, x: &[f32], panels: &[W]) {
        let (depth, given) = (self.depth(), self.inputs.part.k.clone());
        if W::SHARED || self.tile.rows.len() == 1 {
            let next = Next { end: self.panels().end, skipped: self.skipped };
            return self.run(Exact { x, given: given.clone(), panels, first: 0, held: 0..depth, next }, given);
        }
        NUMBERS.with_borrow_mut(|scratch| {
            for k in blocks(depth) {
                let (cpu, wanted) = (self.cpu, self.panels());
                let to = lend(scratch, wanted.len() * k.len());
                cpu.run(Unpack { panels, depth, wanted: wanted.clone(), k: k.clone(), to });
                let (panels, first, next) = (&*to, wanted.start, Next::default());
                let factors = Exact { x, given: 0..depth, panels, first, held: k.clone(), next };
                self.run(factors, k);
            }
        });
    }

    fn integer<C: Codes, const LENGTH: usize, const OFFSET: bool>(
        &mut self,
        panels: &[C],
        scratch: &mut Vec<Group<LENGTH, OFFSET>>,
    ) {
        assert!(C::GROUP == LENGTH && C::OFFSET == OFFSET, "groups as the type has them");
        let (x, depth, zero) = (self.inputs.rounded, self.depth(), C::ZERO);
        if self.tile.rows.len() == 1 {
            return self.run(Integer { x, panels, first: 0, held: 0..depth, zero }, 0..depth);
        }
        for k in blocks(depth) {
            let (cpu, wanted) = (self.cpu, self.panels());
            let to = lend(scratch, wanted.len() * k.len() / LENGTH);
            cpu.run(UnpackCodes { panels, depth, wanted: wanted.clone(), k: k.clone(), to });
            self.run(Integer { x, panels: &*to, first: wanted.start, held: k.clone(), zero }, k);
        }
    }

    /// All of the part's leaves, or a block of the only one.
    fn run(&mut self, factors: impl Multiply, k: Range<usize>) {
        let Part { k: all, leaves } = self.inputs.part;
        let (resumes, finishes) = (k.start > all.start, k.end == all.end);
        let ends = [k.end];
        let leaves = if resumes || !finishes { &ends } else { *leaves };
        let (outputs, first, scale) = (self.inputs.weight.rows, self.first, &self.shard.scale);
        let (epilogue, tile) = (self.epilogue, &mut *self.tile);
        let outcome = Outcome { outputs, first, scale, epilogue, tile };
        self.cpu.run(TileProduct { factors, k, leaves, resumes, finishes, outcome });
    }

    fn depth(&self) -> usize {
        self.inputs.weight.columns
    }

    /// The tile's, counted in the shard.
    fn panels(&self) -> Range<usize> {
        let columns = &self.tile.columns;
        (columns.start - self.first) / PANEL..(columns.end - self.first).div_ceil(PANEL)
    }
}

/// 0..depth in order, in blocks of DEPTH: at least one.
fn blocks(depth: usize) -> impl Iterator<Item = Range<usize>> {
    (0..depth.max(1)).step_by(DEPTH).map(move |start| start..depth.min(start + DEPTH))
}

fn lend<T: Copy + Default>(scratch: &mut Vec<T>, length: usize) -> &mut [T] {
    if scratch.len() < length {
        scratch.resize(length, T::default());
    }
    &mut scratch[..length]
}

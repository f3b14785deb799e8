//! Paged attention: some queries of many sequences against the cached keys that each may see.
//!
//! ```text
//! step      segments of rows ── cut into ──▶ blocks: up to 96 (row, query head) pairs that share one key head
//! block     chunks of 512 absolute keys, in order: partial (m, l, O) per pair, merged into the block's state
//! few blocks (a long decode): partials of all chunks in parallel first, merged in order after
//! ```
//!
//! The bits are those of `ops/reference.py`: attention. Blocks, tiles and who computes which chunk are free, because a
//! pair's arithmetic names only its own query and its keys by absolute position.

mod chunk;
mod keys;
mod pool;
mod softcap;
mod softmax;
mod state;
mod store;
mod tile;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

use crate::cpu::Cpu;
use crate::pool::parallel_ranges;
use chunk::{ChunkKernel, STREAMED};
pub use pool::{Numbers, Pool, PoolMut};
pub use softcap::tanh;
pub use store::{prefetch_slot, store_kv, store_rows};

use state::{FinishKernel, MergeKernel, Partial};

/// Frozen: keys are summed in chunks that start at absolute multiples of this.
pub const CHUNK: usize = 512;

/// Free: enough pairs that a chunk of keys is read from the second-level cache, not from memory, for most of them.
const BLOCK_PAIRS: usize = 96;

/// Sizes of the arrays.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    /// Of one head: D.
    pub size: usize,
    /// Token slots of one page.
    pub page: usize,
    /// Numbers from one page's start to the next one's.
    pub stride: usize,
}

impl Shape {
    /// Query heads that share one key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Numbers of one page, all key heads.
    pub fn page_len(&self) -> usize {
        self.kv_heads * self.size * self.page
    }

    /// Of a pool that spans so many numbers.
    pub fn num_pages(&self, length: usize) -> usize {
        length.checked_sub(self.page_len()).map_or(0, |others| others / self.stride.max(1) + usize::from(length > 0))
    }
}

/// How a score is made of a chain, and which keys a row sees.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    pub factor: f32,
    /// 0: the score is `chain * factor`. Else it is `tanh(chain * factor) * cap`.
    pub cap: f32,
    /// 0: all keys up to the row itself. Else the last `window` of them.
    pub window: usize,
    /// Per query head, in natural logarithms.
    pub sinks: Option<&'a [f32]>,
    pub bias: Option<Bias<'a>>,
}

/// What a score gets for its distance: queries[t, h] . profile[:, distance], and nothing from `extent` on.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a> {
    /// [T, H, rank]
    pub queries: &'a [f32],
    /// [rank, extent + 2 * EDGE], as `Bias::unroll` gives it.
    pub profile: &'a [f32],
    pub rank: usize,
    pub extent: usize,
}

/// Zeros before and after each row of a bias's profile, so that 16 neighbouring keys are one load anywhere.
const EDGE: usize = crate::arch::LANES - 1;

impl Bias<'_> {
    /// [rank, extent] by rising distance -> rows by falling distance, with zeros at both ends.
    pub fn unroll(profile: &[f32], extent: usize) -> Vec<f32> {
        let zeros = || std::iter::repeat_n(0.0, EDGE);
        profile.chunks_exact(extent).flat_map(|row| zeros().chain(row.iter().rev().copied()).chain(zeros())).collect()
    }

    /// Where 16 keys from `key` on start in a row of the profile, for a query at `position`; None: all have none.
    fn start(&self, position: i32, key: usize) -> Option<usize> {
        let distance = usize::try_from(position).ok()?.checked_sub(key)?;
        (self.extent - 1 + EDGE).checked_sub(distance)
    }
}

impl Rule<'_> {
    /// Absolute positions of the keys that a row at `position` sees; -1 (padding) sees none.
    pub fn visible(&self, position: i32) -> Range<usize> {
        let end = usize::try_from(position).map_or(0, |position| position + 1);
        let start = if self.window == 0 { 0 } else { end.saturating_sub(self.window) };
        start..end
    }
}

/// The inputs of one call; layouts as in `ops/kv.py`.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    pub q: &'a [f32],
    pub k: Pool<'a>,
    pub v: Pool<'a>,
    pub positions: &'a [i32],
    pub row_starts: &'a [i32],
    pub page_table: &'a [i32],
    pub shape: Shape,
    pub rule: Rule<'a>,
}

/// Writes `y [T, H * D]`; an error names the first broken entry of the step's shape, and then `y` is not touched.
pub fn attention(cpu: Cpu, step: &Attention<'_>, y: &mut [f32]) -> Result<(), String> {
    let mut blocks = step.blocks()?;
    // The longest first, so that no thread is left alone with one at the end.
    blocks.sort_by_key(|block| std::cmp::Reverse(block.cost()));
    let outputs = lend_rows(step, &blocks, y);
    let work: usize = blocks.iter().map(|block| block.cost() * step.shape.size).sum();
    let whole = |i: usize| with_state(|state| whole_block(cpu, step, &blocks, i, &outputs[i], state));
    if work < ALONE || cpu.threads == 1 {
        (0..blocks.len()).for_each(whole);
    } else if blocks.len() < 4 * cpu.threads {
        run_by_chunks(cpu, step, &blocks, &outputs);
    } else if blocks.iter().all(|block| block.pairs <= STREAMED) {
        // Decodes wait for memory: a thread asks for its next block's keys while it works on this one's.
        parallel_ranges(cpu.threads, blocks.len(), whole);
    } else {
        cpu.parallel_for(blocks.len(), whole);
    }
    Ok(())
}

/// Calls `run` once for each block, with its rows of `y`: for another arithmetic over the same keys.
pub(crate) fn with_blocks(
    cpu: Cpu,
    step: &Attention<'_>,
    y: &mut [f32],
    run: impl Fn(&Block, &mut [&mut [f32]]) + Sync,
) -> Result<(), String> {
    let blocks = step.blocks()?;
    let outputs = lend_rows(step, &blocks, y);
    cpu.parallel_for(blocks.len(), |i| run(&blocks[i], &mut outputs[i].lock().expect("one task per block")));
    Ok(())
}

/// Below so many products of a key's number with a query's, waking another thread costs more than it saves.
const ALONE: usize = 1 << 17;

thread_local! {
    /// The state of a block and the partial of a chunk, kept between calls so that nothing is allocated for one.
    static STATE: RefCell<[Partial; 2]> = RefCell::default();
}

fn with_state(run: impl FnOnce(&mut [Partial; 2])) {
    STATE.with_borrow_mut(run);
}

/// Block `i`, chunk after chunk.
fn whole_block(
    cpu: Cpu,
    step: &Attention<'_>,
    blocks: &[Block],
    i: usize,
    output: &Output<'_>,
    [state, partial]: &mut [Partial; 2],
) {
    let block = &blocks[i];
    let after = blocks.get(i + 1).filter(|next| !next.keys.is_empty()).map(|next| (next, next.chunks().start));
    partial.reset(block.pairs, step.shape.size);
    run_block(cpu, step, block, output, state, |chunk, use_it| {
        let next = if chunk + 1 < block.chunks().end { Some((block, chunk + 1)) } else { after };
        cpu.run(ChunkKernel { step, block, chunk, next, out: partial });
        use_it(partial);
    });
}

/// All (block, chunk) partials at once, then each block's merge: for steps with too few blocks to go round.
fn run_by_chunks(cpu: Cpu, step: &Attention<'_>, blocks: &[Block], outputs: &[Output<'_>]) {
    let items: Vec<(usize, usize)> =
        blocks.iter().enumerate().flat_map(|(i, block)| block.chunks().map(move |chunk| (i, chunk))).collect();
    let partials: Vec<Mutex<Partial>> = items.iter().map(|_| Mutex::default()).collect();
    parallel_ranges(cpu.threads, items.len(), |item| {
        let (i, chunk) = items[item];
        let next = items.get(item + 1).map(|&(i, chunk)| (&blocks[i], chunk));
        let out = &mut *partials[item].lock().expect("one task per partial");
        out.reset(blocks[i].pairs, step.shape.size);
        cpu.run(ChunkKernel { step, block: &blocks[i], chunk, next, out });
    });
    cpu.parallel_for(blocks.len(), |i| {
        let first = items.partition_point(|&(block, _)| block < i);
        let first_chunk = blocks[i].chunks().start;
        with_state(|[state, _]| {
            run_block(cpu, step, &blocks[i], &outputs[i], state, |chunk, use_it| {
                use_it(&partials[first + chunk - first_chunk].lock().expect("the partials are made"));
            });
        });
    });
}

/// Merges the block's chunks in order and writes its rows; `partial_of` lends the partial of one chunk.
fn run_block(
    cpu: Cpu,
    step: &Attention<'_>,
    block: &Block,
    output: &Output<'_>,
    state: &mut Partial,
    mut partial_of: impl FnMut(usize, &mut dyn FnMut(&Partial)),
) {
    state.reset(block.pairs, step.shape.size);
    for chunk in block.chunks() {
        partial_of(chunk, &mut |new| cpu.run(MergeKernel { state, new }));
    }
    let rows = &mut *output.lock().expect("one task per block");
    cpu.run(FinishKernel { step, block, state, rows });
}

/// Neighbouring rows of one segment with the query heads of one key head.
#[derive(Clone, Debug)]
pub struct Block {
    pub segment: usize,
    pub rows: Range<usize>,
    pub kv_head: usize,
    /// (row, query head) pairs: `pair = (row - rows.start) * group + head in the group`.
    pub pairs: usize,
    /// From the first to the last key that any of its rows sees.
    pub keys: Range<usize>,
}

impl Block {
    fn chunks(&self) -> Range<usize> {
        self.keys.start / CHUNK..self.keys.end.div_ceil(CHUNK)
    }

    fn cost(&self) -> usize {
        self.pairs * self.keys.len()
    }
}

impl Attention<'_> {
    fn blocks(&self) -> Result<Vec<Block>, String> {
        let group = self.shape.group();
        let block_rows = (BLOCK_PAIRS / group).max(1);
        let mut blocks = Vec::new();
        for segment in 0..self.row_starts.len() - 1 {
            let own = self.rows_of(segment)?;
            for start in own.clone().step_by(block_rows) {
                let rows = start..own.end.min(start + block_rows);
                let keys = self.keys_of(rows.clone());
                self.check_pages(segment, &keys)?;
                let pairs = rows.len() * group;
                blocks.extend((0..self.shape.kv_heads).map(|kv_head| Block {
                    segment,
                    rows: rows.clone(),
                    kv_head,
                    pairs,
                    keys: keys.clone(),
                }));
            }
        }
        Ok(blocks)
    }

    fn rows_of(&self, segment: usize) -> Result<Range<usize>, String> {
        let (start, end) = (self.row_starts[segment], self.row_starts[segment + 1]);
        let is_first_sound = segment > 0 || start == 0;
        let is_last_sound = segment + 2 < self.row_starts.len() || end as usize == self.positions.len();
        if start < 0 || end < start || end as usize > self.positions.len() || !is_first_sound || !is_last_sound {
            return Err(format!("rows {start}..{end} of segment {segment} in a step of {} rows", self.positions.len()));
        }
        Ok(start as usize..end as usize)
    }

    fn keys_of(&self, rows: Range<usize>) -> Range<usize> {
        let seen = self.positions[rows].iter().map(|&p| self.rule.visible(p)).filter(|keys| !keys.is_empty());
        seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// Pages of a segment, in the order of its positions.
    pub fn pages(&self, segment: usize) -> &[i32] {
        let width = self.page_table.len() / (self.row_starts.len() - 1);
        &self.page_table[segment * width..][..width]
    }

    /// Where a position's page starts for the block's key head, in `k` and `v` alike.
    pub fn start_of(&self, block: &Block, position: usize) -> usize {
        let page = self.pages(block.segment)[position / self.shape.page] as usize;
        page * self.shape.stride + block.kv_head * self.shape.size * self.shape.page
    }

    fn check_pages(&self, segment: usize, keys: &Range<usize>) -> Result<(), String> {
        let (pages, num_pages) = (self.pages(segment), self.shape.num_pages(self.k.len()));
        let wanted = keys.start / self.shape.page..keys.end.div_ceil(self.shape.page);
        let Some(wanted) = pages.get(wanted) else {
            return Err(format!("segment {segment} sees {} keys but names {} pages", keys.end, pages.len()));
        };
        match wanted.iter().find(|&&page| page < 0 || page as usize >= num_pages) {
            Some(page) => Err(format!("segment {segment} names page {page} of a pool of {num_pages}")),
            None => Ok(()),
        }
    }
}

/// The parts of `y` that one block writes: per row, its group's heads.
type Output<'y> = Mutex<Vec<&'y mut [f32]>>;

fn lend_rows<'y>(step: &Attention<'_>, blocks: &[Block], y: &'y mut [f32]) -> Vec<Output<'y>> {
    let Shape { kv_heads, size, .. } = step.shape;
    let mut pieces: Vec<Option<&mut [f32]>> = y.chunks_mut(step.shape.group() * size).map(Some).collect();
    let mut lend = |block: &Block| {
        let piece = |row: usize| pieces[row * kv_heads + block.kv_head].take().expect("blocks don't overlap");
        Mutex::new(block.rows.clone().map(piece).collect())
    };
    blocks.iter().map(&mut lend).collect()
}

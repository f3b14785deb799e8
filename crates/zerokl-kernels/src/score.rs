//! Logprobs of rows of logits: one log-softmax for scored prompt tokens and sampled tokens alike.

mod top;

use std::sync::Mutex;

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::math;
use top::Top;

/// Frozen: the vocabulary is summed in blocks of this many absolute ids.
pub const BLOCK: usize = 1024;

/// Where the results go: one element or line per row.
pub struct Columns<'a> {
    pub chosen: &'a mut [f32],
    /// `[rows][num_top]`, highest first.
    pub top_ids: &'a mut [i32],
    pub top: &'a mut [f32],
    /// `[rows][ids]`
    pub ids: &'a mut [f32],
}

/// Logprobs of `targets` (one per row of `logits [R, V]`), of the likeliest ids, and of `ids`.
///
/// An error names the first row that has none: a NaN, a +inf, nothing but -inf, or an id outside the vocabulary.
pub fn score(cpu: Cpu, logits: &[f32], targets: &[i32], ids: &[i32], columns: Columns<'_>) -> Result<(), String> {
    let num_rows = targets.len();
    if num_rows == 0 {
        return Ok(());
    }
    let vocabulary = logits.len() / num_rows;
    if let Some(id) = targets.iter().chain(ids).find(|&&id| id < 0 || id as usize >= vocabulary) {
        return Err(format!("id {id} of a vocabulary of {vocabulary}"));
    }
    let num_top = columns.top.len() / num_rows;
    let rows = rows_of(num_top, ids.len(), columns);
    cpu.parallel_for(num_rows, |number| {
        let row = &mut *rows[number].lock().expect("one task per row");
        let logits = &logits[number * vocabulary..][..vocabulary];
        let wanted = Wanted { logits, target: targets[number] as usize, ids };
        row.is_sound = cpu.run(ScoreKernel { wanted, row });
    });
    match rows.iter().position(|row| !row.lock().expect("all tasks are done").is_sound) {
        Some(number) => Err(format!("logits of row {number} hold a NaN, a +inf or nothing but -inf")),
        None => Ok(()),
    }
}

struct Row<'a> {
    chosen: &'a mut f32,
    top_ids: &'a mut [i32],
    top: &'a mut [f32],
    ids: &'a mut [f32],
    is_sound: bool,
}

fn rows_of<'a>(num_top: usize, num_ids: usize, columns: Columns<'a>) -> Vec<Mutex<Row<'a>>> {
    let mut top_ids = columns.top_ids.chunks_mut(num_top.max(1));
    let mut top = columns.top.chunks_mut(num_top.max(1));
    let mut ids = columns.ids.chunks_mut(num_ids.max(1));
    let mut row = |chosen: &'a mut f32| Row {
        chosen,
        top_ids: top_ids.next().unwrap_or_default(),
        top: top.next().unwrap_or_default(),
        ids: ids.next().unwrap_or_default(),
        is_sound: false,
    };
    columns.chosen.iter_mut().map(|chosen| Mutex::new(row(chosen))).collect()
}

struct Wanted<'a> {
    logits: &'a [f32],
    target: usize,
    ids: &'a [i32],
}

struct ScoreKernel<'a, 'b> {
    wanted: Wanted<'a>,
    row: &'a mut Row<'b>,
}

impl Kernel for ScoreKernel<'_, '_> {
    /// Whether the row has logprobs.
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self) -> bool {
        let ScoreKernel { wanted: Wanted { logits, target, ids }, row } = self;
        let mut top = Top::new(row.top.len());
        let Some(log_sum) = log_sum::<L>(logits, &mut top) else { return false };
        *row.chosen = logits[target] - log_sum;
        for (out, id) in row.ids.iter_mut().zip(ids) {
            *out = logits[*id as usize] - log_sum;
        }
        for ((id, out), entry) in row.top_ids.iter_mut().zip(row.top.iter_mut()).zip(top.ranked()) {
            (*id, *out) = (entry.id as i32, entry.logit - log_sum);
        }
        true
    }
}

/// log(sum of exp(x)) = M + log2(S) * ln 2; None if there is none. Offers all logits to `top` in the same pass.
#[inline(always)]
fn log_sum<L: Lanes>(logits: &[f32], top: &mut Top) -> Option<f32> {
    let mut sums = Vec::with_capacity(logits.len().div_ceil(BLOCK));
    let mut maximum = f32::NEG_INFINITY;
    for (number, block) in logits.chunks(BLOCK).enumerate() {
        let m = largest::<L>(block);
        if m == f32::NEG_INFINITY {
            if block.iter().any(|x| x.is_nan()) {
                return None;
            }
        } else {
            sums.push((m, sum_of_powers::<L>(block, m)));
            maximum = if m > maximum { m } else { maximum };
        }
        if top.may_take(m) {
            top.offer(block, number * BLOCK);
        }
    }
    let mut total = 0.0_f32;
    for (m, sum) in &sums {
        total = sum.mul_add(power::<L>(m - maximum), total);
    }
    // A NaN or a +inf has made its block's sum a NaN; without any block the sum is 0.
    (total > 0.0).then(|| maximum + math::log2(L::splat(total)).to_array()[0] * std::f32::consts::LN_2)
}

/// The largest number, exact in any order; NaNs are passed over, and of nothing it is -inf.
#[inline(always)]
pub(crate) fn largest<L: Lanes>(block: &[f32]) -> f32 {
    let (vectors, rest) = block.as_chunks::<LANES>();
    let hidden = L::splat(f32::NEG_INFINITY);
    let mut largest = L::select(L::first_lanes(rest.len()), L::load_first(rest), hidden).max(hidden);
    for x in vectors {
        largest = L::load(x).max(largest);
    }
    largest.largest()
}

/// Sum of exp2((x - m) * log2 e) in 16 lanes by id mod 16, and the tree.
#[inline(always)]
fn sum_of_powers<L: Lanes>(block: &[f32], m: f32) -> f32 {
    let (vectors, rest) = block.as_chunks::<LANES>();
    let (m, factor) = (L::splat(m), L::splat(std::f32::consts::LOG2_E));
    let mut sum = L::zero();
    for x in vectors {
        sum = sum.add(math::exp2_below_zero(L::load(x).sub(m).mul(factor)));
    }
    let last = math::exp2_below_zero(L::load_first(rest).sub(m).mul(factor));
    // Adding the +0 of a lane beyond the end is skipping it: a lane is never -0.
    sum.add(L::select(L::first_lanes(rest.len()), last, L::zero())).sum()
}

/// exp2(x * log2 e) of one number, not above 0.
#[inline(always)]
fn power<L: Lanes>(x: f32) -> f32 {
    math::exp2_below_zero(L::splat(x * std::f32::consts::LOG2_E)).to_array()[0]
}

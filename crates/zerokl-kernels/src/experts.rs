//! A mixture of experts: each token through the gated MLPs that it was routed to.
//!
//! ```text
//! pairs (token, choice) sorted by expert     expert 0: rows ...  │ expert 3: rows ...  │ ...
//! per expert                                 gate_up ▸ swiglu ▸ down, a chain per row and output
//! per token                                  acc = fma(weight[s], y[s], acc) over its choices s in order, from +0
//! with leaves of the hidden width            the last two per leaf, and the leaves by a balanced tree
//! ```
//!
//! Nothing is dropped and nothing has a capacity; who shares an expert with whom only decides which rows are computed
//! side by side, and rows don't see each other.

mod leaves;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

use crate::arch::{Kernel, LANES, Lanes, Room, prefetch_line};
use crate::cpu::Cpu;
use crate::linear::{Epilogue, Rows, gated_rows, linear};
use crate::matrix::Matrix;
use crate::tiles::rows_per_task;

/// Tokens worked on at a time, which bounds the scratch memory. Free.
const BLOCK_TOKENS: usize = 1024;

pub struct Experts<'a> {
    /// Per expert: [2F, E], gate above up.
    pub gate_up: &'a [&'a Matrix],
    /// Per expert: [E, F].
    pub down: &'a [&'a Matrix],
}

/// `chosen` and `weights` have `top` entries per token. Fails, naming it, on an id that is no expert's.
pub fn experts(
    cpu: Cpu,
    x: &[f32],
    experts: &Experts<'_>,
    chosen: &[i32],
    weights: &[f32],
    residual: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), String> {
    let count = experts.gate_up.len();
    if let Some(id) = chosen.iter().find(|id| !usize::try_from(**id).is_ok_and(|id| id < count)) {
        return Err(format!("expert {id} is not one of {count}"));
    }
    let Some(width) = experts.gate_up.first().map(|matrix| matrix.columns) else { return Ok(()) };
    let tokens = out.len() / width.max(1);
    if tokens == 0 {
        return Ok(());
    }
    let top = chosen.len() / tokens;
    assert!(x.len() == out.len() && chosen.len() == tokens * top && weights.len() == chosen.len(), "rows agree");
    assert!(residual.is_none_or(|residual| residual.len() == out.len()), "a residual per output");
    let at_a_time = if experts.down[0].leaves.len() > 1 { leaves::BLOCK_TOKENS } else { BLOCK_TOKENS };
    ANSWERS.with_borrow_mut(|answers| {
        for start in (0..tokens).step_by(at_a_time) {
            let rows = start..tokens.min(start + at_a_time);
            let (wide, thin) = (rows.start * width..rows.end * width, rows.start * top..rows.end * top);
            let block = Block { width, top, chosen: &chosen[thin.clone()], weights: &weights[thin] };
            let residual = residual.map(|residual| &residual[wide.clone()]);
            run(cpu, &x[wide.clone()], experts, &block, residual, &mut out[wide], answers);
        }
    });
    Ok(())
}

struct Block<'a> {
    width: usize,
    top: usize,
    chosen: &'a [i32],
    weights: &'a [f32],
}

thread_local! {
    /// Kept between calls so that nothing is allocated per layer.
    static ANSWERS: RefCell<Room> = RefCell::default();
    /// Each thread's own, of one expert at a time.
    static HIDDEN: RefCell<Vec<f32>> = RefCell::default();
}

fn run(
    cpu: Cpu,
    x: &[f32],
    experts: &Experts<'_>,
    block: &Block<'_>,
    residual: Option<&[f32]>,
    out: &mut [f32],
    answers: &mut Room,
) {
    let width = block.width;
    let (order, groups) = by_expert(block.chosen, experts.gate_up.len());
    let tokens: Vec<usize> = order.iter().map(|pair| pair / block.top).collect();
    if experts.down[0].leaves.len() > 1 {
        return leaves::run(cpu, x, experts, block, &leaves::Pairs { order, tokens, groups }, residual, out);
    }
    let answers = answers.lend(order.len() * width);
    let mut tasks = Vec::with_capacity(groups.len());
    let mut rest = &mut *answers;
    for (expert, rows) in groups {
        let (outputs, others) = rest.split_at_mut(rows.len() * width);
        tasks.push((expert, rows, Mutex::new(outputs)));
        rest = others;
    }
    let run_one = |cpu: Cpu, (expert, rows, outputs): &Task<'_>| {
        let outputs = &mut *outputs.lock().expect("one task per expert");
        let inputs = Rows { x, depth: width, picked: Some(&tokens[rows.clone()]) };
        one_expert(cpu, inputs, experts.gate_up[*expert], experts.down[*expert], outputs);
    };
    if tasks.len() < 2 * cpu.threads {
        tasks.iter().for_each(|task| run_one(cpu, task));
    } else {
        // The longest first, so that no thread is left alone with one at the end.
        tasks.sort_by_key(|(_, rows, _)| std::cmp::Reverse(rows.len()));
        cpu.parallel_for(tasks.len(), |i| {
            run_one(Cpu { threads: 1, ..cpu }, &tasks[i]);
        });
    }
    drop(tasks);
    combine(cpu, block, &order, answers, residual, out);
}

/// An expert, its run of pairs, and where their answers go.
type Task<'a> = (usize, Range<usize>, Mutex<&'a mut [f32]>);

fn one_expert(cpu: Cpu, inputs: Rows<'_>, gate_up: &Matrix, down: &Matrix, outputs: &mut [f32]) {
    HIDDEN.with_borrow_mut(|hidden| {
        let hidden = lend(hidden, inputs.count() * down.columns);
        gated_rows(cpu, inputs, gate_up, None, hidden);
        linear(cpu, hidden, down, Epilogue::default(), outputs);
    });
}

fn lend(scratch: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if scratch.len() < length {
        scratch.resize(length, 0.0);
    }
    &mut scratch[..length]
}

/// (pairs sorted by expert, then by token; each expert that is wanted with its run of them).
fn by_expert(chosen: &[i32], count: usize) -> (Vec<usize>, Vec<(usize, Range<usize>)>) {
    let mut ends = vec![0; count];
    chosen.iter().for_each(|&expert| ends[expert as usize] += 1);
    let (mut groups, mut start) = (Vec::with_capacity(count), 0);
    for (expert, end) in ends.iter_mut().enumerate().filter(|(_, wanted)| **wanted > 0) {
        groups.push((expert, start..start + *end));
        start += std::mem::replace(end, start);
    }
    // Now where each expert's next pair goes.
    let mut order = vec![0; chosen.len()];
    for (pair, &expert) in chosen.iter().enumerate() {
        order[ends[expert as usize]] = pair;
        ends[expert as usize] += 1;
    }
    (order, groups)
}

fn combine(cpu: Cpu, block: &Block<'_>, order: &[usize], answers: &[f32], residual: Option<&[f32]>, out: &mut [f32]) {
    let (width, top) = (block.width, block.top);
    let mut place = vec![0; order.len()];
    for (row, &pair) in order.iter().enumerate() {
        place[pair] = row;
    }
    let rows = rows_per_task(width);
    cpu.for_chunks(out, rows * width, |index, out| {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let token = index * rows + i;
            let choices = token * top..(token + 1) * top;
            cpu.run(Combine {
                weights: &block.weights[choices.clone()],
                places: &place[choices.clone()],
                later: place.get(choices.end..choices.end + top).unwrap_or_default(),
                answers,
                residual: residual.map(|residual| &residual[token * width..][..width]),
                out,
            });
        }
    });
}

/// One token's sum.
struct Combine<'a> {
    weights: &'a [f32],
    places: &'a [usize],
    /// The next token's.
    later: &'a [usize],
    answers: &'a [f32],
    residual: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.out.len();
        for start in (0..width).step_by(LANES) {
            let columns = start..width.min(start + LANES);
            for place in self.later {
                // They lie anywhere, and were pushed out by the weights of the experts after them.
                prefetch_line(&self.answers[place * width + start]);
            }
            let mut sum = L::zero();
            for (weight, place) in self.weights.iter().zip(self.places) {
                let answer = L::load_first(&self.answers[place * width..][columns.clone()]);
                sum = answer.fma(L::splat(*weight), sum);
            }
            if let Some(residual) = self.residual {
                sum = sum.add(L::load_first(&residual[columns.clone()]));
            }
            sum.store_first(&mut self.out[columns]);
        }
    }
}

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

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::linear::{Epilogue, linear};
use crate::matrix::Matrix;
use crate::swiglu::swiglu;
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
    SCRATCH.with_borrow_mut(|scratch| {
        for start in (0..tokens).step_by(at_a_time) {
            let rows = start..tokens.min(start + at_a_time);
            let (wide, thin) = (rows.start * width..rows.end * width, rows.start * top..rows.end * top);
            let block = Block { width, top, chosen: &chosen[thin.clone()], weights: &weights[thin] };
            let residual = residual.map(|residual| &residual[wide.clone()]);
            run(cpu, &x[wide.clone()], experts, &block, residual, &mut out[wide], scratch);
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

/// Kept between calls so that nothing is allocated per layer.
#[derive(Default)]
struct Scratch {
    gathered: Vec<f32>,
    answers: Vec<f32>,
}

/// Each thread's own.
#[derive(Default)]
struct Hidden {
    gate_up: Vec<f32>,
    hidden: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static HIDDEN: RefCell<Hidden> = RefCell::default();
}

fn run(
    cpu: Cpu,
    x: &[f32],
    experts: &Experts<'_>,
    block: &Block<'_>,
    residual: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let (width, pairs) = (block.width, block.chosen.len());
    let (order, groups) = by_expert(block.chosen, experts.gate_up.len());
    let is_cut = experts.down[0].leaves.len() > 1;
    let gathered = lend(&mut scratch.gathered, pairs * width);
    cpu.for_chunks(gathered, rows_per_task(width) * width, |index, rows| {
        let first = index * rows_per_task(width);
        for (row, pair) in rows.chunks_exact_mut(width).zip(&order[first..]) {
            row.copy_from_slice(&x[pair / block.top * width..][..width]);
        }
    });
    if is_cut {
        return leaves::run(cpu, gathered, experts, block, &leaves::Pairs { order, groups }, residual, out);
    }
    let answers = lend(&mut scratch.answers, pairs * width);
    let mut tasks = Vec::with_capacity(groups.len());
    let mut rest = &mut *answers;
    for (expert, rows) in groups {
        let (outputs, others) = rest.split_at_mut(rows.len() * width);
        tasks.push((expert, rows, Mutex::new(outputs)));
        rest = others;
    }
    let run_one = |cpu: Cpu, (expert, rows, outputs): &Task<'_>| {
        let inputs = &gathered[rows.start * width..rows.end * width];
        let outputs = &mut *outputs.lock().expect("one task per expert");
        one_expert(cpu, inputs, experts.gate_up[*expert], experts.down[*expert], outputs);
    };
    if tasks.len() < 2 * cpu.threads {
        tasks.iter().for_each(|task| run_one(cpu, task));
    } else {
        // The longest first, so that no thread is left alone with one at the end.
        tasks.sort_by_key(|(_, rows, _)| std::cmp::Reverse(rows.len()));
        cpu.parallel_for(tasks.len(), |i| run_one(Cpu { threads: 1, ..cpu }, &tasks[i]));
    }
    drop(tasks);
    combine(cpu, block, &order, answers, residual, out);
}

/// An expert, its run of pairs, and where their answers go.
type Task<'a> = (usize, Range<usize>, Mutex<&'a mut [f32]>);

fn one_expert(cpu: Cpu, inputs: &[f32], gate_up: &Matrix, down: &Matrix, outputs: &mut [f32]) {
    let rows = inputs.len() / gate_up.columns;
    HIDDEN.with_borrow_mut(|scratch| {
        let both = lend(&mut scratch.gate_up, rows * gate_up.rows);
        linear(cpu, inputs, gate_up, Epilogue::default(), both);
        let hidden = lend(&mut scratch.hidden, rows * down.columns);
        swiglu(cpu, both, down.columns, hidden);
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
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    order.sort_by_key(|&pair| chosen[pair]);
    let mut groups = Vec::with_capacity(count.min(order.len()));
    let mut start = 0;
    for run in order.chunk_by(|&a, &b| chosen[a] == chosen[b]) {
        groups.push((chosen[run[0]] as usize, start..start + run.len()));
        start += run.len();
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
                places: &place[choices],
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

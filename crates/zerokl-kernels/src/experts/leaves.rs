//! A mixture whose hidden width is cut in leaves.
//!
//! ```text
//! once per pair      hidden = swiglu(gate_up x), kept leaf by leaf: [leaf][pair][width of the leaf]
//! per leaf           answers = down of that part of K; acc = fma(weight[s], answer[s], acc) over the choices
//! per token          the leaves by the tree of linear/leaves.rs, then the residual
//! ```

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

use super::{Block, Experts, HIDDEN, combine, lend};
use crate::cpu::Cpu;
use crate::linear::leaves::fold;
use crate::linear::{Epilogue, Rows, gated_rows, leaf as one_leaf};

/// Tokens worked on at a time: fewer, because each leaf's sums are kept. Free.
pub const BLOCK_TOKENS: usize = 256;

/// Pairs (token, choice) sorted by expert, and each expert's run of them.
pub struct Pairs {
    pub order: Vec<usize>,
    /// Each pair's.
    pub tokens: Vec<usize>,
    pub groups: Vec<(usize, Range<usize>)>,
}

/// Kept between calls.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,
    answers: Vec<f32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub fn run(
    cpu: Cpu,
    x: &[f32],
    experts: &Experts<'_>,
    block: &Block<'_>,
    pairs: &Pairs,
    residual: Option<&[f32]>,
    out: &mut [f32],
) {
    let (width, count) = (block.width, block.chosen.len());
    let (ends, columns) = (&experts.down[0].leaves, experts.down[0].columns);
    assert!(experts.down.iter().all(|down| &down.leaves == ends), "leaves of all experts end at the same places");
    SCRATCH.with_borrow_mut(|scratch| {
        let hidden = lend(&mut scratch.hidden, count * columns);
        fill_hidden(cpu, x, experts, pairs, width, hidden);
        let answers = lend(&mut scratch.answers, count * width);
        let sums = lend(&mut scratch.sums, ends.len() * out.len());
        let mut start = 0;
        for (leaf, (&end, sum)) in ends.iter().zip(sums.chunks_exact_mut(out.len())).enumerate() {
            let size = end - start;
            let part = &hidden[start * count..end * count];
            side_by_side(cpu, pairs, answers, width, |cpu, expert, rows, answers| {
                one_leaf(cpu, &part[rows.start * size..rows.end * size], experts.down[expert], leaf, answers);
            });
            combine(cpu, block, &pairs.order, answers, None, sum);
            start = end;
        }
        let parts: Vec<&[f32]> = sums.chunks_exact(out.len()).collect();
        fold(cpu, &parts, width, Epilogue { bias: None, residual }, out);
    });
}

fn fill_hidden(cpu: Cpu, x: &[f32], experts: &Experts<'_>, pairs: &Pairs, width: usize, hidden: &mut [f32]) {
    let (count, ends, columns) = (pairs.order.len(), &experts.down[0].leaves, experts.down[0].columns);
    let mut starts = ends.clone();
    starts.insert(0, 0);
    // Per expert, its run in each leaf.
    let mut runs: Vec<Vec<&mut [f32]>> = pairs.groups.iter().map(|_| Vec::new()).collect();
    let mut rest = hidden;
    for leaf in starts.windows(2) {
        for (runs, (_, rows)) in runs.iter_mut().zip(&pairs.groups) {
            let (run, others) = rest.split_at_mut(rows.len() * (leaf[1] - leaf[0]));
            runs.push(run);
            rest = others;
        }
    }
    debug_assert!(rest.is_empty() && count > 0, "every pair has its place in every leaf");
    let runs: Vec<_> = runs.into_iter().map(Mutex::new).collect();
    cpu.parallel_for(pairs.groups.len(), |group| {
        let (expert, rows) = &pairs.groups[group];
        let (gate_up, cpu) = (experts.gate_up[*expert], Cpu { threads: 1, ..cpu });
        HIDDEN.with_borrow_mut(|hidden| {
            let inputs = Rows { x, depth: width, picked: Some(&pairs.tokens[rows.clone()]) };
            let whole = lend(hidden, rows.len() * columns);
            gated_rows(cpu, inputs, gate_up, None, whole);
            let runs = &mut *runs[group].lock().expect("one task per expert");
            for (run, leaf) in runs.iter_mut().zip(starts.windows(2)) {
                let to = run.chunks_exact_mut(leaf[1] - leaf[0]);
                for (row, to) in whole.chunks_exact(columns).zip(to) {
                    to.copy_from_slice(&row[leaf[0]..leaf[1]]);
                }
            }
        });
    });
}

/// `run(expert, its pairs, their answers)` for each expert that is wanted.
fn side_by_side(
    cpu: Cpu,
    pairs: &Pairs,
    answers: &mut [f32],
    width: usize,
    run: impl Fn(Cpu, usize, &Range<usize>, &mut [f32]) + Sync,
) {
    let mut tasks = Vec::with_capacity(pairs.groups.len());
    let mut rest = answers;
    for (expert, rows) in &pairs.groups {
        let (outputs, others) = rest.split_at_mut(rows.len() * width);
        tasks.push((*expert, rows, Mutex::new(outputs)));
        rest = others;
    }
    cpu.parallel_for(tasks.len(), |i| {
        let (expert, rows, outputs) = &tasks[i];
        run(Cpu { threads: 1, ..cpu }, *expert, rows, &mut outputs.lock().expect("one task per expert"));
    });
}

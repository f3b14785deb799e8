//! Layers that sum up the past in a state: the gated delta rule and the selective state space of Mamba-2.
//!
//! ```text
//! state of (segment, head)   [depth][width], one task each   token after token ▸ saved where a checkpoint is wanted
//! ```
//!
//! The chunk of these recurrences is one token: a token's output and the state after it are functions of the state
//! before it and of its own inputs. So a prefill and a decode are the same arithmetic by construction.

use std::ops::Range;
use std::sync::Mutex;

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::gate::softplus;
use crate::math::exp;

/// The shape of one step, and where its states are.
pub struct Scan<'a> {
    pub row_starts: &'a [i32],
    pub heads: usize,
    /// Of the state of one head: `depth` rows of `width` floats.
    pub depth: usize,
    pub width: usize,
    /// [S, heads, depth, width]: before the segments' first rows, then after their last.
    pub states: &'a mut [f32],
    /// (segment, row): the state of the segment before this row of the step is wanted; by rising row.
    pub wanted: &'a [(usize, usize)],
    /// [wanted, heads, depth, width]
    pub saved: &'a mut [f32],
}

/// dt[t, h] = clamp(softplus(raw + bias), limits), decay = exp(-exp(log_rate) * dt).
pub fn time_steps(
    cpu: Cpu,
    raw: &[f32],
    bias: &[f32],
    log_rate: &[f32],
    limits: (f32, f32),
    steps: &mut [f32],
    decays: &mut [f32],
) {
    let heads = bias.len();
    assert!(log_rate.len() == heads && steps.len() == raw.len() && decays.len() == raw.len(), "one of each");
    cpu.run(TimeSteps { raw, bias, log_rate, limits, steps, decays });
}

struct TimeSteps<'a> {
    raw: &'a [f32],
    bias: &'a [f32],
    log_rate: &'a [f32],
    limits: (f32, f32),
    steps: &'a mut [f32],
    decays: &'a mut [f32],
}

impl Kernel for TimeSteps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let heads = self.bias.len().max(1);
        let rows = self.raw.chunks_exact(heads);
        for ((raw, steps), decays) in
            rows.zip(self.steps.chunks_exact_mut(heads)).zip(self.decays.chunks_exact_mut(heads))
        {
            for start in (0..heads).step_by(LANES) {
                let part = start..heads.min(start + LANES);
                let load = |from: &[f32]| L::load_first(&from[part.clone()]);
                let step = softplus(load(raw).add(load(self.bias)));
                let step = L::splat(self.limits.1).min(L::splat(self.limits.0).max(step));
                step.store_first(&mut steps[part.clone()]);
                exp(exp(load(self.log_rate)).mul(step).neg()).store_first(&mut decays[part]);
            }
        }
    }
}

/// Inputs of the gated delta rule. A query and key head serves heads / key_heads neighbouring value heads.
pub struct Delta<'a> {
    /// [T, key_heads, depth]
    pub q: &'a [f32],
    pub k: &'a [f32],
    /// [T, heads, width]
    pub v: &'a [f32],
    /// [T, heads]
    pub decay: &'a [f32],
    pub beta: &'a [f32],
    pub key_heads: usize,
}

/// Writes `out [T, heads, width]` and the states.
pub fn gated_delta(cpu: Cpu, inputs: &Delta<'_>, scan: Scan<'_>, out: &mut [f32]) {
    let shape = (scan.heads, scan.depth, scan.width);
    each_head(cpu, scan, out, |head, rows, state, out| {
        cpu.run(DeltaRows { inputs, shape, head, rows, state, out });
    });
}

struct DeltaRows<'a, 'o> {
    inputs: &'a Delta<'a>,
    shape: (usize, usize, usize),
    head: usize,
    rows: Range<usize>,
    state: &'a mut [f32],
    out: &'a mut [&'o mut [f32]],
}

impl Kernel for DeltaRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let DeltaRows { inputs, shape: (heads, depth, width), head, rows, state, out } = self;
        let key_head = head / (heads / inputs.key_heads);
        for start in (0..width).step_by(LANES) {
            let part = start..width.min(start + LANES);
            for (row, out) in rows.clone().zip(out.iter_mut()) {
                let keys = (row * inputs.key_heads + key_head) * depth;
                let (q, k) = (&inputs.q[keys..][..depth], &inputs.k[keys..][..depth]);
                let decay = L::splat(inputs.decay[row * heads + head]);
                let mut known = L::zero();
                for (i, k) in k.iter().enumerate() {
                    let cell = &mut state[i * width..][part.clone()];
                    let faded = L::load_first(cell).mul(decay);
                    faded.store_first(cell);
                    known = faded.fma(L::splat(*k), known);
                }
                let v = L::load_first(&inputs.v[(row * heads + head) * width..][part.clone()]);
                let delta = v.sub(known).mul(L::splat(inputs.beta[row * heads + head]));
                let mut seen = L::zero();
                for (i, (q, k)) in q.iter().zip(k).enumerate() {
                    let cell = &mut state[i * width..][part.clone()];
                    let updated = delta.fma(L::splat(*k), L::load_first(cell));
                    updated.store_first(cell);
                    seen = updated.fma(L::splat(*q), seen);
                }
                seen.store_first(&mut out[part.clone()]);
            }
        }
    }
}

/// Inputs of Mamba-2's recurrence. A group of B and C serves heads / groups neighbouring heads.
pub struct Selective<'a> {
    /// [T, heads, width]
    pub x: &'a [f32],
    /// [T, groups, depth]
    pub b: &'a [f32],
    pub c: &'a [f32],
    /// [T, heads]
    pub step: &'a [f32],
    pub decay: &'a [f32],
    /// [heads]
    pub skip: &'a [f32],
    pub groups: usize,
}

/// Writes `out [T, heads, width]` and the states.
pub fn selective_scan(cpu: Cpu, inputs: &Selective<'_>, scan: Scan<'_>, out: &mut [f32]) {
    let shape = (scan.heads, scan.depth, scan.width);
    each_head(cpu, scan, out, |head, rows, state, out| {
        cpu.run(SelectiveRows { inputs, shape, head, rows, state, out });
    });
}

struct SelectiveRows<'a, 'o> {
    inputs: &'a Selective<'a>,
    shape: (usize, usize, usize),
    head: usize,
    rows: Range<usize>,
    state: &'a mut [f32],
    out: &'a mut [&'o mut [f32]],
}

impl Kernel for SelectiveRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let SelectiveRows { inputs, shape: (heads, depth, width), head, rows, state, out } = self;
        let group = head / (heads / inputs.groups);
        for start in (0..width).step_by(LANES) {
            let part = start..width.min(start + LANES);
            for (row, out) in rows.clone().zip(out.iter_mut()) {
                let shared = (row * inputs.groups + group) * depth;
                let (b, c) = (&inputs.b[shared..][..depth], &inputs.c[shared..][..depth]);
                let own = row * heads + head;
                let x = L::load_first(&inputs.x[own * width..][part.clone()]);
                let (decay, weighted) = (L::splat(inputs.decay[own]), x.mul(L::splat(inputs.step[own])));
                let mut seen = L::zero();
                for (i, (b, c)) in b.iter().zip(c).enumerate() {
                    let cell = &mut state[i * width..][part.clone()];
                    let updated = weighted.fma(L::splat(*b), L::load_first(cell).mul(decay));
                    updated.store_first(cell);
                    seen = updated.fma(L::splat(*c), seen);
                }
                x.fma(L::splat(inputs.skip[head]), seen).store_first(&mut out[part.clone()]);
            }
        }
    }
}

/// What one task owns: the state of one head of one segment, its rows of the output, and its checkpoints.
struct Owned<'a> {
    head: usize,
    rows: Range<usize>,
    state: &'a mut [f32],
    out: Vec<&'a mut [f32]>,
    /// By rising row.
    saved: Vec<(usize, &'a mut [f32])>,
}

/// `run(head, rows, state, their outputs)` for each head of each segment, cut where a checkpoint is wanted.
fn each_head<'a>(
    cpu: Cpu,
    scan: Scan<'a>,
    out: &'a mut [f32],
    run: impl Fn(usize, Range<usize>, &mut [f32], &mut [&mut [f32]]) + Sync,
) {
    let Scan { row_starts, heads, depth, width, states, wanted, saved } = scan;
    if out.is_empty() || depth * width == 0 {
        return;
    }
    let segments = row_starts.len() - 1;
    assert_eq!(states.len(), segments * heads * depth * width, "a state per segment and head");
    assert_eq!(saved.len(), wanted.len() * heads * depth * width, "a state per checkpoint and head");
    assert_eq!(out.len(), row_starts[segments] as usize * heads * width, "an output per row and head");
    let mut tasks: Vec<Owned<'a>> = states
        .chunks_mut(depth * width)
        .enumerate()
        .map(|(i, state)| {
            let rows = row_starts[i / heads] as usize..row_starts[i / heads + 1] as usize;
            Owned { head: i % heads, rows, state, out: Vec::new(), saved: Vec::new() }
        })
        .collect();
    for (i, row) in out.chunks_mut(width).enumerate() {
        let segment = row_starts.partition_point(|&start| start as usize <= i / heads) - 1;
        tasks[segment * heads + i % heads].out.push(row);
    }
    for (i, state) in saved.chunks_mut(depth * width).enumerate() {
        let (segment, row) = wanted[i / heads];
        tasks[segment * heads + i % heads].saved.push((row, state));
    }
    let tasks: Vec<Mutex<Owned<'a>>> = tasks.into_iter().map(Mutex::new).collect();
    cpu.parallel_for(tasks.len(), |i| {
        let Owned { head, rows, state, out, saved } = &mut *tasks[i].lock().expect("one task per head");
        let mut from = rows.start;
        let ends = saved.iter_mut().map(|(row, to)| (*row, Some(to))).chain([(rows.end, None)]);
        for (end, to) in ends {
            assert!(from <= end && end <= rows.end, "checkpoints by rising row, inside their segment");
            run(*head, from..end, state, &mut out[from - rows.start..end - rows.start]);
            if let Some(to) = to {
                to.copy_from_slice(state);
            }
            from = end;
        }
    });
}

//! Which experts a token goes to, and how much each of them counts.
//!
//! ```text
//! logits [T, E + S] ── scores of the E routed experts ── the K largest ──▶ experts [T, K], weights [T, K + S]
//! ```
//!
//! A row is a function of its own logits alone. Ties go to the lower expert id. `ops/moe.py` states the arithmetic.

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::gate::softplus;
use crate::math::{exp, exp2};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Rows of a task: some microseconds of work.
const TASK_ROWS: usize = 16;

#[derive(Clone, Copy, Debug)]
pub enum Scores {
    /// exp(logit) over the sum of all, or of the chosen ones.
    Softmax { normalised: bool },
    /// sigmoid(logit), over the sum of the chosen and the shared ones.
    Sigmoid,
}

#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    pub scores: Scores,
    pub top: usize,
    /// Experts that every token goes to; their logits are the last.
    pub shared: usize,
    /// Added to the scores for the choice only.
    pub bias: Option<&'a [f32]>,
    /// The weights' last factor.
    pub scale: f32,
}

/// `logits` in rows of `width` = E + S.
pub fn route(cpu: Cpu, logits: &[f32], width: usize, rule: Rule<'_>, experts: &mut [i32], weights: &mut [f32]) {
    let rows = logits.len() / width.max(1);
    let (top, kept) = (rule.top, rule.top + rule.shared);
    assert!(logits.len() == rows * width && top >= 1 && kept <= width, "whole rows, enough experts");
    assert!(experts.len() == rows * top && weights.len() == rows * kept, "an expert and a weight per choice");
    assert!(rule.bias.is_none_or(|bias| bias.len() == width - rule.shared), "a bias per routed expert");
    // A row's outputs side by side, so that one task owns them: experts' ids as f32 are exact below 2^24.
    let mut both = vec![0.0; rows * (top + kept)];
    cpu.for_chunks(&mut both, TASK_ROWS * (top + kept), |index, out| {
        let logits = &logits[index * TASK_ROWS * width..][..out.len() / (top + kept) * width];
        cpu.run(Rows { logits, width, rule, out });
    });
    for (row, both) in both.chunks_exact(top + kept).enumerate() {
        for (to, id) in experts[row * top..].iter_mut().zip(&both[..top]) {
            *to = *id as i32;
        }
        weights[row * kept..][..kept].copy_from_slice(&both[top..]);
    }
}

struct Rows<'a> {
    logits: &'a [f32],
    width: usize,
    rule: Rule<'a>,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let rule = self.rule;
        let mut scratch = Scratch { powers: vec![0.0; self.width.next_multiple_of(LANES)], best: vec![0.0; rule.top] };
        let kept = rule.top + rule.shared;
        for (logits, out) in self.logits.chunks_exact(self.width).zip(self.out.chunks_exact_mut(rule.top + kept)) {
            let (ids, weights) = out.split_at_mut(rule.top);
            match rule.scores {
                Scores::Softmax { normalised } => softmax::<L>(logits, normalised, rule, &mut scratch, ids, weights),
                Scores::Sigmoid => sigmoid::<L>(logits, rule, &mut scratch, ids, weights),
            }
            for weight in weights {
                *weight *= rule.scale;
            }
        }
    }
}

/// Of one row at a time.
struct Scratch {
    powers: Vec<f32>,
    /// What the chosen ones were chosen by.
    best: Vec<f32>,
}

/// Chosen by logit, which orders as the probability does.
#[inline(always)]
fn softmax<L: Lanes>(
    logits: &[f32],
    normalised: bool,
    rule: Rule<'_>,
    Scratch { powers, best }: &mut Scratch,
    ids: &mut [f32],
    weights: &mut [f32],
) {
    choose(logits, rule.bias, best, ids);
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    let sum = exponentials::<L>(logits, largest, powers);
    for (weight, id) in weights.iter_mut().zip(ids.iter()) {
        *weight = powers[*id as usize];
    }
    let total = if normalised { weights.iter().fold(0.0, |sum, weight| sum + weight) } else { sum };
    for weight in weights {
        *weight /= total;
    }
}

/// Weights through log(sigmoid), so that no sum of tiny sigmoids is 0.
#[inline(always)]
fn sigmoid<L: Lanes>(logits: &[f32], rule: Rule<'_>, scratch: &mut Scratch, ids: &mut [f32], weights: &mut [f32]) {
    let Scratch { powers: scores, best } = scratch;
    let routed = logits.len() - rule.shared;
    for (logits, scores) in logits[..routed].chunks(LANES).zip(scores.chunks_mut(LANES)) {
        let one = L::splat(1.0);
        one.div(one.add(exp(L::load_first(logits).neg()))).store_first(&mut scores[..logits.len()]);
    }
    choose(&scores[..routed], rule.bias, best, ids);
    for (i, weight) in weights.iter_mut().enumerate() {
        *weight = logits[if i < ids.len() { ids[i] as usize } else { routed + i - ids.len() }];
    }
    for weights in weights.chunks_mut(LANES) {
        softplus(L::load_first(weights).neg()).neg().store_first(weights);
    }
    let largest = weights.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    let count = weights.len();
    let mut powers = vec![0.0; count.next_multiple_of(LANES)];
    exponentials::<L>(weights, largest, &mut powers);
    let total = powers[..count].iter().fold(0.0, |sum, power| sum + power);
    for (weight, power) in weights.iter_mut().zip(powers) {
        *weight = power / total;
    }
}

/// exp2((x - largest) * log2 e) of each, and their sum in 16 lanes and the tree.
#[inline(always)]
fn exponentials<L: Lanes>(x: &[f32], largest: f32, powers: &mut [f32]) -> f32 {
    let mut sum = L::zero();
    for (x, powers) in x.chunks(LANES).zip(powers.chunks_mut(LANES)) {
        let power = exp2(L::load_first(x).sub(L::splat(largest)).mul(L::splat(LOG2_E)));
        power.store_first(powers);
        sum = sum.add(L::select(L::first_lanes(x.len()), power, L::zero()));
    }
    sum.sum()
}

/// Ids of the largest `score + bias`, the largest first; equal ones by rising id. One pass: most ids are below the least
/// of those kept so far.
#[inline(always)]
fn choose(scores: &[f32], bias: Option<&[f32]>, best: &mut [f32], ids: &mut [f32]) {
    let routed = bias.map_or(scores.len(), <[f32]>::len).min(scores.len());
    let (best, last) = (&mut best[..ids.len()], ids.len() - 1);
    for (id, score) in scores[..routed].iter().enumerate() {
        let own = bias.map_or(*score, |bias| score + bias[id]);
        let beats = |other: f32| own > other;
        if id > last && !beats(best[last]) {
            continue;
        }
        let mut place = id.min(last);
        while place > 0 && beats(best[place - 1]) {
            (best[place], ids[place]) = (best[place - 1], ids[place - 1]);
            place -= 1;
        }
        (best[place], ids[place]) = (own, id as f32);
    }
}

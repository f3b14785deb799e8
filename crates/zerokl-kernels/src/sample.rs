//! The next token of each row: a function of its logits, its parameters, its seed and its position, of nothing else.

mod filters;
mod noise;
mod penalties;

use std::sync::Mutex;

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::score::largest;
use noise::{HIGHEST, Noise, WIDTH};

/// A temperature below this is argmax.
pub const GREEDY_BELOW: f32 = 1e-6;

/// What one row's draw depends on besides its logits; see `ops/sample.py` for what each field does.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    pub temperature: f32,
    pub top_p: f64,
    /// Below 1: all.
    pub top_k: i64,
    pub min_p: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repetition_penalty: f32,
    pub logit_bias: &'a [(u32, f32)],
    pub seed: u64,
    pub stream: u32,
    pub position: u32,
    /// Ids of the prompt, and of the output so far.
    pub history: Option<(&'a [u32], &'a [u32])>,
    /// Bit i of byte i / 8 allows id i.
    pub mask: Option<&'a [u8]>,
}

/// One id per row of `logits [R, V]`. An error names the first row that has none, and why.
pub fn sample(cpu: Cpu, logits: &[f32], draws: &[Draw<'_>], ids: &mut [i32]) -> Result<(), String> {
    each_row(cpu, logits, draws, ids.iter_mut().collect(), |x, draw, id| {
        if draw.temperature < GREEDY_BELOW && penalties::are_none(draw) {
            cpu.run(CheckKernel { x })?;
            **id = cpu.run(DrawKernel { x, draw })? as i32;
            return Ok(());
        }
        let mut x = x.to_vec();
        cpu.run(ProcessKernel { x: &mut x, draw })?;
        **id = cpu.run(DrawKernel { x: &x, draw })? as i32;
        Ok(())
    })
}

/// The logits of the distribution that `sample` draws from, what can't be drawn being -inf.
pub fn process(cpu: Cpu, logits: &[f32], draws: &[Draw<'_>], processed: &mut [f32]) -> Result<(), String> {
    let width = logits.len() / draws.len().max(1);
    each_row(cpu, logits, draws, processed.chunks_mut(width.max(1)).collect(), |x, draw, out| {
        out.copy_from_slice(x);
        cpu.run(ProcessKernel { x: out, draw })?;
        if draw.temperature < GREEDY_BELOW {
            let id = cpu.run(DrawKernel { x: out, draw })?;
            out.fill(f32::NEG_INFINITY);
            out[id] = 0.0;
        }
        Ok(())
    })
}

/// `row(logits, draw, out)` for every row, on all threads.
fn each_row<T: Send>(
    cpu: Cpu,
    logits: &[f32],
    draws: &[Draw<'_>],
    outs: Vec<T>,
    row: impl Fn(&[f32], &Draw<'_>, &mut T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let width = logits.len() / draws.len().max(1);
    let outs: Vec<Mutex<(T, Result<(), String>)>> = outs.into_iter().map(|out| Mutex::new((out, Ok(())))).collect();
    cpu.parallel_for(draws.len(), |i| {
        let (out, result) = &mut *outs[i].lock().expect("one task per row");
        *result = row(&logits[i * width..][..width], &draws[i], out);
    });
    for (i, out) in outs.into_iter().enumerate() {
        let (_, result) = out.into_inner().expect("all tasks are done");
        result.map_err(|why| format!("row {i}: {why}"))?;
    }
    Ok(())
}

/// Penalties, bias, mask, temperature and filters, in place.
struct ProcessKernel<'a> {
    x: &'a mut [f32],
    draw: &'a Draw<'a>,
}

impl Kernel for ProcessKernel<'_> {
    type Output = Result<(), String>;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Self::Output {
        let ProcessKernel { x, draw } = self;
        CheckKernel { x }.run::<L>()?;
        penalties::apply(x, draw)?;
        if draw.temperature >= GREEDY_BELOW {
            divide::<L>(x, draw.temperature);
            filters::apply::<L>(x, draw);
        }
        Ok(())
    }
}

/// Fails for logits that can't be drawn from.
struct CheckKernel<'a> {
    x: &'a [f32],
}

impl Kernel for CheckKernel<'_> {
    type Output = Result<(), String>;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Self::Output {
        if all_below_infinity::<L>(self.x) { Ok(()) } else { Err("a logit is a NaN or +inf".into()) }
    }
}

#[inline(always)]
fn all_below_infinity<L: Lanes>(x: &[f32]) -> bool {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let (limit, mut broken) = (L::splat(f32::INFINITY), L::zero());
    for x in vectors {
        broken = L::select(L::load(x).less_than(limit), broken, L::splat(1.0));
    }
    broken.largest() == 0.0 && rest.iter().all(|x| *x < f32::INFINITY)
}

#[inline(always)]
fn divide<L: Lanes>(x: &mut [f32], by: f32) {
    if by == 1.0 {
        return; // x / 1 is x
    }
    for x in x.chunks_mut(LANES) {
        L::load_first(x).div(L::splat(by)).store_first(x);
    }
}

/// argmax of x, plus noise unless greedy; equal sums go to the lower id.
struct DrawKernel<'a> {
    x: &'a [f32],
    draw: &'a Draw<'a>,
}

impl Kernel for DrawKernel<'_> {
    type Output = Result<usize, String>;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Self::Output {
        let DrawKernel { x, draw } = self;
        let noise = (draw.temperature >= GREEDY_BELOW).then(|| Noise::of(draw));
        let highest = if noise.is_some() { HIGHEST } else { 0.0 };
        let (mut best, mut best_id) = (f32::NEG_INFINITY, None);
        for (number, block) in x.chunks(WIDTH).enumerate() {
            let first_id = number * WIDTH;
            let limit = largest::<L>(block);
            // Rounding is monotone, so if even the largest logit with the highest noise falls short, all do. (A sum that
            // equals the best comes too late: its id is higher.)
            if limit == f32::NEG_INFINITY || limit + highest <= best {
                continue;
            }
            let mut sums = noise.map_or([0.0; WIDTH], |noise| noise.block::<L>(first_id));
            for (i, (sum, x)) in sums.iter_mut().zip(block).enumerate() {
                // Greedy compares x itself: x + 0 would be the same but for the sign of a zero.
                *sum += x;
                if *sum > best {
                    (best, best_id) = (*sum, Some(first_id + i));
                }
            }
        }
        best_id.ok_or_else(|| "no id may be drawn".into())
    }
}

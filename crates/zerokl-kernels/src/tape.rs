//! A model's operations, recorded once and run again and again: what a step costs besides its arithmetic.
//!
//! ```text
//! recording   the model's own code runs once, on names of arrays instead of arrays; each operation adds an entry
//! a step      entry after entry, over arrays that stay: no interpreter between two, nothing allocated once rows are known
//! ```
//!
//! An array has one row per token of the step, and is written by one entry. Arrays that are never alive together share
//! memory. Same bits as the operations one by one: it calls them.

mod lifetimes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::attention::{Attention, PoolMut, Rule, Shape, attention};
use crate::cpu::Cpu;
use crate::embedding::embedding;
use crate::heads::{Norms, Projected, rotate_and_store};
use crate::linear::{Epilogue, gated_linear, linear};
use crate::matrix::Matrix;
use crate::pool;
use crate::rms_norm::rms_norm;
use crate::rope::rope_table;
use crate::sm90;

/// The number of an array.
pub type Name = usize;

/// An operation; W gives a matrix.
pub enum Op<W> {
    Embedding { weight: W, out: Name },
    RopeTable { frequencies: Vec<f64>, scale: f64, cos: Name, sin: Name },
    RmsNorm { x: Name, weight: Vec<f32>, eps: f32, wide: bool, out: Name },
    Linear { x: Name, weight: W, bias: Option<Vec<f32>>, residual: Option<Name>, wide: bool, out: Name },
    Gated { x: Name, weight: W, bias: Option<Vec<f32>>, out: Name },
    RotateAndStore { qkv: Name, turns: [Name; 2], layer: usize, heads: usize, norms: Option<HeadNorms>, out: Name },
    Attention { q: Name, layer: usize, heads: usize, factor: f32, out: Name },
}

/// Weights of the norms of query and key heads.
pub struct HeadNorms {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub eps: f32,
}

impl<W> Op<W> {
    fn kind(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RopeTable { .. } => "rope_table",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Gated { .. } => "gated_linear",
            Op::RotateAndStore { .. } => "rotate_and_store",
            Op::Attention { .. } => "attention",
        }
    }

    fn reads(&self) -> Vec<Name> {
        match self {
            Op::Embedding { .. } | Op::RopeTable { .. } => Vec::new(),
            Op::RmsNorm { x, .. } | Op::Gated { x, .. } => vec![*x],
            Op::Linear { x, residual, .. } => std::iter::once(*x).chain(*residual).collect(),
            Op::RotateAndStore { qkv, turns, .. } => vec![*qkv, turns[0], turns[1]],
            Op::Attention { q, .. } => vec![*q],
        }
    }

    fn writes(&self) -> Vec<Name> {
        match self {
            Op::RopeTable { cos, sin, .. } => vec![*cos, *sin],
            Op::Embedding { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Gated { out, .. }
            | Op::RotateAndStore { out, .. }
            | Op::Attention { out, .. } => vec![*out],
        }
    }
}

/// Where an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Input(usize),
    Output(usize),
    Buffer(usize),
}

/// Whose arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// The CPU's own.
    Cpu,
    /// A GPU's, which rounds to bfloat16 what isn't `wide`.
    Sm90,
}

pub struct Tape<W> {
    numerics: Numerics,
    ops: Vec<Op<W>>,
    /// Of each array: numbers in a row, and where it lies.
    widths: Vec<usize>,
    places: Vec<Place>,
    buffers: Vec<Vec<f32>>,
    times: Times,
}

/// How often operations of each kind ran, and how long in all.
pub type Times = BTreeMap<&'static str, (u64, Duration)>;

/// What a step brings, as `attention::Attention` and `heads::Projected` name it.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    pub tokens: &'a [i32],
    pub positions: &'a [i32],
    pub slots: &'a [i32],
    pub row_starts: &'a [i32],
    pub page_table: &'a [i32],
}

/// One layer's keys and values.
pub struct LayerPools<'a> {
    pub k: PoolMut<'a>,
    pub v: PoolMut<'a>,
    pub kv_heads: usize,
    pub size: usize,
    pub page: usize,
    pub stride: usize,
}

impl LayerPools<'_> {
    fn shape(&self, heads: usize) -> Shape {
        Shape { heads, kv_heads: self.kv_heads, size: self.size, page: self.page, stride: self.stride }
    }
}

impl<W: AsRef<Matrix>> Tape<W> {
    /// `inputs` are given by every step, `outputs` are handed out. Panics unless every other array is written once, and
    /// before it is read.
    pub fn new(numerics: Numerics, ops: Vec<Op<W>>, widths: Vec<usize>, inputs: &[Name], outputs: &[Name]) -> Self {
        let (places, count) = lifetimes::places(&ops, widths.len(), inputs, outputs);
        Tape { numerics, ops, widths, places, buffers: vec![Vec::new(); count], times: Times::new() }
    }

    /// Runs the operations in order. `inputs` and `outputs` have the step's rows, `pools` are the layers'.
    ///
    /// An error names what is wrong with the step, as the operation that found it says.
    pub fn run(
        &mut self,
        cpu: Cpu,
        rows: usize,
        step: &Step<'_>,
        pools: &mut [LayerPools<'_>],
        inputs: &[&[f32]],
        outputs: Vec<&mut [f32]>,
    ) -> Result<(), String> {
        // Between two steps workers fall asleep, and the first operations are small.
        pool::wake(cpu.threads);
        let Tape { numerics, ops, widths, places, buffers, times } = self;
        let as_gpu = *numerics == Numerics::Sm90;
        let outputs = outputs.into_iter().map(Some).collect();
        let mut arrays = Arrays { rows, widths, places, buffers, inputs, outputs };
        let mut began = Instant::now();
        for op in ops {
            run_one(cpu, as_gpu, op, step, pools, &mut arrays)?;
            // A reading of the clock takes 25 ns, 6 us of a step.
            let now = Instant::now();
            let (count, time) = times.entry(op.kind()).or_default();
            *count += 1;
            *time += now - began;
            began = now;
        }
        Ok(())
    }

    /// Since the last call.
    pub fn take_times(&mut self) -> Times {
        std::mem::take(&mut self.times)
    }
}

fn run_one<W: AsRef<Matrix>>(
    cpu: Cpu,
    as_gpu: bool,
    op: &Op<W>,
    step: &Step<'_>,
    pools: &mut [LayerPools<'_>],
    arrays: &mut Arrays<'_, '_>,
) -> Result<(), String> {
    match op {
        Op::Embedding { weight, out } => {
            return arrays.write(*out, |_, out| embedding(cpu, weight.as_ref(), step.tokens, out));
        }
        Op::RopeTable { frequencies, scale, cos, sin } => arrays.write(*cos, |arrays, cos| {
            arrays.write(*sin, |_, sin| rope_table(step.positions, frequencies, *scale, cos, sin));
        }),
        Op::RmsNorm { x, weight, eps, wide, out } => arrays.write(*out, |arrays, out| match as_gpu {
            false => rms_norm(cpu, arrays.read(*x), weight, *eps, out),
            true => sm90::rms_norm(cpu, arrays.read(*x), weight, *eps, *wide, out),
        }),
        Op::Linear { x, weight, bias, residual, wide, out } => arrays.write(*out, |arrays, out| {
            let epilogue = Epilogue { bias: bias.as_deref(), residual: residual.map(|name| arrays.read(name)) };
            match as_gpu {
                false => linear(cpu, arrays.read(*x), weight.as_ref(), epilogue, out),
                true => sm90::linear(cpu, arrays.read(*x), weight.as_ref(), epilogue, *wide, out),
            }
        }),
        Op::Gated { x, weight, bias, out } => arrays.write(*out, |arrays, out| {
            let body = if as_gpu { sm90::gated_linear } else { gated_linear };
            body(cpu, arrays.read(*x), weight.as_ref(), bias.as_deref(), out);
        }),
        Op::RotateAndStore { qkv, turns, layer, heads, norms, out } => {
            return arrays.write(*out, |arrays, q| {
                let pools = &mut pools[*layer];
                let projected = Projected {
                    qkv: arrays.read(*qkv),
                    cos: arrays.read(turns[0]),
                    sin: arrays.read(turns[1]),
                    norms: norms.as_ref().map(|norms| Norms { q: &norms.q, k: &norms.k, eps: norms.eps }),
                    slots: step.slots,
                };
                let shape = pools.shape(*heads);
                let body = if as_gpu { sm90::rotate_and_store } else { rotate_and_store };
                body(cpu, shape, projected, (pools.k.lend(), pools.v.lend()), q)
            });
        }
        Op::Attention { q, layer, heads, factor, out } => {
            return arrays.write(*out, |arrays, y| {
                let pools = &pools[*layer];
                let step = Attention {
                    q: arrays.read(*q),
                    k: pools.k.shared(),
                    v: pools.v.shared(),
                    positions: step.positions,
                    row_starts: step.row_starts,
                    page_table: step.page_table,
                    shape: pools.shape(*heads),
                    rule: Rule { factor: *factor, cap: 0.0, window: 0, sinks: None, bias: None },
                };
                let body = if as_gpu { sm90::attention } else { attention };
                body(cpu, &step, y)
            });
        }
    }
    Ok(())
}

/// The arrays of one step.
struct Arrays<'t, 's> {
    rows: usize,
    widths: &'t [usize],
    places: &'t [Place],
    buffers: &'t mut [Vec<f32>],
    inputs: &'t [&'s [f32]],
    outputs: Vec<Option<&'s mut [f32]>>,
}

impl Arrays<'_, '_> {
    fn read(&self, name: Name) -> &[f32] {
        let numbers = match self.places[name] {
            Place::Input(i) => self.inputs[i],
            Place::Output(i) => self.outputs[i].as_deref().expect("nobody reads what he writes"),
            Place::Buffer(i) => &self.buffers[i],
        };
        &numbers[..self.rows * self.widths[name]]
    }

    /// `fill(the others, the array)`: it is taken out meanwhile.
    fn write<R>(&mut self, name: Name, fill: impl FnOnce(&mut Self, &mut [f32]) -> R) -> R {
        let length = self.rows * self.widths[name];
        match self.places[name] {
            Place::Input(_) => unreachable!("inputs are only read"),
            Place::Output(i) => {
                let out = self.outputs[i].take().expect("written once");
                let answer = fill(self, &mut out[..length]);
                self.outputs[i] = Some(out);
                answer
            }
            Place::Buffer(i) => {
                let mut buffer = std::mem::take(&mut self.buffers[i]);
                if buffer.len() < length {
                    buffer.resize(length, 0.0);
                }
                let answer = fill(self, &mut buffer[..length]);
                self.buffers[i] = buffer;
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests;

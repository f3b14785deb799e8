//! Speed of `linear` in one pass through SmolLM2-135M in bf16: all layers' weights are there, so nothing is cached that
//! wouldn't be in a real step.
//!
//! `cargo bench -p zerokl-kernels --bench linear -- [rows ...] [threads=N] [isa=NAME] [repeats=N]`

use std::time::Instant;

use zerokl_kernels::arch::Isa;
use zerokl_kernels::cpu::Cpu;
use zerokl_kernels::formats::Format;
use zerokl_kernels::linear::{Epilogue, linear};
use zerokl_kernels::matrix::{Matrix, Source};

const LAYERS: usize = 30;
/// (name, N, K): qkv, attention's output, gate and up, down; then the head once.
const LAYER: [(&str, usize, usize); 4] =
    [("qkv", 960, 576), ("out", 576, 576), ("gate_up", 3072, 576), ("down", 576, 1536)];
const HEAD: (&str, usize, usize) = ("head", 49152, 576);

fn main() {
    let mut cpu = Cpu::detect();
    let (mut all_rows, mut repeats) = (Vec::new(), 9);
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("threads", count)) => cpu.threads = count.parse().expect("threads=N"),
            Some(("isa", name)) => cpu.isa = Isa::named(name).expect("an instruction set of this machine"),
            Some(("repeats", count)) => repeats = count.parse().expect("repeats=N"),
            _ => all_rows.extend(argument.parse::<usize>().ok()),
        }
    }
    if all_rows.is_empty() {
        all_rows = vec![1, 8, 16, 512];
    }
    let model: Vec<(usize, Matrix)> = model(cpu);
    println!("{} threads, {}; median of {repeats} passes (fastest)", cpu.threads, cpu.isa.name());
    for rows in all_rows {
        report(cpu, rows, repeats, &model);
    }
}

fn shape(index: usize) -> (&'static str, usize, usize) {
    LAYER.get(index).copied().unwrap_or(HEAD)
}

/// (index of its shape, weight), in the order of a pass.
fn model(cpu: Cpu) -> Vec<(usize, Matrix)> {
    let indices = (0..LAYERS).flat_map(|_| 0..LAYER.len()).chain([LAYER.len()]);
    let pack = |index: usize| {
        let (_, outputs, depth) = shape(index);
        let values: Vec<f32> = (0..outputs * depth).map(|i| ((i * 7919) % 255) as f32 / 128.0 - 1.0).collect();
        (index, Matrix::pack(cpu, Source::F32(&values), outputs, depth, Format::Bf16))
    };
    indices.map(pack).collect()
}

/// A prefill computes the head for its last row only, so many rows are measured without it.
fn report(cpu: Cpu, rows: usize, repeats: usize, model: &[(usize, Matrix)]) {
    let x: Vec<f32> = (0..rows * 1536).map(|i| ((i * 31) % 101) as f32 / 50.0 - 1.0).collect();
    let mut out = vec![0.0; rows * if rows > 64 { 3072 } else { HEAD.1 }];
    let passes: Vec<[f64; 5]> = (0..repeats)
        .map(|_| {
            let mut seconds = [0.0; 5];
            for (index, weight) in model.iter().filter(|(index, _)| rows <= 64 || *index < LAYER.len()) {
                let start = Instant::now();
                let (x, out) = (&x[..rows * weight.columns], &mut out[..rows * weight.rows]);
                linear(cpu, x, weight, Epilogue::default(), out);
                seconds[*index] += start.elapsed().as_secs_f64();
            }
            seconds
        })
        .collect();
    for index in 0..LAYER.len() + usize::from(rows <= 64) {
        let (name, outputs, depth) = shape(index);
        let numbers = (outputs * depth * if index < LAYER.len() { LAYERS } else { 1 }) as f64;
        let (median, fastest) = median(passes.iter().map(|pass| pass[index]));
        println!(
            "rows {rows:4} {name:>8}  {:7.2} ms ({:7.2})  {:6.1} GFLOP/s  {:5.1} GB/s of weights",
            median * 1e3,
            fastest * 1e3,
            2.0 * rows as f64 * numbers / median / 1e9,
            2.0 * numbers / median / 1e9
        );
    }
    let (median, fastest) = median(passes.iter().map(|pass| pass.iter().sum()));
    println!(
        "rows {rows:4}    total  {:7.2} ms ({:7.2})  {:6.0} rows/s",
        median * 1e3,
        fastest * 1e3,
        rows as f64 / median
    );
}

fn median(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

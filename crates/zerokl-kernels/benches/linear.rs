//! Speed of `linear` at SmolLM2-135M's shapes: `cargo bench -p zerokl-kernels --bench linear -- [rows ...]`.

use std::time::Instant;

use zerokl_kernels::cpu::Cpu;
use zerokl_kernels::formats::Format;
use zerokl_kernels::linear::{Epilogue, linear};
use zerokl_kernels::matrix::{Matrix, Source};

/// (N, K, how many of them one token passes).
const SHAPES: [(usize, usize, usize); 5] =
    [(960, 576, 30), (576, 576, 30), (3072, 576, 30), (576, 1536, 30), (49152, 576, 1)];

fn main() {
    let cpu = Cpu::detect();
    let rows: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let rows = if rows.is_empty() { vec![1, 8, 16, 512] } else { rows };
    for rows in rows {
        let mut token = 0.0;
        for (outputs, depth, count) in SHAPES {
            if rows > 64 && outputs > 10000 {
                continue;
            }
            // As many copies as keep the weights out of the cache, as a whole model does.
            let copies = count.min(8);
            let source: Vec<f32> = (0..outputs * depth).map(|i| ((i * 7919) % 255) as f32 / 128.0 - 1.0).collect();
            let weights: Vec<Matrix> = (0..count.min(30))
                .map(|_| Matrix::pack(cpu, Source::F32(&source), outputs, depth, Format::Bf16))
                .collect();
            let _ = copies;
            let x: Vec<f32> = (0..rows * depth).map(|i| ((i * 31) % 101) as f32 / 50.0 - 1.0).collect();
            let mut out = vec![0.0; rows * outputs];
            let repeats = if rows >= 64 { 3 } else { 10 };
            let mut best = f64::MAX;
            for _ in 0..repeats {
                let start = Instant::now();
                for weight in &weights {
                    linear(cpu, &x, weight, Epilogue::default(), &mut out);
                }
                best = best.min(start.elapsed().as_secs_f64() / weights.len() as f64);
            }
            let flops = 2.0 * (rows * outputs * depth) as f64;
            let bytes = (outputs * depth * 2) as f64;
            token += best * count as f64;
            println!(
                "rows {rows:4}  [{outputs:5} x {depth:4}]  {:8.1} us  {:6.1} GFLOP/s  {:5.1} GB/s of weights",
                best * 1e6,
                flops / best / 1e9,
                bytes / best / 1e9
            );
        }
        println!("rows {rows:4}  whole model: {:.2} ms, {:.0} rows/s", token * 1e3, rows as f64 / token);
    }
}

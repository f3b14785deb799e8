//! Speed of `attention` in one pass through SmolLM2-135M: 30 layers, 9 query heads on 3 key heads of 64, pages of 64.
//! Every layer has its own pool, with pages in random order, so a decode reads from memory as it would in a real step.
//!
//! `cargo bench -p zerokl-kernels --bench attention -- [threads=N] [isa=NAME] [repeats=N] [page=N]`

use std::time::Instant;

use zerokl_kernels::arch::Isa;
use zerokl_kernels::attention::{Attention, Pool, Rule, Shape, attention};
use zerokl_kernels::cpu::Cpu;

const LAYERS: usize = 30;

/// (name, sequences, keys of each, new rows of each)
const STEPS: [(&str, usize, usize, usize); 6] = [
    ("prefill 512", 1, 512, 512),
    ("prefill 2048", 1, 2048, 2048),
    ("last 512 of 2048", 1, 2048, 512),
    ("decode at 512", 1, 512, 1),
    ("decode at 2048", 1, 2048, 1),
    ("16 decodes at 512", 16, 512, 1),
];

fn main() {
    let mut cpu = Cpu::detect();
    let (mut repeats, mut page) = (7, 64);
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("threads", count)) => cpu.threads = count.parse().expect("threads=N"),
            Some(("isa", name)) => cpu.isa = Isa::named(name).expect("an instruction set of this machine"),
            Some(("repeats", count)) => repeats = count.parse().expect("repeats=N"),
            Some(("page", count)) => page = count.parse().expect("page=N"),
            _ => {}
        }
    }
    let shape = Shape { heads: 9, kv_heads: 3, size: 64, page, stride: 3 * 64 * page };
    println!("{} threads, {}, pages of {page}; fastest of {repeats} passes", cpu.threads, cpu.isa.name());
    for (name, sequences, keys, rows) in STEPS {
        let step = Step::new(shape, sequences, keys, rows);
        let seconds = (0..repeats).map(|_| step.pass(cpu)).fold(f64::INFINITY, f64::min);
        let products = 4 * LAYERS * sequences * (0..rows).map(|i| keys - i).sum::<usize>() * 9 * 64;
        let bytes = LAYERS * sequences * keys * 2 * 3 * 64 * 4;
        let (gflops, gigabytes) = (products as f64 / seconds / 1e9, bytes as f64 / seconds / 1e9);
        println!("{name:20} {:9.3} ms  {gflops:6.1} GFLOP/s  {gigabytes:6.2} GB/s of keys and values", seconds * 1e3);
    }
}

struct Step {
    shape: Shape,
    q: Vec<f32>,
    layers: Vec<(Vec<f32>, Vec<f32>)>,
    positions: Vec<i32>,
    row_starts: Vec<i32>,
    page_table: Vec<i32>,
}

impl Step {
    fn new(shape: Shape, sequences: usize, keys: usize, rows: usize) -> Self {
        let num_pages = sequences * keys.div_ceil(shape.page);
        let floats = num_pages * shape.page * shape.kv_heads * shape.size;
        Step {
            shape,
            q: numbers(1, sequences * rows * shape.heads * shape.size),
            layers: (0..LAYERS).map(|layer| (numbers(2 + layer, floats), numbers(99 + layer, floats))).collect(),
            positions: (0..sequences * rows).map(|row| (keys - rows + row % rows) as i32).collect(),
            row_starts: (0..=sequences).map(|sequence| (sequence * rows) as i32).collect(),
            page_table: shuffled(num_pages),
        }
    }

    /// Seconds for all layers.
    fn pass(&self, cpu: Cpu) -> f64 {
        let mut y = vec![0.0; self.q.len()];
        let start = Instant::now();
        for (k, v) in &self.layers {
            let step = Attention {
                q: &self.q,
                k: Pool::F32(k),
                v: Pool::F32(v),
                positions: &self.positions,
                row_starts: &self.row_starts,
                page_table: &self.page_table,
                shape: self.shape,
                rule: Rule { factor: 0.18, cap: 0.0, window: 0, sinks: None, bias: None },
            };
            attention(cpu, &step, &mut y).expect("a sound step");
        }
        start.elapsed().as_secs_f64()
    }
}

/// Spread evenly over -1 .. 1.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let mut state = seed as u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn shuffled(count: usize) -> Vec<i32> {
    let mut pages: Vec<i32> = (0..count as i32).collect();
    let mut state = 1_usize;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        pages.swap(i, (state >> 33) % (i + 1));
    }
    pages
}

mod quantised;

use super::*;
use crate::arch::Isa;
use crate::formats::Format;
use crate::matrix::Source;

/// Numbers of many sizes and signs, so that every change of order shows.
pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * f32::from_bits((117 + next() % 16) << 23)).collect()
}

/// The contract, written as it reads.
pub fn expected(x: &[f32], w: &[f32], rows: usize, outputs: usize, depth: usize, epilogue: Epilogue<'_>) -> Vec<u32> {
    let mut y = Vec::new();
    for m in 0..rows {
        for n in 0..outputs {
            let mut acc = 0.0_f32;
            for k in 0..depth {
                acc = x[m * depth + k].mul_add(w[n * depth + k], acc);
            }
            acc = epilogue.bias.map_or(acc, |bias| acc + bias[n]);
            acc = epilogue.residual.map_or(acc, |residual| acc + residual[m * outputs + n]);
            y.push(acc.to_bits());
        }
    }
    y
}

pub fn cpus() -> impl Iterator<Item = Cpu> {
    let plain = Isa::best().plain();
    let extra = (plain != Isa::best()).then_some(Cpu { isa: plain, threads: 1 });
    Isa::available().flat_map(|isa| [1, 3].map(|threads| Cpu { isa, threads })).chain(extra)
}

/// Rows: each group size, their sums, tile edges. Outputs: panel and tile edges. Depth: nothing, one, across blocks.
#[test]
fn every_shape_isa_and_thread_count_gives_the_chain() {
    let rows = [1, 2, 3, 5, 8, 11, 12, 13, 31, 97];
    let shapes = [(1, 1), (15, 7), (16, 3), (17, 0), (33, 64), (200, 5), (20, 3073)];
    for (outputs, depth) in shapes {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let pack = |source: &[f32]| Matrix::pack(Cpu::detect(), Source::F32(source), outputs, depth, format);
            let matrix = pack(&numbers(outputs * depth, 7));
            let stored = matrix.to_f32();
            for rows in rows.into_iter().filter(|rows| depth < 2000 || *rows < 14) {
                let (x, bias, residual) = (numbers(rows * depth, 1), numbers(outputs, 2), numbers(rows * outputs, 3));
                for epilogue in [
                    Epilogue::default(),
                    Epilogue { bias: Some(&bias), residual: None },
                    Epilogue { bias: Some(&bias), residual: Some(&residual) },
                ] {
                    let expected = expected(&x, &stored, rows, outputs, depth, epilogue);
                    for cpu in cpus() {
                        let mut out = vec![f32::NAN; rows * outputs];
                        linear(cpu, &x, &matrix, epilogue, &mut out);
                        let bits: Vec<u32> = out.iter().map(|y| y.to_bits()).collect();
                        assert!(bits == expected, "{rows} x {outputs} x {depth} {format:?} {cpu:?}");
                    }
                }
            }
        }
    }
}

/// Three panels and one, a chain that resumes at 1,536 and ends with an odd k; calls that follow each other with other rows.
#[test]
fn blocks_of_three_panels_resume_their_chains_and_read_the_rows_of_their_own_call() {
    let (outputs, depth) = (64, 1541);
    let weight = numbers(outputs * depth, 7);
    let matrix = Matrix::pack(Cpu::detect(), Source::F32(&weight), outputs, depth, Format::Bf16);
    let stored = matrix.to_f32();
    for rows in [3, 8, 12, 24] {
        let x = numbers(rows * depth, rows as u32);
        let expected = expected(&x, &stored, rows, outputs, depth, Epilogue::default());
        for cpu in cpus() {
            let mut out = vec![f32::NAN; rows * outputs];
            linear(cpu, &x, &matrix, Epilogue::default(), &mut out);
            assert!(out.iter().map(|y| y.to_bits()).eq(expected.iter().copied()), "{rows} {cpu:?}");
        }
    }
}

#[test]
fn the_inputs_show_a_change_of_order() {
    let (x, w) = (numbers(64, 1), numbers(64, 7));
    let reversed = |v: &[f32]| v.iter().rev().copied().collect::<Vec<_>>();
    let plain = expected(&x, &w, 1, 1, 64, Epilogue::default());
    assert_ne!(plain, expected(&reversed(&x), &reversed(&w), 1, 1, 64, Epilogue::default()));
}

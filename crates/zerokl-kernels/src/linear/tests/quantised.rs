//! Products with quantised weights against the contract, written as it reads, on every body.

use super::{cpus, expected, numbers};
use crate::cpu::Cpu;
use crate::formats::Format;
use crate::linear::{Epilogue, gated_linear, linear};
use crate::matrix::{Matrix, Scale, Source, is_block_type};
use crate::swiglu::swiglu;

/// Rows: one (a body of its own), each group size, tile edges.
const ROWS: [usize; 6] = [1, 2, 7, 13, 24, 64];

fn bytes(count: usize, seed: u32) -> Vec<u8> {
    numbers(count, seed).iter().map(|x| (x.to_bits() >> 7) as u8).collect()
}

/// Blocks with random codes and group scales, and tame f16 scales of both signs.
fn blocks(format: Format, values: usize, seed: u32) -> Vec<u8> {
    let (length, size, halves): (usize, usize, &[usize]) = match format {
        Format::Q4_0 => (32, 18, &[0]),
        Format::Q4_1 => (32, 20, &[0, 2]),
        Format::Q5_0 => (32, 22, &[0]),
        Format::Q5_1 => (32, 24, &[0, 2]),
        Format::Q8_0 => (32, 34, &[0]),
        Format::Q4K => (256, 144, &[0, 2]),
        Format::Q5K => (256, 176, &[0, 2]),
        Format::Q6K => (256, 210, &[208]),
        _ => unreachable!("block types"),
    };
    let mut all = bytes(values / length * size, seed);
    for (i, block) in all.chunks_exact_mut(size).enumerate() {
        for &at in halves {
            block[at + 1] = 0x20 | (block[at + 1] & 0x87) | ((i as u8) & 1) << 2;
        }
    }
    all
}

fn packed(format: Format, outputs: usize, depth: usize, integer: bool, seed: u32) -> Matrix {
    Matrix::pack_blocks(Cpu::detect(), format, &[&blocks(format, outputs * depth, seed)], outputs, depth, integer)
}

fn check(matrix: &Matrix, rows: usize, expected: &[u32], epilogue: Epilogue<'_>, x: &[f32], what: &str) {
    for cpu in cpus() {
        let mut out = vec![f32::NAN; rows * matrix.rows];
        linear(cpu, x, matrix, epilogue, &mut out);
        let bits: Vec<u32> = out.iter().map(|y| y.to_bits()).collect();
        assert!(bits == expected, "{rows} rows, {what}, {cpu:?}");
    }
}

/// Outputs end inside a panel; depths of one block of K that is unpacked, and of several.
#[test]
fn block_types_give_the_chain_of_their_dequantised_numbers() {
    for format in Format::ALL.into_iter().filter(|format| is_block_type(*format)) {
        for (outputs, depth) in [(20, 256), (130, 768), (16, 2048)] {
            let matrix = packed(format, outputs, depth, false, 3);
            let plain = Matrix::pack(Cpu::detect(), Source::F32(&matrix.to_f32()), outputs, depth, Format::F32);
            for rows in ROWS.into_iter().filter(|rows| depth < 1000 || *rows < 3) {
                let (x, bias, residual) = (numbers(rows * depth, 1), numbers(outputs, 2), numbers(rows * outputs, 3));
                let epilogue = Epilogue { bias: Some(&bias), residual: Some(&residual) };
                let mut y = vec![0.0; rows * outputs];
                linear(Cpu::detect(), &x, &plain, epilogue, &mut y);
                let bits: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                check(&matrix, rows, &bits, epilogue, &x, &format!("{format:?} {outputs} x {depth}"));
            }
        }
    }
}

#[test]
fn nvfp4_is_a_chain_of_exact_numbers_and_its_scale_comes_once_at_the_end() {
    let (outputs, depth) = (37, 560);
    let codes = bytes(outputs * depth / 2, 5);
    let scales: Vec<u8> = bytes(outputs * depth / 16, 6).iter().map(|code| code & 0x7f).map(|c| c.min(0x7e)).collect();
    let pack = |scale| Matrix::pack_nvfp4(Cpu::detect(), &codes, &scales, outputs, depth, scale);
    let (numbers_of, factor) = (pack(Scale::One).to_f32(), 0.3_f32);
    for rows in ROWS {
        let (x, residual) = (numbers(rows * depth, 1), numbers(rows * outputs, 3));
        let chain = expected(&x, &numbers_of, rows, outputs, depth, Epilogue::default());
        let epilogue = Epilogue { bias: None, residual: Some(&residual) };
        for scale in [Scale::One, Scale::Times(factor), Scale::Over(factor)] {
            let scaled = |chain: f32| match scale {
                Scale::Times(factor) => chain * factor,
                Scale::Over(divisor) => chain / divisor,
                _ => chain,
            };
            let bits: Vec<u32> =
                chain.iter().zip(&residual).map(|(c, r)| (scaled(f32::from_bits(*c)) + r).to_bits()).collect();
            check(&pack(scale.clone()), rows, &bits, epilogue, &x, &format!("nvfp4 {scale:?}"));
        }
    }
}

/// Depths that end inside a word and inside a block.
#[test]
fn fp8_is_a_chain_under_its_scale_or_chains_of_128_joined_by_theirs() {
    for (outputs, depth) in [(20, 64), (131, 147), (20, 640)] {
        let codes: Vec<u8> =
            bytes(outputs * depth, 5).iter().map(|c| if c & 0x7f == 0x7f { 0x7e } else { *c }).collect();
        let each: Vec<f32> = numbers(outputs, 9);
        let pack = |scale| Matrix::pack_fp8(Cpu::detect(), &codes, outputs, depth, scale);
        let plain = pack(Scale::One).to_f32();
        let (down, across) = (outputs.div_ceil(128), depth.div_ceil(128));
        let scales = numbers(down * across, 11);
        let blocked = Matrix::pack_fp8_blocks(Cpu::detect(), &codes, &scales, outputs, depth);
        for rows in ROWS {
            let x = numbers(rows * depth, 1);
            let mut bits = expected(&x, &plain, rows, outputs, depth, Epilogue::default());
            check(&pack(Scale::One), rows, &bits, Epilogue::default(), &x, "fp8");
            let scaled = |(i, chain): (usize, &u32)| (f32::from_bits(*chain) * each[i % outputs]).to_bits();
            let by_output: Vec<u32> = bits.iter().enumerate().map(scaled).collect();
            check(&pack(Scale::Each(each.clone())), rows, &by_output, Epilogue::default(), &x, "fp8 per output");
            for (i, y) in bits.iter_mut().enumerate() {
                let (m, n) = (i / outputs, i % outputs);
                let mut sum = 0.0_f32;
                for block in 0..across {
                    let ks = block * 128..depth.min(block * 128 + 128);
                    let chain = ks.fold(0.0_f32, |acc, k| x[m * depth + k].mul_add(plain[n * depth + k], acc));
                    sum = chain.mul_add(scales[n / 128 * across + block], sum);
                }
                *y = sum.to_bits();
            }
            check(&blocked, rows, &bits, Epilogue::default(), &x, "fp8 by blocks");
        }
    }
}

/// The contract of integer.rs, from the numbers of each group: w = scale * (code - zero) + offset.
#[test]
fn integer_products_are_exact_sums_of_groups_in_a_chain() {
    for format in Format::ALL.into_iter().filter(|format| is_block_type(*format)) {
        let (outputs, depth) = (20, 1024);
        let matrix = packed(format, outputs, depth, true, 3);
        assert!(matrix.is_integer());
        let groups = reference::groups(format, &blocks(format, outputs * depth, 3));
        for rows in ROWS {
            let x = numbers(rows * depth, 1);
            let bits: Vec<u32> = (0..rows * outputs)
                .map(|i| {
                    let (m, n) = (i / outputs, i % outputs);
                    let length = groups[0].codes.len();
                    let row = &groups[n * (depth / length)..][..depth / length];
                    reference::product(&x[m * depth..][..depth], row).to_bits()
                })
                .collect();
            check(&matrix, rows, &bits, Epilogue::default(), &x, &format!("integer {format:?}"));
        }
    }
}

#[test]
fn stacked_shards_give_the_bits_that_each_has_alone() {
    let (depth, rows) = (256, 13);
    let all = bytes(64 * depth, 8);
    let safe: Vec<u8> = all.iter().map(|c| c & 0x77).collect();
    let parts = [
        packed(Format::Q4_1, 40, depth, false, 3),
        packed(Format::Q6K, 24, depth, true, 4),
        Matrix::pack_fp8(Cpu::detect(), &safe, 64, depth, Scale::Times(0.1)),
        Matrix::pack(Cpu::detect(), Source::F32(&numbers(16 * depth, 5)), 16, depth, Format::Bf16),
    ];
    let stacked = Matrix::stack(&parts.iter().collect::<Vec<_>>());
    let x = numbers(rows * depth, 1);
    let mut both = vec![0.0; rows * stacked.rows];
    linear(Cpu::detect(), &x, &stacked, Epilogue::default(), &mut both);
    let mut first = 0;
    for part in &parts {
        let mut alone = vec![0.0; rows * part.rows];
        linear(Cpu::detect(), &x, part, Epilogue::default(), &mut alone);
        for (row, alone) in alone.chunks_exact(part.rows).enumerate() {
            assert_eq!(alone, &both[row * stacked.rows + first..][..part.rows]);
        }
        first += part.rows;
    }
    let mut expected = vec![0.0; rows * stacked.rows / 2];
    swiglu(Cpu::detect(), &both, stacked.rows / 2, &mut expected);
    for cpu in cpus() {
        let mut out = vec![0.0; expected.len()];
        gated_linear(cpu, &x, &stacked, None, &mut out);
        assert_eq!(out, expected, "{cpu:?}: halves of other shards");
    }
}

#[test]
fn gates_and_ups_of_two_shards_are_one_operation_too() {
    let (width, depth) = (48, 256);
    let (gate, up) = (packed(Format::Q4_0, width, depth, false, 3), packed(Format::Q8_0, width, depth, false, 4));
    let both = Matrix::stack(&[&gate, &up]);
    for rows in [1, 30] {
        let x = numbers(rows * depth, 1);
        let mut middle = vec![0.0; rows * 2 * width];
        linear(Cpu::detect(), &x, &both, Epilogue::default(), &mut middle);
        let mut expected = vec![0.0; rows * width];
        swiglu(Cpu::detect(), &middle, width, &mut expected);
        for cpu in cpus() {
            let mut out = vec![0.0; rows * width];
            gated_linear(cpu, &x, &both, None, &mut out);
            assert_eq!(out, expected, "{cpu:?}");
        }
    }
}

/// Block types read straight from the bytes of a file, without the packed layout.
mod reference {
    use crate::arch::widen_f16;
    use crate::formats::Format;

    pub struct Group {
        pub codes: Vec<i32>,
        scale: f32,
        offset: Option<f32>,
    }

    pub fn groups(format: Format, bytes: &[u8]) -> Vec<Group> {
        let size = match format {
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q4K => 144,
            Format::Q5K => 176,
            _ => 210,
        };
        bytes.chunks_exact(size).flat_map(|block| of_block(format, block)).collect()
    }

    fn half(b: &[u8], at: usize) -> f32 {
        widen_f16(u16::from_le_bytes([b[at], b[at + 1]]))
    }

    fn of_block(format: Format, b: &[u8]) -> Vec<Group> {
        let nibble = |start: usize, k: usize| i32::from(b[start + k % 16] >> (k / 16 * 4) & 15);
        let fifth = |start: usize, k: usize| i32::from(b[start + k / 8] >> (k % 8) & 1) << 4;
        let of = |code: &dyn Fn(usize) -> i32, offset: Option<f32>| {
            vec![Group { codes: (0..32).map(code).collect(), scale: half(b, 0), offset }]
        };
        match format {
            Format::Q4_0 => of(&|k| nibble(2, k) - 8, None),
            Format::Q4_1 => of(&|k| nibble(4, k), Some(half(b, 2))),
            Format::Q5_0 => of(&|k| (nibble(6, k) | fifth(2, k)) - 16, None),
            Format::Q5_1 => of(&|k| nibble(8, k) | fifth(4, k), Some(half(b, 2))),
            Format::Q8_0 => of(&|k| i32::from(b[2 + k].cast_signed()), None),
            Format::Q6K => six(b),
            _ => pairs(format, b),
        }
    }

    fn pairs(format: Format, b: &[u8]) -> Vec<Group> {
        let quants = if format == Format::Q4K { 16 } else { 48 };
        let one = |group: usize| {
            let (scale, offset) = if group < 4 {
                (b[4 + group] & 63, b[8 + group] & 63)
            } else {
                let low = b[8 + group];
                (low & 15 | b[group] >> 6 << 4, low >> 4 | b[4 + group] >> 6 << 4)
            };
            let code = |k: usize| {
                let low = i32::from(b[quants + group / 2 * 32 + k] >> (group % 2 * 4) & 15);
                let high = if format == Format::Q5K { i32::from(b[16 + k] >> group & 1) << 4 } else { 0 };
                low | high
            };
            let offset = -(half(b, 2) * f32::from(offset));
            Group { codes: (0..32).map(code).collect(), scale: half(b, 0) * f32::from(scale), offset: Some(offset) }
        };
        (0..8).map(one).collect()
    }

    fn six(b: &[u8]) -> Vec<Group> {
        let one = |group: usize| {
            let code = |k: usize| {
                let k = group * 16 + k;
                let (h, i) = (k / 128, k % 128);
                let low = b[h * 64 + i % 64] >> (i / 64 * 4) & 15;
                let high = b[128 + h * 32 + i % 32] >> (i / 32 * 2) & 3;
                i32::from(low | high << 4) - 32
            };
            let scale = half(b, 208) * f32::from(b[192 + group].cast_signed());
            Group { codes: (0..16).map(code).collect(), scale, offset: None }
        };
        (0..16).map(one).collect()
    }

    pub fn product(x: &[f32], groups: &[Group]) -> f32 {
        let rounded: Vec<(Vec<i32>, f32)> = x.chunks(32).map(round).collect();
        let mut acc = 0.0_f32;
        for (i, group) in groups.iter().enumerate() {
            let first = i * group.codes.len();
            let (q, d) = &rounded[first / 32];
            let q = &q[first % 32..][..group.codes.len()];
            let dot: i32 = group.codes.iter().zip(q).map(|(code, q)| code * q).sum();
            acc = (dot as f32).mul_add(group.scale * d, acc);
            if let Some(offset) = group.offset {
                acc = offset.mul_add(d * q.iter().sum::<i32>() as f32, acc);
            }
        }
        acc
    }

    fn round(x: &[f32]) -> (Vec<i32>, f32) {
        let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
        (x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect(), largest / 127.0)
    }
}

//! Twelve accumulators of sixteen registers: a block of products that the compiler has never kept in registers.
//!
//! ```text
//! acc     4 rows x 3 registers of 8 outputs: one panel and a half, so three panels are two walks
//! a pair  3 words of two bf16 ─ shift, later mask ─▶ 3 weights; 4 numbers of x, each broadcast and used three times
//! ```
//!
//! Blocks of 4 rows and one panel, 8 accumulators, are all that the compiler manages: 104 of 128 GFLOP/s on one thread, as a
//! chain has to wait for its last fma whenever one of the eight is late. These reach 122 to 125.

use std::arch::asm;

use super::{LANES, Line};

/// Rows and panels of a block.
const ROWS: usize = 4;
const PANELS: usize = 3;

/// acc[r][p] = fma(weight, x[k][row + r], acc[r][p]) for rising k: `acc` are numbers of 4 rows of 3 panels, `panels` have
/// pairs of bf16 (`formats::Bf16Piece`). `ask`: two lists of lines, one for each pair, to ask for in each of two walks.
///
/// # Safety
/// The machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn bf16_chains<const G: usize>(
    panels: [&[Line]; PANELS],
    x: &[[f32; G]],
    row: usize,
    ask: [[*const Line; 2]; 2],
    acc: &mut [[f32; LANES]; ROWS * PANELS],
) {
    let pairs = x.len() / 2;
    assert!(row + ROWS <= G && panels.iter().all(|panel| panel.len() == pairs), "a pair of k for each piece");
    if pairs == 0 {
        return;
    }
    let [first, second, third] = panels.map(|panel| panel.as_ptr().cast::<f32>());
    let half = LANES / 2;
    let x = x.as_flattened()[row..].as_ptr();
    let walks = [
        ([first, first.wrapping_add(half), second], 0),
        ([second.wrapping_add(half), third, third.wrapping_add(half)], PANELS * half),
    ];
    for ((words, skipped), ask) in walks.into_iter().zip(ask) {
        // SAFETY: each of the words has `pairs` pieces of 64 bytes, of which 32 are read; x has twice as many rows of G
        // numbers, of which 4 are read; acc has 4 rows of 6 registers, of which 3 are taken.
        unsafe { walk::<G>(words, x, pairs, ask, acc.as_mut_ptr().cast::<f32>().add(skipped)) };
    }
}

/// Bytes of x that are asked for ahead: the first walk through them finds some in memory.
const ROWS_AHEAD: usize = 4 << 10;

static HIGH_HALVES: [u32; LANES / 2] = [0xffff_0000; LANES / 2];

/// One number of x, at an offset, with three weights.
macro_rules! row {
    ($at:literal, $a:literal, $b:literal, $c:literal) => {
        concat!(
            concat!("vbroadcastss ymm15, dword ptr [", $at, "]\n"),
            concat!("vfmadd231ps ymm", $a, ", ymm12, ymm15\n"),
            concat!("vfmadd231ps ymm", $b, ", ymm13, ymm15\n"),
            concat!("vfmadd231ps ymm", $c, ", ymm14, ymm15"),
        )
    };
}

/// The three accumulators of each row, from memory or to it.
macro_rules! load {
    ($at:literal, $a:literal, $b:literal, $c:literal) => {
        concat!(
            concat!("vmovups ymm", $a, ", ymmword ptr [{acc} + ", $at, "]\n"),
            concat!("vmovups ymm", $b, ", ymmword ptr [{acc} + ", $at, " + 32]\n"),
            concat!("vmovups ymm", $c, ", ymmword ptr [{acc} + ", $at, " + 64]"),
        )
    };
}
macro_rules! store {
    ($at:literal, $a:literal, $b:literal, $c:literal) => {
        concat!(
            concat!("vmovups ymmword ptr [{acc} + ", $at, "], ymm", $a, "\n"),
            concat!("vmovups ymmword ptr [{acc} + ", $at, " + 32], ymm", $b, "\n"),
            concat!("vmovups ymmword ptr [{acc} + ", $at, " + 64], ymm", $c),
        )
    };
}

/// Three registers of outputs. A row of accumulators is 192 bytes.
///
/// # Safety
/// The machine must have AVX2 and FMA; `words` point to 32 bytes of each of `pairs` pieces, aligned, x to 4 numbers of each of
/// twice as many rows of G, `acc` to 96 bytes of each of 4 rows; there is a pair.
#[target_feature(enable = "avx2,fma")]
unsafe fn walk<const G: usize>(
    words: [*const f32; 3],
    x: *const f32,
    pairs: usize,
    ask: [*const Line; 2],
    acc: *mut f32,
) {
    // SAFETY: reads and writes what the caller promises; prefetches are allowed anywhere.
    unsafe {
        asm!(
            load!("0", "0", "1", "2"),
            load!("192", "3", "4", "5"),
            load!("384", "6", "7", "8"),
            load!("576", "9", "10", "11"),
            ".p2align 5",
            "2:",
            // The even k: low halves.
            "vmovdqa ymm12, ymmword ptr [{a}]",
            "vmovdqa ymm13, ymmword ptr [{b}]",
            "vmovdqa ymm14, ymmword ptr [{c}]",
            "vpslld ymm12, ymm12, 16",
            "vpslld ymm13, ymm13, 16",
            "vpslld ymm14, ymm14, 16",
            "prefetcht0 byte ptr [{ask}]",
            "prefetcht0 byte ptr [{also}]",
            "prefetcht0 byte ptr [{x} + {rows_ahead}]",
            row!("{x}", "0", "1", "2"),
            row!("{x} + 4", "3", "4", "5"),
            row!("{x} + 8", "6", "7", "8"),
            row!("{x} + 12", "9", "10", "11"),
            // The odd one: high halves, from memory again, as no register is left to keep the words.
            "vmovdqu ymm15, ymmword ptr [{high}]",
            "vpand ymm12, ymm15, ymmword ptr [{a}]",
            "vpand ymm13, ymm15, ymmword ptr [{b}]",
            "vpand ymm14, ymm15, ymmword ptr [{c}]",
            row!("{x} + {next}", "0", "1", "2"),
            row!("{x} + {next} + 4", "3", "4", "5"),
            row!("{x} + {next} + 8", "6", "7", "8"),
            row!("{x} + {next} + 12", "9", "10", "11"),
            "add {a}, 64",
            "add {b}, 64",
            "add {c}, 64",
            "add {ask}, 64",
            "add {also}, 64",
            "add {x}, 2 * {next}",
            "dec {pairs}",
            "jnz 2b",
            store!("0", "0", "1", "2"),
            store!("192", "3", "4", "5"),
            store!("384", "6", "7", "8"),
            store!("576", "9", "10", "11"),
            a = inout(reg) words[0] => _,
            b = inout(reg) words[1] => _,
            c = inout(reg) words[2] => _,
            x = inout(reg) x => _,
            ask = inout(reg) ask[0] => _,
            also = inout(reg) ask[1] => _,
            pairs = inout(reg) pairs => _,
            high = in(reg) HIGH_HALVES.as_ptr(),
            acc = in(reg) acc,
            next = const 4 * G,
            rows_ahead = const ROWS_AHEAD,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
}

//! Causal convolutions of a few taps, channel by channel, over sequences that are cut into steps.
//!
//! ```text
//! inputs of segment s    previous[s]: the width - 1 before its first row │ its rows
//! Maths       y[t, c] = f(sum_j w[j, c] * u[t - width + 1 + j, c] + bias[c]) (+ u[t, c])
//! Order       acc = fma(w[j, c], u, acc) for j = 0 .. width-1, oldest first, from +0
//! Rounding    once per fma, bias, activation and residual, all f32
//! Same bits   for every cut of a sequence, neighbour, instruction set and thread count
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::gate::Activation;
use crate::tiles::rows_per_task;

pub struct ShortConv<'a> {
    /// [T, C]
    pub u: &'a [f32],
    /// [width, C], oldest tap first.
    pub taps: &'a [f32],
    pub bias: Option<&'a [f32]>,
    /// [S, width - 1, C], oldest first; zeros before the sequence begins.
    pub previous: &'a [f32],
    pub row_starts: &'a [i32],
    pub channels: usize,
    pub activation: Activation,
    /// Whether the input is added to its own convolution.
    pub residual: bool,
}

impl ShortConv<'_> {
    fn width(&self) -> usize {
        self.taps.len() / self.channels
    }

    /// Input `back` rows before row `row` of segment `segment`.
    #[inline(always)]
    fn input(&self, segment: usize, row: usize, back: usize) -> &[f32] {
        let first = self.row_starts[segment] as usize;
        if row >= first + back {
            return &self.u[(row - back) * self.channels..][..self.channels];
        }
        let past = self.width() - 1;
        let before = first + back - row;
        &self.previous[(segment * past + past - before) * self.channels..][..self.channels]
    }
}

/// An error names the first broken entry of `row_starts`.
pub fn short_conv(cpu: Cpu, step: &ShortConv<'_>, out: &mut [f32]) -> Result<(), String> {
    let channels = step.channels;
    if channels == 0 || out.is_empty() {
        return Ok(());
    }
    let (rows, segments) = (out.len() / channels, step.row_starts.len() - 1);
    let starts = step.row_starts;
    let sorted = starts.is_sorted() && starts[0] == 0 && starts[segments] as usize == rows;
    if !sorted {
        return Err(format!("segments start at rows {starts:?} of {rows}"));
    }
    assert_eq!(step.u.len(), out.len(), "an output per input");
    assert_eq!(step.previous.len(), segments * (step.width() - 1) * channels, "the past of each segment");
    assert!(step.bias.is_none_or(|bias| bias.len() == channels), "a bias per channel");
    let task_rows = rows_per_task(channels);
    cpu.for_chunks(out, task_rows * channels, |index, out| {
        for (i, out) in out.chunks_exact_mut(channels).enumerate() {
            let row = index * task_rows + i;
            let segment = starts.partition_point(|&start| start as usize <= row) - 1;
            cpu.run(Row { step, segment, row, out });
        }
    });
    Ok(())
}

struct Row<'a> {
    step: &'a ShortConv<'a>,
    segment: usize,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Row { step, segment, row, out } = self;
        let (width, channels) = (step.width(), step.channels);
        for start in (0..channels).step_by(LANES) {
            let part = start..channels.min(start + LANES);
            let mut sum = L::zero();
            for tap in 0..width {
                let input = L::load_first(&step.input(segment, row, width - 1 - tap)[part.clone()]);
                sum = L::load_first(&step.taps[tap * channels..][part.clone()]).fma(input, sum);
            }
            if let Some(bias) = step.bias {
                sum = sum.add(L::load_first(&bias[part.clone()]));
            }
            sum = step.activation.of(sum);
            if step.residual {
                sum = sum.add(L::load_first(&step.input(segment, row, 0)[part.clone()]));
            }
            sum.store_first(&mut out[part]);
        }
    }
}

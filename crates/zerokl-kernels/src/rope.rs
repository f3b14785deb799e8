//! Rotary positions: the table once per step, the rotation per head.
//!
//! ```text
//! Maths       cos[t, i] = cos(positions[t] * inv_freq[i]) * scale, sin alike
//!             y[a] = x[a] * cos - x[b] * sin,  y[b] = x[b] * cos + x[a] * sin
//!             pairs (a, b) = (i, R/2 + i), or (2i, 2i + 1) if interleaved, for i < R/2; the rest is copied
//! Shapes      positions [T] i32, inv_freq [R/2] f64 -> cos, sin [T, R/2] f32; x [T, H, D], R <= D -> y [T, H, D] f32
//! Rounding    angle, sine, cosine and scale in f64, then once to f32; products and their sum once each, in f32
//! Same bits   for every T, row position, instruction set and thread count: one pair, one result
//! ```

use crate::arch::{Kernel, LANES, Lanes};
use crate::cpu::Cpu;
use crate::math::sin_cos;
use crate::tiles::rows_per_task;

pub fn rope_table(positions: &[i32], inv_freq: &[f64], scale: f64, cos: &mut [f32], sin: &mut [f32]) {
    let angles = positions.iter().flat_map(|p| inv_freq.iter().map(move |f| f64::from(*p) * f));
    assert_eq!(cos.len(), positions.len() * inv_freq.len(), "a cosine per angle");
    assert_eq!(sin.len(), cos.len(), "a sine per cosine");
    for ((angle, cos), sin) in angles.zip(cos).zip(sin) {
        let (s, c) = sin_cos(angle);
        *cos = (c * scale) as f32;
        *sin = (s * scale) as f32;
    }
}

/// How heads lie in a row, and which elements of a head form a pair.
#[derive(Clone, Copy)]
pub struct Layout {
    pub heads: usize,
    pub head_size: usize,
    pub interleaved: bool,
}

pub fn rope(cpu: Cpu, x: &[f32], cos: &[f32], sin: &[f32], layout: Layout, out: &mut [f32]) {
    let width = layout.heads * layout.head_size;
    assert_eq!(x.len(), out.len(), "an output per input");
    assert_eq!(sin.len(), cos.len(), "a sine per cosine");
    if width == 0 || x.is_empty() {
        return;
    }
    let pairs = cos.len() / (x.len() / width);
    assert_eq!(cos.len(), x.len() / width * pairs, "as many angles in every row");
    assert!(2 * pairs <= layout.head_size, "pairs fit in a head");
    let rows = rows_per_task(width);
    cpu.for_chunks(out, rows * width, |index, out| {
        let x = &x[index * rows * width..][..out.len()];
        let table = index * rows * pairs..(index * rows + out.len() / width) * pairs;
        cpu.run(Rows { x, cos: &cos[table.clone()], sin: &sin[table], pairs, layout, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    layout: Layout,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Layout { heads, head_size, interleaved } = self.layout;
        let heads_of_x = self.x.chunks_exact(head_size);
        for (i, (x, y)) in heads_of_x.zip(self.out.chunks_exact_mut(head_size)).enumerate() {
            let angles = i / heads * self.pairs..(i / heads + 1) * self.pairs;
            let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
            y.copy_from_slice(x);
            if interleaved {
                neighbours(cos, sin, y);
            } else {
                halves::<L>(cos, sin, y);
            }
        }
    }
}

/// Turns one head in place, as pairs (i, R/2 + i).
#[inline(always)]
pub fn halves<L: Lanes>(cos: &[f32], sin: &[f32], y: &mut [f32]) {
    let pairs = cos.len();
    let (y_a, y_b) = y[..2 * pairs].split_at_mut(pairs);
    let mut start = 0;
    while start < pairs {
        let lanes = start..(start + LANES).min(pairs);
        let (a, b) = (L::load_first(&y_a[lanes.clone()]), L::load_first(&y_b[lanes.clone()]));
        let (cos, sin) = (L::load_first(&cos[lanes.clone()]), L::load_first(&sin[lanes.clone()]));
        a.mul(cos).sub(b.mul(sin)).store_first(&mut y_a[lanes.clone()]);
        b.mul(cos).add(a.mul(sin)).store_first(&mut y_b[lanes]);
        start += LANES;
    }
}

/// Turns one head in place, as pairs (2i, 2i + 1). Plain IEEE operations: the compiler may use vectors, the bits are the
/// same.
#[inline(always)]
fn neighbours(cos: &[f32], sin: &[f32], y: &mut [f32]) {
    for ((pair, cos), sin) in y.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * cos - b * sin, b * cos + a * sin];
    }
}

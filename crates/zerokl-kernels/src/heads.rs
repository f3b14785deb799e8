//! From the fused projection to attention: heads, their norm, their rotation, and the cache.
//!
//! ```text
//! Maths       q, k, v = heads of qkv; q, k = rope(rms_norm(q)), rope(rms_norm(k)); store_kv(k, v)
//! Shapes      qkv [T, (H + 2K) D], norms [D] or none, cos, sin [T, R/2], slots [T] -> q [T, H, D]
//! Same bits   as the operations one after the other: it calls the bodies of their rows
//! ```
//!
//! One call instead of three copies, two norms, two rotations and a store, because a decoded token has few numbers and
//! pays for the calls.

use std::cell::RefCell;

use crate::arch::{Kernel, LANES, Lanes, prefetch_line};
use crate::attention::{PoolMut, Shape, prefetch_slot, store_rows};
use crate::cpu::Cpu;
use crate::rms_norm;
use crate::rope;
use crate::tiles::rows_per_task;

/// What a step brings: all but the pools.
#[derive(Clone, Copy)]
pub struct Projected<'a> {
    pub qkv: &'a [f32],
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub norms: Option<Norms<'a>>,
    pub slots: &'a [i32],
}

/// Weights [D] of the norms of query and key heads.
#[derive(Clone, Copy)]
pub struct Norms<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub eps: f32,
}

/// Rows that one thread turns while they are still in the first level caches.
const FEW: usize = 16;

thread_local! {
    /// Turned keys on their way to the cache.
    static KEYS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Fills `q` and the slots of `pools`. An error names a slot outside the pool, and then the pools are untouched.
pub fn rotate_and_store(
    cpu: Cpu,
    shape: Shape,
    step: Projected<'_>,
    pools: (PoolMut<'_>, PoolMut<'_>),
    q: &mut [f32],
) -> Result<(), String> {
    let Shape { heads, kv_heads, size, .. } = shape;
    let (rows, width) = (step.slots.len(), (heads + 2 * kv_heads) * size);
    assert_eq!(step.qkv.len(), rows * width, "a row of heads per slot");
    assert_eq!(q.len(), rows * heads * size, "a row of queries per slot");
    if rows == 0 {
        return Ok(());
    }
    if let Some(&slot) = step.slots.first() {
        prefetch_slot(shape, &pools.0, slot);
    }
    if rows <= FEW {
        // Half of them, keys and values among them, are in another thread's cache.
        step.qkv.chunks(LANES).for_each(|line| prefetch_line(line.as_ptr()));
    }
    let part = Part { step, width, size, first: 0, heads, norm: step.norms.map(|norms| (norms.q, norms.eps)) };
    part.turn(cpu, q);
    KEYS.with_borrow_mut(|keys| {
        keys.resize(rows * kv_heads * size, 0.0);
        let norm = step.norms.map(|norms| (norms.k, norms.eps));
        Part { first: heads, heads: kv_heads, norm, ..part }.turn(cpu, keys);
        let values = step.qkv.chunks_exact(width).map(|row| &row[(heads + kv_heads) * size..]);
        store_rows(shape, pools, step.slots, keys.chunks_exact(kv_heads * size).zip(values))
    })
}

/// Neighbouring heads of every row that get the same treatment.
#[derive(Clone, Copy)]
struct Part<'a> {
    step: Projected<'a>,
    /// Of a row of qkv.
    width: usize,
    /// Of a head.
    size: usize,
    first: usize,
    heads: usize,
    norm: Option<(&'a [f32], f32)>,
}

impl Part<'_> {
    fn turn(self, cpu: Cpu, out: &mut [f32]) {
        let row = self.heads * self.size;
        let rows = rows_per_task(row);
        cpu.for_chunks(out, rows * row, |index, out| cpu.run(Turn { part: self, start: index * rows, out }));
    }
}

struct Turn<'a, 'o> {
    part: Part<'a>,
    start: usize,
    out: &'o mut [f32],
}

impl Kernel for Turn<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Part { step, width, size, first, heads, norm } = self.part;
        let pairs = step.cos.len() / step.slots.len();
        for (row, out) in (self.start..).zip(self.out.chunks_exact_mut(heads * size)) {
            let x = &step.qkv[row * width + first * size..][..heads * size];
            let (cos, sin) = (&step.cos[row * pairs..][..pairs], &step.sin[row * pairs..][..pairs]);
            for (x, y) in x.chunks_exact(size).zip(out.chunks_exact_mut(size)) {
                match norm {
                    Some((weight, eps)) => rms_norm::row::<L>(x, weight, eps, y),
                    None => y.copy_from_slice(x),
                }
                rope::halves::<L>(cos, sin, y);
            }
        }
    }
}

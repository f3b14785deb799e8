//! The only write to the cache's bytes.

use super::{PoolMut, Shape};

/// Copies (or rounds: `pool.rs`) row `t` of `k` and `v` `[T, K, D]` to slot `slots[t]` of the pools; -1 goes nowhere.
///
/// An error names a slot outside the pool, and then nothing is written.
pub fn store_kv(
    shape: Shape,
    pools: (PoolMut<'_>, PoolMut<'_>),
    slots: &[i32],
    k: &[f32],
    v: &[f32],
) -> Result<(), String> {
    let row = shape.kv_heads * shape.size;
    store_rows(shape, pools, slots, k.chunks_exact(row).zip(v.chunks_exact(row)))
}

/// As `store_kv`, of rows (k, v) from anywhere.
pub fn store_rows<'a>(
    shape: Shape,
    pools: (PoolMut<'_>, PoolMut<'_>),
    slots: &[i32],
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
) -> Result<(), String> {
    let Shape { kv_heads, size, page, stride, .. } = shape;
    let (mut keys, mut values) = pools;
    let num_slots = shape.num_pages(keys.len()) * page;
    if let Some(slot) = slots.iter().find(|&&slot| slot < -1 || slot >= num_slots as i32) {
        return Err(format!("slot {slot} of a pool of {num_slots}"));
    }
    for (place, (&slot, (k, v))) in slots.iter().zip(rows).enumerate() {
        if let Some(&next) = slots.get(place + 1) {
            prefetch_slot(shape, &keys, next);
        }
        let Ok(slot) = usize::try_from(slot) else { continue };
        let (first, offset) = (slot / page * stride, slot % page);
        for head in 0..kv_heads {
            let start = first + head * size * page;
            keys.write(start + offset, page, &k[head * size..][..size]);
            values.write(start + offset * size, 1, &v[head * size..][..size]);
        }
    }
    Ok(())
}

/// Asks for the lines that one token's keys are written to, one for each of its numbers: 16 decoded tokens of SmolLM2
/// waited 30 us for them in every layer.
pub fn prefetch_slot(shape: Shape, keys: &PoolMut<'_>, slot: i32) {
    let Shape { kv_heads, size, page, stride, .. } = shape;
    let Ok(slot) = usize::try_from(slot) else { return };
    let first = slot / page * stride + slot % page;
    (0..kv_heads * size).for_each(|number| keys.prefetch(first + number * page));
}

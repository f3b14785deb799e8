//! Rows of a packed matrix as f32.
//!
//! ```text
//! Maths       y[t, k] = w[ids[t], k]
//! Shapes      w [N, K] in any format, ids [T] below N -> y [T, K] f32
//! Rounding    none for plain numbers; a block type's value as GGUF defines it; a scale of the whole matrix once
//! Same bits   trivially: nothing is combined
//! ```

use crate::cpu::Cpu;
use crate::matrix::Matrix;

/// Fails, naming it, on an id outside the matrix.
pub fn embedding(cpu: Cpu, weight: &Matrix, ids: &[i32], out: &mut [f32]) -> Result<(), String> {
    assert_eq!(out.len(), ids.len() * weight.columns, "one row per id");
    if let Some(id) = ids.iter().find(|id| !usize::try_from(**id).is_ok_and(|id| id < weight.rows)) {
        return Err(format!("id {id} is not one of {}", weight.rows));
    }
    cpu.for_chunks(out, weight.columns, |t, y| {
        let id = ids[t] as usize;
        let (shard, first) =
            weight.placed().find(|(shard, first)| id < first + shard.rows).expect("an id of the matrix");
        shard.row(weight.columns, id - first, y);
    });
    Ok(())
}

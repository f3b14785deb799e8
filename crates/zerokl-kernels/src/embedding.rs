//! Rows of a packed matrix as f32.
//!
//! ```text
//! Maths       y[t, k] = w[ids[t], k]
//! Shapes      w [N, K] in any format, ids [T] below N -> y [T, K] f32
//! Rounding    none: f16 and bf16 widen exactly
//! Same bits   trivially: nothing is combined
//! ```

use crate::cpu::Cpu;
use crate::formats::Stored;
use crate::matrix::{Matrix, PANEL, Panels, pieces};

/// Fails, naming it, on an id outside the matrix.
pub fn embedding(cpu: Cpu, weight: &Matrix, ids: &[i32], out: &mut [f32]) -> Result<(), String> {
    assert_eq!(out.len(), ids.len() * weight.columns, "one row per id");
    if let Some(id) = ids.iter().find(|id| !usize::try_from(**id).is_ok_and(|id| id < weight.rows)) {
        return Err(format!("id {id} is not one of {}", weight.rows));
    }
    match &weight.panels {
        Panels::F32(panels) => rows(cpu, panels, weight.columns, ids, out),
        Panels::F16(panels) => rows(cpu, panels, weight.columns, ids, out),
        Panels::Bf16(panels) => rows(cpu, panels, weight.columns, ids, out),
    }
    Ok(())
}

fn rows<W: Stored>(cpu: Cpu, panels: &[W], columns: usize, ids: &[i32], out: &mut [f32]) {
    let pieces = pieces::<W>(columns);
    cpu.for_chunks(out, columns, |t, y| {
        let id = ids[t] as usize;
        let panel = &panels[id / PANEL * pieces..][..pieces];
        for (y, piece) in y.chunks_mut(W::STEP).zip(panel) {
            for (k, y) in y.iter_mut().enumerate() {
                *y = piece.get(k, id % PANEL);
            }
        }
    });
}

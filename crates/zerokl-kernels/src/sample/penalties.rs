//! What touches single ids: penalties, logit bias, grammar mask, in this order.

use super::Draw;

/// Whether `apply` would leave everything as it is.
pub fn are_none(draw: &Draw<'_>) -> bool {
    !penalises(draw) && draw.logit_bias.is_empty() && draw.mask.is_none()
}

fn penalises(draw: &Draw<'_>) -> bool {
    draw.repetition_penalty != 1.0 || draw.frequency_penalty != 0.0 || draw.presence_penalty != 0.0
}

pub fn apply(x: &mut [f32], draw: &Draw<'_>) -> Result<(), String> {
    if penalises(draw) {
        let (prompt, output) = draw.history.ok_or("penalties need the history")?;
        penalise(x, draw, prompt, output)?;
    }
    for &(id, bias) in draw.logit_bias {
        *x.get_mut(id as usize).ok_or_else(|| format!("logit bias of id {id}"))? += bias;
    }
    match draw.mask {
        Some(mask) => forbid(x, mask),
        None => Ok(()),
    }
}

fn penalise(x: &mut [f32], draw: &Draw<'_>, prompt: &[u32], output: &[u32]) -> Result<(), String> {
    let in_prompt = counts(x.len(), prompt)?;
    let in_output = counts(x.len(), output)?;
    for ((x, in_prompt), in_output) in x.iter_mut().zip(in_prompt).zip(in_output) {
        if in_prompt + in_output > 0 {
            let repetition = draw.repetition_penalty;
            *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
        }
        if in_output > 0 {
            *x -= draw.frequency_penalty * in_output as f32;
            *x -= draw.presence_penalty;
        }
    }
    Ok(())
}

fn counts(vocabulary: usize, ids: &[u32]) -> Result<Vec<u32>, String> {
    let mut counts = vec![0; vocabulary];
    for &id in ids {
        *counts.get_mut(id as usize).ok_or_else(|| format!("id {id} in the history"))? += 1;
    }
    Ok(counts)
}

fn forbid(x: &mut [f32], mask: &[u8]) -> Result<(), String> {
    if mask.len() < x.len().div_ceil(8) {
        return Err(format!("a mask of {} bytes for {} ids", mask.len(), x.len()));
    }
    for (x, allowed) in x.chunks_mut(8).zip(mask) {
        for (bit, x) in x.iter_mut().enumerate() {
            if allowed >> bit & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    Ok(())
}

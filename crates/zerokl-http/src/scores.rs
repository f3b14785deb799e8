//! Logprobs from the wire as numbers of an answer, with the two API families' rules for minus infinity.
//!
//! JSON has neither -inf nor NaN. A token that can't occur has logprob -inf: /generate prints the smallest float32,
//! /v1 prints -9999.0, and never null, because null means "no score here". NaN is a broken promise of the engine.

use zerokl_wire::Logprobs;

use crate::fields::message;
use crate::refusal::Refusal;

pub const NATIVE_FLOOR: f64 = -3.402_823_466_385_288_6e38;
pub const OPENAI_FLOOR: f64 = -9999.0;

/// (token id, logprob), highest first, ties by lower id.
pub type Pairs = Vec<(i32, f64)>;

/// Logprobs of some positions in order. None: a position that has no score (the first of a prompt).
#[derive(Default)]
pub struct Rows {
    pub chosen: Vec<Option<f64>>,
    pub top: Vec<Option<Pairs>>,
    pub ids: Vec<Option<Vec<f64>>>,
}

impl Rows {
    pub fn extend_nulls(&mut self, count: usize) {
        self.chosen.extend(std::iter::repeat_n(None, count));
        self.top.extend(std::iter::repeat_n(None, count));
        self.ids.extend(std::iter::repeat_n(None, count));
    }

    /// Append the block's rows. An error at a NaN.
    pub fn extend(&mut self, block: Option<&Logprobs>, floor: f64) -> Result<(), Refusal> {
        let Some(block) = block else { return Ok(()) };
        let (chosen, top, ids) =
            (floats(&block.chosen, floor)?, floats(&block.top, floor)?, floats(&block.ids, floor)?);
        self.chosen.extend(chosen.into_iter().map(Some));
        for row in 0..block.rows {
            let cut = row * block.num_top..(row + 1) * block.num_top;
            let pairs = block.top_ids[cut.clone()].iter().copied().zip(top[cut].iter().copied());
            self.top.push(Some(pairs.collect()));
            self.ids.push(Some(ids[row * block.num_ids..(row + 1) * block.num_ids].to_vec()));
        }
        Ok(())
    }
}

/// A float32 column widened to float64, so that the shortest double is printed; -inf becomes the floor.
fn floats(column: &[f32], floor: f64) -> Result<Vec<f64>, Refusal> {
    if column.iter().any(|value| value.is_nan()) {
        return Err(Refusal::internal(message("nan", &[])));
    }
    let shown = |value: &f32| if *value == f32::NEG_INFINITY { floor } else { f64::from(*value) };
    Ok(column.iter().map(shown).collect())
}

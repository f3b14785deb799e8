//! Checked values as the wire's parameters; the two API families name some of them differently.

use serde_json::Value;
use zerokl_wire::{Bias, Sampling, Stopping};

use crate::prompts::{Limits, check_bias, check_ids};
use crate::refusal::Refusal;
use crate::validate::Values;

const GREEDY_BELOW: f64 = 1e-6;
/// Stop ids may be another model's: what this one doesn't have can't be drawn, so it never stops.
const STOP_IDS: u32 = 1 << 31;

/// Sample number `sample` of one prompt; the same noise wherever the prompt stands in a batch.
pub fn sampling_of(values: &Values, seed: Option<i64>, sample: u32) -> Sampling {
    let temperature = values.float("temperature");
    Sampling {
        temperature: temperature.map(|value| if value < GREEDY_BELOW { 0.0 } else { value }),
        top_p: values.float("top_p"),
        top_k: values.int("top_k"),
        min_p: values.float("min_p"),
        frequency_penalty: values.float("frequency_penalty"),
        presence_penalty: values.float("presence_penalty"),
        repetition_penalty: values.float("repetition_penalty"),
        seed,
        sample,
        logit_bias: bias_of(values).into_iter().map(|(id, bias)| Bias { id: id as u32, bias }).collect(),
    }
}

fn bias_of(values: &Values) -> Vec<(u64, f64)> {
    let pairs = values.get("logit_bias").as_array().map_or(&[][..], Vec::as_slice);
    pairs.iter().filter_map(|pair| Some((pair[0].as_u64()?, pair[1].as_f64()?))).collect()
}

pub fn stopping_of(values: &Values) -> Stopping {
    let texts = |name: &str| {
        let list = values.get(name).as_array().map_or(&[][..], Vec::as_slice);
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let ids = values.get("stop_token_ids").as_array().map_or(&[][..], Vec::as_slice);
    Stopping {
        strings: texts("stop"),
        token_ids: ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect(),
        regexes: texts("stop_regex"),
        ignore_eos: values.flag("ignore_eos"),
        no_trim: values.flag("no_stop_trim"),
    }
}

/// SGLang's ignore_eos is about every id that stops, those of the request too; in OpenAI's dialect it is not.
pub fn native_stopping(values: &Values) -> Stopping {
    let mut stopping = stopping_of(values);
    if stopping.ignore_eos {
        stopping.token_ids.clear();
    }
    stopping
}

/// The ids inside sampling parameters are ids of this vocabulary.
pub fn check_token_fields(values: &Values, prefix: &str, limits: Limits) -> Result<(), Refusal> {
    let any = Limits { vocab: STOP_IDS, ..limits };
    let (ids, bias) = (values.get("stop_token_ids"), bias_of(values));
    if ids.as_array().is_some_and(|ids| !ids.is_empty()) {
        check_ids(ids, &format!("{prefix}stop_token_ids"), any)?;
    }
    if bias.is_empty() { Ok(()) } else { check_bias(&bias, &format!("{prefix}logit_bias"), limits) }
}

//! /generate: a request body as jobs, prompt-major.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use zerokl_wire::LogprobOptions;

use crate::fields::{message, shown_text};
use crate::grammars::grammar_of;
use crate::job::{Job, Prompt};
use crate::prompts::{Limits, check_ids, check_length, check_not_empty, encode_all};
use crate::refusal::Refusal;
use crate::sampling::{check_token_fields, native_stopping, sampling_of};
use crate::tokenizer::Tokenizer;
use crate::validate::{Values, check, check_sampling, whole_text};

/// Prompts times n of one request.
const MAX_SEQUENCES: usize = 4096;

/// A checked request. Jobs and rids are prompt-major: prompt 0's n samples, then prompt 1's.
pub struct Generate {
    pub jobs: Vec<Arc<Job>>,
    /// None: the server names the answer.
    pub rids: Vec<Option<String>>,
    pub n: usize,
    /// The answer is an array: a list was given, or n > 1.
    pub listed: bool,
    pub stream: bool,
    pub token_texts: bool,
    pub prompt_ids: bool,
    /// The client chose the names.
    pub named: bool,
}

/// The request as jobs, or a refusal at the first thing that is wrong.
pub async fn parse(body: Map<String, Value>, limits: Limits, tokenizer: &Arc<Tokenizer>) -> Result<Generate, Refusal> {
    let mut values = check("generate", body, "", false)?;
    let items = items_of(&mut values)?;
    let count = items.list.len();
    let samplings = samplings_of(values.take("sampling_params"), count)?;
    let n = number_of_samples(&samplings)?;
    check_size(count, n)?;
    let options = logprob_options(&values, count, n, limits)?;
    let batch = items.batch;
    let prompts = prompts_of(items, limits, tokenizer).await?;
    let mut jobs = Vec::with_capacity(count * n);
    for (place, prompt) in prompts.iter().enumerate() {
        let sampling = if samplings.len() == 1 { &samplings[0] } else { &samplings[place] };
        for sample in 0..n {
            jobs.push(Arc::new(job(&values, prompt, sampling, &options[place], sample as u32, limits)?));
        }
    }
    let given = values.get("rid");
    Ok(Generate {
        jobs,
        rids: rids_of(given, count, n, batch)?,
        n,
        listed: batch || n > 1,
        stream: values.flag("stream"),
        token_texts: values.flag("return_text_in_logprobs"),
        prompt_ids: values.flag("return_prompt_token_ids"),
        named: !given.is_null(),
    })
}

struct Items {
    list: Vec<Value>,
    /// The key they came under.
    name: &'static str,
    /// Whether a list of prompts was given.
    batch: bool,
}

fn items_of(values: &mut Values) -> Result<Items, Refusal> {
    let (text, ids) = (values.take("text"), values.take("input_ids"));
    let (name, given) = match (text.is_null(), ids.is_null()) {
        (false, true) => ("text", text),
        (true, false) => ("input_ids", ids),
        (nothing, _) => {
            let given = if nothing { "neither" } else { "both" };
            let refusal = Refusal::invalid(message("one_prompt", &[("given", &given)]));
            return Err(if nothing { refusal } else { refusal.param("text") });
        }
    };
    let batch = match &given {
        Value::Array(list) => name == "text" || list.first().is_some_and(Value::is_array),
        _ => false,
    };
    let list = match given {
        Value::Array(list) if batch => list,
        alone => vec![alone],
    };
    check_not_empty(&list, name, batch)?;
    Ok(Items { list, name, batch })
}

/// One for all prompts, or one per prompt.
fn samplings_of(given: Value, prompts: usize) -> Result<Vec<Values>, Refusal> {
    let list = match given {
        Value::Array(list) => list,
        Value::Object(one) => return Ok(vec![check_sampling(one, "sampling_params")?]),
        _ => return Ok(vec![check_sampling(Map::new(), "sampling_params")?]),
    };
    check_count("sampling_params", list.len(), prompts)?;
    let each = list.into_iter().enumerate();
    each.map(|(i, one)| {
        let Value::Object(one) = one else { unreachable!("the table took objects alone") };
        check_sampling(one, &format!("sampling_params[{i}]"))
    })
    .collect()
}

fn number_of_samples(samplings: &[Values]) -> Result<usize, Refusal> {
    let n = samplings[0].int("n");
    if let Some(other) = samplings.iter().map(|sampling| sampling.int("n")).find(|other| *other != n) {
        let text = message("n_differs", &[("value", &other.unwrap_or(1))]);
        return Err(Refusal::invalid(text).param("sampling_params.n"));
    }
    Ok(n.unwrap_or(1) as usize)
}

pub fn check_size(prompts: usize, n: usize) -> Result<(), Refusal> {
    let total = prompts * n;
    if total > MAX_SEQUENCES {
        let values: [(&str, &dyn std::fmt::Display); 4] =
            [("limit", &MAX_SEQUENCES), ("prompts", &prompts), ("n", &n), ("total", &total)];
        return Err(Refusal::invalid(message("batch", &values)));
    }
    Ok(())
}

async fn prompts_of(items: Items, limits: Limits, tokenizer: &Arc<Tokenizer>) -> Result<Vec<Prompt>, Refusal> {
    if items.name == "text" {
        return encode_all(texts_of(items.list), items.name, tokenizer, limits).await;
    }
    id_prompts(&items.list, items.name, items.batch, limits)
}

pub fn texts_of(items: Vec<Value>) -> Vec<String> {
    let text = |item| if let Value::String(text) = item { text } else { unreachable!("the table took texts alone") };
    items.into_iter().map(text).collect()
}

pub fn id_prompts(items: &[Value], name: &str, batch: bool, limits: Limits) -> Result<Vec<Prompt>, Refusal> {
    let each = items.iter().enumerate();
    each.map(|(i, ids)| {
        let name = if batch { format!("{name}[{i}]") } else { name.to_owned() };
        Ok(Prompt { ids: check_ids(ids, &name, limits)?.into(), text: None })
    })
    .collect()
}

/// Of one prompt.
struct Options {
    returns: bool,
    start: Value,
    num_top: u32,
    ids: Vec<u32>,
}

fn logprob_options(values: &Values, prompts: usize, n: usize, limits: Limits) -> Result<Vec<Options>, Refusal> {
    let returns = per_prompt("return_logprob", values, prompts, n)?;
    let starts = per_prompt("logprob_start_len", values, prompts, n)?;
    let tops = per_prompt("top_logprobs_num", values, prompts, n)?;
    let ids = ids_per_prompt(values.get("token_ids_logprob"), prompts, n, limits)?;
    let each = (0..prompts).map(|i| Options {
        returns: returns(i).as_bool().unwrap_or(false),
        start: starts(i).clone(),
        num_top: tops(i).as_u64().unwrap_or(0) as u32,
        ids: ids[if ids.len() == 1 { 0 } else { i }].clone(),
    });
    Ok(each.collect())
}

fn per_prompt<'v>(
    name: &str,
    values: &'v Values,
    prompts: usize,
    n: usize,
) -> Result<impl Fn(usize) -> &'v Value, Refusal> {
    let value = values.get(name);
    if let Some(list) = value.as_array() {
        check_list(name, list.len(), prompts, n)?;
    }
    Ok(move |i: usize| value.as_array().map_or(value, |list| &list[i]))
}

/// One list for all, or one per prompt.
fn ids_per_prompt(value: &Value, prompts: usize, n: usize, limits: Limits) -> Result<Vec<Vec<u32>>, Refusal> {
    let name = "token_ids_logprob";
    let ids = |value: &Value, name: &str| -> Result<Vec<u32>, Refusal> {
        Ok(check_ids(value, name, limits)?.into_iter().map(i32::cast_unsigned).collect())
    };
    let Some(list) = value.as_array().filter(|list| !list.is_empty()) else { return Ok(vec![Vec::new()]) };
    if !list[0].is_array() {
        return Ok(vec![ids(value, name)?]);
    }
    check_list(name, list.len(), prompts, n)?;
    list.iter().enumerate().map(|(i, one)| ids(one, &format!("{name}[{i}]"))).collect()
}

fn check_list(name: &str, given: usize, prompts: usize, n: usize) -> Result<(), Refusal> {
    if n > 1 {
        return Err(Refusal::invalid(message("per_prompt_n", &[("name", &name)])).param(name));
    }
    check_count(name, given, prompts)
}

fn check_count(name: &str, given: usize, prompts: usize) -> Result<(), Refusal> {
    if given != prompts {
        let text = message("per_prompt_count", &[("name", &name), ("given", &given), ("prompts", &prompts)]);
        return Err(Refusal::invalid(text).param(name));
    }
    Ok(())
}

fn job(
    values: &Values,
    prompt: &Prompt,
    sampling: &Values,
    options: &Options,
    sample: u32,
    limits: Limits,
) -> Result<Job, Refusal> {
    let prefix = "sampling_params.";
    let max_new_tokens = tokens(sampling, "max_new_tokens");
    check_token_fields(sampling, prefix, limits)?;
    check_length(prompt, max_new_tokens, limits)?;
    check_min(tokens(sampling, "min_new_tokens"), max_new_tokens, "sampling_params.min_new_tokens")?;
    if options.returns && options.start.as_f64().is_some_and(|start| start > prompt.ids.len() as f64) {
        let values: [(&str, &dyn std::fmt::Display); 2] =
            [("prompt", &prompt.ids.len()), ("value", &whole_text(&options.start))];
        return Err(Refusal::invalid(message("start_over", &values)).param("logprob_start_len"));
    }
    let start = options.start.as_i64().unwrap_or(-1);
    let logprobs = || LogprobOptions { start, num_top: options.num_top, ids: options.ids.clone() };
    Ok(Job {
        sampling: sampling_of(sampling, sampling.int("sampling_seed"), sample),
        stopping: native_stopping(sampling),
        max_new_tokens,
        min_new_tokens: tokens(sampling, "min_new_tokens").unwrap_or(0),
        logprobs: options.returns.then(logprobs),
        skip_special_tokens: sampling.flag("skip_special_tokens"),
        spaces_between_special_tokens: sampling.flag("spaces_between_special_tokens"),
        stream_interval: if values.flag("stream") { tokens(sampling, "stream_interval").unwrap_or(1) } else { 0 },
        priority: values.int("priority").unwrap_or(0),
        cache_salt: values.text("cache_salt").unwrap_or("").to_owned(),
        grammar: grammar_of(sampling, prefix)?,
        ..Job::of(prompt.clone())
    })
}

/// A count that the table keeps within 31 bits.
pub fn tokens(values: &Values, name: &str) -> Option<u32> {
    values.int(name).map(|count| count as u32)
}

pub fn check_min(minimum: Option<u32>, maximum: Option<u32>, name: &str) -> Result<(), Refusal> {
    let (Some(minimum), Some(maximum)) = (minimum, maximum) else { return Ok(()) };
    if minimum > maximum {
        let text = message("min_over_max", &[("max_new", &maximum), ("value", &minimum)]);
        return Err(Refusal::invalid(text).param(name));
    }
    Ok(())
}

/// A string names a lone answer, or prefixes those of a batch; a list names prompts (and prefixes their samples).
fn rids_of(given: &Value, prompts: usize, n: usize, batch: bool) -> Result<Vec<Option<String>>, Refusal> {
    let total = prompts * n;
    match given {
        Value::String(one) if !batch && n == 1 => Ok(vec![Some(one.clone())]),
        Value::String(one) => Ok((0..total).map(|i| Some(format!("{one}_{i}"))).collect()),
        Value::Array(list) => {
            check_count("rid", list.len(), prompts)?;
            let names = list.iter().filter_map(Value::as_str);
            let rids: Vec<String> = if n == 1 {
                names.map(str::to_owned).collect()
            } else {
                names.flat_map(|rid| (0..n).map(move |j| format!("{rid}_{j}"))).collect()
            };
            let mut seen = HashSet::new();
            if let Some(twice) = rids.iter().find(|rid| !seen.insert(*rid)) {
                let text = message("rid_duplicate", &[("value", &shown_text(twice))]);
                return Err(Refusal::invalid(text).param("rid"));
            }
            Ok(rids.into_iter().map(Some).collect())
        }
        _ => Ok(vec![None; total]),
    }
}

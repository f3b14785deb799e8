//! What a request becomes: jobs, one per sequence, each of which the engine answers with records.

use std::sync::Arc;

use zerokl_wire::{Columns, Grammar, LogprobOptions, Sampling, Stopping, Submit, ToEngine, WireError, encode};

/// Token ids that have been checked, and the text they came from, if they did.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub ids: Arc<[i32]>,
    pub text: Option<Arc<str>>,
}

/// One sequence to generate: one prompt and one of its n samples.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Prompt,
    pub sampling: Sampling,
    pub stopping: Stopping,
    /// 0: score only. None: up to the context's end.
    pub max_new_tokens: Option<u32>,
    pub min_new_tokens: u32,
    pub logprobs: Option<LogprobOptions>,
    pub skip_special_tokens: bool,
    pub spaces_between_special_tokens: bool,
    /// 0: everything in one record, which is what an answer that isn't streamed wants.
    pub stream_interval: u32,
    pub priority: i64,
    pub cache_salt: String,
    pub use_cache: bool,
    pub grammar: Option<Grammar>,
}

impl Job {
    pub fn of(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            stopping: Stopping::default(),
            max_new_tokens: None,
            min_new_tokens: 0,
            logprobs: None,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            stream_interval: 1,
            priority: 0,
            cache_salt: String::new(),
            use_cache: true,
            grammar: None,
        }
    }

    /// The frame that submits it under this id.
    pub fn frame(&self, rid: u64) -> Result<Vec<u8>, WireError> {
        let mut columns = Columns::default();
        let message = Submit {
            rid,
            prompt: columns.add_i32(self.prompt.ids.iter().copied()),
            sampling: self.sampling.clone(),
            stopping: self.stopping.clone(),
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            logprobs: self.logprobs.clone(),
            skip_special_tokens: self.skip_special_tokens,
            spaces_between_special_tokens: self.spaces_between_special_tokens,
            stream_interval: self.stream_interval,
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            use_cache: self.use_cache,
            grammar: self.grammar.clone(),
        };
        encode(&ToEngine::Submit(message), &columns)
    }
}

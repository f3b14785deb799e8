//! What every handler is given: the config, the engine, the tokenizer and the clock.

use std::sync::Arc;
use std::sync::OnceLock;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::Engine;
use crate::spans::Tracing;
use crate::tokenizer::Tokenizer;

pub struct Service {
    pub config: Config,
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    pub clock: Clock,
    pub tracing: Option<Tracing>,
    /// Unix time.
    pub started_at: u64,
    /// From the process's start until the engine was there.
    pub startup_s: OnceLock<f64>,
}

impl Service {
    pub fn model_name(&self) -> &str {
        self.config.model_name()
    }

    /// The answer's id: as given, else a new one.
    pub fn name(&self, prefix: &str, given: Option<&str>) -> String {
        given.map_or_else(|| self.clock.new_id(prefix), str::to_owned)
    }
}

//! What the launcher resolved: the run folder's config.json.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The options that this process reads; `settings` holds all of them, in order.
#[derive(Debug, Deserialize)]
pub struct Config {
    pub model: String,
    pub tokenizer_path: String,
    pub served_model_name: String,
    pub load_format: String,
    pub max_running_requests: usize,
    pub max_queued_requests: usize,
    pub api_key: Vec<String>,
    pub admin_api_key: String,
    pub allow_origins: Vec<String>,
    pub max_body_bytes: usize,
    pub max_logprobs: u64,
    pub disable_playground: bool,
    pub watchdog_timeout: f64,
    pub tool_call_parser: String,
    pub strict_model: bool,
    pub incremental_streaming_output: bool,
    pub weight_version: String,
    pub log_level: String,
    #[serde(default)]
    pub otlp_traces_endpoint: String,
    pub test_clock: Option<u64>,
    #[serde(default)]
    pub frontend_threads: Option<usize>,
    #[serde(skip)]
    pub settings: Map<String, Value>,
}

const SECRET: [&str; 2] = ["api_key", "admin_api_key"];

impl Config {
    pub fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join("config.json");
        let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let read = || -> serde_json::Result<Self> {
            let mut config: Self = serde_json::from_slice(&text)?;
            config.settings = serde_json::from_slice(&text)?;
            config.settings.retain(|name, _| !SECRET.contains(&name.as_str()));
            Ok(config)
        };
        read().map_err(|error| format!("{}: {error}", path.display()))
    }

    pub fn model_name(&self) -> &str {
        if self.served_model_name.is_empty() { &self.model } else { &self.served_model_name }
    }

    pub fn tokenizer(&self) -> &str {
        if self.tokenizer_path.is_empty() { &self.model } else { &self.tokenizer_path }
    }
}

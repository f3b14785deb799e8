//! zerokl's HTTP frontend in Rust. For every request it answers the bytes that the Python frontend answers.
//!
//! Both read one table of fields and messages, and decide nothing that the engine can: text, stops and seeds come with
//! its records. Files are named as in `src/zerokl/server/`, whose reasons hold here too.

mod allocator;
mod app;
mod auth;
mod body;
mod chat;
mod chat_body;
mod chat_request;
mod client;
mod clock;
mod completions;
mod completions_body;
mod config;
mod control;
mod cors;
mod engine;
mod exchange;
mod exposition;
mod facts;
mod fields;
mod flights;
mod generate;
mod generate_body;
mod generate_request;
mod grammars;
mod health;
mod job;
mod json;
mod logs;
mod meter;
mod metrics;
mod openai;
mod pages;
mod prompts;
mod python;
mod refusal;
mod routes;
#[cfg(test)]
mod samples;
mod sampling;
mod scores;
mod seeds;
mod serve;
mod service;
mod socket;
mod spans;
mod streaming;
mod template;
mod tokenizer;
mod tokenizing;
mod tools;
mod validate;

pub use allocator::Allocator;
pub use json::fault as json_fault;
pub use serve::{Limits, Server, StartError};
pub use tokenizer::read_library;

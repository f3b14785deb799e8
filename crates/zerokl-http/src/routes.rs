//! Who answers which path. Paths, methods and keys are the Python frontend's table, written out by `make docs`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::auth::Access;

const ROUTES: &str = include_str!("../data/routes.json");
const MODEL_CARD: &str = "/v1/models/{id}";

#[derive(Debug)]
pub struct Route {
    pub path: String,
    pub methods: Vec<String>,
    pub access: Access,
    pub action: Action,
}

/// What a route does; several paths may do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Generate,
    Completions,
    Chat,
    Models,
    OneModel,
    Health,
    HealthGenerate,
    ServerInfo,
    ModelInfo,
    Version,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    FlushCache,
    AbortRequest,
    UpdateWeights,
    Metrics,
    Playground,
    Docs,
    OpenApi,
}

#[derive(Deserialize)]
struct Row {
    path: String,
    methods: Vec<String>,
    access: String,
    handler: String,
}

static BY_PATH: LazyLock<HashMap<String, Route>> = LazyLock::new(|| {
    let rows: Vec<Row> = serde_json::from_str(ROUTES).expect("routes.json is a list of routes");
    rows.into_iter().map(|row| (row.path.clone(), route_of(row))).collect()
});

fn route_of(row: Row) -> Route {
    let access = match row.access.as_str() {
        "open" => Access::Open,
        "user" => Access::User,
        "admin" => Access::Admin,
        other => unreachable!("routes.json has an access {other} that nobody knows"),
    };
    Route { action: action_of(&row.handler), path: row.path, methods: row.methods, access }
}

fn action_of(handler: &str) -> Action {
    match handler {
        "generate" => Action::Generate,
        "completions" => Action::Completions,
        "chat_completions" => Action::Chat,
        "models" => Action::Models,
        "one_model" => Action::OneModel,
        "health" => Action::Health,
        "health_generate" => Action::HealthGenerate,
        "server_info" => Action::ServerInfo,
        "model_info" => Action::ModelInfo,
        "version" => Action::Version,
        "tokenize" => Action::Tokenize,
        "detokenize" => Action::Detokenize,
        "tokenizer_info" => Action::TokenizerInfo,
        "flush_cache" => Action::FlushCache,
        "abort_request" => Action::AbortRequest,
        "update_weights_from_disk" => Action::UpdateWeights,
        "metrics" => Action::Metrics,
        "playground" => Action::Playground,
        "docs" => Action::Docs,
        "openapi" => Action::OpenApi,
        other => unreachable!("routes.json has a handler {other} that nobody knows"),
    }
}

/// The route of a path; exact, so a trailing slash is another path.
pub fn find(path: &str) -> Option<&'static Route> {
    let card = || path.strip_prefix("/v1/models/").filter(|id| !id.is_empty());
    BY_PATH.get(path).or_else(|| card().and_then(|_| BY_PATH.get(MODEL_CARD)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_table_has_somebody_who_answers() {
        assert!(BY_PATH.len() > 20);
    }
}

//! What a request says about the form of its output, as one grammar for the engine.

use serde_json::{Map, Value};
use zerokl_wire::Grammar;

use crate::fields::message;
use crate::refusal::Refusal;
use crate::validate::{Values, bad_value};

const GRAMMARS: [&str; 4] = ["json_schema", "regex", "ebnf", "structural_tag"];

/// The one grammar given by name; "" counts as unset.
pub fn grammar_of(values: &Values, prefix: &str) -> Result<Option<Grammar>, Refusal> {
    let value = |name: &str| values.find(name).filter(|value| !value.is_null() && value.as_str() != Some(""));
    let given: Vec<&str> = GRAMMARS.into_iter().filter(|name| value(name).is_some()).collect();
    if let [_, second, ..] = given[..] {
        let text = message("one_grammar", &[("given", &given.join(" and "))]);
        return Err(Refusal::invalid(text).param(format!("{prefix}{second}")));
    }
    Ok(given.first().map(|name| Grammar { kind: (*name).into(), source: source(value(name).expect("it is given")) }))
}

/// From response_format or from one of the extensions, not from both.
pub fn openai_grammar(values: &Values) -> Result<Option<Grammar>, Refusal> {
    let (named, formatted) = (grammar_of(values, "")?, formatted(values.get("response_format"))?);
    if let (Some(named), Some(_)) = (&named, &formatted) {
        let text = message("one_grammar", &[("given", &format!("response_format and {}", named.kind))]);
        return Err(Refusal::invalid(text).param(&named.kind));
    }
    Ok(named.or(formatted))
}

fn formatted(given: &Value) -> Result<Option<Grammar>, Refusal> {
    let Some(format) = given.as_object() else { return Ok(None) };
    let grammar = |kind: &str, source: String| Ok(Some(Grammar { kind: kind.into(), source }));
    match format["type"].as_str() {
        Some("json_object") => grammar("json_schema", r#"{"type":"object"}"#.into()),
        Some("json_schema") => grammar("json_schema", source(&schema(format)?)),
        Some("structural_tag") => grammar("structural_tag", source(given)),
        _ => Ok(None),
    }
}

fn schema(format: &Map<String, Value>) -> Result<Value, Refusal> {
    let Some(described) = format["json_schema"].as_object() else {
        return Err(bad_value("response_format.json_schema", "an object", &Value::Null));
    };
    match described.get("schema") {
        None => Ok(Value::Object(Map::new())),
        Some(schema) if schema.is_object() => Ok(schema.clone()),
        Some(other) => Err(bad_value("response_format.json_schema.schema", "an object", other)),
    }
}

fn source(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

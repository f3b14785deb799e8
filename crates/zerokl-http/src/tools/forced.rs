//! tool_choice "required" or a tool's name: a grammar that only a call fits, and the parser that reads it.
//!
//! A named tool's answer is its arguments' JSON; "required" gives an array of calls, several where they may be.

use serde_json::{Map, Value, json};
use zerokl_wire::Grammar;

use super::balance::Balance;
use super::calls::function_of;
use super::{CallPart, Event, ToolParser};
use crate::fields::{message, shown, shown_text};
use crate::refusal::Refusal;
use crate::validate::Values;

/// All text is the arguments of one call.
struct Named {
    name: Option<String>,
}

impl ToolParser for Named {
    fn push(&mut self, text: &str) -> Vec<Event> {
        if text.is_empty() {
            return Vec::new();
        }
        vec![Event::Call(CallPart { index: 0, name: self.name.take(), arguments: text.to_owned() })]
    }

    /// An answer of no tokens still calls.
    fn finish(&mut self) -> Vec<Event> {
        let call =
            |name: &String| Event::Call(CallPart { index: 0, name: Some(name.clone()), arguments: String::new() });
        self.name.iter().map(call).collect()
    }
}

/// An array of calls, each given when it is complete. What was cut off, or is no call, is content.
#[derive(Default)]
struct Required {
    held: String,
    balance: Option<Balance>,
    seen: usize,
    calls: usize,
}

impl Required {
    fn next(&mut self) -> Option<Event> {
        if self.balance.is_none() {
            let start = self.held.find('{')?;
            self.held.drain(..start);
            self.seen = 0;
        }
        let Some(size) = self.balance.get_or_insert_default().end(&self.held[self.seen..]) else {
            self.seen = self.held.len();
            return None;
        };
        let rest = self.held.split_off(self.seen + size);
        let written = std::mem::replace(&mut self.held, rest);
        self.balance = None;
        let Some((name, arguments)) = function_of(&written, &["parameters"]) else {
            return Some(Event::Content(written));
        };
        self.calls += 1;
        Some(Event::Call(CallPart { index: self.calls - 1, name: Some(name), arguments }))
    }
}

impl ToolParser for Required {
    fn push(&mut self, text: &str) -> Vec<Event> {
        self.held.push_str(text);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn finish(&mut self) -> Vec<Event> {
        let held = std::mem::take(&mut self.held);
        let rest = held.trim_start_matches(['[', ',', ' ', '\t', '\r', '\n']);
        let is_content = !rest.trim_matches([']', ' ', '\t', '\r', '\n']).is_empty();
        if is_content { vec![Event::Content(rest.to_owned())] } else { Vec::new() }
    }
}

/// The tool that must be called, "" for any; None where none is forced.
pub fn forced_name(values: &Values) -> Result<Option<String>, Refusal> {
    let choice = values.get("tool_choice");
    if choice.is_null() || matches!(choice.as_str(), Some("auto" | "none")) {
        return Ok(None);
    }
    let refused = |key: &str| Refusal::invalid(message(key, &[("value", &shown(choice))])).param("tool_choice");
    let name = named_in(choice).ok_or_else(|| refused("tool_choice"))?;
    if values.get("tools").is_null() {
        return Err(refused("tool_choice_needs"));
    }
    let functions = functions_of(values.get("tools"))?;
    let names: Vec<&str> = functions.iter().filter_map(|one| one["name"].as_str()).collect();
    if !name.is_empty() && !names.contains(&name) {
        let text = message("tool_unknown", &[("value", &shown_text(name)), ("names", &names.join(", "))]);
        return Err(Refusal::invalid(text).param("tool_choice"));
    }
    Ok(Some(name.to_owned()))
}

/// The tool's name, "" for "required"; None if the choice is none of the forms.
fn named_in(choice: &Value) -> Option<&str> {
    if let Some(word) = choice.as_str() {
        return (word == "required").then_some("");
    }
    let function = choice.get("type").and_then(Value::as_str) == Some("function");
    let name = choice.get("function")?.get("name")?.as_str()?;
    (function && !name.is_empty()).then_some(name)
}

/// What a grammar needs of each tool: a name and, if there are any, parameters.
fn functions_of(tools: &Value) -> Result<Vec<&Map<String, Value>>, Refusal> {
    let list = tools.as_array().map_or(&[][..], Vec::as_slice);
    let each = list.iter().enumerate();
    each.map(|(place, tool)| {
        let function = tool.as_object().and_then(|tool| tool.get("function")?.as_object());
        let good = |function: &&Map<String, Value>| {
            let named = function.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
            named && function.get("parameters").is_none_or(|one| one.is_object() || is_nothing(one))
        };
        function.filter(good).ok_or_else(|| {
            let text = message("tool_shape", &[("position", &place), ("value", &shown(tool))]);
            Refusal::invalid(text).param("tools")
        })
    })
    .collect()
}

/// What Python calls false.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

pub fn forced_parser(name: &str) -> Box<dyn ToolParser> {
    if name.is_empty() { Box::new(Required::default()) } else { Box::new(Named { name: Some(name.to_owned()) }) }
}

/// For the one named, or for an array of calls of any.
pub fn forced_grammar(name: &str, tools: &Value, parallel: bool) -> Result<Grammar, Refusal> {
    let functions = functions_of(tools)?;
    let schema = if name.is_empty() {
        schema_of_any(&functions, parallel)
    } else {
        let named = functions.iter().find(|function| function["name"] == name);
        parameters_of(named.ok_or_else(|| Refusal::internal("a forced tool that isn't there"))?)
    };
    Ok(Grammar { kind: "json_schema".into(), source: schema.to_string() })
}

fn schema_of_any(functions: &[&Map<String, Value>], parallel: bool) -> Value {
    let places = || (0..functions.len()).map(|i| format!("#/$defs/tool_{i}"));
    let each = functions.iter().zip(places()).enumerate();
    let definitions: Map<String, Value> =
        each.map(|(i, (one, place))| (format!("tool_{i}"), moved(parameters_of(one), &place))).collect();
    let calls: Vec<Value> =
        functions.iter().zip(places()).map(|(one, place)| call_schema(&one["name"], &place)).collect();
    let mut schema = json!({"$defs": definitions, "type": "array", "minItems": 1, "items": {"anyOf": calls}});
    if !parallel {
        schema["maxItems"] = 1.into();
    }
    schema
}

/// A tool without parameters is called with an empty object.
fn parameters_of(function: &Map<String, Value>) -> Value {
    let given = function.get("parameters").filter(|one| !is_nothing(one));
    given.cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}, "additionalProperties": false}))
}

fn call_schema(name: &Value, parameters: &str) -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": {"$ref": parameters}},
        "required": ["name", "parameters"],
        "additionalProperties": false,
    })
}

/// A schema whose references to itself are right at its new place.
fn moved(schema: Value, place: &str) -> Value {
    match schema {
        Value::Array(list) => list.into_iter().map(|one| moved(one, place)).collect(),
        Value::Object(object) => {
            let own = object.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#')).map(str::to_owned);
            let value = |key: &str, value: Value| match &own {
                Some(rest) if key == "$ref" => Value::String(format!("{place}{rest}")),
                _ => moved(value, place),
            };
            Value::Object(object.into_iter().map(|(key, one)| (key.clone(), value(&key, one))).collect())
        }
        other => other,
    }
}

//! The table of request fields and messages: the very file that the Python frontend reads, inside the program.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::LazyLock;

use serde_json::{Map, Value};

const FIELDS: &str = include_str!("../../../src/zerokl/server/fields.json");

/// One key of a request body. `expected` ends the sentence "NAME must be ..."; `default` stands for absent.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub kind: String,
    pub expected: String,
    pub default: Value,
    pub min: Option<Bound>,
    pub max: Option<Bound>,
    pub above: Option<Bound>,
    pub excluded: Option<i128>,
    pub max_items: Option<usize>,
    pub choices: Vec<String>,
    pub required: bool,
    /// A list with one value per prompt is taken too.
    pub per_prompt: bool,
    /// null is a value of its own, not "absent".
    pub null_is_given: bool,
    /// The table of an object's keys.
    pub fields: Option<String>,
}

/// A limit, exact for whole numbers.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub whole: Option<i128>,
    pub float: f64,
}

/// The fields of one body, in the order in which errors are reported.
#[derive(Debug)]
pub struct Table {
    pub fields: Vec<Field>,
    /// By `slot_of` a name or the next free slot: one more than its place in `fields`. 0: free.
    slots: [u8; SLOTS],
    pub has_required: bool,
}

impl Table {
    /// Where a field stands in `fields`; None for a name that is none.
    pub fn place(&self, name: &str) -> Option<usize> {
        let mut slot = slot_of(name);
        loop {
            let place = usize::from(self.slots[slot]).checked_sub(1)?;
            if self.fields[place].name == name {
                return Some(place);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// Several times the fields of the longest table, so most names are found at once and a free slot is near.
const SLOTS: usize = 256;

/// Of a name, by its length and three of its letters: a request looks up some 80 names, and hashing them took longer.
fn slot_of(name: &str) -> usize {
    let letter = |place: usize| usize::from(name.as_bytes().get(place).copied().unwrap_or(0));
    let size = name.len();
    (size + 3 * letter(0) + 11 * letter(size / 2) + 29 * letter(size.saturating_sub(1))) % SLOTS
}

struct Document {
    messages: HashMap<String, String>,
    tables: HashMap<String, Table>,
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let all: Map<String, Value> = serde_json::from_str(FIELDS).expect("fields.json is one object");
    let messages = all["messages"].as_object().expect("messages").iter();
    Document {
        messages: messages.map(|(key, text)| (key.clone(), text.as_str().expect("a text").to_owned())).collect(),
        tables: all
            .keys()
            .filter(|name| !matches!(name.as_str(), "about" | "messages"))
            .map(|name| (name.clone(), table_of(&all, name)))
            .collect(),
    }
});

#[cfg(test)]
pub fn table_names() -> Vec<&'static str> {
    DOCUMENT.tables.keys().map(String::as_str).collect()
}

/// Raises a panic for a name that the file doesn't have: names are ours.
pub fn table(name: &str) -> &'static Table {
    &DOCUMENT.tables[name]
}

fn table_of(all: &Map<String, Value>, name: &str) -> Table {
    let fields = rows_of(all, name);
    let has_required = fields.iter().any(|field| field.required);
    Table { slots: slots_of(&fields), fields, has_required }
}

fn slots_of(fields: &[Field]) -> [u8; SLOTS] {
    assert!(fields.len() < SLOTS / 2, "a table of {} fields", fields.len());
    let mut slots = [0; SLOTS];
    for (number, field) in (1u8..).zip(fields) {
        let mut slot = slot_of(&field.name);
        while slots[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = number;
    }
    slots
}

fn rows_of(all: &Map<String, Value>, name: &str) -> Vec<Field> {
    let rows = all[name].as_array().expect("a table is a list");
    rows.iter()
        .flat_map(|row| match row.get("include").and_then(Value::as_str) {
            Some(other) => rows_of(all, other),
            None => vec![field_of(row)],
        })
        .collect()
}

fn field_of(row: &Value) -> Field {
    let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
    let flag = |key: &str| row.get(key).and_then(Value::as_bool).unwrap_or(false);
    let bound = |key: &str| {
        let number = row.get(key)?;
        Some(Bound { whole: number.as_i64().map(i128::from), float: number.as_f64()? })
    };
    Field {
        name: text("name").expect("a field has a name"),
        kind: text("type").expect("a field has a type"),
        expected: text("expected").expect("a field says what is expected"),
        default: row.get("default").cloned().unwrap_or(Value::Null),
        min: bound("min"),
        max: bound("max"),
        above: bound("above"),
        excluded: row.get("not").and_then(Value::as_i64).map(i128::from),
        max_items: row.get("max_items").and_then(Value::as_u64).map(|count| count as usize),
        choices: row
            .get("choices")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        required: flag("required"),
        per_prompt: flag("per_prompt"),
        null_is_given: flag("null_is_given"),
        fields: text("fields"),
    }
}

/// The error text `key`, filled in. Values are shown as they were, so callers pass JSON texts through `shown`.
pub fn message(key: &str, values: &[(&str, &dyn Display)]) -> String {
    let template = DOCUMENT.messages[key].as_str();
    let mut text = String::with_capacity(template.len() + 32);
    let mut rest = template;
    while let Some(place) = rest.find(['{', '}']) {
        text.push_str(&rest[..place]);
        let brace = &rest[place..=place];
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace); // a doubled brace is one
            rest = after;
        } else if let Some((name, after)) = rest.split_once('}') {
            let value = values.iter().find(|(known, _)| *known == name).expect("each place of a message is filled").1;
            text.push_str(&value.to_string());
            rest = after;
        }
    }
    text.push_str(rest);
    text
}

/// A value as compact JSON for an error text, cut to 60 characters.
pub fn shown(value: &Value) -> String {
    cut(serde_json::to_string(value).expect("JSON can be written"))
}

pub fn shown_text(text: &str) -> String {
    cut(serde_json::to_string(text).expect("JSON can be written"))
}

const SHOWN: usize = 60;

fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some(_) => {
            let (end, _) = text.char_indices().nth(SHOWN - 3).expect("it is longer");
            format!("{}...", &text[..end])
        }
    }
}

/// The known name closest to `name` by edit distance (ties by order), if it is close enough to be a slip.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|candidate| (distance(name, candidate), candidate)).min_by_key(|(distance, _)| *distance)?;
    (best.0 <= (name.chars().count() / 3).max(1)).then_some(best.1)
}

fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut previous = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let best = (row[j + 1] + 1).min(row[j] + 1).min(previous + usize::from(x != y));
            previous = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_found_where_it_stands_and_nothing_else_is() {
        for name in table_names() {
            let table = table(name);
            for (place, field) in table.fields.iter().enumerate() {
                assert_eq!(table.place(&field.name), Some(place), "{name}: {}", field.name);
                assert_eq!(table.place(&format!("{}x", field.name)), None);
            }
            assert_eq!(table.place(""), None);
        }
    }
}

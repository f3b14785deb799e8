//! From JSON to checked values by the field table. One validator, written by hand, as its twin in Python.
//!
//! An integer is a JSON integer or a number without fraction, a float any number, a bool only true or false; null means
//! "not given". The first bad field in table order is the one reported.

use serde_json::{Map, Number, Value};

use crate::fields::{Bound, Field, Table, message, nearest, shown, shown_text, table};
use crate::refusal::Refusal;

/// Each field of a table with its checked value or default.
#[derive(Debug, Clone)]
pub struct Values {
    table: &'static Table,
    /// None: the table's default.
    values: Vec<Option<Value>>,
}

impl Values {
    /// Names are ours.
    fn place(&self, name: &str) -> usize {
        self.table.place(name).expect("a field of this table")
    }

    pub fn get(&self, name: &str) -> &Value {
        self.at(self.place(name))
    }

    /// None for a table without this field.
    pub fn find(&self, name: &str) -> Option<&Value> {
        self.table.place(name).map(|place| self.at(place))
    }

    fn at(&self, place: usize) -> &Value {
        self.values[place].as_ref().unwrap_or(&self.table.fields[place].default)
    }

    pub fn take(&mut self, name: &str) -> Value {
        let place = self.place(name);
        self.values[place].take().unwrap_or_else(|| self.table.fields[place].default.clone())
    }

    pub fn set(&mut self, name: &str, value: Value) {
        let place = self.place(name);
        self.values[place] = Some(value);
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).as_bool().unwrap_or(false)
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.get(name).as_i64()
    }

    pub fn float(&self, name: &str) -> Option<f64> {
        self.get(name).as_f64()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).as_str()
    }

    /// As the object that it was, with every field of the table.
    fn into_object(self) -> Map<String, Value> {
        let each = self.table.fields.iter().zip(self.values);
        each.map(|(field, value)| (field.name.clone(), value.unwrap_or_else(|| field.default.clone()))).collect()
    }
}

/// Check a body. `strict`: a key outside the table is an error.
pub fn check(name: &str, body: Map<String, Value>, prefix: &str, strict: bool) -> Result<Values, Refusal> {
    let table = table(name);
    if strict {
        refuse_unknown(table, &body, prefix)?;
    }
    let mut given: Vec<(usize, Value)> =
        body.into_iter().filter_map(|(key, value)| Some((table.place(&key)?, value))).collect();
    if table.has_required {
        let missing = |place: &usize| table.fields[*place].required && !given.iter().any(|(known, _)| known == place);
        let missing: Vec<usize> = (0..table.fields.len()).filter(missing).collect();
        given.extend(missing.into_iter().map(|place| (place, Value::Null)));
    }
    given.sort_by_key(|(place, _)| *place);
    let mut values = vec![None; table.fields.len()];
    for (place, value) in given {
        values[place] = checked(&table.fields[place], value, prefix)?;
    }
    Ok(Values { table, values })
}

/// One `sampling_params` object; unlike bodies, it takes no unknown key.
pub fn check_sampling(body: Map<String, Value>, prefix: &str) -> Result<Values, Refusal> {
    check("sampling_params", body, &format!("{prefix}."), true)
}

pub fn bad_value(name: &str, expected: &str, value: &Value) -> Refusal {
    let values: [(&str, &dyn std::fmt::Display); 3] =
        [("name", &name), ("expected", &expected), ("value", &shown(value))];
    Refusal::invalid(message("bad_value", &values)).param(name)
}

fn refuse_unknown(table: &Table, body: &Map<String, Value>, prefix: &str) -> Result<(), Refusal> {
    let Some(key) = body.keys().find(|key| table.place(key).is_none()) else { return Ok(()) };
    let name = prefix.trim_end_matches('.');
    let known = table.fields.iter().map(|field| field.name.as_str());
    let text = match nearest(key, known) {
        Some(close) => message(
            "unknown_key_nearest",
            &[("key", &shown_text(key)), ("name", &name), ("nearest", &shown_text(close))],
        ),
        None => message("unknown_key", &[("key", &shown_text(key)), ("name", &name)]),
    };
    Err(Refusal::invalid(text).param(format!("{prefix}{key}")))
}

/// None: the default.
fn checked(field: &Field, value: Value, prefix: &str) -> Result<Option<Value>, Refusal> {
    let name = || format!("{prefix}{}", field.name);
    match value {
        Value::Null if field.null_is_given => Ok(Some(Value::Null)),
        Value::Null if field.required => Err(bad_value(&name(), &field.expected, &Value::Null)),
        Value::Null => Ok(None),
        Value::Array(items) if field.per_prompt => {
            let each = items.into_iter().enumerate();
            let list: Result<Value, _> =
                each.map(|(i, item)| one(field, item, || format!("{}[{i}]", name()))).collect();
            list.map(Some)
        }
        value => one(field, value, name).map(Some),
    }
}

/// `name` is how an error calls the field.
fn one(field: &Field, value: Value, name: impl Fn() -> String) -> Result<Value, Refusal> {
    if let (Some(inner), "object", true) = (&field.fields, field.kind.as_str(), value.is_object()) {
        let Value::Object(body) = value else { unreachable!("it was just looked at") };
        return Ok(Value::Object(check(inner, body, &format!("{}.", name()), false)?.into_object()));
    }
    converted(field, value).map_err(|value| {
        let name = name();
        let unset = matches!(field.kind.as_str(), "unset" | "null");
        let key = if unset { "unset_only" } else { "bad_value" };
        let values: [(&str, &dyn std::fmt::Display); 3] =
            [("name", &name), ("expected", &field.expected), ("value", &shown(&value))];
        let refusal = Refusal::invalid(message(key, &values)).param(name);
        if unset { refusal.code("unsupported_value") } else { refusal }
    })
}

/// The value in the form that the field's type promises; the value as it was if it isn't of that type.
fn converted(field: &Field, value: Value) -> Result<Value, Value> {
    let good = match field.kind.as_str() {
        "bool" => value.is_boolean(),
        "int" => return whole(field, value),
        "float" => return float(field, value),
        "str" => value
            .as_str()
            .is_some_and(|text| field.choices.is_empty() || field.choices.iter().any(|choice| choice == text)),
        "text_or_list" => value.is_string() || all(&value, Value::is_string),
        "text_or_object" => value.is_string() || value.is_object(),
        "object" => value.is_object(),
        "object_or_list" => value.is_object() || all(&value, Value::is_object),
        "list" => value.as_array().is_some_and(|list| !list.is_empty()),
        // Only the form; each id is checked against the vocabulary, with its position, in `prompts::check_ids`.
        "ids" => value.is_array(),
        "ids_or_list" => ids_or_list(&value),
        "prompt" => value.is_string() || (ids_or_list(&value) && one_kind(&value)),
        "stops" => return stops(field, value),
        "id_numbers" => return id_numbers(field, value),
        "unset" => {
            let unset = value == Value::Bool(false) || value.as_f64() == Some(0.0) || value.as_str() == Some("");
            return if unset { Ok(Value::Null) } else { Err(value) };
        }
        "null" => false,
        other => unreachable!("fields.json has a type {other} that nobody knows"),
    };
    if good { Ok(value) } else { Err(value) }
}

fn whole(field: &Field, value: Value) -> Result<Value, Value> {
    let Some(number) = as_whole(&value) else { return Err(value) };
    if !in_range(field, Some(number), number as f64) || field.excluded == Some(number) {
        return Err(value);
    }
    // Past 64 bits it stays the float that it was; `whole_text` prints its digits.
    let smaller = i64::try_from(number).map(Number::from).or_else(|_| u64::try_from(number).map(Number::from));
    Ok(smaller.map_or(value, Value::Number))
}

/// Past 128 bits: the nearest limit.
fn as_whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(whole) = number.as_i64() {
        return Some(i128::from(whole));
    }
    if let Some(whole) = number.as_u64() {
        return Some(i128::from(whole));
    }
    let float = number.as_f64()?;
    (float.fract() == 0.0).then_some(float as i128)
}

/// A whole number's digits, as Python prints it.
pub fn whole_text(value: &Value) -> String {
    match value.as_number() {
        Some(number) if number.is_f64() => format!("{:.0}", number.as_f64().unwrap_or(0.0)),
        _ => value.to_string(),
    }
}

fn float(field: &Field, value: Value) -> Result<Value, Value> {
    let Some(number) = value.as_number().cloned() else { return Err(value) };
    if !number_in_range(field, &number) {
        return Err(value);
    }
    Ok(number.as_f64().map_or(value, Value::from))
}

fn number_in_range(field: &Field, number: &Number) -> bool {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    in_range(field, whole, number.as_f64().unwrap_or(f64::NAN))
}

fn in_range(field: &Field, whole: Option<i128>, float: f64) -> bool {
    let compare = |bound: Bound| match (whole, bound.whole) {
        (Some(number), Some(limit)) => Some(number.cmp(&limit)),
        _ => float.partial_cmp(&bound.float),
    };
    field.min.is_none_or(|bound| compare(bound).is_some_and(|order| order.is_ge()))
        && field.max.is_none_or(|bound| compare(bound).is_some_and(|order| order.is_le()))
        && field.above.is_none_or(|bound| compare(bound).is_some_and(|order| order.is_gt()))
}

fn all(value: &Value, is: fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(is))
}

fn ids_or_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.iter().any(Value::is_array) || list.iter().all(Value::is_array))
}

fn one_kind(value: &Value) -> bool {
    value.as_array().is_some_and(|list| {
        let texts = list.iter().filter(|item| item.is_string()).count();
        texts == 0 || texts == list.len()
    })
}

fn stops(field: &Field, value: Value) -> Result<Value, Value> {
    let good = |stop: &Value| stop.as_str().is_some_and(|text| !text.is_empty());
    match value {
        Value::String(_) if good(&value) => Ok(Value::Array(vec![value])),
        Value::Array(ref list) if list.iter().all(good) && field.max_items.is_none_or(|max| list.len() <= max) => {
            Ok(value)
        }
        other => Err(other),
    }
}

/// {"17": -2.5} as [[17, -2.5], ...] in id order. The ids' range is checked against the vocabulary later.
fn id_numbers(field: &Field, value: Value) -> Result<Value, Value> {
    let Some(object) = value.as_object() else { return Err(value) };
    let pair = |(key, number): (&String, &Value)| -> Option<(u64, f64)> {
        let number = number.as_number()?;
        (is_id(key) && number_in_range(field, number)).then(|| Some((key.parse().ok()?, number.as_f64()?)))?
    };
    let Some(mut pairs) = object.iter().map(pair).collect::<Option<Vec<_>>>() else { return Err(value) };
    pairs.sort_by_key(|(id, _)| *id);
    Ok(pairs.into_iter().map(|(id, number)| Value::from(vec![Value::from(id), Value::from(number)])).collect())
}

fn is_id(key: &str) -> bool {
    let digits = (1..=10).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_digit());
    digits && (key == "0" || !key.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::table_names;
    use crate::samples::json;

    fn body(table: &'static Table) -> impl Strategy<Value = Map<String, Value>> {
        let names: Vec<String> = table.fields.iter().map(|field| field.name.clone()).collect();
        let pair = (prop_oneof![9 => prop::sample::select(names), 1 => ".{0,6}"], json());
        prop::collection::vec(pair, 0..6).prop_map(|pairs| pairs.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_body_holds_it_is_checked_or_refused_in_a_few_words(
            (name, body) in prop::sample::select(table_names()).prop_flat_map(|name| (Just(name), body(table(name)))),
            strict in any::<bool>(),
        ) {
            match check(name, body, "", strict) {
                Ok(values) => prop_assert_eq!(values.values.len(), table(name).fields.len()),
                Err(refusal) => prop_assert!(refusal.status == 400 && refusal.message.len() < 600),
            }
        }
    }
}

//! A request's body as one JSON object, read as orjson reads it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::fields::{message, shown};
use crate::refusal::Refusal;

/// Checked before the parsers' own limits, which differ (128 here, 1024 in orjson).
pub const MAX_DEPTH: usize = 100;

/// In lists and objects: a value takes 16 bytes and more, whatever it is.
pub const MAX_VALUES: usize = 1 << 21;

pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if body.len() > MAX_VALUES && outside_strings(body).filter(|(_, byte)| *byte == b',').count() >= MAX_VALUES {
        return Err(Refusal::invalid(message("too_many", &[("limit", &MAX_VALUES)])));
    }
    if depth(body) > MAX_DEPTH {
        return Err(Refusal::invalid(message("too_deep", &[("limit", &MAX_DEPTH)])));
    }
    match serde_json::from_slice(&without_minus_zero(body)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Refusal::invalid(message("not_object", &[("value", &shown(&other))]))),
        Err(why) => Err(Refusal::invalid(message("not_json", &[("why", &why)]))),
    }
}

/// Why a body is no JSON, and where. Python's frontend asks here, so that both use the same words. "": it is JSON.
pub fn fault(body: &[u8]) -> String {
    serde_json::from_slice::<Value>(body).err().map_or_else(String::new, |why| why.to_string())
}

/// The deepest nesting of brackets outside strings.
pub fn depth(body: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0isize, 0isize);
    for (_, byte) in outside_strings(body) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest.unsigned_abs()
}

fn outside_strings(body: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let mut in_string = false;
    let mut escaped = false;
    body.iter().copied().enumerate().filter(move |(_, byte)| {
        if !in_string {
            in_string = *byte == b'"';
            return !in_string;
        }
        match (escaped, byte) {
            (true, _) => escaped = false,
            (false, b'\\') => escaped = true,
            (false, b'"') => in_string = false,
            _ => {}
        }
        false
    })
}

/// `-0` is the integer 0 to orjson and the float -0.0 to serde_json.
fn without_minus_zero(body: &[u8]) -> Cow<'_, [u8]> {
    if !body.windows(2).any(|pair| pair == b"-0") {
        return Cow::Borrowed(body);
    }
    let ends_here = |place: usize| !matches!(body.get(place), Some(b'.' | b'e' | b'E' | b'0'..=b'9'));
    let begins_here = |place: usize| place == 0 || !matches!(body[place - 1], b'e' | b'E' | b'0'..=b'9' | b'-' | b'.');
    let mut changed = body.to_vec();
    for (place, byte) in outside_strings(body) {
        if byte == b'-' && body.get(place + 1) == Some(&b'0') && ends_here(place + 2) && begins_here(place) {
            changed[place] = b' ';
        }
    }
    Cow::Owned(changed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::json;

    fn as_floats(value: &Value) -> Value {
        match value {
            Value::Number(number) => Value::from(number.as_f64()),
            Value::Array(list) => list.iter().map(as_floats).collect(),
            Value::Object(object) => object.iter().map(|(key, one)| (key.clone(), as_floats(one))).collect(),
            other => other.clone(),
        }
    }

    #[test]
    fn minus_zero_is_the_integer_zero_and_nothing_else_changes() {
        for (given, read) in [("[-0]", "[ 0]"), ("[-0.0,-0e1,1e-0,-01,\"-0\",--0]", ""), ("-0", " 0")] {
            let wanted = if read.is_empty() { given } else { read };
            assert_eq!(String::from_utf8_lossy(&without_minus_zero(given.as_bytes())), wanted);
        }
    }

    #[test]
    fn a_fault_says_what_was_expected_and_where() {
        assert_eq!(fault(b"{\n 'a': 1}"), "key must be a string at line 2 column 2");
        assert_eq!(fault(b"{}"), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_comes_is_an_object_or_a_refusal(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_object(&body);
        }

        #[test]
        fn a_damaged_document_is_taken_exactly_if_the_parser_alone_takes_it(
            document in json(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&b"{}[]\",:-0.eE \\u\xff\x001"[..])), 0..4),
        ) {
            let mut body = serde_json::to_vec(&document).expect("JSON can be written");
            for (place, byte) in changes {
                let place = place.index(body.len());
                body[place] = byte;
            }
            let alone = serde_json::from_slice::<Value>(&body).ok().filter(Value::is_object);
            let ours = parse_object(&body).ok().map(Value::Object);
            prop_assert_eq!(ours.as_ref().map(as_floats), alone.as_ref().map(as_floats));
        }
    }
}

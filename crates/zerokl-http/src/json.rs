//! A request's body as one JSON object, read as orjson reads it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::fields::{message, shown};
use crate::refusal::Refusal;

/// Checked before the parsers' own limits, which differ (128 here, 1024 in orjson).
pub const MAX_DEPTH: usize = 100;

pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if depth(body) > MAX_DEPTH {
        return Err(Refusal::invalid(message("too_deep", &[("limit", &MAX_DEPTH)])));
    }
    match serde_json::from_slice(&without_minus_zero(body)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Refusal::invalid(message("not_object", &[("value", &shown(&other))]))),
        Err(_) => Err(Refusal::invalid(message("not_json", &[]))),
    }
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

//! The fixtures that both frontends run, whole and in pieces.

use serde::Deserialize;

use super::{Event, parser_named};

#[derive(Deserialize)]
struct Case {
    text: String,
    content: String,
    calls: Vec<(String, String)>,
}

fn read(form: &str, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut parser = parser_named(form);
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut content, mut calls) = (String::new(), Vec::new());
    for event in events {
        match event {
            Event::Content(text) => content.push_str(&text),
            Event::Call(part) => calls.push((part.name.expect("each call comes whole"), part.arguments)),
        }
    }
    (content, calls)
}

fn check(form: &str, fixtures: &str) {
    let cases: Vec<Case> = serde_json::from_str(fixtures).expect("fixtures are a list of cases");
    for case in cases {
        let expected = (case.content, case.calls);
        assert_eq!(read(form, &[&case.text]), expected);
        let letters: Vec<&str> = case.text.split("").filter(|letter| !letter.is_empty()).collect();
        assert_eq!(read(form, &letters), expected);
        for (place, _) in case.text.char_indices() {
            assert_eq!(read(form, &[&case.text[..place], &case.text[place..]]), expected, "cut at {place}");
        }
    }
}

#[test]
fn hermes_is_read_the_same_for_all_cuts() {
    check("hermes", include_str!("../../../../tests/http/tools/hermes.json"));
}

#[test]
fn llama3_is_read_the_same_for_all_cuts() {
    check("llama3", include_str!("../../../../tests/http/tools/llama3.json"));
}

#[test]
fn mistral_is_read_the_same_for_all_cuts() {
    check("mistral", include_str!("../../../../tests/http/tools/mistral.json"));
}

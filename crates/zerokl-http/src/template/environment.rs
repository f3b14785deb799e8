//! Jinja's settings, which are part of the contract because templates rely on them.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use super::repr::{repr, text_of};
use super::source::{ITERATED, prepared};
use super::tojson::tojson;
use crate::python;

/// Of one render, counted by the library: loops, calls, filters and the text that they make.
pub const MAX_STEPS: u64 = 2_000_000;
/// Bytes; no model's template comes near.
const MAX_SOURCE: usize = 1 << 20;

/// An environment that holds this one template.
pub fn compiled(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    if source.len() > MAX_SOURCE {
        return Err(Error::new(ErrorKind::SyntaxError, format!("it has more than {MAX_SOURCE} bytes")));
    }
    let mut environment = Environment::new();
    minijinja_contrib::add_to_environment(&mut environment);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_formatter(format);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.remove_global("debug");
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_filter("trim", trim);
    environment.add_filter("upper", upper);
    environment.add_filter("lower", lower);
    environment.add_filter(ITERATED, iterated);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_template_owned(name, prepared(source))?;
    Ok(environment)
}

/// As Python prints it.
fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => out.write_str(&repr(value)?).map_err(Error::from),
        ValueKind::Number => out.write_str(&text_of(value)?).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// What a loop walks; to jinja2, none is nothing that can be walked.
fn iterated(value: Value) -> Result<Value, Error> {
    if value.is_none() { Err(invalid("'NoneType' object is not iterable")) } else { Ok(value) }
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn string(value: Value) -> Result<String, Error> {
    text_of(&value)
}

/// `str(value).strip(characters)`
fn trim(value: Value, characters: Option<String>) -> Result<String, Error> {
    let text = text_of(&value)?;
    Ok(match characters {
        None => python::strip(&text).to_owned(),
        Some(characters) => text.trim_matches(|letter| characters.contains(letter)).to_owned(),
    })
}

fn upper(value: Value) -> Result<String, Error> {
    Ok(text_of(&value)?.to_uppercase())
}

fn lower(value: Value) -> Result<String, Error> {
    Ok(text_of(&value)?.to_lowercase())
}

pub fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(invalid(message))
}

fn strftime_now(format: String) -> Result<String, Error> {
    use std::fmt::Write;

    let mut text = String::new();
    let written = write!(text, "{}", chrono::Local::now().format(&format));
    written.map_err(|_| invalid("strftime_now: a format that nobody knows"))?;
    Ok(text)
}

//! A value as Python's `str` and `repr` write it.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use crate::python;

/// `str(value)`
pub fn text_of(value: &Value) -> Result<String, Error> {
    if value.kind() == ValueKind::String { Ok(value.to_string()) } else { repr(value) }
}

/// `repr(value)`; of an undefined value nothing.
pub fn repr(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Number if !value.is_integer() => python::float_repr(f64::try_from(value.clone())?),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items = value.try_iter()?.map(|item| repr(&item)).collect::<Result<Vec<_>, _>>()?.join(", ");
            match (value.is_tuple(), value.len()) {
                (true, Some(1)) => format!("({items},)"),
                (true, _) => format!("({items})"),
                (false, _) => format!("[{items}]"),
            }
        }
        ValueKind::Map => {
            let member = |key: Value| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            let members = value.try_iter()?.map(member).collect::<Result<Vec<_>, Error>>()?;
            format!("{{{}}}", members.join(", "))
        }
        _ => value.to_string(),
    })
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if letter == quote => out.extend(['\\', letter]),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => out.push_str(&format!("\\x{:02x}", u32::from(letter))),
            _ => out.push(letter),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_python_quotes_them() {
        for (text, written) in
            [("a", "'a'"), ("it's", "\"it's\""), ("'\"", "'\\'\"'"), ("\n\\é\u{a0}", "'\\n\\\\é\\xa0'")]
        {
            assert_eq!(quoted(text), written);
        }
    }
}

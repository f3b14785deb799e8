//! `tojson` as Python's json.dumps writes it: blanks after commas and colons, no HTML escapes.

use minijinja::Error;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};

use super::environment::invalid;
use crate::python;

struct Style {
    ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

/// tojson(value, ensure_ascii=false, indent=none, separators=none, sort_keys=false)
pub fn tojson(value: Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = named.get(name)?;
        Ok(named.or_else(|| given.get(place).cloned()).filter(|value| !value.is_none()))
    };
    let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = argument(1, "indent")?.map(|indent| match usize::try_from(indent.clone()) {
        Ok(width) => " ".repeat(width.min(100)),
        Err(_) => indent.to_string(),
    });
    let mut style = Style {
        ascii: flag(argument(0, "ensure_ascii")?),
        sort_keys: flag(argument(3, "sort_keys")?),
        comma: if indent.is_some() { "," } else { ", " }.into(),
        colon: ": ".into(),
        indent,
    };
    if let Some(separators) = argument(2, "separators")? {
        let mut each = separators.try_iter()?.map(|one| one.to_string());
        style.comma = each.next().unwrap_or_default();
        style.colon = each.next().unwrap_or_default();
    }
    named.assert_all_used()?;
    let mut text = String::new();
    style.write(&mut text, &value, 0)?;
    Ok(Value::from_safe_string(text))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&json_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => return self.write_map(out, value, level),
            ValueKind::Seq => return self.write_list(out, value, level),
            ValueKind::Iterable => return Err(invalid("Object of type generator is not JSON serializable")),
            other => return Err(invalid(format!("{other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_list(&self, out: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        self.write_items(out, ('[', ']'), items.len(), level, |out, place| self.write(out, &items[place], level + 1))
    }

    fn write_map(&self, out: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        let mut members: Vec<(String, Value)> = Vec::new();
        for key in value.try_iter()? {
            members.push((key_text(&key)?, value.get_item(&key)?));
        }
        if self.sort_keys {
            members.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.write_items(out, ('{', '}'), members.len(), level, |out, place| {
            let (key, value) = &members[place];
            self.write_text(out, key);
            out.push_str(&self.colon);
            self.write(out, value, level + 1)
        })
    }

    fn write_items(
        &self,
        out: &mut String,
        (open, close): (char, char),
        count: usize,
        level: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for place in 0..count {
            if place > 0 {
                out.push_str(&self.comma);
            }
            self.new_line(out, level + 1);
            item(out, place)?;
        }
        if count > 0 {
            self.new_line(out, level);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, level: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    }

    fn write_text(&self, out: &mut String, text: &str) {
        let plain = serde_json::to_string(text).expect("a text can be written");
        if !self.ascii {
            return out.push_str(&plain);
        }
        for letter in plain.chars() {
            if letter.is_ascii() && letter != '\u{7f}' {
                out.push(letter);
            } else {
                letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}

/// Keys that aren't texts are written as texts.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number if key.is_integer() => key.to_string(),
        ValueKind::Number => json_float(f64::try_from(key.clone())?),
        _ => return Err(invalid("keys must be str, int, float, bool or None")),
    })
}

fn json_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        python::float_repr(value)
    }
}

//! A template's source as minijinja must see it, so that it does what jinja2 does.
//!
//! ```text
//! {% generation %} ... {% endgeneration %}    marks what the assistant wrote, for training: a scope of its own
//! {% for x in EXPRESSION ... %}               fails for none, which minijinja would walk as if it were empty
//! ```

/// The filter that loops go through.
pub const ITERATED: &str = "zerokl_iterated";

pub fn prepared(source: &str) -> String {
    let mut text = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(start) = rest.find(['{']) {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let size = match tag.get(..2) {
            Some("{#") => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some("{%") => size_up_to(tag, "%}"),
            Some("{{") => size_up_to(tag, "}}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(size);
        match tag.starts_with("{%") {
            true => text.push_str(&prepared_tag(tag)),
            false => text.push_str(tag),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// A tag with the texts in it.
fn size_up_to(tag: &str, end: &str) -> usize {
    outside_texts(tag).find(|(place, _)| tag[*place..].starts_with(end)).map_or(tag.len(), |(place, _)| place + 2)
}

fn prepared_tag(tag: &str) -> String {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let word: &str = inner.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or("");
    match word {
        "generation" => tag.replacen("generation", "with", 1),
        "endgeneration" => tag.replacen("endgeneration", "endwith", 1),
        "for" => checked_loop(tag).unwrap_or_else(|| tag.to_owned()),
        _ => tag.to_owned(),
    }
}

/// The loop with its expression in brackets, through the filter; None if it isn't one.
fn checked_loop(tag: &str) -> Option<String> {
    let start = word_at_depth_0(tag, 0, &["in"])? + "in".len();
    let end = word_at_depth_0(tag, start, &["if", "recursive"]).or_else(|| {
        let end = tag.strip_suffix("%}")?;
        Some(end.trim_end_matches(['-', '+']).len())
    })?;
    let (before, expression, after) = (&tag[..start], &tag[start..end], &tag[end..]);
    Some(format!("{before} ({})|{ITERATED} {after}", expression.trim()))
}

/// Where one of the words stands, outside texts and brackets.
fn word_at_depth_0(tag: &str, from: usize, words: &[&str]) -> Option<usize> {
    let is_name = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let mut depth = 0usize;
    let mut before = None;
    for (place, letter) in outside_texts(tag) {
        match letter {
            '(' | '[' | '{' if place > 0 => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let here = place >= from && depth == 0 && !is_name(before) && before != Some('.');
        let found =
            |word: &&&str| tag[place..].starts_with(**word) && !is_name(tag[place + word.len()..].chars().next());
        if here && words.iter().any(|word| found(&word)) {
            return Some(place);
        }
        before = Some(letter);
    }
    None
}

/// The letters of a tag that stand in no text, with their places.
fn outside_texts(tag: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    let mut escaped = false;
    tag.char_indices().filter(move |(_, letter)| match quote {
        None => {
            quote = matches!(letter, '"' | '\'').then_some(*letter);
            quote.is_none()
        }
        Some(open) => {
            if escaped {
                escaped = false;
            } else if *letter == '\\' {
                escaped = true;
            } else if *letter == open {
                quote = None;
            }
            false
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_go_through_the_filter() {
        for (given, made) in [
            ("{% for m in messages %}", "{% for m in (messages)|zerokl_iterated %}"),
            ("{%- for m in messages[1:] -%}", "{%- for m in (messages[1:])|zerokl_iterated -%}"),
            ("{% for k, v in a|items if k in b %}", "{% for k, v in (a|items)|zerokl_iterated if k in b %}"),
            ("{% for x in ['in', ' if '] recursive %}", "{% for x in (['in', ' if '])|zerokl_iterated recursive %}"),
            ("{% for x in (a if b else c) %}", "{% for x in ((a if b else c))|zerokl_iterated %}"),
        ] {
            assert_eq!(prepared(given), made);
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for text in ["a { b }} {{ '{% for x in y %}' }}", "{# {% for x in y %} #}", "{% if a in b %}{% endif %}", "{%"]
        {
            assert_eq!(prepared(text), text);
        }
    }

    #[test]
    fn marks_for_training_are_scopes() {
        assert_eq!(prepared("{%- generation -%}a{% endgeneration %}"), "{%- with -%}a{% endwith %}");
    }
}

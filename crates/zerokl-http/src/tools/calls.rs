//! Calls in JSON as models write it: what Python's json module takes, no deeper than a request body.

use blake2::{Blake2b512, Digest};

use crate::json::{MAX_DEPTH, depth};

/// JSON's.
pub const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

const MAX_DIGITS: usize = 4300;

pub fn lstrip(text: &str) -> &str {
    text.trim_start_matches(BLANKS)
}

pub fn rstrip(text: &str) -> &str {
    text.trim_end_matches(BLANKS)
}

pub fn strip(text: &str) -> &str {
    text.trim_matches(BLANKS)
}

/// A function of the answer's id and the call's place. Mistral's templates take nine letters or digits.
pub fn call_id(answer: &str, choice: usize, index: usize, digits: usize) -> String {
    let digest = Blake2b512::digest(format!("{answer} {choice} {index}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if digits < 10 { hex[..digits].to_owned() } else { format!("call_{}", &hex[..digits]) }
}

/// (name, arguments as they were written) of a JSON object that is a call; None if it is none.
pub fn function_of(text: &str, arguments_names: &[&str]) -> Option<(String, String)> {
    let members = members_of(text)?;
    let member = |wanted: &str| members.iter().rev().find(|(key, _)| key == wanted).map(|(_, raw)| *raw);
    let name = string_of(member("name")?)?;
    let raw = arguments_names.iter().find_map(|wanted| member(wanted))?;
    if name.is_empty() {
        return None;
    }
    match raw.as_bytes().first() {
        Some(b'{') => Some((name, raw.to_owned())),
        // Some models write the arguments' JSON as a string.
        Some(b'"') => string_of(raw).filter(|value| is_object(value)).map(|value| (name, value)),
        _ => None,
    }
}

/// An object's members, each as it was written; None if the text isn't one object.
fn members_of(text: &str) -> Option<Vec<(String, &str)>> {
    let text = strip(text);
    if !is_object(text) {
        return None;
    }
    let mut members = Vec::new();
    let mut scan = Scan { text, place: 1 };
    scan.blanks();
    while scan.peek() != Some(b'}') {
        let key = scan.cut(Scan::string)?;
        scan.blanks();
        scan.take(b':')?;
        scan.blanks();
        let raw = scan.cut(Scan::value)?;
        members.push((string_or_empty(key), raw));
        scan.blanks();
        if scan.peek() == Some(b',') {
            scan.place += 1;
            scan.blanks();
        }
    }
    Some(members)
}

pub fn is_object(text: &str) -> bool {
    strip(text).starts_with('{') && is_json(text)
}

pub fn is_array(text: &str) -> bool {
    strip(text).starts_with('[') && is_json(text)
}

fn is_json(text: &str) -> bool {
    if depth(text.as_bytes()) > MAX_DEPTH {
        return false;
    }
    let mut scan = Scan { text, place: 0 };
    scan.blanks();
    let whole = scan.value().is_some();
    scan.blanks();
    whole && scan.place == text.len()
}

/// A JSON string's text; None for another value, or one that is no Unicode (a lone surrogate).
fn string_of(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

/// For keys: one that is no Unicode is none that anybody looks for.
fn string_or_empty(raw: &str) -> String {
    string_of(raw).unwrap_or_default()
}

/// Walks JSON without making anything of it, so numbers may have any size. Depth is checked before.
struct Scan<'a> {
    text: &'a str,
    place: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.place).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.place += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.place += 1)
    }

    /// What `walk` passes.
    fn cut(&mut self, walk: fn(&mut Self) -> Option<()>) -> Option<&'a str> {
        let start = self.place;
        walk(self)?;
        Some(&self.text[start..self.place])
    }

    fn value(&mut self) -> Option<()> {
        match self.peek()? {
            b'{' => self.items(b'{', b'}', Self::member),
            b'[' => self.items(b'[', b']', Self::value),
            b'"' => self.string(),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    fn items(&mut self, open: u8, close: u8, item: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        self.blanks();
        if self.take(close).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            self.blanks();
            if self.take(close).is_some() {
                return Some(());
            }
            self.take(b',')?;
            self.blanks();
        }
    }

    fn member(&mut self) -> Option<()> {
        self.string()?;
        self.blanks();
        self.take(b':')?;
        self.blanks();
        self.value()
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text[self.place..].starts_with(word).then(|| self.place += word.len())
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.peek()? {
                b'"' => return self.take(b'"'),
                b'\\' => self.escape()?,
                0..=0x1f => return None,
                _ => self.place += 1,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        self.place += 1;
        let letter = self.peek()?;
        self.place += 1;
        if letter != b'u' {
            return b"\"\\/bfnrt".contains(&letter).then_some(());
        }
        let digits = self.text.as_bytes().get(self.place..self.place + 4)?;
        self.place += 4;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let start = self.place;
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        let whole = self.place - start;
        if self.peek() == Some(b'.') {
            self.place += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.place += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.place += 1;
            }
            self.digits()?;
        }
        // Python refuses integers of more digits.
        (self.place - start > whole || whole <= MAX_DIGITS).then_some(())
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.place;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.place += 1;
        }
        (self.place > start).then_some(())
    }
}

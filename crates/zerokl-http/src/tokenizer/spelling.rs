//! Which bytes a vocabulary entry stands for, where the tokenizer's decoder is only a spelling of bytes.
//!
//! ```text
//! byte-level      "Ġthe"  -> b" the"         every byte is one of 256 printable letters (GPT-2's)
//! SentencePiece   "▁the"  -> b" the"         "▁" is a space, "<0xE4>" is the byte E4
//! ```

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// How entries spell bytes.
pub struct Spelling {
    byte_level: bool,
    /// A text doesn't start with the space that the encoder put before its first word.
    pub strips_first_space: bool,
}

impl Spelling {
    /// The spelling that a decoder undoes; None if it does anything else.
    pub fn of(decoder: &Value) -> Option<Self> {
        if decoder["type"] == "ByteLevel" {
            return Some(Self { byte_level: true, strips_first_space: false });
        }
        let steps = decoder["decoders"].as_array().filter(|_| decoder["type"] == "Sequence")?;
        let kinds: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
        let is_space = steps.first()?["pattern"] == json!({"String": "▁"}) && steps[0]["content"] == " ";
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        match kinds[..] {
            ["Replace", "ByteFallback", "Fuse"] if is_space => {
                Some(Self { byte_level: false, strips_first_space: false })
            }
            ["Replace", "ByteFallback", "Fuse", _] if is_space && steps[3] == strip => {
                Some(Self { byte_level: false, strips_first_space: true })
            }
            _ => None,
        }
    }

    pub fn bytes_of(&self, entry: &str) -> Vec<u8> {
        if self.byte_level {
            // An added token is not spelt in letters.
            let bytes: Option<Vec<u8>> = entry.chars().map(|letter| LETTER_BYTES.get(&letter).copied()).collect();
            return bytes.unwrap_or_else(|| entry.as_bytes().to_vec());
        }
        match byte_token(entry) {
            Some(byte) => vec![byte],
            None => entry.replace('▁', " ").into_bytes(),
        }
    }
}

/// `<0xE4>`, in capitals.
fn byte_token(entry: &str) -> Option<u8> {
    let digits = entry.strip_prefix("<0x")?.strip_suffix('>')?;
    let capitals = digits.bytes().all(|digit| digit.is_ascii_digit() || (b'A'..=b'F').contains(&digit));
    if digits.len() == 2 && capitals { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Printable Latin-1 spells itself; the other bytes are U+0100 and on, in order.
static LETTER_BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let own = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !own(byte)).zip(0x100u32..);
    let others = others.filter_map(|(byte, letter)| Some((char::from_u32(letter)?, byte)));
    (0..=255u8).filter(own).map(|byte| (char::from(byte), byte)).chain(others).collect()
});

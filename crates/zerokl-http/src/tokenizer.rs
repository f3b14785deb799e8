//! Text to ids, ids to text, and what each id looks like in an answer: the run folder's tokenizer and nothing else.

mod spelling;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::{Map, Value};

use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use crate::refusal::Refusal;
use crate::template::{ChatTemplate, Rendered};
use spelling::Spelling;

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// What is read of special_tokens.json.
#[derive(Deserialize)]
struct Special {
    vocab_size: usize,
    names: Map<String, Value>,
}

/// One id's bytes, possibly part of a character, and how logprob lists name it.
struct Entry {
    bytes: Box<[u8]>,
    text: Arc<str>,
}

/// One model's tokenizer, special ids and chat template.
pub struct Tokenizer {
    pub template: ChatTemplate,
    pub template_source: String,
    /// ("bos_token", "<s>"), ...
    pub names: Map<String, Value>,
    library: tokenizers::Tokenizer,
    spelling: Option<Spelling>,
    special_ids: HashSet<u32>,
    entries: Vec<OnceLock<Entry>>,
}

impl Tokenizer {
    /// Reads a run folder, and renders the launcher's battery where there is one. The error says what is wrong with
    /// the model of this name.
    pub fn load(folder: &Path, model: &str) -> Result<Self, String> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let special: Special = serde_json::from_str(&read("special_tokens.json")?)
            .map_err(|error| format!("special_tokens.json: {error}"))?;
        let library = read_library(&read("tokenizer.json")?).map_err(|error| format!("tokenizer.json: {error}"))?;
        let template_source = read("chat_template.jinja")?;
        let template = ChatTemplate::new(&template_source, special.names.clone())
            .map_err(|why| refused_template(model, &format!("minijinja says: {why}")))?;
        let added = library.get_added_tokens_decoder();
        let spelling = library.get_decoder().and_then(|decoder| Spelling::of(&serde_json::to_value(decoder).ok()?));
        let size = special.vocab_size.max(library.get_vocab_size(true));
        let tokenizer = Self {
            template,
            template_source,
            names: special.names,
            special_ids: added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect(),
            library,
            spelling,
            entries: (0..size).map(|_| OnceLock::new()).collect(),
        };
        tokenizer.verify(&folder.join("chat_battery.json")).map_err(|why| refused_template(model, &why))?;
        Ok(tokenizer)
    }

    /// The first conversation of the battery that comes out otherwise than the launcher's libraries made it.
    fn verify(&self, battery: &Path) -> Result<(), String> {
        let Ok(text) = std::fs::read(battery) else { return Ok(()) };
        let battery: Vec<Rendered> =
            serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", battery.display()))?;
        for (place, one) in battery.iter().enumerate() {
            self.verify_one(one)
                .map_err(|why| format!("conversation {place} of its battery, {}: {why}", one.conversation.messages))?;
        }
        Ok(())
    }

    fn verify_one(&self, one: &Rendered) -> Result<(), String> {
        let ours = self.template.render(one.conversation.clone());
        if ours.as_ref().ok() != one.text.as_ref() {
            let expected = one.text.as_deref().map_or("an error".into(), |text| format!("{text:?}"));
            let got = ours.map_or_else(|why| format!("an error ({why})"), |text| format!("{text:?}"));
            return Err(format!("jinja2 makes {expected} of it, and minijinja {got}"));
        }
        let ids = one.text.as_ref().and_then(|text| self.encode(text, false).ok());
        if ids != one.ids {
            return Err("the tokenizer makes other ids of it than the engine's did".into());
        }
        Ok(())
    }

    /// Ids of a text. `special` for a plain text, not for a rendered chat, whose template writes BOS.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<i32>, Refusal> {
        let encoding = self.library.encode_fast(text, special).map_err(Refusal::internal)?;
        Ok(encoding.get_ids().iter().map(|id| id.cast_signed()).collect())
    }

    /// Text of ids that stand alone. An invalid byte sequence becomes U+FFFD; ids without an entry vanish.
    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, Refusal> {
        let Some(spelling) = &self.spelling else {
            let ids: Vec<u32> = ids.iter().map(|id| id.cast_unsigned()).collect();
            return self.library.decode(&ids, skip_special).map_err(Refusal::internal);
        };
        let shown = |id: &&i32| !skip_special || !self.special_ids.contains(&id.cast_unsigned());
        let bytes: Vec<u8> = ids.iter().filter(shown).flat_map(|id| self.token_bytes(*id)).copied().collect();
        let bytes = if spelling.strips_first_space { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes };
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The bytes that an id stands for; none for an id without an entry.
    pub fn token_bytes(&self, token: i32) -> &[u8] {
        self.entry(token).map_or(&[], |entry| &entry.bytes)
    }

    /// How an id is named in logprobs: its text, or `bytes:\xe4\xbd` where its bytes are no text by themselves.
    pub fn token_text(&self, token: i32) -> Arc<str> {
        self.entry(token).map_or_else(|| "".into(), |entry| entry.text.clone())
    }

    fn entry(&self, token: i32) -> Option<&Entry> {
        let id = usize::try_from(token).ok()?;
        Some(self.entries.get(id)?.get_or_init(|| self.new_entry(token.cast_unsigned())))
    }

    fn new_entry(&self, token: u32) -> Entry {
        let bytes: Vec<u8> = match (self.library.id_to_token(token), &self.spelling) {
            (None, _) => Vec::new(),
            (Some(entry), Some(spelling)) => spelling.bytes_of(&entry),
            (Some(_), None) => self.library.decode(&[token], false).unwrap_or_default().into_bytes(),
        };
        let text = String::from_utf8_lossy(&bytes);
        let text: Arc<str> = if text.contains(REPLACEMENT) {
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{digits}").into()
        } else {
            text.into()
        };
        Entry { bytes: bytes.into(), text }
    }
}

/// A tokenizer.json. BPE, which most are, is read as such: as one of several models the library would hold the whole
/// vocabulary and all merges in pieces first, which takes a third more time and 10 MB.
pub fn read_library(json: &str) -> tokenizers::Result<tokenizers::Tokenizer> {
    type Parts<M> = TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    match serde_json::from_str::<Parts<BPE>>(json) {
        Ok(found) => Ok(found.into()),
        Err(_) => json.parse(),
    }
}

fn refused_template(model: &str, why: &str) -> String {
    format!("the chat template of {model} can't be served by the Rust frontend: {why}. Use --frontend python")
}

/// How logprob lists name a token: by its text, or on request as `token_id:262`, which is never ambiguous.
#[derive(Clone)]
pub struct Names {
    tokenizer: Arc<Tokenizer>,
    as_ids: bool,
}

impl Names {
    pub fn new(tokenizer: &Arc<Tokenizer>, as_ids: bool) -> Self {
        Self { tokenizer: tokenizer.clone(), as_ids }
    }

    pub fn of(&self, token: i32) -> Arc<str> {
        if self.as_ids { format!("token_id:{token}").into() } else { self.tokenizer.token_text(token) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_the_library_reads_it() {
        let vocabulary = r#""vocab":{"a":0,"b":1,"ab":2,"<s>":3}"#;
        for model in [
            format!(r#"{{"type":"BPE","ignore_merges":true,{vocabulary},"merges":["a b"]}}"#),
            format!(r#"{{"byte_fallback":true,{vocabulary},"merges":[["a","b"]]}}"#),
            format!(r#"{{"type":"WordLevel","unk_token":"a",{vocabulary}}}"#),
        ] {
            let flags = r#""single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true"#;
            let added = format!(r#"{{"id":3,"content":"<s>",{flags}}},{{"id":9,"content":"new",{flags}}}"#);
            let json = format!(r#"{{"version":"1.0","added_tokens":[{added}],"decoder":null,"model":{model}}}"#);
            let (ours, theirs) =
                (read_library(&json).expect("one"), json.parse::<tokenizers::Tokenizer>().expect("one"));
            assert_eq!(ours.to_string(false).ok(), theirs.to_string(false).ok());
            assert_eq!(ours.token_to_id("new"), Some(4), "after the vocabulary, as the library numbers it");
        }
        let bad = r#"{"version":"1.0","model":{"type":"unheard of"}}"#;
        assert_eq!(
            read_library(bad).err().map(|error| error.to_string()),
            bad.parse::<tokenizers::Tokenizer>().err().map(|error| error.to_string())
        );
    }
}

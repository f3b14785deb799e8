//! The `tokenizers` library, as `zerokl.tokenizer` uses it: without the interpreter while it works.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A tokenizer.json that was read. Immutable; threads may share it.
#[pyclass(module = "zerokl._native", frozen)]
struct Tokenizer(tokenizers::Tokenizer);

fn refused(error: tokenizers::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Tokenizer {
    /// ValueError for a file that the library refuses.
    #[new]
    fn new(py: Python<'_>, json: &str) -> PyResult<Self> {
        py.detach(|| zerokl_http::read_library(json)).map(Self).map_err(refused)
    }

    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let encoding = py.detach(|| self.0.encode_fast(text, special)).map_err(refused)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special: bool) -> PyResult<String> {
        py.detach(|| self.0.decode(&ids, skip_special)).map_err(refused)
    }

    /// A vocabulary entry or added token as it is spelt in the file.
    fn entry(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn id_of(&self, entry: &str) -> Option<u32> {
        self.0.token_to_id(entry)
    }

    /// Of added tokens that have a meaning instead of a text.
    fn special_ids(&self) -> Vec<u32> {
        let added = self.0.get_added_tokens_decoder();
        added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect()
    }

    /// The decoder in JSON, as in the file.
    fn decoder(&self) -> Option<String> {
        serde_json::to_string(self.0.get_decoder()?).ok()
    }
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tokenizer>()
}

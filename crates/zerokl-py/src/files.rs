//! What of reading checkpoints is slow in Python.

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

const LENGTH: usize = size_of::<u64>();

/// `count` strings of a GGUF file from byte `start` on, each after its length. ValueError for bytes that aren't that:
/// strings that are too long, or no UTF-8.
#[pyfunction]
fn strings<'py>(
    py: Python<'py>,
    bytes: PyReadonlyArray1<'py, u8>,
    start: usize,
    count: usize,
) -> PyResult<Bound<'py, PyList>> {
    let (bytes, mut place) = (bytes.as_slice()?, start);
    let list = PyList::empty(py);
    for _ in 0..count {
        let (text, end) = string_at(bytes, place).map_err(PyValueError::new_err)?;
        list.append(PyString::new(py, text))?;
        place = end;
    }
    Ok(list)
}

/// Where they end.
#[pyfunction]
fn end_of_strings(py: Python<'_>, bytes: PyReadonlyArray1<'_, u8>, start: usize, count: usize) -> PyResult<usize> {
    let bytes = bytes.as_slice()?;
    let end = || (0..count).try_fold(start, |place, _| string_at(bytes, place).map(|(_, end)| end));
    py.detach(end).map_err(PyValueError::new_err)
}

/// The string whose length stands at `place`, and where it ends.
fn string_at(bytes: &[u8], place: usize) -> Result<(&str, usize), String> {
    let (length, text) = bytes
        .get(place..)
        .and_then(|rest| rest.split_first_chunk::<LENGTH>())
        .ok_or_else(|| format!("truncated: a string at byte {place} of {}", bytes.len()))?;
    let length = u64::from_le_bytes(*length);
    let text = usize::try_from(length)
        .ok()
        .and_then(|length| text.get(..length))
        .ok_or_else(|| format!("truncated: a string of {length} bytes at byte {place} of {}", bytes.len()))?;
    match str::from_utf8(text) {
        Ok(text) => Ok((text, place + LENGTH + text.len())),
        Err(error) => Err(format!("bad string at byte {place}: {error}")),
    }
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(strings, module)?)?;
    module.add_function(wrap_pyfunction!(end_of_strings, module)?)
}

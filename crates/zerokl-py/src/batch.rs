//! A plan's segments as arrays: runner/batch.py says what they are.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

pyo3::import_exception!(zerokl.errors, EngineError);

/// Tokens, positions, slots, row starts and page table of a step.
type Arrays<'py> = (
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray2<i32>>,
);

/// What of a segment matters here.
#[derive(FromPyObject)]
struct Segment<'py> {
    request_id: Bound<'py, PyAny>,
    start: i32,
    tokens: Vec<i32>,
    pages: Vec<i32>,
}

/// EngineError if a segment's pages don't cover its positions.
#[pyfunction]
fn ragged<'py>(py: Python<'py>, segments: Vec<Segment<'py>>, page_size: usize) -> PyResult<Arrays<'py>> {
    let pages_of = |segment: &Segment<'_>| (segment.start as usize + segment.tokens.len()).div_ceil(page_size);
    let width = segments.iter().map(pages_of).max().unwrap_or(0);
    let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
    let (mut tokens, mut positions) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let (mut slots, mut row_starts) = (Vec::with_capacity(rows), vec![0]);
    let mut table = vec![0; segments.len() * width];
    for (number, segment) in segments.iter().enumerate() {
        let Some(pages) = segment.pages.get(..pages_of(segment)) else {
            return Err(EngineError::new_err(format!(
                "request {}: {} pages of {page_size} slots don't cover {} positions",
                segment.request_id,
                segment.pages.len(),
                segment.start as usize + segment.tokens.len()
            )));
        };
        table[number * width..][..pages.len()].copy_from_slice(pages);
        tokens.extend(&segment.tokens);
        for position in segment.start as usize..segment.start as usize + segment.tokens.len() {
            positions.push(position as i32);
            slots.push(pages[position / page_size] * page_size as i32 + (position % page_size) as i32);
        }
        row_starts.push(tokens.len() as i32);
    }
    let one = |numbers: Vec<i32>| numbers.into_pyarray(py);
    let table = one(table).reshape([segments.len(), width])?;
    Ok((one(tokens), one(positions), one(slots), one(row_starts), table))
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ragged, module)?)
}

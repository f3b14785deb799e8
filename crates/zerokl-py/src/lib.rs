//! `zerokl._native`: the kernels as Python sees them. No logic lives here.

use pyo3::prelude::*;

#[pymodule]
fn _native(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}

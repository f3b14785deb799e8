//! `score`.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2};
use pyo3::prelude::*;
use zerokl_kernels::score::{self as kernels, Columns};

use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "columns of one call, checked and named by ops/score.py")]
fn score(
    py: Python<'_>,
    logits: PyReadonlyArray2<'_, f32>,
    targets: PyReadonlyArray1<'_, i32>,
    ids: PyReadonlyArray1<'_, i32>,
    mut chosen: PyReadwriteArray1<'_, f32>,
    mut top_ids: PyReadwriteArray2<'_, i32>,
    mut top: PyReadwriteArray2<'_, f32>,
    mut by_id: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (logits, targets, ids) = (logits.as_slice()?, targets.as_slice()?, ids.as_slice()?);
    let columns = Columns {
        chosen: chosen.as_slice_mut()?,
        top_ids: top_ids.as_slice_mut()?,
        top: top.as_slice_mut()?,
        ids: by_id.as_slice_mut()?,
    };
    cpu::run(py, |cpu| kernels::score(cpu, logits, targets, ids, columns)).map_err(EngineError::new_err)
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(score, module)?)
}

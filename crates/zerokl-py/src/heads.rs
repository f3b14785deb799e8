//! `rotate_and_store`.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray3, PyUntypedArrayMethods};
use pyo3::prelude::*;
use zerokl_kernels::heads::{self as kernels, Norms, Projected};

use crate::attention::{Pages, shape_of};
use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

#[pyfunction]
#[pyo3(signature = (qkv, cos, sin, slots, k_pool, v_pool, q_norm, k_norm, eps, q, scales=(1.0, 1.0)))]
#[expect(clippy::too_many_arguments, reason = "arrays of one step, checked and named by ops/heads.py")]
fn rotate_and_store(
    py: Python<'_>,
    qkv: PyReadonlyArray2<'_, f32>,
    cos: PyReadonlyArray2<'_, f32>,
    sin: PyReadonlyArray2<'_, f32>,
    slots: PyReadonlyArray1<'_, i32>,
    k_pool: Pages<'_>,
    v_pool: Pages<'_>,
    q_norm: Option<PyReadonlyArray1<'_, f32>>,
    k_norm: Option<PyReadonlyArray1<'_, f32>>,
    eps: f32,
    mut q: PyReadwriteArray3<'_, f32>,
    scales: (f32, f32),
) -> PyResult<()> {
    let norms = match (&q_norm, &k_norm) {
        (Some(q), Some(k)) => Some(Norms { q: q.as_slice()?, k: k.as_slice()?, eps }),
        _ => None,
    };
    let step =
        Projected { qkv: qkv.as_slice()?, cos: cos.as_slice()?, sin: sin.as_slice()?, norms, slots: slots.as_slice()? };
    let shape = shape_of(&k_pool, &v_pool, q.shape()[1])?;
    let (pools, q) = ((k_pool.pool(scales.0)?, v_pool.pool(scales.1)?), q.as_slice_mut()?);
    cpu::run(py, |cpu| kernels::rotate_and_store(cpu, shape, step, pools, q)).map_err(EngineError::new_err)
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rotate_and_store, module)?)
}

//! Recurrences over the tokens of a step.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3, PyReadwriteArray2, PyReadwriteArray3};
use numpy::{PyReadwriteArray4, PyUntypedArrayMethods};
use pyo3::prelude::*;
use zerokl_kernels::recurrence::{self as kernels, Delta, Scan, Selective};

use crate::cpu;

#[pyfunction]
fn time_steps(
    py: Python<'_>,
    raw: PyReadonlyArray2<'_, f32>,
    bias: PyReadonlyArray1<'_, f32>,
    log_rate: PyReadonlyArray1<'_, f32>,
    limits: (f32, f32),
    mut steps: PyReadwriteArray2<'_, f32>,
    mut decays: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (raw, bias, log_rate) = (raw.as_slice()?, bias.as_slice()?, log_rate.as_slice()?);
    let (steps, decays) = (steps.as_slice_mut()?, decays.as_slice_mut()?);
    cpu::run(py, |cpu| kernels::time_steps(cpu, raw, bias, log_rate, limits, steps, decays));
    Ok(())
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arrays of one step, checked and named by ops/recurrence.py")]
fn gated_delta(
    py: Python<'_>,
    q: PyReadonlyArray3<'_, f32>,
    k: PyReadonlyArray3<'_, f32>,
    v: PyReadonlyArray3<'_, f32>,
    decay: PyReadonlyArray2<'_, f32>,
    beta: PyReadonlyArray2<'_, f32>,
    row_starts: PyReadonlyArray1<'_, i32>,
    mut states: PyReadwriteArray4<'_, f32>,
    wanted: Vec<(usize, usize)>,
    mut saved: PyReadwriteArray4<'_, f32>,
    mut out: PyReadwriteArray3<'_, f32>,
) -> PyResult<()> {
    let inputs = Delta {
        q: q.as_slice()?,
        k: k.as_slice()?,
        v: v.as_slice()?,
        decay: decay.as_slice()?,
        beta: beta.as_slice()?,
        key_heads: q.shape()[1],
    };
    let shape = [states.shape()[1], states.shape()[2], states.shape()[3]];
    let scan = scan(row_starts.as_slice()?, shape, states.as_slice_mut()?, &wanted, saved.as_slice_mut()?);
    let out = out.as_slice_mut()?;
    cpu::run(py, |cpu| kernels::gated_delta(cpu, &inputs, scan, out));
    Ok(())
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arrays of one step, checked and named by ops/recurrence.py")]
fn selective_scan(
    py: Python<'_>,
    x: PyReadonlyArray3<'_, f32>,
    b: PyReadonlyArray3<'_, f32>,
    c: PyReadonlyArray3<'_, f32>,
    step: PyReadonlyArray2<'_, f32>,
    decay: PyReadonlyArray2<'_, f32>,
    skip: PyReadonlyArray1<'_, f32>,
    row_starts: PyReadonlyArray1<'_, i32>,
    mut states: PyReadwriteArray4<'_, f32>,
    wanted: Vec<(usize, usize)>,
    mut saved: PyReadwriteArray4<'_, f32>,
    mut out: PyReadwriteArray3<'_, f32>,
) -> PyResult<()> {
    let inputs = Selective {
        x: x.as_slice()?,
        b: b.as_slice()?,
        c: c.as_slice()?,
        step: step.as_slice()?,
        decay: decay.as_slice()?,
        skip: skip.as_slice()?,
        groups: b.shape()[1],
    };
    let shape = [states.shape()[1], states.shape()[2], states.shape()[3]];
    let scan = scan(row_starts.as_slice()?, shape, states.as_slice_mut()?, &wanted, saved.as_slice_mut()?);
    let out = out.as_slice_mut()?;
    cpu::run(py, |cpu| kernels::selective_scan(cpu, &inputs, scan, out));
    Ok(())
}

fn scan<'a>(
    row_starts: &'a [i32],
    [heads, depth, width]: [usize; 3],
    states: &'a mut [f32],
    wanted: &'a [(usize, usize)],
    saved: &'a mut [f32],
) -> Scan<'a> {
    Scan { row_starts, heads, depth, width, states, wanted, saved }
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(time_steps, module)?)?;
    module.add_function(wrap_pyfunction!(gated_delta, module)?)?;
    module.add_function(wrap_pyfunction!(selective_scan, module)?)
}

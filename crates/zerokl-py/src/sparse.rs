//! Gates, routing, mixtures of experts, short convolutions.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::gate::{self, Activation};
use zerokl_kernels::route::{self as routes, Rule, Scores};
use zerokl_kernels::short_conv::{self as convolutions, ShortConv};
use zerokl_kernels::{experts as mixtures, matrix};

use crate::cpu;
use crate::dense::Matrix;

pyo3::import_exception!(zerokl.errors, EngineError);

fn activation_of(name: &str) -> PyResult<Activation> {
    match name {
        "identity" => Ok(Activation::Identity),
        "sigmoid" => Ok(Activation::Sigmoid),
        "silu" => Ok(Activation::Silu),
        _ => Err(PyValueError::new_err(format!("no activation {name:?}"))),
    }
}

#[pyfunction]
fn gated(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    gate: PyReadonlyArray2<'_, f32>,
    activation: &str,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let activation = activation_of(activation)?;
    let (x, gate, out) = (x.as_slice()?, gate.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| gate::gated(cpu, x, gate, activation, out));
    Ok(())
}

#[pyfunction]
fn geglu(py: Python<'_>, gate_up: PyReadonlyArray2<'_, f32>, mut out: PyReadwriteArray2<'_, f32>) -> PyResult<()> {
    let width = out.shape()[1];
    let (gate_up, out) = (gate_up.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| gate::geglu(cpu, gate_up, width, out));
    Ok(())
}

#[pyfunction]
fn gelu(py: Python<'_>, x: PyReadonlyArray2<'_, f32>, mut out: PyReadwriteArray2<'_, f32>) -> PyResult<()> {
    let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| gate::gelu(cpu, x, out));
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (x, factors, residual, out))]
fn scale(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    factors: PyReadonlyArray1<'_, f32>,
    residual: Option<PyReadonlyArray2<'_, f32>>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let width = out.shape()[1];
    let residual = residual.as_ref().map(|residual| residual.as_slice()).transpose()?;
    let (x, factors, out) = (x.as_slice()?, factors.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| gate::scale(cpu, x, factors, residual, width, out));
    Ok(())
}

#[pyfunction]
fn softcap(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    cap: f32,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| gate::softcap(cpu, x, cap, out));
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (logits, scores, normalised, top, shared, bias, scale, experts, weights))]
#[expect(clippy::too_many_arguments, reason = "checked and named by ops/moe.py")]
fn route(
    py: Python<'_>,
    logits: PyReadonlyArray2<'_, f32>,
    scores: &str,
    normalised: bool,
    top: usize,
    shared: usize,
    bias: Option<PyReadonlyArray1<'_, f32>>,
    scale: f32,
    mut experts: PyReadwriteArray2<'_, i32>,
    mut weights: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let scores = match scores {
        "softmax" => Scores::Softmax { normalised },
        "sigmoid" => Scores::Sigmoid,
        _ => return Err(PyValueError::new_err(format!("no scores {scores:?}"))),
    };
    let bias = bias.as_ref().map(|bias| bias.as_slice()).transpose()?;
    let (width, rule) = (logits.shape()[1], Rule { scores, top, shared, bias, scale });
    let (logits, experts, weights) = (logits.as_slice()?, experts.as_slice_mut()?, weights.as_slice_mut()?);
    cpu::run(py, |cpu| routes::route(cpu, logits, width, rule, experts, weights));
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (x, gate_up, down, chosen, weights, residual, out))]
#[expect(clippy::too_many_arguments, reason = "checked and named by ops/moe.py")]
fn experts(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    gate_up: Vec<Py<Matrix>>,
    down: Vec<Py<Matrix>>,
    chosen: PyReadonlyArray2<'_, i32>,
    weights: PyReadonlyArray2<'_, f32>,
    residual: Option<PyReadonlyArray2<'_, f32>>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let residual = residual.as_ref().map(|residual| residual.as_slice()).transpose()?;
    let (x, chosen, weights, out) = (x.as_slice()?, chosen.as_slice()?, weights.as_slice()?, out.as_slice_mut()?);
    let gate_up: Vec<&matrix::Matrix> = gate_up.iter().map(|matrix| &matrix.get().0).collect();
    let down: Vec<&matrix::Matrix> = down.iter().map(|matrix| &matrix.get().0).collect();
    let all = mixtures::Experts { gate_up: &gate_up, down: &down };
    cpu::run(py, |cpu| mixtures::experts(cpu, x, &all, chosen, weights, residual, out)).map_err(EngineError::new_err)
}

#[pyfunction]
#[pyo3(signature = (u, taps, bias, previous, row_starts, activation, residual, out))]
#[expect(clippy::too_many_arguments, reason = "checked and named by ops/short_conv.py")]
fn short_conv(
    py: Python<'_>,
    u: PyReadonlyArray2<'_, f32>,
    taps: PyReadonlyArray2<'_, f32>,
    bias: Option<PyReadonlyArray1<'_, f32>>,
    previous: PyReadonlyArray3<'_, f32>,
    row_starts: PyReadonlyArray1<'_, i32>,
    activation: &str,
    residual: bool,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let step = ShortConv {
        u: u.as_slice()?,
        taps: taps.as_slice()?,
        bias: bias.as_ref().map(|bias| bias.as_slice()).transpose()?,
        previous: previous.as_slice()?,
        row_starts: row_starts.as_slice()?,
        channels: u.shape()[1],
        activation: activation_of(activation)?,
        residual,
    };
    let out = out.as_slice_mut()?;
    cpu::run(py, |cpu| convolutions::short_conv(cpu, &step, out)).map_err(EngineError::new_err)
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(gated, module)?)?;
    module.add_function(wrap_pyfunction!(geglu, module)?)?;
    module.add_function(wrap_pyfunction!(gelu, module)?)?;
    module.add_function(wrap_pyfunction!(scale, module)?)?;
    module.add_function(wrap_pyfunction!(softcap, module)?)?;
    module.add_function(wrap_pyfunction!(route, module)?)?;
    module.add_function(wrap_pyfunction!(experts, module)?)?;
    module.add_function(wrap_pyfunction!(short_conv, module)?)
}

//! `sample` and `process`: a list of `ops.Draw` as the kernels take it.

use numpy::{PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use zerokl_kernels::sample::{self as kernels, Draw};

use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

/// `ops.sample.Draw`.
#[derive(FromPyObject)]
struct PyDraw {
    params: PyParams,
    position: u32,
    history: Option<(Vec<u32>, Vec<u32>)>,
    mask: Option<PyBackedBytes>,
}

/// `types.SamplingParams`.
#[derive(FromPyObject)]
struct PyParams {
    temperature: f64,
    top_p: f64,
    top_k: i64,
    min_p: f64,
    frequency_penalty: f64,
    presence_penalty: f64,
    repetition_penalty: f64,
    logit_bias: Vec<(u32, f64)>,
    seed: i128,
    stream: u32,
}

impl PyDraw {
    /// `bias` is where the logit bias lives as f32.
    fn as_draw<'a>(&'a self, bias: &'a mut Vec<(u32, f32)>) -> Draw<'a> {
        let params = &self.params;
        bias.extend(params.logit_bias.iter().map(|&(id, bias)| (id, bias as f32)));
        Draw {
            temperature: params.temperature as f32,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p as f32,
            frequency_penalty: params.frequency_penalty as f32,
            presence_penalty: params.presence_penalty as f32,
            repetition_penalty: params.repetition_penalty as f32,
            logit_bias: bias,
            seed: params.seed as u64,
            stream: params.stream,
            position: self.position,
            history: self.history.as_ref().map(|(prompt, output)| (prompt.as_slice(), output.as_slice())),
            mask: self.mask.as_deref(),
        }
    }
}

#[pyfunction]
fn sample(
    py: Python<'_>,
    logits: PyReadonlyArray2<'_, f32>,
    draws: Vec<PyDraw>,
    mut ids: PyReadwriteArray1<'_, i32>,
) -> PyResult<()> {
    let (logits, ids) = (logits.as_slice()?, ids.as_slice_mut()?);
    with_draws(py, &draws, |cpu, draws| kernels::sample(cpu, logits, draws, ids))
}

#[pyfunction]
fn process(
    py: Python<'_>,
    logits: PyReadonlyArray2<'_, f32>,
    draws: Vec<PyDraw>,
    mut processed: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (logits, processed) = (logits.as_slice()?, processed.as_slice_mut()?);
    with_draws(py, &draws, |cpu, draws| kernels::process(cpu, logits, draws, processed))
}

fn with_draws(
    py: Python<'_>,
    draws: &[PyDraw],
    kernel: impl FnOnce(zerokl_kernels::cpu::Cpu, &[Draw<'_>]) -> Result<(), String> + Send,
) -> PyResult<()> {
    let mut biases = vec![Vec::new(); draws.len()];
    let draws: Vec<Draw<'_>> = draws.iter().zip(&mut biases).map(|(draw, bias)| draw.as_draw(bias)).collect();
    cpu::run(py, |cpu| kernel(cpu, &draws)).map_err(EngineError::new_err)
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    module.add_function(wrap_pyfunction!(process, module)?)
}

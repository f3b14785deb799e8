//! The packed weight, and the operations on plain arrays.

use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3};
use numpy::{PyReadwriteArray2, PyReadwriteArray3, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::formats::Format;
use zerokl_kernels::linear::Epilogue;
use zerokl_kernels::matrix::{self, Source};
use zerokl_kernels::rope::Layout;
use zerokl_kernels::{embedding as embeddings, layer_norm as layer_norms, linear as linears};
use zerokl_kernels::{rms_norm as norms, rope as ropes, swiglu as swiglus};

use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

/// A weight [N, K] in panels of 16 outputs; immutable.
#[pyclass(frozen, module = "zerokl._native")]
pub struct Matrix(pub matrix::Matrix);

#[pymethods]
impl Matrix {
    #[getter]
    pub fn shape(&self) -> (usize, usize) {
        (self.0.rows, self.0.columns)
    }

    /// Where the leaves of its sums end.
    #[getter]
    fn leaves(&self) -> Vec<usize> {
        self.0.leaves.clone()
    }

    /// How it lies in memory: float32, float16, bfloat16, or a quantised format; shards of several joined by "+".
    #[getter]
    fn dtype(&self) -> String {
        let mut names: Vec<_> = self.0.formats().map(Format::name).collect();
        names.dedup();
        names.join("+")
    }

    /// Whether some of its products are integer ones, of rounded rows.
    #[getter]
    fn is_integer(&self) -> bool {
        self.0.is_integer()
    }

    /// The numbers that it stands for, row-major.
    fn float32<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let numbers = py.detach(|| self.0.to_f32());
        numbers.into_pyarray(py).reshape([self.0.rows, self.0.columns])
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        format!("Matrix({} x {}, {})", self.0.rows, self.0.columns, self.dtype())
    }
}

/// f32 values, or the bits of f16 or bf16.
#[derive(FromPyObject)]
enum Weight<'py> {
    Values(PyReadonlyArray2<'py, f32>),
    Bits(PyReadonlyArray2<'py, u16>),
}

/// Parts of one width, one under the other, as one matrix.
#[pyfunction]
#[pyo3(signature = (parts, stored, dtype, leaves=None))]
fn pack(
    py: Python<'_>,
    parts: Vec<Weight<'_>>,
    stored: &str,
    dtype: &str,
    leaves: Option<Vec<usize>>,
) -> PyResult<Matrix> {
    let stored = format_of(stored)?;
    let shapes: Vec<_> = parts.iter().map(Weight::shape).collect();
    let columns = shapes.first().map_or(0, |shape| shape[1]);
    if shapes.iter().any(|shape| shape[1] != columns) {
        return Err(PyValueError::new_err("parts of several widths"));
    }
    let sources: Vec<_> = parts.iter().map(|part| part.source(stored)).collect::<PyResult<_>>()?;
    let (rows, format) = (shapes.iter().map(|shape| shape[0]).sum(), format_of(dtype)?);
    let packed = cpu::run(py, |cpu| matrix::Matrix::pack_parts(cpu, &sources, rows, columns, format));
    Ok(Matrix(match leaves {
        Some(leaves) => packed.in_leaves(leaves),
        None => packed,
    }))
}

impl Weight<'_> {
    fn shape(&self) -> &[usize] {
        match self {
            Weight::Values(values) => values.shape(),
            Weight::Bits(bits) => bits.shape(),
        }
    }

    fn source(&self, stored: Format) -> PyResult<Source<'_>> {
        match (self, stored) {
            (Weight::Values(values), Format::F32) => Ok(Source::F32(values.as_slice()?)),
            (Weight::Bits(bits), Format::F16) => Ok(Source::F16(bits.as_slice()?)),
            (Weight::Bits(bits), Format::Bf16) => Ok(Source::Bf16(bits.as_slice()?)),
            _ => Err(PyValueError::new_err(format!("this array holds no {}", stored.name()))),
        }
    }
}

fn format_of(name: &str) -> PyResult<Format> {
    let plain = [Format::F32, Format::F16, Format::Bf16];
    let found = Format::named(name).filter(|format| plain.contains(format));
    found.ok_or_else(|| PyValueError::new_err(format!("no weight format {name:?}")))
}

#[pyfunction]
fn embedding(
    py: Python<'_>,
    weight: &Matrix,
    ids: PyReadonlyArray1<'_, i32>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (ids, out) = (ids.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| embeddings::embedding(cpu, &weight.0, ids, out)).map_err(EngineError::new_err)
}

#[pyfunction]
#[pyo3(signature = (x, weight, bias, residual, out))]
fn linear(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    weight: &Matrix,
    bias: Option<PyReadonlyArray1<'_, f32>>,
    residual: Option<PyReadonlyArray2<'_, f32>>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let epilogue = Epilogue {
        bias: bias.as_ref().map(|bias| bias.as_slice()).transpose()?,
        residual: residual.as_ref().map(|residual| residual.as_slice()).transpose()?,
    };
    let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| linears::linear(cpu, x, &weight.0, epilogue, out));
    Ok(())
}

/// The sum of leaves, or of subtrees of one size, that lie apart.
#[pyfunction]
#[pyo3(signature = (parts, bias, residual, out))]
fn fold(
    py: Python<'_>,
    parts: Vec<PyReadonlyArray2<'_, f32>>,
    bias: Option<PyReadonlyArray1<'_, f32>>,
    residual: Option<PyReadonlyArray2<'_, f32>>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let epilogue = Epilogue {
        bias: bias.as_ref().map(|bias| bias.as_slice()).transpose()?,
        residual: residual.as_ref().map(|residual| residual.as_slice()).transpose()?,
    };
    let parts = parts.iter().map(|part| part.as_slice()).collect::<Result<Vec<_>, _>>()?;
    let width = out.shape()[1];
    let out = out.as_slice_mut()?;
    cpu::run(py, |cpu| linears::leaves::fold(cpu, &parts, width, epilogue, out));
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (x, weight, bias, out))]
fn gated_linear(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    weight: &Matrix,
    bias: Option<PyReadonlyArray1<'_, f32>>,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let bias = bias.as_ref().map(|bias| bias.as_slice()).transpose()?;
    let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| linears::gated_linear(cpu, x, &weight.0, bias, out));
    Ok(())
}

/// x and out are rows of one width, with all leading axes as one.
#[pyfunction]
fn rms_norm(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    weight: PyReadonlyArray1<'_, f32>,
    eps: f32,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (x, weight, out) = (x.as_slice()?, weight.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| norms::rms_norm(cpu, x, weight, eps, out));
    Ok(())
}

#[pyfunction]
fn layer_norm(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, f32>,
    weight: PyReadonlyArray1<'_, f32>,
    bias: PyReadonlyArray1<'_, f32>,
    eps: f32,
    mut out: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (x, weight, bias, out) = (x.as_slice()?, weight.as_slice()?, bias.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| layer_norms::layer_norm(cpu, x, weight, bias, eps, out));
    Ok(())
}

#[pyfunction]
fn rope_table(
    py: Python<'_>,
    positions: PyReadonlyArray1<'_, i32>,
    inv_freq: PyReadonlyArray1<'_, f64>,
    scale: f64,
    mut cos: PyReadwriteArray2<'_, f32>,
    mut sin: PyReadwriteArray2<'_, f32>,
) -> PyResult<()> {
    let (positions, inv_freq) = (positions.as_slice()?, inv_freq.as_slice()?);
    let (cos, sin) = (cos.as_slice_mut()?, sin.as_slice_mut()?);
    cpu::run(py, |_| ropes::rope_table(positions, inv_freq, scale, cos, sin));
    Ok(())
}

#[pyfunction]
fn rope(
    py: Python<'_>,
    x: PyReadonlyArray3<'_, f32>,
    cos: PyReadonlyArray2<'_, f32>,
    sin: PyReadonlyArray2<'_, f32>,
    interleaved: bool,
    mut out: PyReadwriteArray3<'_, f32>,
) -> PyResult<()> {
    let layout = Layout { heads: x.shape()[1], head_size: x.shape()[2], interleaved };
    let (x, cos, sin, out) = (x.as_slice()?, cos.as_slice()?, sin.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| ropes::rope(cpu, x, cos, sin, layout, out));
    Ok(())
}

#[pyfunction]
fn swiglu(py: Python<'_>, gate_up: PyReadonlyArray2<'_, f32>, mut out: PyReadwriteArray2<'_, f32>) -> PyResult<()> {
    let width = out.shape()[1];
    let (gate_up, out) = (gate_up.as_slice()?, out.as_slice_mut()?);
    cpu::run(py, |cpu| swiglus::swiglu(cpu, gate_up, width, out));
    Ok(())
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Matrix>()?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(embedding, module)?)?;
    module.add_function(wrap_pyfunction!(linear, module)?)?;
    module.add_function(wrap_pyfunction!(fold, module)?)?;
    module.add_function(wrap_pyfunction!(gated_linear, module)?)?;
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(rope_table, module)?)?;
    module.add_function(wrap_pyfunction!(rope, module)?)?;
    module.add_function(wrap_pyfunction!(swiglu, module)?)
}

//! Packing of quantised weights.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::formats::Format;
use zerokl_kernels::matrix::{self, Scale, is_block_type};

use crate::cpu;
use crate::dense::Matrix;

/// GGUF blocks [N, bytes of a row] of K values each row, in parts one under the other.
#[pyfunction]
fn pack_blocks(
    py: Python<'_>,
    parts: Vec<PyReadonlyArray2<'_, u8>>,
    kind: &str,
    columns: usize,
    integer: bool,
) -> PyResult<Matrix> {
    let Some(format) = Format::named(kind).filter(|format| is_block_type(*format)) else {
        return Err(PyValueError::new_err(format!("no block type {kind:?}")));
    };
    let rows = parts.iter().map(|part| part.shape()[0]).sum();
    let bytes: Vec<_> = parts.iter().map(|part| part.as_slice()).collect::<Result<_, _>>()?;
    Ok(Matrix(cpu::run(py, |cpu| matrix::Matrix::pack_blocks(cpu, format, &bytes, rows, columns, integer))))
}

/// What the finished chain is multiplied with, divided by, or multiplied with output by output.
#[derive(FromPyObject)]
enum Factor<'py> {
    One(f32),
    Each(PyReadonlyArray1<'py, f32>),
}

fn scale_of(factor: &Factor<'_>, divides: bool) -> PyResult<Scale> {
    Ok(match factor {
        Factor::One(factor) if divides => Scale::Over(*factor),
        Factor::One(factor) => Scale::Times(*factor),
        Factor::Each(factors) => Scale::Each(factors.as_slice()?.to_vec()),
    })
}

#[pyfunction]
fn pack_nvfp4(
    py: Python<'_>,
    codes: PyReadonlyArray2<'_, u8>,
    scales: PyReadonlyArray2<'_, u8>,
    factor: Factor<'_>,
    divides: bool,
) -> PyResult<Matrix> {
    let (rows, columns, scale) = (codes.shape()[0], codes.shape()[1] * 2, scale_of(&factor, divides)?);
    let (codes, scales) = (codes.as_slice()?, scales.as_slice()?);
    Ok(Matrix(cpu::run(py, |cpu| matrix::Matrix::pack_nvfp4(cpu, codes, scales, rows, columns, scale))))
}

#[pyfunction]
fn pack_fp8(py: Python<'_>, codes: PyReadonlyArray2<'_, u8>, factor: Factor<'_>) -> PyResult<Matrix> {
    let (rows, columns, scale) = (codes.shape()[0], codes.shape()[1], scale_of(&factor, false)?);
    let codes = codes.as_slice()?;
    Ok(Matrix(cpu::run(py, |cpu| matrix::Matrix::pack_fp8(cpu, codes, rows, columns, scale))))
}

/// With a scale per 128 by 128.
#[pyfunction]
fn pack_fp8_blocks(
    py: Python<'_>,
    codes: PyReadonlyArray2<'_, u8>,
    scales: PyReadonlyArray2<'_, f32>,
) -> PyResult<Matrix> {
    let (rows, columns) = (codes.shape()[0], codes.shape()[1]);
    let (codes, scales) = (codes.as_slice()?, scales.as_slice()?);
    Ok(Matrix(cpu::run(py, |cpu| matrix::Matrix::pack_fp8_blocks(cpu, codes, scales, rows, columns))))
}

/// One under the other, each with its own format and scale; nothing is copied.
#[pyfunction]
fn stack(parts: Vec<Py<Matrix>>) -> PyResult<Matrix> {
    let parts: Vec<&matrix::Matrix> = parts.iter().map(|part| &part.get().0).collect();
    if parts.iter().any(|part| part.columns != parts[0].columns) {
        return Err(PyValueError::new_err("parts of different depths"));
    }
    Ok(Matrix(matrix::Matrix::stack(&parts)))
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(pack_nvfp4, module)?)?;
    module.add_function(wrap_pyfunction!(pack_fp8, module)?)?;
    module.add_function(wrap_pyfunction!(pack_fp8_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(stack, module)?)
}

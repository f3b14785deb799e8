//! `store_kv` and `attention`.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3, PyReadonlyArray4};
use numpy::{PyReadwriteArray2, PyReadwriteArray4, PyUntypedArrayMethods};
use pyo3::prelude::*;
use zerokl_kernels::attention::{self as kernels, Attention, Bias, Pool, PoolMut, Rule, Shape};

use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

/// Keys or values of all pages: f32, the bits of bf16, or the codes of e4m3.
#[derive(FromPyObject)]
pub enum Pages<'py> {
    F32(PyReadonlyArray4<'py, f32>),
    Bf16(PyReadonlyArray4<'py, u16>),
    Fp8(PyReadonlyArray4<'py, u8>),
}

impl Pages<'_> {
    fn shape(&self) -> &[usize] {
        match self {
            Pages::F32(pages) => pages.shape(),
            Pages::Bf16(pages) => pages.shape(),
            Pages::Fp8(pages) => pages.shape(),
        }
    }

    fn pool(&self, scale: f32) -> PyResult<Pool<'_>> {
        Ok(match self {
            Pages::F32(pages) => Pool::F32(pages.as_slice()?),
            Pages::Bf16(pages) => Pool::Bf16(pages.as_slice()?),
            Pages::Fp8(pages) => Pool::Fp8(pages.as_slice()?, scale),
        })
    }
}

/// The same, to be written.
#[derive(FromPyObject)]
pub enum PagesMut<'py> {
    F32(PyReadwriteArray4<'py, f32>),
    Bf16(PyReadwriteArray4<'py, u16>),
    Fp8(PyReadwriteArray4<'py, u8>),
}

impl PagesMut<'_> {
    pub fn shape(&self) -> &[usize] {
        match self {
            PagesMut::F32(pages) => pages.shape(),
            PagesMut::Bf16(pages) => pages.shape(),
            PagesMut::Fp8(pages) => pages.shape(),
        }
    }

    pub fn pool(&mut self, scale: f32) -> PyResult<PoolMut<'_>> {
        Ok(match self {
            PagesMut::F32(pages) => PoolMut::F32(pages.as_slice_mut()?),
            PagesMut::Bf16(pages) => PoolMut::Bf16(pages.as_slice_mut()?),
            PagesMut::Fp8(pages) => PoolMut::Fp8(pages.as_slice_mut()?, scale),
        })
    }
}

#[pyfunction]
#[pyo3(signature = (k_pool, v_pool, slots, k, v, scales=(1.0, 1.0)))]
fn store_kv(
    py: Python<'_>,
    mut k_pool: PagesMut<'_>,
    mut v_pool: PagesMut<'_>,
    slots: PyReadonlyArray1<'_, i32>,
    k: PyReadonlyArray3<'_, f32>,
    v: PyReadonlyArray3<'_, f32>,
    scales: (f32, f32),
) -> PyResult<()> {
    let shape = shape_of(k_pool.shape(), k_pool.shape()[1]);
    let pools = (k_pool.pool(scales.0)?, v_pool.pool(scales.1)?);
    let (slots, k, v) = (slots.as_slice()?, k.as_slice()?, v.as_slice()?);
    cpu::run(py, |_| kernels::store_kv(shape, pools, slots, k, v)).map_err(EngineError::new_err)
}

#[pyfunction]
#[pyo3(signature = (y, q, k, v, positions, row_starts, page_table, factor, cap, window, sinks, bias=None, scales=(1.0, 1.0)))]
#[expect(clippy::too_many_arguments, reason = "arrays of one step, checked and named by ops/attention.py")]
fn attention(
    py: Python<'_>,
    mut y: PyReadwriteArray2<'_, f32>,
    q: PyReadonlyArray3<'_, f32>,
    k: Pages<'_>,
    v: Pages<'_>,
    positions: PyReadonlyArray1<'_, i32>,
    row_starts: PyReadonlyArray1<'_, i32>,
    page_table: PyReadonlyArray2<'_, i32>,
    factor: f32,
    cap: f32,
    window: usize,
    sinks: Option<PyReadonlyArray1<'_, f32>>,
    bias: Option<(PyReadonlyArray3<'_, f32>, PyReadonlyArray2<'_, f32>)>,
    scales: (f32, f32),
) -> PyResult<()> {
    let sinks = sinks.as_ref().map(|sinks| sinks.as_slice()).transpose()?;
    let profile = match &bias {
        Some((_, profile)) => Bias::unroll(profile.as_slice()?, profile.shape()[1]),
        None => Vec::new(),
    };
    let bias = match &bias {
        Some((queries, given)) => {
            let (rank, extent) = (given.shape()[0], given.shape()[1]);
            Some(Bias { queries: queries.as_slice()?, profile: &profile, rank, extent })
        }
        None => None,
    };
    let step = Attention {
        q: q.as_slice()?,
        k: k.pool(scales.0)?,
        v: v.pool(scales.1)?,
        positions: positions.as_slice()?,
        row_starts: row_starts.as_slice()?,
        page_table: page_table.as_slice()?,
        shape: shape_of(k.shape(), q.shape()[1]),
        rule: Rule { factor, cap, window, sinks, bias },
    };
    let y = y.as_slice_mut()?;
    cpu::run(py, |cpu| kernels::attention(cpu, &step, y)).map_err(EngineError::new_err)
}

/// From the keys' `[P, K, D, page]`.
fn shape_of(pool: &[usize], heads: usize) -> Shape {
    Shape { heads, kv_heads: pool[1], size: pool[2], page: pool[3] }
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(store_kv, module)?)?;
    module.add_function(wrap_pyfunction!(attention, module)?)
}

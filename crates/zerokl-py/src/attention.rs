//! `store_kv` and `attention`.

use numpy::{Element, PyArray4, PyArrayMethods, PyReadwriteArray2, PyUntypedArrayMethods};
use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::attention::{self as kernels, Attention, Bias, Numbers, PoolMut, Rule, Shape};

use crate::cpu;

pyo3::import_exception!(zerokl.errors, EngineError);

/// Keys or values of all pages: f32, the bits of bf16, or the codes of e4m3. Numpy's book of borrowed arrays is left
/// out: what lies between a pool's pages may be other pools', which it would take for a conflict.
#[derive(FromPyObject)]
pub enum Pages<'py> {
    F32(Bound<'py, PyArray4<f32>>),
    Bf16(Bound<'py, PyArray4<u16>>),
    Fp8(Bound<'py, PyArray4<u8>>),
}

impl Pages<'_> {
    /// (axes, numbers from one page's start to the next one's). ValueError unless each page lies in one piece.
    fn layout(&self) -> PyResult<([usize; 4], usize)> {
        match self {
            Pages::F32(pages) => layout_of(pages),
            Pages::Bf16(pages) => layout_of(pages),
            Pages::Fp8(pages) => layout_of(pages),
        }
    }

    /// Of an array that nobody else uses meanwhile, and that lives as long as the pool.
    pub fn pool<'a>(&self, scale: f32) -> PyResult<PoolMut<'a>> {
        Ok(match self {
            Pages::F32(pages) => PoolMut::F32(numbers_of(pages)?),
            Pages::Bf16(pages) => PoolMut::Bf16(numbers_of(pages)?),
            Pages::Fp8(pages) => PoolMut::Fp8(numbers_of(pages)?, scale),
        })
    }
}

fn layout_of<T: Element>(pages: &Bound<'_, PyArray4<T>>) -> PyResult<([usize; 4], usize)> {
    let &[count, heads, rows, columns] = pages.shape() else { unreachable!("four axes") };
    let strides = pages.strides().iter().map(|stride| usize::try_from(*stride).unwrap_or(0) / size_of::<T>());
    let (length, strides) = (heads * rows * columns, strides.collect::<Vec<_>>());
    let stride = if count > 1 { strides[0] } else { length };
    if length > 0 && (strides[1..] != [rows * columns, columns, 1] || stride < length) {
        return Err(PyValueError::new_err("the pages of a pool don't lie each in one piece"));
    }
    Ok(([count, heads, rows, columns], stride))
}

fn numbers_of<'a, T: Element + Copy>(pages: &Bound<'_, PyArray4<T>>) -> PyResult<Numbers<'a, T>> {
    let ([count, heads, rows, columns], stride) = layout_of(pages)?;
    let length = heads * rows * columns;
    if !pages.getattr("flags")?.getattr("writeable")?.is_truthy()? {
        return Err(PyValueError::new_err("a pool that can't be written"));
    }
    let spanned = if length == 0 { 0 } else { count.checked_sub(1).map_or(0, |others| others * stride + length) };
    // SAFETY: the array spans so many; who calls keeps it, and uses one pool at a time.
    Ok(unsafe { Numbers::new(pages.data(), spanned) })
}

#[pyfunction]
#[pyo3(signature = (k_pool, v_pool, slots, k, v, scales=(1.0, 1.0)))]
fn store_kv(
    py: Python<'_>,
    k_pool: Pages<'_>,
    v_pool: Pages<'_>,
    slots: PyReadonlyArray1<'_, i32>,
    k: PyReadonlyArray3<'_, f32>,
    v: PyReadonlyArray3<'_, f32>,
    scales: (f32, f32),
) -> PyResult<()> {
    let shape = shape_of(&k_pool, &v_pool, k.shape()[1])?;
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
    let (shape, k, v) = (shape_of(&k, &v, q.shape()[1])?, k.pool(scales.0)?, v.pool(scales.1)?);
    let step = Attention {
        q: q.as_slice()?,
        k: k.shared(),
        v: v.shared(),
        positions: positions.as_slice()?,
        row_starts: row_starts.as_slice()?,
        page_table: page_table.as_slice()?,
        shape,
        rule: Rule { factor, cap, window, sinks, bias },
    };
    let y = y.as_slice_mut()?;
    cpu::run(py, |cpu| kernels::attention(cpu, &step, y)).map_err(EngineError::new_err)
}

/// From keys `[P, K, D, page]` and values `[P, K, page, D]`, whose pages are equally far apart.
pub fn shape_of(keys: &Pages<'_>, values: &Pages<'_>, heads: usize) -> PyResult<Shape> {
    let (([pages, kv_heads, size, page], stride), (axes, of_values)) = (keys.layout()?, values.layout()?);
    if axes != [pages, kv_heads, page, size] || stride != of_values {
        return Err(PyValueError::new_err("keys and values don't lie alike"));
    }
    Ok(Shape { heads, kv_heads, size, page, stride })
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(store_kv, module)?)?;
    module.add_function(wrap_pyfunction!(attention, module)?)
}

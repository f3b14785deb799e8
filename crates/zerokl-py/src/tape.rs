//! `Tape`: recorded by ops/tape.py, run by the runner.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::attention::Shape;
use zerokl_kernels::formats::Format;
use zerokl_kernels::matrix;
use zerokl_kernels::sm90;
use zerokl_kernels::tape::{self as kernels, HeadNorms, LayerPools, Name, Numerics, Op, Step};

use crate::attention::{Pages, shape_of};
use crate::cpu;
use crate::dense::Matrix;

pyo3::import_exception!(zerokl.errors, EngineError);

/// A weight that the tape shares with Python.
struct Weight(Py<Matrix>);

impl AsRef<matrix::Matrix> for Weight {
    fn as_ref(&self) -> &matrix::Matrix {
        &self.0.get().0
    }
}

/// A layer's keys and values, and their scales.
type Layer<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, (f32, f32));

/// Operations over arrays that have a row per token; arrays are named by numbers, in the order in which they came to be.
#[pyclass(module = "zerokl._native")]
struct Tape {
    numerics: Numerics,
    pools: Vec<LayerPools<'static>>,
    /// The arrays that the pools lie in. Numpy never moves one that somebody else holds.
    _kept: Vec<Py<PyAny>>,
    widths: Vec<usize>,
    ops: Vec<Op<Weight>>,
    inputs: Vec<Name>,
    outputs: Vec<Name>,
    ready: Option<kernels::Tape<Weight>>,
}

impl Tape {
    fn array(&mut self, width: usize) -> Name {
        self.widths.push(width);
        self.widths.len() - 1
    }

    fn expect(&self, name: Name, width: usize) -> PyResult<()> {
        match self.widths.get(name) {
            Some(&known) if known == width => Ok(()),
            known => Err(PyValueError::new_err(format!("array {name} is {known:?} wide, not {width}"))),
        }
    }
}

fn numbers(vector: Option<PyReadonlyArray1<'_, f32>>, width: usize) -> PyResult<Option<Vec<f32>>> {
    let vector = vector.map(|vector| vector.as_slice().map(<[f32]>::to_vec)).transpose()?;
    match &vector {
        Some(vector) if vector.len() != width => Err(PyValueError::new_err(format!("{} of {width}", vector.len()))),
        _ => Ok(vector),
    }
}

#[pymethods]
impl Tape {
    /// `numerics`: "cpu", or "sm90", which refuses what a GPU of the family has no kernel for.
    #[new]
    #[pyo3(signature = (layers, numerics="cpu"))]
    fn new(layers: Vec<Layer<'_>>, numerics: &str) -> PyResult<Self> {
        let numerics = match numerics {
            "cpu" => Numerics::Cpu,
            "sm90" => Numerics::Sm90,
            other => return Err(PyValueError::new_err(format!("no numerics {other:?}"))),
        };
        let (mut pools, mut kept) = (Vec::new(), Vec::new());
        for (k, v, scales) in layers {
            let (keys, values) = (k.extract::<Pages<'_>>()?, v.extract::<Pages<'_>>()?);
            let Shape { kv_heads, size, page, stride, .. } = shape_of(&keys, &values, 0)?;
            let (k_pool, v_pool) = (keys.pool(scales.0)?, values.pool(scales.1)?);
            pools.push(LayerPools { k: k_pool, v: v_pool, kv_heads, size, page, stride });
            kept.extend([k.unbind(), v.unbind()]);
        }
        let (widths, inputs, outputs) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Tape { numerics, pools, _kept: kept, widths, ops: Vec::new(), inputs, outputs, ready: None })
    }

    fn input(&mut self, width: usize) -> Name {
        let name = self.array(width);
        self.inputs.push(name);
        name
    }

    fn embedding(&mut self, weight: Py<Matrix>) -> Name {
        let out = self.array(weight.get().0.columns);
        self.ops.push(Op::Embedding { weight: Weight(weight), out });
        out
    }

    fn rope_table(&mut self, inv_freq: PyReadonlyArray1<'_, f64>, scale: f64) -> PyResult<(Name, Name)> {
        let frequencies = inv_freq.as_slice()?.to_vec();
        let (cos, sin) = (self.array(frequencies.len()), self.array(frequencies.len()));
        self.ops.push(Op::RopeTable { frequencies, scale, cos, sin });
        Ok((cos, sin))
    }

    fn rms_norm(&mut self, x: Name, weight: PyReadonlyArray1<'_, f32>, eps: f32, wide: bool) -> PyResult<Name> {
        let weight = weight.as_slice()?.to_vec();
        self.serves(weight.len() <= sm90::MOST_COLUMNS, "norms of so many columns")?;
        self.expect(x, weight.len())?;
        let out = self.array(weight.len());
        self.ops.push(Op::RmsNorm { x, weight, eps, wide, out });
        Ok(out)
    }

    #[pyo3(signature = (x, weight, bias, residual, wide))]
    fn linear(
        &mut self,
        x: Name,
        weight: Py<Matrix>,
        bias: Option<PyReadonlyArray1<'_, f32>>,
        residual: Option<Name>,
        wide: bool,
    ) -> PyResult<Name> {
        let (outputs, depth) = weight.get().shape();
        self.serves_weight(&weight)?;
        self.expect(x, depth)?;
        residual.map_or(Ok(()), |residual| self.expect(residual, outputs))?;
        let (bias, out) = (numbers(bias, outputs)?, self.array(outputs));
        self.ops.push(Op::Linear { x, weight: Weight(weight), bias, residual, wide, out });
        Ok(out)
    }

    #[pyo3(signature = (x, weight, bias))]
    fn gated_linear(&mut self, x: Name, weight: Py<Matrix>, bias: Option<PyReadonlyArray1<'_, f32>>) -> PyResult<Name> {
        let (outputs, depth) = weight.get().shape();
        self.serves_weight(&weight)?;
        self.expect(x, depth)?;
        let (bias, out) = (numbers(bias, outputs)?, self.array(outputs / 2));
        self.ops.push(Op::Gated { x, weight: Weight(weight), bias, out });
        Ok(out)
    }

    #[pyo3(signature = (qkv, turns, layer, heads, norms, eps))]
    fn rotate_and_store(
        &mut self,
        qkv: Name,
        turns: [Name; 2],
        layer: usize,
        heads: usize,
        norms: Option<(PyReadonlyArray1<'_, f32>, PyReadonlyArray1<'_, f32>)>,
        eps: f32,
    ) -> PyResult<Name> {
        let (kv_heads, size) = self.heads_of(layer)?;
        self.serves(size.is_power_of_two() && (16..=256).contains(&size), "heads of this size")?;
        self.expect(qkv, (heads + 2 * kv_heads) * size)?;
        let pairs = self.widths[turns[0]];
        if 2 * pairs > size || self.widths[turns[1]] != pairs {
            return Err(PyValueError::new_err(format!("{pairs} angles for a head of {size}")));
        }
        let norms = match norms {
            Some((q, k)) => match (numbers(Some(q), size)?, numbers(Some(k), size)?) {
                (Some(q), Some(k)) => Some(HeadNorms { q, k, eps }),
                _ => None,
            },
            None => None,
        };
        let out = self.array(heads * size);
        self.ops.push(Op::RotateAndStore { qkv, turns, layer, heads, norms, out });
        Ok(out)
    }

    fn attention(&mut self, q: Name, layer: usize, heads: usize, factor: f32) -> PyResult<Name> {
        let (kv_heads, size) = self.heads_of(layer)?;
        self.expect(q, heads * size)?;
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(PyValueError::new_err(format!("{heads} query heads, {kv_heads} key heads")));
        }
        let out = self.array(heads * size);
        self.ops.push(Op::Attention { q, layer, heads, factor, out });
        Ok(out)
    }

    /// Ends the recording.
    fn finish(&mut self, outputs: Vec<Name>) {
        let ops = std::mem::take(&mut self.ops);
        self.ready = Some(kernels::Tape::new(self.numerics, ops, self.widths.clone(), &self.inputs, &outputs));
        self.outputs = outputs;
    }

    /// Numbers in a row of each output.
    #[getter]
    fn output_widths(&self) -> Vec<usize> {
        self.outputs.iter().map(|&name| self.widths[name]).collect()
    }

    /// (operation, how often it ran, seconds in all) since the last call.
    fn take_times(&mut self) -> Vec<(&'static str, u64, f64)> {
        let times = self.ready.as_mut().map(kernels::Tape::take_times).unwrap_or_default();
        times.into_iter().map(|(kind, (count, time))| (kind, count, time.as_secs_f64())).collect()
    }

    /// One step. `outputs` are written; they have a row per token, and so have `inputs`.
    #[expect(clippy::too_many_arguments, reason = "arrays of one step, named by ops/tape.py")]
    fn run(
        &mut self,
        py: Python<'_>,
        tokens: PyReadonlyArray1<'_, i32>,
        positions: PyReadonlyArray1<'_, i32>,
        slots: PyReadonlyArray1<'_, i32>,
        row_starts: PyReadonlyArray1<'_, i32>,
        page_table: PyReadonlyArray2<'_, i32>,
        inputs: Vec<PyReadonlyArray2<'_, f32>>,
        mut outputs: Vec<PyReadwriteArray2<'_, f32>>,
    ) -> PyResult<()> {
        let Some(ready) = &mut self.ready else { return Err(PyValueError::new_err("the recording hasn't ended")) };
        let step = Step {
            tokens: tokens.as_slice()?,
            positions: positions.as_slice()?,
            slots: slots.as_slice()?,
            row_starts: row_starts.as_slice()?,
            page_table: page_table.as_slice()?,
        };
        let inputs = inputs.iter().map(|input| input.as_slice()).collect::<Result<Vec<_>, _>>()?;
        let rows = match inputs.first() {
            Some(input) => input.len() / self.widths[self.inputs[0]],
            None => step.tokens.len(),
        };
        let wanted = |names: &[Name], lengths: Vec<usize>| {
            names.len() == lengths.len() && names.iter().zip(lengths).all(|(&name, n)| n == rows * self.widths[name])
        };
        let outputs = outputs.iter_mut().map(|output| output.as_slice_mut()).collect::<Result<Vec<_>, _>>()?;
        if !wanted(&self.inputs, inputs.iter().map(|x| x.len()).collect())
            || !wanted(&self.outputs, outputs.iter().map(|y| y.len()).collect())
        {
            return Err(PyValueError::new_err(format!(
                "inputs and outputs must have {rows} rows of the tape's widths"
            )));
        }
        cpu::run(py, |cpu| ready.run(cpu, rows, &step, &mut self.pools, &inputs, outputs)).map_err(EngineError::new_err)
    }
}

impl Tape {
    /// Raises ValueError for what the GPU's arithmetic doesn't have here.
    fn serves(&self, is_served: bool, what: &str) -> PyResult<()> {
        match self.numerics == Numerics::Cpu || is_served {
            true => Ok(()),
            false => Err(PyValueError::new_err(format!("{:?} has no {what}", self.numerics))),
        }
    }

    fn serves_weight(&self, weight: &Py<Matrix>) -> PyResult<()> {
        let weight = &weight.get().0;
        let is_plain = weight.leaves.len() == 1 && weight.formats().all(|format| format == Format::Bf16);
        self.serves(is_plain, "products with this weight")
    }

    /// (key heads, size of a head) of a layer.
    fn heads_of(&self, layer: usize) -> PyResult<(usize, usize)> {
        let Some(pools) = self.pools.get(layer) else {
            return Err(PyValueError::new_err(format!("layer {layer} of {}", self.pools.len())));
        };
        Ok((pools.kv_heads, pools.size))
    }
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tape>()
}

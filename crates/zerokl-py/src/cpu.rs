//! Which instruction set and how many threads the kernels of this process use: speed only, never a bit. And how fast
//! these could be.

use std::sync::RwLock;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zerokl_kernels::arch::{Isa, strict_floats};
use zerokl_kernels::ceilings;
use zerokl_kernels::cpu::Cpu;

static CPU: RwLock<Option<Cpu>> = RwLock::new(None);

/// What kernels run with now.
pub fn current() -> Cpu {
    let known = *CPU.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    known.unwrap_or_else(|| change(|_| ()))
}

fn change(edit: impl FnOnce(&mut Cpu)) -> Cpu {
    let mut slot = CPU.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let cpu = slot.get_or_insert_with(Cpu::detect);
    edit(cpu);
    *cpu
}

/// Runs a kernel as every native function must: without the GIL, in the contract's float mode.
pub fn run<R: Send>(py: Python<'_>, kernel: impl FnOnce(Cpu) -> R + Send) -> R {
    let cpu = current();
    py.detach(|| strict_floats(|| kernel(cpu)))
}

/// The instruction sets that this machine can run, best first.
#[pyfunction]
fn isas() -> Vec<&'static str> {
    Isa::available().map(Isa::name).collect()
}

#[pyfunction]
fn isa() -> &'static str {
    current().isa.name()
}

#[pyfunction]
fn set_isa(name: &str) -> PyResult<()> {
    let Some(isa) = Isa::named(name) else {
        let can = isas().join(", ");
        return Err(PyValueError::new_err(format!("this machine can't run '{name}'; it can run {can}")));
    };
    change(|cpu| cpu.isa = isa);
    Ok(())
}

#[pyfunction]
fn threads() -> usize {
    current().threads
}

#[pyfunction]
fn set_threads(count: usize) -> PyResult<()> {
    if count == 0 {
        return Err(PyValueError::new_err("at least one thread"));
    }
    change(|cpu| cpu.threads = count);
    Ok(())
}

/// Reads every number once, on all threads.
#[pyfunction]
fn read_once(py: Python<'_>, data: PyReadonlyArray1<'_, f32>) -> PyResult<()> {
    let data = data.as_slice()?;
    run(py, |cpu| ceilings::read(cpu, data));
    Ok(())
}

/// Multiply-adds in registers, on all threads: how many floating-point operations they were.
#[pyfunction]
fn multiply_add(py: Python<'_>, rounds: usize) -> usize {
    run(py, |cpu| ceilings::multiply_add(cpu, rounds))
}

/// Freed memory goes back to the system: for after a start.
#[pyfunction]
fn trim_memory(py: Python<'_>) {
    py.detach(|| {
        zerokl_http::Allocator::collect();
        zerokl_kernels::arch::trim();
    });
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(isas, module)?)?;
    module.add_function(wrap_pyfunction!(isa, module)?)?;
    module.add_function(wrap_pyfunction!(set_isa, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(read_once, module)?)?;
    module.add_function(wrap_pyfunction!(multiply_add, module)?)?;
    module.add_function(wrap_pyfunction!(trim_memory, module)?)
}

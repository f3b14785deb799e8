//! `zerokl._native`: the kernels as Python sees them. No logic lives here.
//!
//! Every function (but `strings`, which makes Python's) releases the GIL, runs in the contract's float mode, and writes into arrays that Python allocated.
//! Shapes are checked in Python (`zerokl.ops`); a wrong one that gets here is a panic, never a wrong read.

mod attention;
mod batch;
mod cpu;
mod dense;
mod files;
mod heads;
mod http;
mod quantised;
mod recurrence;
mod sample;
mod score;
mod sparse;
mod tape;
mod tokenizer;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: zerokl_http::Allocator = zerokl_http::Allocator;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    batch::add(module)?;
    cpu::add(module)?;
    dense::add(module)?;
    files::add(module)?;
    heads::add(module)?;
    quantised::add(module)?;
    attention::add(module)?;
    sample::add(module)?;
    score::add(module)?;
    sparse::add(module)?;
    tape::add(module)?;
    recurrence::add(module)?;
    tokenizer::add(module)?;
    http::add(module)?;
    Ok(())
}

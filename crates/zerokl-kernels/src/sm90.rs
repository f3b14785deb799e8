//! What a GPU of the family sm90 (H100, H200) computes, bit for bit, on any CPU: to repeat and debug what it said.
//!
//! ```text
//! ops/triton/*.py   what the kernels compute, in which order, and where they round to bfloat16
//! atom.rs           the matrix unit: 16 products and an accumulator, cut and summed as integers
//! power.rs          ex2.approx, the one function that isn't IEEE's
//! ```
//!
//! A number that is bfloat16 on the GPU is a f32 of the same value here. The evidence is the digest of the GPU's known
//! answers (runner/known_answers_sm90.py). Speed is no aim: ten times the operations of the CPU's own numerics.

mod atom;
mod attention;
mod heads;
mod linear;
mod narrow;
mod norm;
mod power;

pub use attention::attention;
pub use heads::rotate_and_store;
pub use linear::{gated_linear, linear};
pub use norm::{MOST_COLUMNS, rms_norm};
pub use power::power;

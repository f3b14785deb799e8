//! The CPU maths of zerokl: fixed bits, free schedule.
//!
//! Each operation fixes, for every output element, which numbers are combined and in which order. Instruction set,
//! thread count, tile sizes and the number of rows are free, and the tests hold them to it bit by bit.

pub mod arch;
pub mod attention;
pub mod ceilings;
pub mod cpu;
pub mod embedding;
pub mod experts;
pub mod formats;
pub mod gate;
pub mod heads;
pub mod layer_norm;
pub mod linear;
pub mod math;
pub mod matrix;
pub mod pool;
pub mod recurrence;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod sample;
pub mod score;
pub mod short_conv;
pub mod sm90;
pub mod swiglu;
pub mod tape;
pub mod tiles;

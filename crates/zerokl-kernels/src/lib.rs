//! The CPU maths of zerokl: fixed bits, free schedule.
//!
//! Each operation fixes, for every output element, which numbers are combined and in which order. Instruction set,
//! thread count, tile sizes and the number of rows are free, and the tests hold them to it bit by bit.

pub mod arch;
pub mod attention;
pub mod cpu;
pub mod math;
pub mod pool;
pub mod tiles;

//! The CPU maths of zerokl: fixed bits, free schedule.

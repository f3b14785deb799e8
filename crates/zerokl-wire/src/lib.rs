//! Messages between a frontend and its engine: the Rust side of `src/zerokl/wire/schema.toml`.
//!
//! docs/design/0002-wire.md says how they are framed and who waits for whom.

mod codec;
mod frames;
mod messages;
mod records;

pub use codec::{Reader, WireError, Writer};
pub use frames::{Columns, Frame, Side, decode, encode};
pub use messages::*;
pub use records::{Logprobs, Record, decode_step, encode_step};

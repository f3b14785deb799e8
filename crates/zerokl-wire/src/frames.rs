//! Frames: u32 rest | u8 kind | u32 header | msgpack array | raw little-endian columns.
//!
//! `rest` counts all after itself. After a bad frame the stream is out of step and must be closed.

use crate::codec::{Reader, WireError, Writer};
use crate::messages::{Span, ToEngine, ToFrontend};

const PREFIX: usize = 9;
/// Bytes of the prefix that `rest` counts: kind and header.
const PREFIX_REST: usize = 5;

/// Collects the raw columns of one message.
#[derive(Default)]
pub struct Columns {
    pub bytes: Vec<u8>,
}

impl Columns {
    /// Append a column; an empty one takes no room.
    pub fn add(&mut self, raw: &[u8]) -> Span {
        if raw.is_empty() {
            return Span::default();
        }
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(raw);
        Span { offset, size: raw.len() as u32 }
    }

    pub fn add_i32(&mut self, values: impl IntoIterator<Item = i32>) -> Span {
        self.add(&values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>())
    }

    pub fn add_u32(&mut self, values: impl IntoIterator<Item = u32>) -> Span {
        self.add(&values.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>())
    }

    pub fn add_u64(&mut self, values: impl IntoIterator<Item = u64>) -> Span {
        self.add(&values.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>())
    }

    pub fn add_f32(&mut self, values: impl IntoIterator<Item = f32>) -> Span {
        self.add(&values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>())
    }
}

/// The messages towards one side.
pub trait Side: Sized {
    const LIMIT: usize;
    fn knows(kind: u8) -> bool;
    fn read(kind: u8, input: &mut Reader) -> Result<Self, WireError>;
    fn kind(&self) -> u8;
    fn write(&self, out: &mut Writer);
}

macro_rules! side {
    ($name:ident) => {
        impl Side for $name {
            const LIMIT: usize = $name::LIMIT_BYTES;

            fn knows(kind: u8) -> bool {
                $name::knows(kind)
            }

            fn read(kind: u8, input: &mut Reader) -> Result<Self, WireError> {
                $name::read(kind, input)
            }

            fn kind(&self) -> u8 {
                self.kind()
            }

            fn write(&self, out: &mut Writer) {
                self.write(out);
            }
        }
    };
}

side!(ToEngine);
side!(ToFrontend);

/// One frame, ready to be written. An error where it is longer than the peer would take.
pub fn encode<M: Side>(message: &M, columns: &Columns) -> Result<Vec<u8>, WireError> {
    let mut header = Writer::default();
    message.write(&mut header);
    let rest = PREFIX_REST + header.bytes.len() + columns.bytes.len();
    if rest > M::LIMIT {
        return Err(WireError(format!("a message of {rest} bytes: the limit is {}", M::LIMIT)));
    }
    let mut frame = Vec::with_capacity(rest + 4);
    frame.extend_from_slice(&(rest as u32).to_le_bytes());
    frame.push(message.kind());
    frame.extend_from_slice(&(header.bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(&header.bytes);
    frame.extend_from_slice(&columns.bytes);
    Ok(frame)
}

/// A message, the columns that its spans name, and how many bytes both took.
pub struct Frame<'a, M> {
    pub message: M,
    pub columns: &'a [u8],
    pub size: usize,
}

/// The frame at the start of these bytes; None if it is not all there. A bad one is refused before it is all there.
pub fn decode<M: Side>(bytes: &[u8]) -> Result<Option<Frame<'_, M>>, WireError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let [r0, r1, r2, r3, kind, h0, h1, h2, h3] = *prefix;
    let rest = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
    let header = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
    if rest > M::LIMIT {
        return Err(WireError(format!("a frame of {rest} bytes: the limit is {}", M::LIMIT)));
    }
    if !M::knows(kind) {
        return Err(WireError::unknown_kind(kind));
    }
    if rest < PREFIX_REST || header > rest - PREFIX_REST {
        return Err(WireError(format!("a header of {header} bytes in a frame of {rest}")));
    }
    let size = rest + 4;
    let Some(frame) = bytes.get(..size) else { return Ok(None) };
    let mut reader = Reader::new(&frame[PREFIX..PREFIX + header]);
    let message = M::read(kind, &mut reader)?;
    if !reader.is_empty() {
        return Err(WireError(format!("a frame of kind {kind} with bytes after its array")));
    }
    Ok(Some(Frame { message, columns: &frame[PREFIX + header..], size }))
}

/// The bytes that a span names.
pub fn column(columns: &[u8], span: Span) -> Result<&[u8], WireError> {
    let start = span.offset as usize;
    columns.get(start..start + span.size as usize).ok_or_else(|| {
        WireError(format!("a column of {} bytes at {}, but {} bytes are there", span.size, span.offset, columns.len()))
    })
}

/// A column as items of N bytes.
pub fn items<const N: usize, T>(raw: &[u8], item: fn([u8; N]) -> T) -> Result<Vec<T>, WireError> {
    let (chunks, rest) = raw.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(WireError(format!("a column of {} bytes does not divide into items of {N}", raw.len())));
    }
    Ok(chunks.iter().map(|chunk| item(*chunk)).collect())
}

//! Values as msgpack. Whatever bytes come, reading gives a value or a `WireError`, in time and room of their length.

use std::fmt;

use rmp::Marker;

/// Bytes that are no message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireError(pub String);

impl WireError {
    pub fn unknown_kind(kind: u8) -> Self {
        Self(format!("a frame of unknown kind {kind}"))
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for WireError {}

/// A type of the schema.
pub trait Wire: Sized {
    fn write(&self, out: &mut Writer);
    fn read(input: &mut Reader) -> Result<Self, WireError>;
}

/// Collects a header. Numbers take the fewest bytes, as every writer of this protocol does.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn array(&mut self, length: u32) {
        written(rmp::encode::write_array_len(&mut self.bytes, length));
    }
}

/// Writing to memory can't fail.
fn written<T, E: fmt::Debug>(result: Result<T, E>) {
    result.expect("writing to a Vec never fails");
}

/// Reads a header from its start.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(header: &'a [u8]) -> Self {
        Self { rest: header }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) =
            self.rest.split_at_checked(size).ok_or_else(|| WireError("a header that ends in the middle".into()))?;
        self.rest = rest;
        Ok(taken)
    }

    fn marker(&mut self) -> Result<Marker, WireError> {
        Ok(Marker::from_u8(self.take(1)?[0]))
    }

    fn peek(&self) -> Option<Marker> {
        self.rest.first().map(|byte| Marker::from_u8(*byte))
    }

    /// A big-endian number of 1, 2, 4 or 8 bytes.
    fn unsigned(&mut self, size: usize) -> Result<u64, WireError> {
        Ok(self.take(size)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, size: usize) -> Result<usize, WireError> {
        usize::try_from(self.unsigned(size)?).map_err(|_| WireError("a length past this machine's".into()))
    }

    fn array_length(&mut self) -> Result<usize, WireError> {
        match self.marker()? {
            Marker::FixArray(length) => Ok(usize::from(length)),
            Marker::Array16 => self.length(2),
            Marker::Array32 => self.length(4),
            other => Err(unexpected("an array", other)),
        }
    }

    /// Any integer, in any of its codings.
    fn integer(&mut self) -> Result<i128, WireError> {
        let marker = self.marker()?;
        self.integer_of(marker)
    }

    fn integer_of(&mut self, marker: Marker) -> Result<i128, WireError> {
        Ok(match marker {
            Marker::FixPos(value) => i128::from(value),
            Marker::FixNeg(value) => i128::from(value),
            Marker::U8 => i128::from(self.unsigned(1)?),
            Marker::U16 => i128::from(self.unsigned(2)?),
            Marker::U32 => i128::from(self.unsigned(4)?),
            Marker::U64 => i128::from(self.unsigned(8)?),
            Marker::I8 => i128::from(self.unsigned(1)? as u8 as i8),
            Marker::I16 => i128::from(self.unsigned(2)? as u16 as i16),
            Marker::I32 => i128::from(self.unsigned(4)? as u32 as i32),
            Marker::I64 => i128::from(self.unsigned(8)? as i64),
            other => return Err(unexpected("an integer", other)),
        })
    }

    /// Passes one value, whatever it is, without recursion.
    fn skip(&mut self) -> Result<(), WireError> {
        let mut values = 1usize;
        while values > 0 {
            values -= 1;
            let more = self.skip_one()?;
            values = values.checked_add(more).ok_or_else(|| WireError("too many values".into()))?;
        }
        Ok(())
    }

    /// How many values the one passed holds.
    fn skip_one(&mut self) -> Result<usize, WireError> {
        let size = match self.marker()? {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => 0,
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 => 2,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 | Marker::Bin8 => self.length(1)?,
            Marker::Str16 | Marker::Bin16 => self.length(2)?,
            Marker::Str32 | Marker::Bin32 => self.length(4)?,
            Marker::FixArray(length) => return Ok(usize::from(length)),
            Marker::Array16 => return self.length(2),
            Marker::Array32 => return self.length(4),
            Marker::FixMap(length) => return Ok(2 * usize::from(length)),
            Marker::Map16 => return Ok(2 * self.length(2)?),
            Marker::Map32 => return Ok(2 * self.length(4)?),
            other => return Err(unexpected("a value", other)),
        };
        self.take(size)?;
        Ok(0)
    }
}

fn unexpected(wanted: &str, marker: Marker) -> WireError {
    WireError(format!("{wanted} was expected, not {marker:?}"))
}

/// The fields of one struct: an older peer sends fewer, which have defaults, a newer one more, which are passed.
pub struct Fields<'r, 'a> {
    input: &'r mut Reader<'a>,
    left: usize,
}

impl<'r, 'a> Fields<'r, 'a> {
    pub fn of(input: &'r mut Reader<'a>) -> Result<Self, WireError> {
        let left = input.array_length()?;
        Ok(Self { input, left })
    }

    pub fn required<T: Wire>(&mut self) -> Result<T, WireError> {
        self.left = self.left.checked_sub(1).ok_or_else(|| WireError("a message with too few fields".into()))?;
        T::read(self.input)
    }

    pub fn or<T: Wire>(&mut self, default: T) -> Result<T, WireError> {
        if self.left == 0 { Ok(default) } else { self.required() }
    }

    pub fn skip_tail(self) -> Result<(), WireError> {
        (0..self.left).try_for_each(|_| self.input.skip())
    }
}

impl Wire for bool {
    fn write(&self, out: &mut Writer) {
        written(rmp::encode::write_bool(&mut out.bytes, *self));
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        match input.marker()? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            other => Err(unexpected("a bool", other)),
        }
    }
}

impl Wire for u32 {
    fn write(&self, out: &mut Writer) {
        u64::from(*self).write(out);
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        in_range(input.integer()?)
    }
}

impl Wire for u64 {
    fn write(&self, out: &mut Writer) {
        written(rmp::encode::write_uint(&mut out.bytes, *self));
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        in_range(input.integer()?)
    }
}

impl Wire for i64 {
    fn write(&self, out: &mut Writer) {
        written(rmp::encode::write_sint(&mut out.bytes, *self));
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        in_range(input.integer()?)
    }
}

fn in_range<T: TryFrom<i128>>(value: i128) -> Result<T, WireError> {
    T::try_from(value).map_err(|_| WireError(format!("{value} is out of range")))
}

impl Wire for f64 {
    fn write(&self, out: &mut Writer) {
        written(rmp::encode::write_f64(&mut out.bytes, *self));
    }

    /// Python's peer may write a whole number as an integer.
    fn read(input: &mut Reader) -> Result<Self, WireError> {
        match input.marker()? {
            Marker::F64 => Ok(f64::from_bits(input.unsigned(8)?)),
            Marker::F32 => Ok(f64::from(f32::from_bits(input.unsigned(4)? as u32))),
            other => Ok(input.integer_of(other)? as f64),
        }
    }
}

impl Wire for String {
    fn write(&self, out: &mut Writer) {
        written(rmp::encode::write_str(&mut out.bytes, self));
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let length = match input.marker()? {
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 => input.length(1)?,
            Marker::Str16 => input.length(2)?,
            Marker::Str32 => input.length(4)?,
            other => return Err(unexpected("a string", other)),
        };
        let text = std::str::from_utf8(input.take(length)?);
        text.map(String::from).map_err(|error| WireError(format!("a string that is no UTF-8: {error}")))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, out: &mut Writer) {
        match self {
            Some(value) => value.write(out),
            None => written(rmp::encode::write_nil(&mut out.bytes)),
        }
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        if input.peek() == Some(Marker::Null) {
            input.marker()?;
            return Ok(None);
        }
        T::read(input).map(Some)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, out: &mut Writer) {
        out.array(u32::try_from(self.len()).expect("a list of a message is short"));
        self.iter().for_each(|value| value.write(out));
    }

    fn read(input: &mut Reader) -> Result<Self, WireError> {
        let length = input.array_length()?;
        // Each item takes a byte at least, so a length that lies reserves nothing.
        let mut values = Vec::with_capacity(length.min(input.rest.len()));
        for _ in 0..length {
            values.push(T::read(input)?);
        }
        Ok(values)
    }
}

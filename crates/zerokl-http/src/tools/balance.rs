//! Where a JSON object or array ends, found as the text comes and looking at each byte once.

/// Shown a value from its first bracket on. Brackets inside strings don't count.
#[derive(Debug, Default)]
pub struct Balance {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Balance {
    /// How many of these further bytes belong to the value; None: all, and it goes on.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        for (place, byte) in text.bytes().enumerate() {
            if self.in_string {
                self.step_in_string(byte);
            } else if byte == b'"' {
                self.in_string = true;
            } else if matches!(byte, b'[' | b'{') {
                self.depth += 1;
            } else if matches!(byte, b']' | b'}') {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return Some(place + 1);
                }
            }
        }
        None
    }

    fn step_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }
}

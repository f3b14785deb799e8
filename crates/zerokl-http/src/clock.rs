//! Time and ids of answers, which a test clock freezes so that whole bodies can be compared.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Random bytes are drawn for so many ids at a time: each draw is a system call.
const IDS: usize = 128;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

pub struct Clock {
    frozen_at: Option<u64>,
    random: Mutex<Vec<[u8; 16]>>,
}

impl Clock {
    pub fn new(frozen_at: Option<u64>) -> Self {
        Self { frozen_at, random: Mutex::default() }
    }

    /// Unix time in seconds.
    pub fn now(&self) -> u64 {
        let real = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.frozen_at.unwrap_or_else(real)
    }

    pub fn elapsed(&self, since: Instant) -> f64 {
        if self.frozen_at.is_some() { 0.0 } else { since.elapsed().as_secs_f64() }
    }

    pub fn new_id(&self, prefix: &str) -> String {
        let bytes = if self.frozen_at.is_some() { [0; 16] } else { self.random() };
        let mut id = String::with_capacity(prefix.len() + 2 * bytes.len());
        id.push_str(prefix);
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        id.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
        id
    }

    fn random(&self) -> [u8; 16] {
        let mut drawn = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_empty() {
            drawn.resize(IDS, [0; 16]);
            getrandom::fill(drawn.as_flattened_mut()).expect("the system has random bytes");
        }
        drawn.pop().expect("there are some")
    }
}

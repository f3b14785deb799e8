//! Time and ids of answers, which a test clock freezes so that whole bodies can be compared.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Clock {
    frozen_at: Option<u64>,
}

impl Clock {
    pub fn new(frozen_at: Option<u64>) -> Self {
        Self { frozen_at }
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
        let mut bytes = [0u8; 16];
        if self.frozen_at.is_none() {
            getrandom::fill(&mut bytes).expect("the system has random bytes");
        }
        format!("{prefix}{:032x}", u128::from_be_bytes(bytes))
    }
}

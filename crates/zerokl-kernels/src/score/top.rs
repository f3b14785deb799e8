//! The likeliest ids of a row, found in one pass.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// One id of a row. Ordered so that the worst of a set is its greatest: the lowest logit, then the highest id.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub logit: f32,
    pub id: usize,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// The best `count` of what was offered so far: higher logits, equal ones by lower id.
pub struct Top {
    count: usize,
    worst_first: BinaryHeap<Entry>,
}

impl Top {
    pub fn new(count: usize) -> Self {
        Top { count, worst_first: BinaryHeap::with_capacity(count) }
    }

    /// Whether a later id of this logit would be taken. An equal logit would not: its id is higher.
    pub fn may_take(&self, logit: f32) -> bool {
        match self.worst_first.peek() {
            Some(worst) if self.worst_first.len() == self.count => logit > worst.logit,
            _ => self.count > 0,
        }
    }

    /// Logits of ids `first_id ..`; ids are offered in rising order.
    pub fn offer(&mut self, logits: &[f32], first_id: usize) {
        for (i, &logit) in logits.iter().enumerate() {
            if self.may_take(logit) {
                if self.worst_first.len() == self.count {
                    self.worst_first.pop();
                }
                self.worst_first.push(Entry { logit, id: first_id + i });
            }
        }
    }

    /// Best first.
    pub fn ranked(self) -> Vec<Entry> {
        self.worst_first.into_sorted_vec()
    }
}

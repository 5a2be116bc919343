//! How many bytes of answers are kept at once.
//!
//! Counts only. Where no more may be kept, an answer is passed on at its caller's speed instead of being read ahead.

use std::sync::Arc;

use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A bound that exchanges share.
#[derive(Clone, Debug)]
pub struct Memory {
    taken: Arc<AtomicU64>,
    most: u64,
}

/// Bytes that are kept; given back when dropped.
#[derive(Debug)]
pub struct Kept {
    taken: Arc<AtomicU64>,
    bytes: u64,
}

impl Memory {
    /// Room for `most` bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Counts `more` bytes to what is kept. False if the bound is reached; they are counted all the same.
    pub(super) fn keep(&self, kept: &mut Option<Kept>, more: u64) -> bool {
        let kept = kept.get_or_insert_with(|| Kept { taken: Arc::clone(&self.taken), bytes: 0 });
        kept.bytes += more;
        self.taken.fetch_add(more, SeqCst) + more <= self.most
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_given_back() {
        let memory = Memory::new(10);
        let mut kept = None;
        assert!(memory.keep(&mut kept, 10));
        assert!(!memory.keep(&mut kept, 1));
        drop(kept);
        assert!(memory.keep(&mut None, 10));
    }
}

//! How long a session may be believed to live: a deadline of its own, well inside the session's timeout.
//!
//! Compared when it matters, by CLOCK_BOOTTIME: a process that stood still finds it passed the moment it wakes. No timer is
//! trusted.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::clock::Moment;

/// A session's deadline.
#[derive(Debug, Default)]
pub(super) struct Lease(AtomicU64);

impl Lease {
    /// The session lived when a renewal was sent at `sent`, so it lives for `timeout` from then; a third of it is kept for
    /// what clocks, ticks and sends on their way need.
    pub(super) fn renew(&self, sent: Moment, timeout: Duration) {
        self.0.fetch_max(sent.after(timeout * 2 / 3).as_nanos(), SeqCst);
    }

    /// Nothing is known any more.
    pub(super) fn end(&self) {
        self.0.store(0, SeqCst);
    }

    /// Until when it lasts.
    pub(super) fn until(&self) -> Moment {
        Moment::from_nanos(self.0.load(SeqCst))
    }

    /// Whether the session may be believed to live.
    pub(super) fn lasts(&self, now: Moment) -> bool {
        now < self.until()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_sending_and_ends_inside_the_timeout() {
        let lease = Lease::default();
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        assert!(!lease.lasts(at(0)));
        lease.renew(at(10), Duration::from_secs(6));
        assert!(lease.lasts(at(13)));
        assert!(!lease.lasts(at(14)));
        // An answer that comes late proves no more than when it was asked for.
        lease.renew(at(5), Duration::from_secs(6));
        assert_eq!(lease.until(), at(14));
        lease.end();
        assert!(!lease.lasts(at(11)));
    }
}

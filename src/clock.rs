//! The only file that reads a clock.
//!
//! Ages and deadlines are [`Moment`]s of CLOCK_BOOTTIME: it goes on while the machine sleeps, and nobody can set
//! it. Timers only wake; whoever is woken compares moments again. It never decides anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A point on CLOCK_BOOTTIME, in nanoseconds. Comparable within one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The moment `nanos` nanoseconds after boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This much later; stays at the end of time instead of overflowing.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was, seen from here; zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long until `self`, seen from `now`; zero if it is past.
    #[must_use]
    pub fn until(self, now: Self) -> Duration {
        self.since(now)
    }
}

/// Tells the time. The system's clock, or one that a test moves.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// CLOCK_BOOTTIME.
    #[default]
    Boot,
    /// A clock that stands still until it is [advanced](Clock::advance).
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock for tests and simulations, at moment zero.
    #[must_use]
    pub fn manual() -> Self {
        Self::Manual(Arc::default())
    }

    /// Now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place")]
    pub fn now(&self) -> Moment {
        match self {
            Self::Boot => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
                Moment(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
            }
            Self::Manual(nanos) => Moment(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock forward; the system's clock moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(nanos) = self {
            nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }
}

/// Wall-clock milliseconds since 1970, for records that people read. Nothing is ever decided by it.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn wall_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

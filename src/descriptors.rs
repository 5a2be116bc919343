//! File descriptors: as many as the system grants, and never all of them for callers.
//!
//! What callers cannot use up is there for ZooKeeper, operators and files. It closes nothing.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::config::Limits;

/// Kept for what is neither a caller nor a send: the link, the admin listener's connections, listeners, files.
const KEPT: u64 = 320;

/// Raises the process's limit as far as it may, and lowers `limits` to what it allows.
pub fn fit(limits: &mut Limits) {
    let mut granted = getrlimit(Resource::Nofile);
    granted.current = granted.maximum;
    if setrlimit(Resource::Nofile, granted).is_err() {
        granted = getrlimit(Resource::Nofile);
    }
    let Some(granted) = granted.current else { return };
    let each = share(granted);
    let lower = |what: &str, most: &mut usize| {
        if *most > each {
            warn!(
                "{granted} file descriptors are allowed: {what} = {each} instead of {most}; raise the limit (ulimit -n, \
                 LimitNOFILE=) to a good {}",
                2 * *most as u64 + KEPT
            );
            *most = each;
        }
    };
    lower("max_connections", &mut limits.max_connections);
    lower("max_in_flight", &mut limits.max_in_flight);
    limits.max_in_flight_per_account = limits.max_in_flight_per_account.min(limits.max_in_flight);
}

/// How many connections of callers there may be, and as many to senders.
fn share(granted: u64) -> usize {
    let kept = KEPT.min(granted / 3);
    usize::try_from((granted - kept) / 2).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_and_sends_never_take_all_descriptors() {
        for granted in [1, 2, 3, 64, 256, 1024, 20_000, 1 << 30] {
            let both = 2 * share(granted) as u64;
            assert!(both <= granted.max(2) && (granted < 9 || granted - both >= granted.min(3 * KEPT) / 3));
        }
        assert_eq!(share(20_640), 10_160);
    }
}

//! File descriptors: as many as the system grants, and never all of them for callers.
//!
//! What callers cannot use up is there for ZooKeeper, operators and files. It closes nothing.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::config::{AgentLimits, Config, Coordination};

/// Kept for what is neither a caller nor a send: the link, the admin listener's connections, listeners, files.
const KEPT: u64 = 320;

/// Those who take part in elections over HTTP: so many connections at most, and a quarter of what there is.
const MOST_FOR_ELECTIONS: u64 = 8192;

/// Raises the process's limit as far as it may, and lowers the limits of a gateway to what it allows.
pub fn fit(config: &mut Config) {
    let embedded = matches!(config.coordination, Coordination::Embedded(_));
    let limits = &mut config.limits;
    fit_to(&mut limits.max_connections, &mut limits.max_in_flight, embedded);
    limits.max_in_flight_per_account = limits.max_in_flight_per_account.min(limits.max_in_flight);
}

/// The same for an agent: bots never take the descriptors that its sessions need.
pub fn fit_agent(limits: &mut AgentLimits) {
    fit_to(&mut limits.max_connections, &mut limits.max_in_flight, false);
}

/// How many connections those may have that take part in elections over HTTP.
#[must_use]
pub fn for_elections() -> usize {
    let granted = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(MOST_FOR_ELECTIONS.min(granted / 4)).unwrap_or(usize::MAX).max(1)
}

fn fit_to(most_connections: &mut usize, most_in_flight: &mut usize, embedded: bool) {
    let mut granted = getrlimit(Resource::Nofile);
    granted.current = granted.maximum;
    if setrlimit(Resource::Nofile, granted).is_err() {
        granted = getrlimit(Resource::Nofile);
    }
    let Some(granted) = granted.current else { return };
    let others = if embedded { for_elections() as u64 } else { 0 };
    let each = share(granted.saturating_sub(others));
    let lower = |what: &str, most: &mut usize| {
        if *most > each {
            warn!(
                "{granted} file descriptors are allowed: {what} = {each} instead of {most}; raise the limit (ulimit -n, \
                 LimitNOFILE=) to a good {}",
                2 * *most as u64 + KEPT + if embedded { MOST_FOR_ELECTIONS } else { 0 }
            );
            *most = each;
        }
    };
    lower("max_connections", most_connections);
    lower("max_in_flight", most_in_flight);
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

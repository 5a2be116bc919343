//! Where requests go: the addresses of one route, which of them an account goes to, and which do not answer at the moment.
//!
//! It connects to nothing. An account goes to one address as long as that one accepts connections.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderValue;
use rustls::pki_types::ServerName;

use crate::clock::Moment;
use crate::config::{Endpoint, Http, Upstream};
use crate::tls::{SenderTls, TlsError};

/// An address that did not accept a connection is asked again after this, or if no other one is left.
const DOWN: Duration = Duration::from_secs(5);

/// One address.
#[derive(Debug)]
pub struct Target {
    /// Its number: connections are shared by whoever has the same one.
    pub number: usize,
    /// Where connections lead.
    pub endpoint: Endpoint,
    /// Its authority, as Host.
    pub authority: HeaderValue,
    /// How it is spoken to; `None`: without TLS.
    pub tls: Option<(Arc<SenderTls>, ServerName<'static>)>,
    /// Over which version of HTTP.
    pub http: Http,
    /// Asked over TLS, it last agreed on HTTP/1.1.
    alone: AtomicBool,
    /// Until when it is passed over, in nanoseconds; zero: it is not.
    down_until: AtomicU64,
}

impl Target {
    /// One that nothing is known of yet; spoken to over HTTP/1.1 without TLS.
    #[must_use]
    pub fn new(number: usize, endpoint: Endpoint, authority: HeaderValue) -> Self {
        let (alone, down_until) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { number, endpoint, authority, tls: None, http: Http::One, alone, down_until }
    }

    /// The address of a configuration; `tls` is asked for where it is https.
    ///
    /// # Errors
    /// What is wrong with the files for TLS.
    pub fn of(
        number: usize,
        upstream: &Upstream,
        http: Http,
        tls: impl FnOnce() -> Result<Arc<SenderTls>, TlsError>,
    ) -> Result<Self, TlsError> {
        // The configuration accepts nothing else.
        let authority = HeaderValue::from_str(&upstream.authority);
        let authority = authority.unwrap_or(HeaderValue::from_static("upstream"));
        let mut target = Self::new(number, upstream.endpoint.clone(), authority);
        target.http = if http == Http::Agreed && !upstream.tls { Http::One } else { http };
        if let (true, Endpoint::Tcp(host, _)) = (upstream.tls, &upstream.endpoint) {
            let tls = tls()?;
            let name = tls.name(host)?;
            target.tls = Some((tls, name));
        }
        Ok(target)
    }

    /// Whether several sends may share a connection to it.
    pub(super) fn may_share(&self) -> bool {
        match self.http {
            Http::One => false,
            Http::Two => true,
            Http::Agreed => !self.alone.load(Relaxed),
        }
    }

    /// What it has agreed on over TLS.
    pub(super) fn agreed(&self, http2: bool) {
        self.alone.store(!http2, Relaxed);
    }

    /// It accepted no connection.
    pub(super) fn failed(&self, now: Moment) {
        self.down_until.store(now.after(DOWN).as_nanos(), Relaxed);
    }

    /// It accepted one.
    pub(super) fn answered(&self) {
        if self.down_until.load(Relaxed) != 0 {
            self.down_until.store(0, Relaxed);
        }
    }

    fn is_down(&self, now: Moment) -> bool {
        let until = self.down_until.load(Relaxed);
        until != 0 && now.as_nanos() < until
    }
}

/// The addresses of one route, at least one.
#[derive(Clone, Debug)]
pub struct Targets {
    first: Arc<Target>,
    others: Arc<[Arc<Target>]>,
}

impl Targets {
    /// These addresses.
    #[must_use]
    pub fn new(first: Arc<Target>, others: Vec<Arc<Target>>) -> Self {
        Self { first, others: others.into() }
    }

    /// The one for an account, and those to ask if it accepts no connection. Where there is one, `ask` is not called for
    /// the account and the time.
    #[must_use]
    pub fn choose<A: AsRef<[u8]>>(&self, ask: impl FnOnce() -> (A, Moment)) -> Choice {
        if self.others.is_empty() {
            return Choice { target: Arc::clone(&self.first), others: None };
        }
        let (account, now) = ask();
        let mut choice = Others { all: self.clone(), account: hash(account.as_ref()), tried: 0 };
        let target = choice.next(now).unwrap_or_else(|| Arc::clone(&self.first));
        Choice { target, others: Some(choice) }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Target>> {
        std::iter::once(&self.first).chain(self.others.iter())
    }
}

/// The address of one request.
#[derive(Debug)]
pub struct Choice {
    /// The one to ask.
    pub target: Arc<Target>,
    /// What is left.
    pub others: Option<Others>,
}

impl Choice {
    /// A single address.
    #[must_use]
    pub fn only(target: Arc<Target>) -> Self {
        Self { target, others: None }
    }
}

/// Addresses that were not asked yet.
#[derive(Debug)]
pub struct Others {
    all: Targets,
    account: u64,
    /// As bits by their place.
    tried: u64,
}

impl Others {
    /// The next one to ask: the account's first choice among those that are not down, and after them those that are.
    pub(super) fn next(&mut self, now: Moment) -> Option<Arc<Target>> {
        let untried = self.all.iter().enumerate().filter(|(place, _)| self.tried & (1 << (place % 64)) == 0);
        let ranked = untried.max_by_key(|(_, target)| (!target.is_down(now), rank(self.account, target)));
        let (place, target) = ranked?;
        self.tried |= 1 << (place % 64);
        Some(Arc::clone(target))
    }
}

/// Where an address stands for an account. The same at every gateway, and without one address the others' accounts stay.
fn rank(account: u64, target: &Target) -> u64 {
    let own = match &target.endpoint {
        Endpoint::Tcp(host, port) => {
            hash(host.as_bytes()) ^ u64::from(*port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }
        Endpoint::Unix(path) => hash(path.as_os_str().as_bytes()),
    };
    let mixed = (account ^ own).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::clock::Clock;

    fn targets(names: &[&str]) -> Targets {
        let target = |name: &&str| {
            let authority = HeaderValue::from_str(name).unwrap();
            Arc::new(Target::new(0, Endpoint::Tcp((*name).to_owned(), 80), authority))
        };
        let mut all: Vec<_> = names.iter().map(target).collect();
        Targets::new(all.remove(0), all)
    }

    fn name(target: &Target) -> String {
        target.authority.to_str().unwrap().to_owned()
    }

    fn places(targets: &Targets, now: Moment) -> HashMap<String, String> {
        (0..3000)
            .map(|number| format!("wxid_{number}"))
            .map(|account| (account.clone(), name(&targets.choose(|| (&account, now)).target)))
            .collect()
    }

    #[test]
    fn accounts_are_spread_and_stay_where_they_are_when_an_address_is_down_or_taken_away() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let all = targets(&["a", "b", "c"]);
        let before = places(&all, clock.now());
        for name in ["a", "b", "c"] {
            let count = before.values().filter(|host| *host == name).count();
            assert!((850..1150).contains(&count), "{name}: {count}");
        }
        let reordered = places(&targets(&["c", "a", "b"]), clock.now());
        assert_eq!(before, reordered);
        let without = places(&targets(&["a", "c"]), clock.now());
        all.iter().find(|target| name(target) == "b").unwrap().failed(clock.now());
        let down = places(&all, clock.now());
        assert_eq!(without, down);
        assert!(before.iter().all(|(account, host)| host == "b" || down[account] == *host));
        clock.advance(DOWN);
        assert_eq!(places(&all, clock.now()), before, "it is asked again");
    }

    #[test]
    fn every_address_is_asked_once_those_that_are_down_last() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let all = targets(&["a", "b", "c"]);
        all.first.failed(clock.now());
        let Choice { target, others } = all.choose(|| ("wxid_1", clock.now()));
        let mut others = others.unwrap();
        let mut asked = vec![name(&target)];
        asked.extend(std::iter::from_fn(|| others.next(clock.now())).map(|target| name(&target)));
        assert_eq!(asked.len(), 3);
        assert_eq!(asked[2], "a");
        all.first.answered();
        assert!(places(&all, clock.now()).values().any(|host| host == "a"));
        let one = targets(&["a"]);
        one.first.failed(clock.now());
        let only = one.choose(|| ("x", clock.now()));
        assert!(name(&only.target) == "a" && only.others.is_none());
    }
}

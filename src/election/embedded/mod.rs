//! Elections that the gateway keeps itself: sessions are leases, renewed by whoever has their secret.
//!
//! What stands is kept by [`memory`](super::memory); here are the leases and the numbers. Every barrier ends what is past
//! its deadline, whatever a timer did: a proof never rests on a lease that was over. After a pause of the process the
//! renewals that were sent meanwhile are heard first. It keeps nothing over a restart but the counter.

mod counter;
mod lease;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::broadcast;
use tracing::{error, info};

use counter::Counter;
pub use counter::StateError;
use lease::Leases;

use super::memory::{Memory, MemoryLink, Standing};
use super::{Backend, BackendError, Change, Link, Listing, Pending};
use crate::clock::{Clock, Moment};
use crate::fence::name::AccountName;
use crate::fence::token::{Seq, SessionId};
use crate::fence::view::Reading;

/// What a session may ask for.
pub const SHORTEST_TTL: Duration = Duration::from_secs(2);
/// What a session may ask for.
pub const LONGEST_TTL: Duration = Duration::from_secs(300);

const MOST_SESSIONS: usize = 10_000;
const MOST_ACCOUNTS: usize = 100_000;
const MOST_CANDIDATES: usize = 100_000;

/// Below this many numbers the next block is reserved; without one nobody new may stand. What then still needs numbers are
/// ends: two for each candidate at most, so that they always have some.
const LOW: u64 = 4 * MOST_CANDIDATES as u64;

/// How often [`Embedded::keep`] looks at the leases.
const PACE: Duration = Duration::from_millis(100);
/// Not having looked for so long is a pause.
const PAUSE: Duration = Duration::from_secs(1);
/// How long renewals are heard after a pause before anything ends.
const SETTLE: Duration = Duration::from_millis(500);

/// Why a caller does not get what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    /// There is no such session: it never was, or it is over.
    #[error("there is no such session, or it is over; begin a new one")]
    NoSession,
    /// The secret is not the session's.
    #[error("this is not the session's secret")]
    Secret,
    /// Something is full.
    #[error("{0}")]
    Full(&'static str),
    /// The counter cannot be reserved, or there are no random numbers.
    #[error("{0}")]
    Failing(&'static str),
}

/// A session that has begun.
#[derive(Clone, PartialEq, Eq)]
pub struct Begun {
    /// Its id, of 64 random bits.
    pub session: SessionId,
    /// What proves that it is the caller's. It begins with the id.
    pub secret: String,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("session", &self.session).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    leases: Leases,
    counter: Counter,
    /// The last number of the reserved block.
    reserved: u64,
    /// When the leases were looked at last.
    looked: Moment,
    /// Until then nothing ends: there was a pause.
    settles: Moment,
}

/// The service. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Embedded {
    memory: Memory,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl Embedded {
    /// Begins with nobody, and with numbers above all that the file at `state` ever reserved. The file stays locked as
    /// long as the service lives.
    ///
    /// # Errors
    /// The file is in use, or cannot be used.
    pub fn open(state: &Path, clock: Clock) -> Result<Self, StateError> {
        let mut counter = Counter::open(state)?;
        let (after, reserved) = counter.reserve()?;
        let looked = clock.now();
        let state = State { leases: Leases::default(), counter, reserved, looked, settles: looked };
        Ok(Self { memory: Memory::beginning_after(after), clock, state: Arc::new(Mutex::new(state)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session of `instance` that lives for `ttl` without being renewed.
    ///
    /// # Errors
    /// [`Denied::Full`] or [`Denied::Failing`].
    pub fn begin(&self, instance: &str, ttl: Duration) -> Result<Begun, Denied> {
        self.sweep();
        let mut state = self.state();
        if state.leases.len() >= MOST_SESSIONS {
            return Err(Denied::Full("too many sessions; end some, or try again when some are over"));
        }
        state.leases.begin(instance, ttl, self.clock.now())
    }

    /// Renews the session that `secret` belongs to, from now on: its id, and for how long. A renewal that was sent before
    /// the deadline and is heard late still counts if nobody has been told of the session's end.
    ///
    /// # Errors
    /// [`Denied::NoSession`] or [`Denied::Secret`].
    pub fn renew(&self, secret: &str) -> Result<(SessionId, Duration), Denied> {
        let mut state = self.state();
        let now = self.clock.now();
        state.leases.of(secret).map(|(id, lease)| {
            lease.deadline = now.after(lease.ttl);
            (id, lease.ttl)
        })
    }

    /// Whose secret this is.
    ///
    /// # Errors
    /// [`Denied::NoSession`] or [`Denied::Secret`].
    pub fn whose(&self, secret: &str) -> Result<SessionId, Denied> {
        self.state().leases.of(secret).map(|(id, _)| id)
    }

    /// Ends the session that `secret` belongs to; whoever is next holds at once.
    ///
    /// # Errors
    /// [`Denied::NoSession`] or [`Denied::Secret`].
    pub fn end(&self, secret: &str) -> Result<(), Denied> {
        let mut state = self.state();
        let (id, _) = state.leases.of(secret)?;
        state.leases.remove(id);
        self.memory.end(id);
        Ok(())
    }

    /// Registers the secret's session as a candidate: its number. Repeated: the same one.
    ///
    /// # Errors
    /// Any of [`Denied`].
    pub fn stand(&self, name: &AccountName, secret: &str) -> Result<Seq, Denied> {
        self.sweep();
        let mut state = self.state();
        self.fill(&mut state);
        let left = state.reserved.saturating_sub(self.memory.counter());
        let (id, lease) = state.leases.of(secret)?;
        if !lease.stands.contains(name) {
            if left < LOW {
                return Err(Denied::Failing("numbers cannot be reserved; see the gateway's log"));
            }
            let (sessions_own, known) = (lease.stands.len(), self.memory.look(name).is_some());
            if !known && self.memory.size() >= MOST_ACCOUNTS {
                return Err(Denied::Full("too many accounts"));
            }
            if sessions_own + state.leases.candidates_besides(id) >= MOST_CANDIDATES {
                return Err(Denied::Full("too many candidates"));
            }
        }
        let (_, lease) = state.leases.of(secret)?;
        lease.stands.insert(name.clone());
        let instance = lease.instance.clone();
        Ok(self.memory.stand(name, id, &instance))
    }

    /// Gives one account up.
    ///
    /// # Errors
    /// [`Denied::NoSession`] or [`Denied::Secret`].
    pub fn resign(&self, name: &AccountName, secret: &str) -> Result<(), Denied> {
        let mut state = self.state();
        let (id, lease) = state.leases.of(secret)?;
        if lease.stands.remove(name) {
            self.memory.resign(name, id);
        }
        Ok(())
    }

    /// An account as it stands; `None` if nobody ever stood for it.
    #[must_use]
    pub fn look(&self, name: &AccountName) -> Option<Standing> {
        self.sweep();
        self.memory.look(name)
    }

    /// All accounts for which somebody stood, in no order.
    #[must_use]
    pub fn names(&self) -> Vec<AccountName> {
        self.memory.names()
    }

    /// What happens from now on.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.memory.changes()
    }

    /// Ends what is past its deadline: the time until which it does not, because there was a pause.
    fn sweep(&self) -> Duration {
        let mut state = self.state();
        let now = self.clock.now();
        if now.since(state.looked) > PAUSE {
            state.settles = now.after(SETTLE);
            info!("the gateway did not run for {:?}: renewals are heard first", now.since(state.looked));
        }
        state.looked = now;
        let wait = state.settles.until(now);
        if wait.is_zero() {
            for (id, instance) in state.leases.over(now) {
                info!(session = %id, "the session of {} is over: it was not renewed", instance.escape_debug());
                self.memory.end(id);
            }
            self.fill(&mut state);
        }
        wait
    }

    /// Reserves numbers before they run low.
    fn fill(&self, state: &mut State) {
        if state.reserved.saturating_sub(self.memory.counter()) >= LOW {
            return;
        }
        match state.counter.reserve() {
            // What is left of the old block is followed by the new one.
            Ok((_, last)) => state.reserved = last,
            Err(why) => error!("nobody new can stand: {why}"),
        }
    }

    /// Looks at the leases again and again, for ever, so that the end of one is told although nobody asks.
    pub async fn keep(self) {
        loop {
            self.sweep();
            tokio::time::sleep(PACE).await;
        }
    }
}

impl Backend for Embedded {
    type Link = EmbeddedLink;

    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn connect(&mut self) -> Result<EmbeddedLink, BackendError> {
        Ok(EmbeddedLink { inner: self.memory.connect().await?, embedded: self.clone() })
    }
}

/// A link to [`Embedded`].
#[derive(Debug)]
pub struct EmbeddedLink {
    inner: MemoryLink,
    embedded: Embedded,
}

impl Link for EmbeddedLink {
    fn session(&self) -> SessionId {
        self.inner.session()
    }

    /// Ends what is past its deadline first.
    fn barrier(&mut self) -> Pending<()> {
        let mut wait = self.embedded.sweep();
        let embedded = self.embedded.clone();
        Box::pin(async move {
            while !wait.is_zero() {
                tokio::time::sleep(wait).await;
                wait = embedded.sweep();
            }
            Ok(())
        })
    }

    fn list(&mut self) -> Pending<Listing> {
        self.inner.list()
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        self.inner.read(names)
    }

    async fn next(&mut self) -> Change {
        self.inner.next().await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.inner.try_next()
    }
}

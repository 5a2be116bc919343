//! Follows the elections: keeps a link, sends barriers when proofs are wanted, reads what changed.
//!
//! One task on the control plane, so that events, answers and proofs have one order. It brings everything to the
//! registry and judges nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tracing::{info, warn};

use super::entry::Entry;
use super::events::Event;
use super::proofs::Proven;
use super::registry::Registry;
use super::status::Status;
use crate::clock::Moment;
use crate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use crate::fence::account::{Mark, Proof};
use crate::fence::gate::Order;
use crate::fence::name::AccountName;
use crate::fence::view::Reading;
use crate::mutant::{self, Mutant};
use crate::sync::spawn;
use crate::telemetry::{ProofResult, Reload};

/// How many accounts one multi-read covers.
const BATCH: usize = 125;
/// How many bytes one multi-read may be expected to bring.
const BATCH_BYTES: usize = 512 * 1024;
/// How many multi-reads are on their way at once.
const READS: usize = 8;
/// How often accounts that may not be read are tried again: a changed ACL is not announced.
const RETRY_DENIED: Duration = Duration::from_secs(10);
/// In how many such steps every account is read again, although nothing was announced: where somebody took the permission to
/// read a standing znode away, its end is not.
const AUDIT_STEPS: usize = 30;
/// How long a follower without anything to do sleeps, unless it is woken.
const IDLE: Duration = Duration::from_secs(60);

/// How the follower goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Proofs are renewed in the background so that one at most this old is there; zero: only when asked for.
    pub max_staleness: Duration,
    /// The least time between two barriers.
    pub min_barrier_interval: Duration,
    /// A barrier that takes longer ends the link.
    pub barrier_timeout: Duration,
    /// Accept a history that went back without asking.
    pub accept_history: bool,
}

/// Keeps the registry's view current.
#[derive(Debug)]
pub struct Follower<B> {
    backend: B,
    registry: Arc<Registry>,
    status: Arc<Status>,
    pace: Pace,
}

struct Batch {
    order: Order,
    accounts: Vec<(Arc<Entry>, Mark)>,
    readings: Result<Vec<Reading>, BackendError>,
}

/// In the order in which they were sent: an older answer never comes after a newer one.
type Reads = FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = Batch> + Send>>>;

/// What belongs to one link.
struct Links<L> {
    link: L,
    first: Order,
    barrier: Option<(Order, Moment, Pending<()>)>,
    last_begun: Moment,
    listing: Option<(Order, Pending<Listing>)>,
    reads: Reads,
    queue: VecDeque<AccountName>,
    denied: Vec<AccountName>,
    /// What is still to be read again in this round.
    audit: Vec<AccountName>,
    audit_step: usize,
    /// Accounts of the listing that are still to be read.
    loading: bool,
}

impl<B: Backend> Follower<B> {
    /// A follower that has not begun.
    #[must_use]
    pub fn new(backend: B, registry: Arc<Registry>, status: Arc<Status>, pace: Pace) -> Self {
        Self { backend, registry, status, pace }
    }

    /// Follows until it is dropped.
    pub async fn run(mut self) {
        let mut pause = Duration::from_millis(50);
        let mut cause = Reload::Start;
        info!("connecting to {}; nothing is admitted until all accounts are read", self.backend.name());
        loop {
            // A server may answer pings and nothing else: no link is waited for without end.
            let connecting = tokio::time::timeout(self.pace.barrier_timeout * 2, self.backend.connect());
            let connected = connecting
                .await
                .unwrap_or_else(|_| Err(BackendError::Lost("no link could be made in time".to_owned())));
            match connected {
                Ok(link) => {
                    self.status.connected(link.session());
                    self.registry.tell(|| Event::View);
                    self.registry.telemetry.reload(cause);
                    info!(session = %link.session(), "connected to {}; reading all accounts", self.backend.name());
                    let proven = self.registry.proofs.latest();
                    let why = self.follow(link).await;
                    if self.registry.proofs.latest() != proven {
                        pause = Duration::from_millis(50);
                    }
                    self.registry.unlink();
                    self.registry.proofs.failed();
                    cause = if self.registry.take_relink() { Reload::History } else { Reload::LinkLost };
                    self.lost(&why);
                }
                Err(why) => self.lost(&why.to_string()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn lost(&self, why: &str) {
        if self.status.lost(self.registry.clock.now(), why) {
            warn!("the view is unproven: {why}");
            self.registry.tell(|| Event::View);
        }
    }

    /// Follows over one link until it is over; says why.
    async fn follow(&self, mut link: B::Link) -> String {
        // The barrier comes first: a new session may have reached a server that lags. Everything read on this link is
        // sent after it.
        let now = self.registry.clock.now();
        let barrier = self.begin_barrier(&mut link, now);
        let (first, barrier) = (barrier.0, Some(barrier));
        let listing = Some((first, link.list()));
        let mut links = Links {
            link,
            first,
            barrier,
            last_begun: now,
            listing,
            reads: FuturesOrdered::new(),
            queue: VecDeque::new(),
            denied: Vec::new(),
            audit: Vec::new(),
            audit_step: 0,
            loading: true,
        };
        let why = self.work(&mut links).await;
        if links.barrier.is_some() {
            self.registry.telemetry.proof(ProofResult::Voided);
        }
        why
    }

    /// Numbers a barrier and sends it, in this order: whoever asks in between gets the next one.
    fn begin_barrier(&self, link: &mut B::Link, now: Moment) -> (Order, Moment, Pending<()>) {
        let early = mutant::is(Mutant::LateNumber).then(|| link.barrier());
        let order = self.registry.proofs.begin();
        (order, now, early.unwrap_or_else(|| link.barrier()))
    }

    /// Does what is due until the link is over; says why.
    async fn work(&self, links: &mut Links<B::Link>) -> String {
        let mut retry = tokio::time::interval(RETRY_DENIED);
        loop {
            if let Some(why) = self.start_work(links) {
                return why;
            }
            let wake = self.next_wake(links);
            let barrier = OptionFuture::from(links.barrier.as_mut().map(|(_, _, pending)| pending));
            let listing = OptionFuture::from(links.listing.as_mut().map(|(_, pending)| pending));
            // In a fixed order, so that nothing here is left to chance: what comes seldom goes first, and starves nobody.
            tokio::select! {
                biased;
                _ = retry.tick() => {
                    for name in std::mem::take(&mut links.denied) {
                        self.queue(&mut links.queue, name);
                    }
                    self.audit(links);
                }
                Some(done) = listing => match done {
                    Ok(listing) => self.listed(links, listing),
                    Err(why) => return why.to_string(),
                },
                Some(done) = barrier => {
                    if let Some(why) = self.barrier_done(links, done) {
                        return why;
                    }
                }
                Some(batch) = links.reads.next() => {
                    // What was announced before the answer belongs before it: it tells why a holder ended.
                    if let Some(why) = self.drain(links).or_else(|| self.apply(links, batch)) {
                        return why;
                    }
                }
                change = links.link.next() => {
                    if let Some(why) = self.hear(&mut links.queue, change) {
                        return why;
                    }
                    if let Some(why) = self.drain(links) {
                        return why;
                    }
                }
                () = self.registry.proofs.work() => {}
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    /// Takes one announcement; a reason if the link is over.
    fn hear(&self, queue: &mut VecDeque<AccountName>, change: Change) -> Option<String> {
        match change {
            Change::Account { name, sighting, zxid } => {
                if self.registry.sighted(&name, sighting, zxid) {
                    queue.push_back(name);
                }
                None
            }
            Change::Lost(why) => Some(why),
        }
    }

    /// Takes all announcements that have arrived.
    fn drain(&self, links: &mut Links<B::Link>) -> Option<String> {
        while let Some(change) = links.link.try_next() {
            if let Some(why) = self.hear(&mut links.queue, change) {
                return Some(why);
            }
        }
        None
    }

    fn barrier_done(&self, links: &mut Links<B::Link>, done: Result<(), BackendError>) -> Option<String> {
        let (order, begun_at, _) = links.barrier.take()?;
        let proof = Proof { order, link: links.first };
        let telemetry = &self.registry.telemetry;
        if let Err(why) = done {
            telemetry.proof(ProofResult::Failed);
            return Some(why.to_string());
        }
        if mutant::is(Mutant::EarlyPublish) {
            self.registry.proofs.publish(Proven { proof, begun_at, took: Duration::ZERO });
        }
        // What was announced before the answer has arrived before it: once it is taken in, the view is as new as the
        // barrier. A session event among it voids the proof.
        if let Some(why) = self.drain(links) {
            telemetry.proof(ProofResult::Voided);
            return Some(why);
        }
        let took = self.registry.clock.now().since(begun_at);
        telemetry.proof(ProofResult::Proven);
        telemetry.proof_seconds.record(took.as_secs_f64());
        self.registry.proofs.publish(Proven { proof, begun_at, took });
        None
    }

    fn listed(&self, links: &mut Links<B::Link>, listing: Listing) {
        let Some((order, _)) = links.listing.take() else { return };
        if !self.registry.is_newer_root(listing.newest) {
            self.history_went_back();
        }
        if listing.strange > 0 {
            warn!(
                "{} children of the root have names that are no account's; they are left out",
                listing.strange
            );
        }
        if mutant::is(Mutant::KeepView) && self.registry.was_ever_listed() {
            return self.registry.listed(order);
        }
        for name in listing.names {
            self.queue(&mut links.queue, name);
        }
        // Whatever was known before and is not in the listing is read as well: it may be gone, or new again.
        for entry in self.registry.entries() {
            self.queue(&mut links.queue, entry.name.clone());
        }
        // Only now: whoever finds no entry from here on may say that there is no such account.
        self.registry.listed(order);
    }

    fn queue(&self, queue: &mut VecDeque<AccountName>, name: AccountName) {
        if self.registry.queue(&name) {
            queue.push_back(name);
        }
    }

    fn apply(&self, links: &mut Links<B::Link>, batch: Batch) -> Option<String> {
        let readings = match batch.readings {
            Ok(readings) => readings,
            Err(why) => return Some(why.to_string()),
        };
        for ((entry, mark), reading) in batch.accounts.into_iter().zip(readings) {
            let denied = reading.is_denied();
            let applied = self.registry.apply(&entry, reading, mark, batch.order, links.first);
            if applied.history_went_back {
                self.history_went_back();
            }
            if let Some(entry) = applied.drains {
                spawn(super::admission::watch_drain(Arc::clone(&self.registry), entry));
            }
            if denied {
                links.denied.push(entry.name.clone());
            }
            if applied.again {
                links.queue.push_back(entry.name.clone());
            }
        }
        None
    }

    /// Queues the next part of all accounts.
    fn audit(&self, links: &mut Links<B::Link>) {
        if links.loading {
            return;
        }
        if links.audit.is_empty() {
            links.audit = self.registry.entries().iter().map(|entry| entry.name.clone()).collect();
            links.audit_step = links.audit.len().div_ceil(AUDIT_STEPS);
        }
        let rest = links.audit.len().saturating_sub(links.audit_step);
        for name in links.audit.split_off(rest) {
            self.queue(&mut links.queue, name);
        }
    }

    fn history_went_back(&self) {
        if self.pace.accept_history {
            self.registry.forget_history();
        } else {
            self.registry.refuse_history();
        }
    }

    /// Begins what is due: a barrier, and reads. A reason if the link has to end.
    fn start_work(&self, links: &mut Links<B::Link>) -> Option<String> {
        let now = self.registry.clock.now();
        if self.registry.take_accept() {
            self.registry.forget_history();
        }
        if self.registry.is_relink_due() {
            return Some("a new history was accepted".to_owned());
        }
        if links
            .barrier
            .take_if(|(_, begun_at, _)| now.since(*begun_at) > self.pace.barrier_timeout)
            .is_some()
        {
            self.registry.telemetry.proof(ProofResult::Failed);
            return Some("no answer to a barrier in time".to_owned());
        }
        if links.barrier.is_none() && self.barrier_due(links, now) {
            links.last_begun = now;
            links.barrier = Some(self.begin_barrier(&mut links.link, now));
        }
        for name in self.registry.take_urgent() {
            // Its older place in the queue is passed over: it is no longer marked as queued then.
            if self.registry.queue_urgent(&name) {
                links.queue.push_front(name);
            }
        }
        while links.reads.len() < READS && !links.queue.is_empty() {
            let Some(batch) = self.next_batch(links) else { break };
            let order = self.registry.proofs.begun();
            let names: Vec<_> = batch.iter().map(|(entry, _)| entry.name.clone()).collect();
            let pending = links.link.read(&names);
            links
                .reads
                .push_back(pending.map(move |readings| Batch { order, accounts: batch, readings }).boxed());
        }
        if links.loading && links.listing.is_none() && links.queue.is_empty() && links.reads.is_empty() {
            links.loading = false;
            self.status.loaded();
            info!(accounts = self.registry.len(), "all accounts are read");
            self.registry.tell(|| Event::View);
        }
        None
    }

    fn next_batch(&self, links: &mut Links<B::Link>) -> Option<Vec<(Arc<Entry>, Mark)>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(name) = links.queue.pop_front() else { break };
            if let Some((entry, mark, size)) = self.registry.start_reading(&name) {
                bytes += size;
                batch.push((entry, mark));
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn barrier_due(&self, links: &Links<B::Link>, now: Moment) -> bool {
        let since = now.since(links.last_begun);
        if since < self.pace.min_barrier_interval {
            return false;
        }
        self.registry.proofs.is_wanted() || self.renewal().is_some_and(|renewal| since >= renewal)
    }

    /// How long after a barrier the next one begins by itself.
    fn renewal(&self) -> Option<Duration> {
        (!self.pace.max_staleness.is_zero()).then(|| self.pace.max_staleness / 3)
    }

    /// When to look again, if nothing happens.
    fn next_wake(&self, links: &Links<B::Link>) -> Duration {
        let now = self.registry.clock.now();
        if let Some((_, begun_at, _)) = &links.barrier {
            return begun_at.after(self.pace.barrier_timeout).until(now) + Duration::from_millis(1);
        }
        let wait = if self.registry.proofs.is_wanted() {
            self.pace.min_barrier_interval
        } else if let Some(renewal) = self.renewal() {
            renewal
        } else {
            // Nothing is due until somebody wants something.
            return IDLE;
        };
        links
            .last_begun
            .after(wait.max(self.pace.min_barrier_interval))
            .until(now)
            .max(Duration::from_micros(100))
    }
}

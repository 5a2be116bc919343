//! Proofs, shared by all who wait: one is under way and one is queued.
//!
//! Requests say that they want a proof that begins later than now; the follower begins barriers and publishes what
//! came back. Barriers are numbered in the order in which they begin, over all links, so "later" needs no clock. This file
//! never talks to the coordination service.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock::{Clock, Moment};
use crate::fence::account::Proof;
use crate::fence::gate::Order;

/// A barrier that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The evidence.
    pub proof: Proof,
    /// When its barrier was sent: its age counts from here.
    pub begun_at: Moment,
    /// How long the round trip took.
    pub took: Duration,
}

/// The board on which proofs are asked for and published.
#[derive(Debug)]
pub struct Proofs {
    clock: Clock,
    /// The number of the barrier that began last.
    begun: AtomicU64,
    /// The lowest number that satisfies everybody who waits.
    wanted: AtomicU64,
    /// Wakes the follower.
    work: Notify,
    proven: watch::Sender<Option<Proven>>,
}

impl Proofs {
    /// A board without a proof.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            begun: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            work: Notify::new(),
            proven: watch::Sender::new(None),
        }
    }

    /// The newest proof.
    #[must_use]
    pub fn latest(&self) -> Option<Proven> {
        *self.proven.borrow()
    }

    /// The newest proof, if it is at most `age` old.
    #[must_use]
    pub fn within(&self, age: Duration) -> Option<Proven> {
        self.latest().filter(|proven| self.clock.now().since(proven.begun_at) <= age)
    }

    /// A proof that begins after this call, or `None` at `deadline`. Dropping the future withdraws nothing and
    /// costs at most one barrier.
    pub async fn after_now(&self, deadline: Moment) -> Option<Proven> {
        let want = self.want();
        let mut proven = self.proven.subscribe();
        let enough = |proven: &Option<Proven>| proven.is_some_and(|proven| proven.proof.order.0 >= want);
        let wait = deadline.until(self.clock.now());
        let found = tokio::time::timeout(wait, proven.wait_for(enough)).await.ok()?.ok()?;
        // The timer only wakes: after a pause of the machine the deadline may be long past.
        found.filter(|_| self.clock.now() <= deadline)
    }

    /// Wants a barrier that begins after this call; the lowest number that will do.
    pub(super) fn want(&self) -> u64 {
        // The barrier numbered `begun` may have been sent before this request was in; the next one cannot.
        let want = self.begun.load(SeqCst) + 1;
        if self.wanted.fetch_max(want, SeqCst) < want {
            self.work.notify_one();
        }
        want
    }

    /// Whether somebody waits for a barrier that has not begun.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst) > self.begun.load(SeqCst)
    }

    /// Numbers a barrier; to be called by the follower immediately before it sends it.
    pub fn begin(&self) -> Order {
        Order(self.begun.fetch_add(1, SeqCst) + 1)
    }

    /// The number of the barrier that began last.
    #[must_use]
    pub fn begun(&self) -> Order {
        Order(self.begun.load(SeqCst))
    }

    /// Publishes a proof: all that was announced before its barrier's answer is in the registry.
    pub fn publish(&self, proven: Proven) {
        self.proven.send_replace(Some(proven));
    }

    /// A barrier failed: whoever waited for it waits for the next.
    pub fn failed(&self) {
        let next = self.begun.load(SeqCst) + 1;
        let proven = self.latest().map_or(0, |proven| proven.proof.order.0);
        if self.wanted.load(SeqCst) > proven {
            self.wanted.fetch_max(next, SeqCst);
        }
    }

    /// Wakes the follower: there is something to do.
    pub fn nudge(&self) {
        self.work.notify_one();
    }

    /// Until somebody wants something. Cancel safe.
    pub async fn work(&self) {
        self.work.notified().await;
    }
}

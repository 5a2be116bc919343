//! Proofs, shared by all who wait: one is under way and one is queued.
//!
//! Requests say that they want a proof that begins later than now; the follower begins barriers and publishes what
//! came back. Barriers are numbered in the order in which they begin, over all links, so "later" needs no clock. This file
//! never talks to the coordination service.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::fence::account::Proof;
use crate::fence::gate::Order;
use crate::mutant::{self, Mutant};
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{JoinHandle, Notify, spawn, watch};

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

    /// Asks for a proof that begins later than now; returns the number it has to have at least.
    pub(super) fn want(&self) -> u64 {
        // The barrier numbered `begun` may have been sent before this request was in; the next one cannot.
        let mut want = self.begun.load(SeqCst) + 1;
        if mutant::is(Mutant::EarlyProof) {
            want = self.latest().map_or(0, |proven| proven.proof.order.0) + 1;
        }
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

/// Hands proofs on to those who wait for them on one thread. Waking a task of another thread costs a system call each time;
/// so a proof wakes one task of each thread, which wakes the others.
#[derive(Debug)]
pub struct Relay {
    arrived: Arc<Notify>,
    handing_on: JoinHandle<()>,
}

impl Relay {
    /// Hands on in a task of its own until it is dropped; to be called on the thread of those who will wait, inside of its
    /// runtime.
    #[must_use]
    pub fn start(proofs: &Proofs) -> Self {
        let arrived = Arc::<Notify>::default();
        let mut proven = proofs.proven.subscribe();
        let own = Arc::clone(&arrived);
        let handing_on = spawn(async move {
            while proven.changed().await.is_ok() {
                own.notify_waiters();
            }
        });
        Self { arrived, handing_on }
    }

    /// A proof that begins after this call, or `None` at `deadline`. Dropping the future withdraws nothing and
    /// costs at most one barrier.
    pub async fn after_now(&self, proofs: &Proofs, deadline: Moment) -> Option<Proven> {
        let want = proofs.want();
        let found = async {
            loop {
                let mut arrived = std::pin::pin!(self.arrived.notified());
                // Enabled before looking: what is published in between is not missed.
                arrived.as_mut().enable();
                if let Some(proven) = proofs.latest().filter(|proven| proven.proof.order.0 >= want) {
                    return proven;
                }
                if mutant::is(Mutant::LateEar) {
                    arrived.set(self.arrived.notified());
                }
                arrived.await;
            }
        };
        let wait = deadline.until(proofs.clock.now());
        let proven = tokio::time::timeout(wait, found).await.ok()?;
        // The timer only wakes: after a pause of the machine the deadline may be long past.
        (proofs.clock.now() <= deadline).then_some(proven)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.handing_on.abort();
    }
}

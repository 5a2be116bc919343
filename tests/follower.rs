//! The follower over a link that does exactly what a test says: orders of answers that a network shows once a year.
//!
//! What needs a real ZooKeeper is not here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::collections::{HashMap, VecDeque};
use std::future::{pending, poll_fn, ready};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::code::Code;
use fencegate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use fencegate::fence::handover::{Reason, Sighting};
use fencegate::fence::name::AccountName;
use fencegate::fence::token::{Claim, Epoch, Seq, SessionId};
use fencegate::fence::view::{Holder, Marks, Reading, View};
use fencegate::forward::Authority;
use fencegate::gateway::admission::{Admission, Judge, Refused, Rules};
use fencegate::gateway::entry::Send;
use fencegate::gateway::follower::{Follower, Pace};
use fencegate::gateway::parking::Bounds;
use fencegate::gateway::proofs::Relay;
use fencegate::gateway::registry::Registry;
use fencegate::gateway::status::Status;
use fencegate::telemetry::Telemetry;
use http::HeaderValue;
use support::{Metrics, eventually};
use tokio::task::JoinHandle;

/// What the service holds, and what was asked of it.
#[derive(Default)]
struct World {
    accounts: HashMap<String, Reading>,
    changes: VecDeque<Change>,
    waker: Option<Waker>,
    /// Nobody can connect.
    away: bool,
    /// Barriers are never answered.
    deaf: bool,
    /// Announced while the next read is executed.
    with_read: Vec<Change>,
    reads: usize,
    asked_for_changes: usize,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<World>>);

impl Scripted {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// What the account is from now on; announced.
    fn set(&self, account: &str, seq: u64, epoch: i64) {
        self.show(account, held_by(seq, epoch));
    }

    fn show(&self, account: &str, reading: Reading) {
        let mut world = self.world();
        world.accounts.insert(account.to_owned(), reading);
        world.announce(change(account));
    }
}

impl World {
    fn announce(&mut self, change: Change) {
        self.changes.push_back(change);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn change(account: &str) -> Change {
    Change::Account { name: AccountName::new(account).unwrap(), sighting: Sighting::Other, zxid: None }
}

fn held_by(seq: u64, epoch: i64) -> Reading {
    Reading {
        view: View::Held(Arc::new(Holder {
            seq: Seq(seq),
            session: SessionId(7),
            instance: "host-a".to_owned(),
            epoch: Epoch(epoch),
            active_since: None,
        })),
        candidates: vec![seq],
        marks: Some(Marks { newest: epoch, holding: epoch, standing: epoch, resigning: -1 }),
        bytes: 0,
    }
}

impl Backend for Scripted {
    type Link = Self;

    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn connect(&mut self) -> Result<Self, BackendError> {
        if self.world().away { Err(BackendError::Lost("away".to_owned())) } else { Ok(self.clone()) }
    }
}

impl Link for Scripted {
    fn session(&self) -> SessionId {
        SessionId(1)
    }

    fn barrier(&mut self) -> Pending<()> {
        if self.world().deaf { Box::pin(pending()) } else { Box::pin(ready(Ok(()))) }
    }

    fn list(&mut self) -> Pending<Listing> {
        let world = self.world();
        let names = world.accounts.keys().map(|name| AccountName::new(name).unwrap()).collect();
        Box::pin(ready(Ok(Listing { names, strange: 0, newest: None })))
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let mut world = self.world();
        world.reads += 1;
        let announced = std::mem::take(&mut world.with_read);
        world.changes.extend(announced);
        let show = |name: &AccountName| world.accounts.get(name.as_str()).cloned().unwrap_or_default();
        Box::pin(ready(Ok(names.iter().map(show).collect())))
    }

    async fn next(&mut self) -> Change {
        self.world().asked_for_changes += 1;
        poll_fn(|cx| {
            let mut world = self.world();
            world.changes.pop_front().map_or_else(
                || {
                    world.waker = Some(cx.waker().clone());
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.world().changes.pop_front()
    }
}

struct Bench {
    service: Scripted,
    registry: Arc<Registry>,
    relay: Relay,
    following: JoinHandle<()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Bench {
    fn start(service: Scripted, clock: Clock, accept_history: bool) -> Self {
        let registry = Arc::new(Registry::new(clock, Arc::new(Telemetry::new())));
        let pace = Pace {
            max_staleness: Duration::ZERO,
            min_barrier_interval: Duration::ZERO,
            barrier_timeout: Duration::from_secs(10),
            accept_history,
        };
        let follower =
            Follower::new(service.clone(), Arc::clone(&registry), Arc::new(Status::default()), pace);
        let relay = Relay::start(&registry.proofs);
        Self { service, registry, relay, following: tokio::spawn(follower.run()) }
    }

    /// A barrier: what is read after it may show another history than what was read before.
    async fn prove(&self) {
        let deadline = self.registry.clock.now().after(Duration::from_secs(10));
        self.relay.after_now(&self.registry.proofs, deadline).await.expect("proven");
    }

    async fn admit(&self, account: &str, seq: u64, patience: Duration) -> Result<Admission, Refused> {
        let rules = Rules {
            max_staleness: Duration::ZERO,
            park_timeout: Duration::from_secs(10),
            parking: Bounds { most: 1000, most_per_account: 1000 },
            most_in_flight_per_account: 10,
        };
        let claim = Claim { seq: Seq(seq), session: SessionId(7), instance: None, epoch: None };
        let send = Arc::new(Send::new(HeaderValue::from_static("test")));
        let judge = Judge {
            registry: &self.registry,
            relay: &self.relay,
            rules: &rules,
            account,
            entry: None,
            claim: &claim,
            send: &send,
            patience,
        };
        judge.admit().await
    }

    async fn eventually_holds(&self, account: &str, epoch: i64) {
        eventually(&format!("{account} is held in term {epoch}"), || self.holds(account, epoch)).await;
    }

    fn holds(&self, account: &str, epoch: i64) -> bool {
        self.registry.get(account).is_some_and(|entry| {
            entry.state().account.gate().view().holder().is_some_and(|holder| holder.epoch == Epoch(epoch))
        })
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        Metrics::parse(&self.registry.telemetry.render()).sum(name, labels)
    }
}

#[tokio::test]
async fn a_follower_that_nobody_asks_sleeps() {
    let clock = Clock::manual();
    clock.advance(Duration::from_secs(1));
    let bench = Bench::start(Scripted::default(), clock.clone(), false);
    eventually("a proof", || bench.registry.proofs.latest().is_some()).await;
    clock.advance(Duration::from_secs(600));
    bench.registry.proofs.nudge();
    let before = bench.service.world().asked_for_changes;
    let calm = support::now() + Duration::from_millis(500);
    eventually("half a second is over", || support::now() > calm).await;
    let rounds = bench.service.world().asked_for_changes - before;
    assert!(rounds < 20, "{rounds} rounds with nothing to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_account_is_unknown_while_the_listing_that_names_it_is_taken_in() {
    let service = Scripted::default();
    for number in 0..30_000 {
        service.world().accounts.insert(format!("x{number}"), held_by(1, 50));
    }
    service.world().away = true;
    let bench = Arc::new(Bench::start(service, Clock::default(), false));
    let mut asking = Vec::new();
    for number in (0..30_000).step_by(150) {
        let bench = Arc::clone(&bench);
        asking.push(tokio::spawn(async move {
            let account = format!("x{number}");
            bench.admit(&account, 1, Duration::ZERO).await.err().map(|refused| refused.code)
        }));
    }
    eventually("all are parked", || bench.registry.places.taken() == asking.len()).await;
    bench.service.world().away = false;
    for asked in asking {
        assert_eq!(asked.await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_is_announced_before_a_reads_answer_tells_why_a_holder_ended() {
    let service = Scripted::default();
    service.set("x", 1, 10);
    let bench = Bench::start(service, Clock::default(), false);
    bench.eventually_holds("x", 10).await;
    // The holder resigned in transaction 11. One half of it is announced; the other comes with the answer that shows the successor.
    let half = |sighting| Change::Account { name: AccountName::new("x").unwrap(), sighting, zxid: Some(11) };
    let mut next = held_by(2, 12);
    next.marks = Some(Marks { newest: 12, holding: 12, standing: 11, resigning: 11 });
    {
        let mut world = bench.service.world();
        world.accounts.insert("x".to_owned(), next);
        world.with_read = vec![half(Sighting::HolderGone)];
        world.announce(half(Sighting::CandidateGone(1)));
    }
    bench.eventually_holds("x", 12).await;
    let entry = bench.registry.get("x").unwrap();
    let reason = entry.state().record.last_handover.as_ref().map(|handover| handover.reason);
    assert_eq!(reason, Some(Reason::Resigned));
}

#[tokio::test]
async fn a_history_that_went_back_is_read_once_and_not_in_a_loop() {
    let service = Scripted::default();
    service.set("x", 1, 50);
    let bench = Bench::start(service, Clock::default(), false);
    bench.eventually_holds("x", 50).await;
    bench.prove().await;
    bench.service.set("x", 1, 40);
    eventually("the reset is seen", || bench.registry.is_history_reset()).await;
    let refused = bench.admit("x", 1, Duration::ZERO).await.unwrap_err();
    assert_eq!(refused.code, Code::HistoryReset);
    let before = bench.service.world().reads;
    let calm = support::now() + Duration::from_millis(200);
    eventually("a while is over", || support::now() > calm).await;
    let reads = bench.service.world().reads - before;
    assert!(reads < 5, "{reads} reads of what is known to be refused");
    assert!(bench.registry.accept_history());
    bench.eventually_holds("x", 40).await;
    assert!(bench.admit("x", 1, Duration::ZERO).await.is_ok());
}

#[tokio::test]
async fn a_history_that_went_back_is_seen_although_nobody_wants_a_proof() {
    let service = Scripted::default();
    service.set("x", 1, 50);
    let bench = Bench::start(service, Clock::default(), false);
    bench.eventually_holds("x", 50).await;
    bench.service.show("x", Reading::default());
    eventually("x is gone", || !bench.holds("x", 50)).await;
    // Neither an earlier read on this link nor the names tell that it is another history: everything was wiped.
    bench.service.set("x", 1, 40);
    eventually("the reset is seen", || bench.registry.is_history_reset()).await;
}

#[tokio::test]
async fn sends_of_a_history_that_is_over_are_drained_and_cut_like_any_others() {
    for accept in [true, false] {
        let service = Scripted::default();
        service.set("x", 1, 50);
        let bench = Bench::start(service, Clock::default(), accept);
        bench.eventually_holds("x", 50).await;
        let old = bench.admit("x", 1, Duration::from_millis(100)).await.expect("admitted");
        old.begin().expect("begun");
        bench.prove().await;
        bench.service.set("x", 2, 40);
        if !accept {
            eventually("the reset is seen", || bench.registry.is_history_reset()).await;
            assert!(bench.registry.accept_history());
            eventually("it is accepted", || !bench.registry.is_history_reset()).await;
        }
        let mut waiting = std::pin::pin!(bench.admit("x", 2, Duration::ZERO));
        let cut = poll_fn(|cx: &mut Context<'_>| {
            assert!(waiting.as_mut().poll(cx).is_pending(), "the new holder does not wait");
            old.poll_stop(cx)
        });
        let stop = tokio::time::timeout(support::PATIENCE, cut).await.expect("cut at its deadline");
        assert_eq!(stop, fencegate::forward::Stop::Cut);
        drop(old);
        assert!(waiting.await.is_ok());
    }
}

#[tokio::test]
async fn an_epoch_that_comes_again_in_another_history_is_another_term() {
    let service = Scripted::default();
    service.set("x", 1, 50);
    let bench = Bench::start(service, Clock::default(), true);
    bench.eventually_holds("x", 50).await;
    bench.prove().await;
    bench.service.set("x", 1, 40);
    bench.eventually_holds("x", 40).await;
    // Within a history it would be a holder that changed in the middle of its term.
    bench.service.set("x", 2, 40);
    let refused = async || bench.admit("x", 2, Duration::ZERO).await.err().map(|refused| refused.code);
    assert_eq!(refused().await, Some(Code::InvalidHolder));
    bench.service.set("x", 2, 60);
    assert_eq!(refused().await, None);
    // The one that is restored has a term of the same number.
    let mut older = held_by(3, 60);
    older.marks = older.marks.map(|marks| Marks { newest: 45, ..marks });
    bench.prove().await;
    bench.service.show("x", older);
    eventually("the restored holder holds", || {
        bench.registry.get("x").is_some_and(|entry| {
            entry.state().account.gate().view().holder().is_some_and(|holder| holder.seq == Seq(3))
        })
    })
    .await;
    assert!(bench.admit("x", 3, Duration::ZERO).await.is_ok());
}

#[tokio::test]
async fn a_barrier_that_its_link_took_along_is_counted_as_voided() {
    let bench = Bench::start(Scripted::default(), Clock::default(), false);
    eventually("a proof", || bench.metric("fencegate_proofs_total", &[("result", "proven")]) == 1.0).await;
    bench.service.world().deaf = true;
    let deadline = bench.registry.clock.now().after(Duration::from_secs(10));
    let mut proof = std::pin::pin!(bench.relay.after_now(&bench.registry.proofs, deadline));
    let begun = bench.registry.proofs.begun();
    eventually("a barrier is under way", || {
        let mut cx = Context::from_waker(Waker::noop());
        proof.as_mut().poll(&mut cx).is_pending() && bench.registry.proofs.begun() > begun
    })
    .await;
    bench.service.world().deaf = false;
    bench.service.world().announce(Change::Lost("told so".to_owned()));
    assert!(proof.await.is_some(), "the next link proves it");
    assert_eq!(bench.metric("fencegate_proofs_total", &[("result", "voided")]), 1.0);
    let counted = bench.metric("fencegate_proofs_total", &[]);
    assert_eq!(counted as u64, bench.registry.proofs.begun().0, "every barrier is counted once");
}

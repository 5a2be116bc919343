//! Requests of several workers, and what must hold whoever goes on when.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::code::Code;
use fencegate::fence::token::Claim;
use fencegate::fence::verdict::{Verdict, judge};
use fencegate::fence::view::View;
use fencegate::forward::Authority;
use fencegate::gateway::admission::{Admission, Judge, Refused, Rules};
use fencegate::gateway::entry::Send;
use fencegate::gateway::follower::{Follower, Pace};
use fencegate::gateway::parking::Bounds;
use fencegate::gateway::proofs::Relay;
use fencegate::gateway::registry::Registry;
use fencegate::telemetry::Telemetry;
use http::HeaderValue;
use shuttle::future::JoinHandle;
use shuttle::rand::{Rng, thread_rng};

use super::service::{ACCOUNT, Links, Service, holder};

/// No scenario lasts so long: nobody is saved by a timer.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// How long a superseded send may go on.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How a send goes on once it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// It ends by itself, after a few steps.
    Ends,
    /// Its sender never answers.
    Hangs,
}

/// A gateway with its service.
pub struct World {
    pub clock: Clock,
    pub service: Arc<Service>,
    pub registry: Arc<Registry>,
    pub rules: Rules,
    /// One for each worker.
    relays: [Arc<Relay>; 2],
    oracle: Mutex<Oracle>,
}

/// What was seen of sends. A send is in here for less than its permit lasts, so whatever is wrong here is wrong.
#[derive(Default)]
struct Oracle {
    /// Terms of sends that are under way.
    under_way: Vec<u64>,
    /// The highest term that began.
    highest: u64,
    /// By term: the newest commit when a send ended that a drain waited for.
    ended: Vec<(u64, usize)>,
}

impl World {
    /// One in which the first term holds; the follower begins.
    pub fn new() -> Arc<Self> {
        thread_local! {
            static TELEMETRY: Arc<Telemetry> = Arc::new(Telemetry::new());
        }
        let clock = Clock::manual();
        let registry = Arc::new(Registry::new(clock.clone(), TELEMETRY.with(Arc::clone)));
        let service = Service::new(View::Held(Arc::new(holder(1))));
        let pace = Pace {
            max_staleness: Duration::ZERO,
            min_barrier_interval: Duration::ZERO,
            barrier_timeout: NEVER,
            accept_history: false,
        };
        let follower =
            Follower::new(Links(Arc::clone(&service)), Arc::clone(&registry), Arc::default(), pace);
        drop(shuttle::future::spawn(follower.run()));
        let rules = Rules {
            max_staleness: Duration::ZERO,
            park_timeout: NEVER,
            parking: Bounds { most: 100, most_per_account: 100 },
            most_in_flight_per_account: 100,
        };
        let relays = [(); 2].map(|()| Arc::new(Relay::start(&registry.proofs)));
        Arc::new(Self { clock, service, registry, rules, relays, oracle: Mutex::default() })
    }

    /// A request of `term`'s holder, from its body's end on. The code that refused it, if one did.
    pub fn send(self: &Arc<Self>, worker: usize, term: u64, sending: Sending) -> JoinHandle<Option<Code>> {
        let world = Arc::clone(self);
        shuttle::future::spawn(async move { world.request(worker, term, sending).await })
    }

    /// One whose caller leaves at some step before its permit.
    pub fn send_and_leave(self: &Arc<Self>, worker: usize, term: u64) -> JoinHandle<()> {
        let world = Arc::clone(self);
        shuttle::future::spawn(async move {
            let mut left = thread_rng().gen_range(0..6);
            let mut request = pin!(world.request(worker, term, Sending::Ends));
            poll_fn(|cx| {
                if left == 0 {
                    return Poll::Ready(());
                }
                left -= 1;
                request.as_mut().poll(cx).map(drop)
            })
            .await;
        })
    }

    async fn request(&self, worker: usize, term: u64, sending: Sending) -> Option<Code> {
        let asked = self.service.newest();
        let claim = claim(term);
        let entry = self.registry.get(ACCOUNT);
        let send = Arc::new(Send::new(HeaderValue::from_static("id")));
        let judging = Judge {
            registry: &self.registry,
            relay: &self.relays[worker],
            rules: &self.rules,
            account: ACCOUNT,
            entry: entry.as_ref(),
            claim: &claim,
            send: &send,
            patience: PATIENCE,
        };
        if thread_rng().gen_bool(0.2)
            && let Err(refused) = judging.preview().await
        {
            return Some(self.refused(&claim, asked, &refused));
        }
        match judging.admit().await {
            Ok(admission) => self.forward(admission, term, asked, sending).await,
            Err(refused) => Some(self.refused(&claim, asked, &refused)),
        }
    }

    /// A refusal is one that the view deserved at some moment since the request was in (G1's other side).
    fn refused(&self, claim: &Claim, asked: usize, refused: &Refused) -> Code {
        let deserved = |view: &View| judge(view, claim) == Verdict::Refuse(refused.code);
        let truths = self.service.since(asked);
        assert!(
            refused.code == Code::HistoryReset || truths.iter().any(deserved),
            "{claim:?} was refused with {} and deserved it at no moment of {truths:?}",
            refused.code.as_str()
        );
        refused.code
    }

    async fn forward(&self, admission: Admission, term: u64, asked: usize, sending: Sending) -> Option<Code> {
        self.admitted(term, asked);
        if let Err(code) = admission.begin() {
            return Some(code);
        }
        if thread_rng().gen_bool(0.2) {
            // A connection that was closed while idle: nothing was written.
            admission.unbegin();
            if let Err(code) = admission.begin() {
                return Some(code);
            }
        }
        self.begins(term);
        let guard = Ends { world: self, term };
        let mut left = match sending {
            Sending::Ends => thread_rng().gen_range(0..15),
            Sending::Hangs => usize::MAX,
        };
        let stop = poll_fn(|cx| {
            if admission.poll_stop(cx).is_ready() {
                return Poll::Ready(Some(Code::HandoverCut));
            }
            if left == 0 {
                return Poll::Ready(None);
            }
            if sending == Sending::Ends {
                left -= 1;
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        });
        let stopped = stop.await;
        drop(guard);
        drop(admission);
        stopped
    }

    /// G1: the token was the holder's at some moment since the request was in; and since the drain it waited for.
    fn admitted(&self, term: u64, asked: usize) {
        let ended = &self.oracle.lock().unwrap().ended;
        let earlier = ended.iter().filter(|(other, _)| *other < term).map(|(_, commit)| *commit).max();
        let since = asked.max(earlier.unwrap_or(0));
        let truths = self.service.since(since);
        let epoch = holder(term).epoch;
        let held = truths.iter().any(|view| view.holder().is_some_and(|holder| holder.epoch == epoch));
        assert!(held, "G1: term {term} was admitted and held at no moment of {truths:?}");
    }

    /// Whether a send is under way.
    pub fn is_under_way(&self) -> bool {
        !self.oracle.lock().unwrap().under_way.is_empty()
    }

    fn begins(&self, term: u64) {
        let mut oracle = self.oracle.lock().unwrap();
        assert!(
            oracle.under_way.iter().all(|other| *other == term),
            "I1: {term} with {:?}",
            oracle.under_way
        );
        assert!(oracle.highest <= term, "I2: {term} after {}", oracle.highest);
        oracle.highest = term;
        oracle.under_way.push(term);
    }

    /// Nothing is left of anybody (I5).
    pub fn is_at_rest(&self) {
        let oracle = self.oracle.lock().unwrap();
        assert!(oracle.under_way.is_empty(), "{:?}", oracle.under_way);
        assert_eq!(self.registry.places.taken(), 0, "I5: parked");
        assert_eq!(self.registry.unknown_places.taken(), 0, "I5: parked without an entry");
        if let Some(entry) = self.registry.get(ACCOUNT) {
            assert_eq!((entry.in_flight(), entry.parked()), (0, 0), "I5");
            assert!(!entry.state().account.gate().is_busy(), "I5: a permit is left");
        }
    }
}

/// A send that is noted as under way; its permit lasts longer.
struct Ends<'a> {
    world: &'a World,
    term: u64,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let entry = self.world.registry.get(ACCOUNT);
        let drains = entry.is_some_and(|entry| entry.state().account.gate().is_draining());
        let mut oracle = self.world.oracle.lock().unwrap();
        let place = oracle.under_way.iter().position(|term| *term == self.term).unwrap();
        oracle.under_way.remove(place);
        // One that ends before anybody saw it superseded is waited for by nobody.
        if drains {
            oracle.ended.push((self.term, self.world.service.newest()));
        }
    }
}

fn claim(term: u64) -> Claim {
    let holder = holder(term);
    Claim { seq: holder.seq, session: holder.session, instance: None, epoch: None }
}

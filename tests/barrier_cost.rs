//! What proofs cost ZooKeeper, by its own count of transactions: bounded by the round trip, not by the traffic; nothing
//! while nothing is asked.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::election::zookeeper::{BarrierKind, Settings, ZkLink, ZooKeeper};
use fencegate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use fencegate::fence::name::AccountName;
use fencegate::fence::token::SessionId;
use fencegate::fence::view::Reading;
use fencegate::gateway::follower::{Follower, Pace};
use fencegate::gateway::proofs::Relay;
use fencegate::gateway::registry::Registry;
use fencegate::gateway::status::Status;
use fencegate::telemetry::Telemetry;
use support::instance::ROOT;
use support::{
    Connection, Ensemble, Gateway, Instance, Metrics, PATIENCE, Sender, Setup, eventually, now, stays,
    wait_until,
};

const CONNECTIONS: u64 = 64;
const REQUESTS: u64 = 30;

/// The server's newest transaction.
fn zxid(ensemble: &Ensemble) -> u64 {
    let answer = ensemble.server(0).four_letter("srvr").expect("an answer");
    let number = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("a zxid");
    u64::from_str_radix(number, 16).expect("a number")
}

fn proofs(gateway: &Gateway) -> u64 {
    gateway.metrics().sum("fencegate_proofs_total", &[]) as u64
}

/// Sends over 64 connections at once; returns when all are answered.
fn load(gateway: &Gateway, bots: &[Instance]) {
    std::thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let account = format!("wxid_{}", connection % bots.len() as u64);
            let token = bots[connection as usize % bots.len()].token(&account);
            scope.spawn(move || {
                let mut connection = Connection::open(gateway.proxy());
                for _ in 0..REQUESTS {
                    connection
                        .request("POST", &format!("/wx/{account}/send"), &token, b"x")
                        .expect("written");
                    assert_eq!(connection.read().status, 200);
                }
            });
        }
    });
}

#[test]
fn sends_at_the_same_time_share_their_proofs_and_nothing_is_asked_while_nothing_is_sent() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    let bots: Vec<_> = (0..4)
        .map(|number| {
            let bot = Instance::open(&ensemble.connect(), &format!("host-{number}"));
            bot.lead(&format!("wxid_{number}"));
            bot
        })
        .collect();
    let before = (zxid(&ensemble), proofs(&gateway));
    load(&gateway, &bots);
    wait_until("no barrier is under way", || proofs(&gateway) - before.1 == zxid(&ensemble) - before.0);
    let cost = zxid(&ensemble) - before.0;
    let sends = CONNECTIONS * REQUESTS;
    assert_eq!(sender.count() as u64, sends);
    assert!(cost * 4 < sends, "{cost} transactions for {sends} sends");
    let quiet = zxid(&ensemble);
    stays("nothing is asked of ZooKeeper", Duration::from_secs(3), || zxid(&ensemble) == quiet);
    assert_eq!(
        gateway.metrics().sum("fencegate_proofs_total", &[("result", "proven")]) as u64,
        proofs(&gateway)
    );
}

#[test]
fn proofs_can_be_spaced_and_are_renewed_where_older_ones_may_admit() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    let spaced = Setup::new(&ensemble.connect(), &sender.url())
        .section("freshness", "min_barrier_interval = \"250ms\"")
        .start();
    let bots = [Instance::open(&ensemble.connect(), "host-a")];
    bots[0].lead("wxid_0");
    let (before, begun) = (proofs(&spaced), now());
    let mut sent = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(spaced.send("wxid_0", &bots[0].token("wxid_0"), b"x").status, 200);
        sent += 1;
    }
    let most = begun.elapsed().as_millis() as u64 / 250 + 1;
    assert!(sent > 2 && proofs(&spaced) - before <= most, "{} proofs", proofs(&spaced) - before);
    drop(spaced);

    let renewed = Setup::new(&ensemble.connect(), &sender.url())
        .section("freshness", "max_staleness = \"600ms\"")
        .start();
    let before = proofs(&renewed);
    wait_until("proofs are renewed by themselves", || proofs(&renewed) >= before + 5);
    let before = proofs(&renewed);
    let begun = now();
    load(&renewed, &bots);
    let most = begun.elapsed().as_millis() as u64 / 200 + 2;
    assert!(proofs(&renewed) - before <= most, "admissions ask for no proofs of their own");
}

/// A backend whose barriers are counted.
struct Counted {
    backend: ZooKeeper,
    barriers: Arc<Barriers>,
}

#[derive(Default)]
struct Barriers {
    begun: AtomicI64,
    under_way: AtomicI64,
    most: AtomicI64,
}

struct CountedLink {
    link: ZkLink,
    barriers: Arc<Barriers>,
}

impl Backend for Counted {
    type Link = CountedLink;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    async fn connect(&mut self) -> Result<CountedLink, BackendError> {
        Ok(CountedLink { link: self.backend.connect().await?, barriers: Arc::clone(&self.barriers) })
    }
}

impl Link for CountedLink {
    fn session(&self) -> SessionId {
        self.link.session()
    }

    fn barrier(&mut self) -> Pending<()> {
        let barriers = Arc::clone(&self.barriers);
        barriers.begun.fetch_add(1, SeqCst);
        let under_way = barriers.under_way.fetch_add(1, SeqCst) + 1;
        barriers.most.fetch_max(under_way, SeqCst);
        let answer = self.link.barrier();
        Box::pin(async move {
            let answer = answer.await;
            barriers.under_way.fetch_sub(1, SeqCst);
            answer
        })
    }

    fn list(&mut self) -> Pending<Listing> {
        self.link.list()
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        self.link.read(names)
    }

    async fn next(&mut self) -> Change {
        self.link.next().await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.link.try_next()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_than_one_barrier_is_under_way_and_each_is_counted_once() {
    let ensemble = Ensemble::start(1);
    let barriers = Arc::<Barriers>::default();
    let backend = ZooKeeper::new(Settings {
        connect: ensemble.connect(),
        session_timeout: PATIENCE,
        connection_timeout: PATIENCE / 4,
        auth: Vec::new(),
        root: ROOT.to_owned(),
        require_candidate: true,
        barrier: BarrierKind::Quorum,
    });
    let registry = Arc::new(Registry::new(Clock::default(), Arc::new(Telemetry::new())));
    let pace = Pace {
        max_staleness: Duration::ZERO,
        min_barrier_interval: Duration::ZERO,
        barrier_timeout: PATIENCE,
        accept_history: false,
    };
    let counted = Counted { backend, barriers: Arc::clone(&barriers) };
    let status = Arc::new(Status::default());
    let following = tokio::spawn(Follower::new(counted, Arc::clone(&registry), status, pace).run());
    let relay = Arc::new(Relay::start(&registry.proofs));
    let askers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let registry = Arc::clone(&registry);
            let relay = Arc::clone(&relay);
            tokio::spawn(async move {
                for _ in 0..100 {
                    let deadline = registry.clock.now().after(PATIENCE);
                    assert!(relay.after_now(&registry.proofs, deadline).await.is_some());
                }
            })
        })
        .collect();
    for asker in askers {
        asker.await.expect("proofs");
    }
    let begun = || barriers.begun.load(SeqCst);
    let counted = || Metrics::parse(&registry.telemetry.render()).sum("fencegate_proofs_total", &[]) as i64;
    eventually("each is counted", || counted() == begun() && registry.proofs.begun().0 as i64 == begun())
        .await;
    assert_eq!(barriers.most.load(SeqCst), 1);
    assert!(begun() * 4 < 6400, "{} barriers for 6400 proofs", begun());
    following.abort();
}

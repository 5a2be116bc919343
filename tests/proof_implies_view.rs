//! The heart of G1, against three real servers: a proof that begins after a change was acknowledged shows the change.
//!
//! The gateway's view follows one server; the changes are made through the two others, by sessions of their own. The
//! same trials judged without a proof must go wrong, or they would show nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::code::Code;
use fencegate::election::zookeeper::{BarrierKind, Settings, ZooKeeper};
use fencegate::fence::token::{Claim, Seq, SessionId};
use fencegate::gateway::admission::{Admission, Judge, Refused, Rules};
use fencegate::gateway::entry::Send;
use fencegate::gateway::follower::{Follower, Pace};
use fencegate::gateway::parking::Bounds;
use fencegate::gateway::proofs::Relay;
use fencegate::gateway::registry::Registry;
use fencegate::gateway::status::Status;
use fencegate::telemetry::Telemetry;
use http::HeaderValue;
use support::instance::ROOT;
use support::{Ensemble, PATIENCE, eventually};
use zookeeper_client::{Acls, Client, CreateMode};

const ACCOUNTS: usize = 40;
const TRIALS: usize = 500;

/// One of the two who hold in turn: a session on a server of its own, with a candidate for every account.
struct Writer {
    client: Client,
    name: &'static str,
}

impl Writer {
    async fn connect(server: &str, name: &'static str) -> Self {
        let connector = Client::connector().with_session_timeout(PATIENCE);
        Self { client: connector.connect(server).await.expect("a session"), name }
    }

    fn session(&self) -> i64 {
        self.client.session_id().0
    }

    async fn stand(&self, account: &str) -> u64 {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{ROOT}/{account}/members/m-");
        let (_, number) = self.client.create(&path, b"", &options).await.expect("a candidate");
        u64::try_from(number.into_i64()).expect("a number")
    }

    /// Takes the account, from whoever holds it, in one transaction.
    async fn take(&self, account: &str, seq: u64, held: bool) {
        let active = format!("{ROOT}/{account}/active");
        let session = self.session();
        let data = format!(r#"{{"seq":{seq},"instanceId":"{}","sessionId":{session}}}"#, self.name);
        let mut transaction = self.client.new_multi_writer();
        if held {
            transaction.add_delete(&active, None).expect("a deletion");
        }
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        transaction.add_create(&active, data.as_bytes(), &options).expect("a creation");
        transaction.commit().await.expect("one transaction");
    }

    fn claim(&self, seq: u64) -> Claim {
        Claim { seq: Seq(seq), session: SessionId(self.session()), instance: None, epoch: None }
    }
}

#[derive(Default)]
struct Score {
    trials: AtomicUsize,
    /// Trials in which the view as it was would have judged one of the two claims wrong.
    unproven: AtomicUsize,
}

struct Bench {
    registry: Arc<Registry>,
    relay: Relay,
    writers: [Writer; 2],
    score: Score,
}

impl Bench {
    async fn judge(&self, account: &str, claim: &Claim) -> Result<Admission, Refused> {
        let rules = Rules {
            max_staleness: Duration::ZERO,
            park_timeout: PATIENCE,
            parking: Bounds { most: 10_000, most_per_account: 10_000 },
            most_in_flight_per_account: 64,
        };
        let send = Arc::new(Send::new(HeaderValue::from_static("trial")));
        let registry = &self.registry;
        let judge = Judge {
            registry,
            relay: &self.relay,
            rules: &rules,
            account,
            entry: None,
            claim,
            send: &send,
            patience: PATIENCE,
        };
        judge.admit().await
    }

    fn as_it_is(&self, account: &str, claim: &Claim) -> bool {
        let entry = self.registry.get(account);
        let judged = entry.and_then(|entry| entry.state().account.preview(claim, None));
        matches!(judged, Some(Ok(_)))
    }

    /// The two writers take one account in turn; after each time both claims are judged.
    async fn run(&self, account: String) {
        let mut seqs = [0; 2];
        for (seq, writer) in seqs.iter_mut().zip(&self.writers) {
            *seq = writer.stand(&account).await;
        }
        for trial in 0..TRIALS {
            let (new, old) = (trial % 2, 1 - trial % 2);
            let claims = [new, old].map(|who| self.writers[who].claim(seqs[who]));
            self.writers[new].take(&account, seqs[new], trial > 0).await;
            if !self.as_it_is(&account, &claims[0]) || self.as_it_is(&account, &claims[1]) {
                self.score.unproven.fetch_add(1, SeqCst);
            }
            let (holders, others) =
                tokio::join!(self.judge(&account, &claims[0]), self.judge(&account, &claims[1]));
            let admission = holders.unwrap_or_else(|refused| {
                panic!("trial {trial} of {account}: the holder is refused: {refused:?}")
            });
            match others {
                Err(Refused { code: Code::StaleToken | Code::NotHolder, .. }) => {}
                other => panic!("trial {trial} of {account}: a deposed holder gets {other:?}"),
            }
            drop(admission);
            self.score.trials.fetch_add(1, SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proof_begun_after_a_change_shows_the_change_in_twenty_thousand_trials_g1() {
    let ensemble = Ensemble::start(3);
    let followed = ensemble.following().expect("a server that follows");
    let others: Vec<_> = (0..3).filter(|index| *index != followed).collect();
    let writers = [
        Writer::connect(&ensemble.server(others[0]).connect(), "host-a").await,
        Writer::connect(&ensemble.server(others[1]).connect(), "host-b").await,
    ];
    let accounts: Vec<_> = (0..ACCOUNTS).map(|number| format!("wxid_{number}")).collect();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for account in &accounts {
        writers[0].client.mkdir(&format!("{ROOT}/{account}/members"), &persistent).await.expect("a path");
    }

    let registry = Arc::new(Registry::new(Clock::default(), Arc::new(Telemetry::new())));
    let backend = ZooKeeper::new(Settings {
        connect: ensemble.server(followed).connect(),
        session_timeout: PATIENCE,
        connection_timeout: PATIENCE / 4,
        auth: Vec::new(),
        root: ROOT.to_owned(),
        require_candidate: true,
        barrier: BarrierKind::Quorum,
    });
    let pace = Pace {
        max_staleness: Duration::ZERO,
        min_barrier_interval: Duration::ZERO,
        barrier_timeout: PATIENCE,
        accept_history: false,
    };
    let status = Arc::new(Status::default());
    let following = tokio::spawn(Follower::new(backend, Arc::clone(&registry), status, pace).run());
    eventually("a first proof", || registry.proofs.latest().is_some()).await;

    let bench =
        Arc::new(Bench { relay: Relay::start(&registry.proofs), registry, writers, score: Score::default() });
    let runs: Vec<_> = accounts
        .into_iter()
        .map(|account| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.run(account).await })
        })
        .collect();
    for run in runs {
        run.await.expect("no violation");
    }
    following.abort();

    let (trials, unproven) = (bench.score.trials.load(SeqCst), bench.score.unproven.load(SeqCst));
    assert_eq!(trials, ACCOUNTS * TRIALS);
    assert!(unproven > 0, "without a proof nothing went wrong either: the trials show nothing");
    println!("{trials} trials, 0 violations with a proof, {unproven} without");
}

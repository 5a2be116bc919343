//! The room over elections in memory that a follower follows, with a lens in between that a test can hold closed or
//! tint.

mod access;
mod accounts;
mod events;
mod metrics;
mod routes;
mod server;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::Admin;
use crate::clock::Clock;
use crate::election::memory::{Memory, MemoryLink};
use crate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;
use crate::fence::view::{Reading, View};
use crate::gateway::follower::{Follower, Pace};
use crate::gateway::registry::Registry;
use crate::gateway::status::Status;
use crate::telemetry::{Telemetry, name};

/// Elections in memory; reads wait until the lens is open, and some accounts look different through it.
#[derive(Clone)]
struct Lens {
    memory: Memory,
    open: watch::Receiver<bool>,
    tints: Arc<Mutex<HashMap<AccountName, View>>>,
}

struct LensLink {
    link: MemoryLink,
    lens: Lens,
}

impl Backend for Lens {
    type Link = LensLink;

    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn connect(&mut self) -> Result<LensLink, BackendError> {
        Ok(LensLink { link: self.memory.connect().await?, lens: self.clone() })
    }
}

impl Link for LensLink {
    fn session(&self) -> SessionId {
        SessionId(-2)
    }

    fn barrier(&mut self) -> Pending<()> {
        self.link.barrier()
    }

    fn list(&mut self) -> Pending<Listing> {
        self.link.list()
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let (mut open, tints) = (self.lens.open.clone(), Arc::clone(&self.lens.tints));
        let (names, read) = (names.to_vec(), self.link.read(names));
        Box::pin(async move {
            let closed = |_| BackendError::Lost("the test is over".to_owned());
            open.wait_for(|open| *open).await.map_err(closed)?;
            let mut readings = read.await?;
            for (name, reading) in names.iter().zip(&mut readings) {
                match tints.lock().unwrap().get(name) {
                    Some(View::Absent) => *reading = Reading::default(),
                    Some(view) => reading.view = view.clone(),
                    None => {}
                }
            }
            Ok(readings)
        })
    }

    async fn next(&mut self) -> Change {
        self.link.next().await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.link.try_next()
    }
}

struct World {
    memory: Memory,
    registry: Arc<Registry>,
    status: Arc<Status>,
    router: Router,
    lens: watch::Sender<bool>,
    tints: Arc<Mutex<HashMap<AccountName, View>>>,
    follower: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

impl World {
    /// With everything read, and series for accounts.
    async fn new() -> Self {
        Self::with(true, 10_000).await
    }

    async fn with(per_account: bool, max_accounts: usize) -> Self {
        let world = Self::closed(Memory::default(), per_account, max_accounts);
        world.lens.send_replace(true);
        world.until("ready", async || world.get("/readyz").await.status == StatusCode::OK).await;
        world
    }

    /// Before anything was read.
    fn closed(memory: Memory, per_account: bool, max_accounts: usize) -> Self {
        Self::changed(memory, per_account, max_accounts, |_| {})
    }

    fn changed(
        memory: Memory,
        per_account: bool,
        max_accounts: usize,
        change: impl FnOnce(&mut Admin),
    ) -> Self {
        let registry = Arc::new(Registry::new(Clock::Boot, Arc::new(Telemetry::new())));
        let (status, (lens, open)) = (Arc::new(Status::default()), watch::channel(false));
        let tints = Arc::<Mutex<HashMap<_, _>>>::default();
        let backend = Lens { memory: memory.clone(), open, tints: Arc::clone(&tints) };
        let pace = Pace {
            max_staleness: Duration::ZERO,
            min_barrier_interval: Duration::ZERO,
            barrier_timeout: Duration::from_secs(5),
            accept_history: false,
        };
        let follower = Follower::new(backend, Arc::clone(&registry), Arc::clone(&status), pace).run();
        let mut admin = Admin {
            registry: Arc::clone(&registry),
            status: Arc::clone(&status),
            keys: Vec::new(),
            exposed: false,
            tls: false,
            backend: "embedded",
            barrier: "quorum",
            per_account,
            max_accounts,
            started_at_ms: 1_700_000_000_500,
            gauges: Arc::new(|| vec![(name::IN_FLIGHT, 7.0)]),
        };
        change(&mut admin);
        let router = super::router(Arc::new(admin));
        Self { memory, registry, status, router, lens, tints, follower: tokio::spawn(follower) }
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(done.is_ok(), "never: {what}");
    }

    async fn until_account(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/accounts/{name}");
        self.until(what, async || {
            let answer = self.get(&path).await;
            answer.status == StatusCode::OK && holds(&answer.json())
        })
        .await;
        self.get(&path).await.json()
    }

    /// Makes `instance` of `session` a candidate and waits until the room shows it.
    async fn stand(&self, name: &str, session: i64, instance: &str) -> u64 {
        let seq = self.memory.stand(&account(name), SessionId(session), instance).0;
        let candidates = self.registry.get(name).map_or(0, |entry| entry.state().account.candidates());
        self.until_account(name, "one more candidate", |it| it["candidates"] == candidates + 1).await;
        seq
    }

    /// Makes an account look like this from now on.
    async fn tint(&self, name: &str, view: View) {
        self.tints.lock().unwrap().insert(account(name), view.clone());
        // Another candidate comes, so that the account is read again.
        self.memory.stand(&account(name), SessionId(99), "another");
        let entry = self.registry.get(name).unwrap();
        self.until("tinted", async || *entry.state().account.gate().view() == view).await;
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request =
            headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        self.ask(request.body(Body::empty()).unwrap()).await
    }

    async fn ask(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Answer { status: head.status, headers: head.headers, body }
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {}", self.body))
    }

    fn kind(&self) -> &str {
        self.headers["content-type"].to_str().unwrap()
    }

    /// The detail of a problem with this status.
    fn problem(&self, status: u16) -> String {
        assert_eq!(
            (self.status.as_u16(), self.kind()),
            (status, "application/problem+json"),
            "{}",
            self.body
        );
        assert_eq!(self.json()["status"], status);
        self.json()["detail"].as_str().unwrap().to_owned()
    }

    /// The lines of a metric's samples.
    fn samples(&self, metric: &str) -> Vec<&str> {
        let sample = |line: &&str| {
            line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        };
        self.body.lines().filter(sample).collect()
    }
}

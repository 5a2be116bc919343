//! One ZooKeeper, one gateway, one sender and one instance that the tests of a file share, an account for each test.
//!
//! It is made when the first test asks for it and goes with the last one that uses it. Tests that stop or freeze a part
//! need parts of their own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::answer::Answer;
use super::gateway::{Gateway, Setup};
use super::http1::{Connection, Headers, Response, call};
use super::instance::Instance;
use super::sender::{Recorded, Sender};
use super::wait::wait_for;
use super::zookeeper::Ensemble;

type Act = Arc<dyn Fn(&Recorded) -> Answer + Send + Sync>;

#[derive(Default)]
struct Script {
    answers: Mutex<HashMap<String, Act>>,
    early: Mutex<HashMap<String, Act>>,
}

impl Script {
    fn of(acts: &Mutex<HashMap<String, Act>>, request: &Recorded) -> Option<Answer> {
        let account = request.header("x-fencing-account")?;
        let act = acts.lock().unwrap().get(account).cloned()?;
        Some(act(request))
    }
}

/// What the tests of a file share.
pub struct Stage {
    /// The gateway.
    pub gateway: Gateway,
    /// Holds every account.
    pub bot: Instance,
    /// The upstream.
    pub sender: Sender,
    script: Arc<Script>,
    accounts: AtomicUsize,
    /// Stopped last.
    ensemble: Ensemble,
}

impl Stage {
    /// Starts everything.
    #[track_caller]
    pub fn start(setup: impl FnOnce(Setup, &str) -> Setup) -> Self {
        let script = Arc::<Script>::default();
        let (late, early) = (script.clone(), script.clone());
        let sender =
            Sender::start(move |request| Script::of(&late.answers, request).unwrap_or_else(Answer::ok));
        sender.answer_early(move |head| Script::of(&early.early, head));
        let ensemble = Ensemble::start(1);
        let bot = Instance::open(&ensemble.connect(), "host-a");
        let url = sender.url();
        let gateway = setup(Setup::new(&ensemble.connect(), &url), &url).start();
        Self { gateway, bot, sender, script, accounts: AtomicUsize::new(0), ensemble }
    }

    /// The connect string of its ZooKeeper.
    pub fn connect(&self) -> String {
        self.ensemble.connect()
    }

    /// An account that nobody else uses, held by its instance.
    #[track_caller]
    pub fn holder(self: &Arc<Self>) -> Holder {
        let account = format!("wxid_{}", self.accounts.fetch_add(1, Ordering::SeqCst));
        self.bot.lead(&account);
        let token = self.bot.token(&account);
        Holder { stage: self.clone(), account, token }
    }
}

/// The lines of a route; `account` as TOML.
pub fn route(url: &str, path: &str, account: &str, more: &str) -> String {
    format!("path = \"{path}\"\naccount = {account}\nupstream = \"{url}\"\n{more}")
}

/// The lines of a route `/{name}/{account}/{*rest}` whose account is in its path.
pub fn named_route(url: &str, name: &str, more: &str) -> String {
    route(url, &format!("/{name}/{{account}}/{{*rest}}"), "\"path:account\"", more)
}

/// A place for a [`Stage`], in a static.
#[derive(Default)]
pub struct Shared(Mutex<Weak<Stage>>);

impl Shared {
    /// Nothing has started yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// The stage that others use, or a new one.
    #[track_caller]
    pub fn stage(&self, setup: impl FnOnce(Setup, &str) -> Setup) -> Arc<Stage> {
        let mut place = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(stage) = place.upgrade() {
            return stage;
        }
        let stage = Arc::new(Stage::start(setup));
        *place = Arc::downgrade(&stage);
        stage
    }
}

/// The holder of one account.
pub struct Holder {
    /// Where it plays.
    pub stage: Arc<Stage>,
    /// Its account.
    pub account: String,
    /// Its seq and session as headers.
    pub token: Headers,
}

impl Holder {
    /// What the sender answers to this account's requests from now on.
    pub fn answers(&self, act: impl Fn(&Recorded) -> Answer + Send + Sync + 'static) {
        self.stage.script.answers.lock().unwrap().insert(self.account.clone(), Arc::new(act));
    }

    /// What the sender answers to this account's requests when only the head is there.
    pub fn answers_early(&self, act: impl Fn(&Recorded) -> Answer + Send + Sync + 'static) {
        self.stage.script.early.lock().unwrap().insert(self.account.clone(), Arc::new(act));
    }

    /// The default route's path for it.
    pub fn path(&self) -> String {
        format!("/wx/{}/send", self.account)
    }

    /// A connection to the gateway.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(self.stage.gateway.proxy())
    }

    /// POSTs to its path with its token.
    #[track_caller]
    pub fn send(&self, body: impl AsRef<[u8]>) -> Response {
        self.call("POST", &self.path(), &Headers::none(), body)
    }

    /// Any request with its token.
    #[track_caller]
    pub fn call(&self, method: &str, target: &str, more: &Headers, body: impl AsRef<[u8]>) -> Response {
        let headers =
            more.iter().fold(self.token.clone(), |headers, (name, value)| headers.with(name, value));
        call(self.stage.gateway.proxy(), method, target, &headers, body)
    }

    /// The head of a POST to `target` with its token and these lines, without Host.
    pub fn head(&self, target: &str, lines: &str) -> String {
        let lines: String = lines.lines().map(|line| format!("{line}\r\n")).collect();
        format!("POST {target} HTTP/1.1\r\n{lines}{}\r\n", self.token.to_wire())
    }

    /// What reached the sender of this account, in order of arrival.
    pub fn seen(&self) -> Vec<Recorded> {
        let mut requests = self.stage.sender.requests();
        requests.retain(|request| request.header("x-fencing-account") == Some(&self.account));
        requests
    }

    /// Waits until `count` of its requests have ended at the sender, well or badly, and returns all of them.
    #[track_caller]
    pub fn wait_for_ended(&self, count: usize) -> Vec<Recorded> {
        wait_for(&format!("{count} ended requests of {}", self.account), || {
            let seen = self.seen();
            (seen.iter().filter(|request| request.ended.is_some()).count() >= count).then_some(seen)
        })
    }

    /// Waits until the gateway says that nothing of the account is in flight or parked.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        wait_for(&format!("{} is idle", self.account), || {
            let shown = self.stage.gateway.account(&self.account)?;
            (shown["in_flight"] == 0 && shown["parked"] == 0).then_some(())
        });
    }
}

//! The contract of the seam: every source of elections keeps the same promises. One suite, run against each of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::election::embedded::{Begun, Embedded};
use fencegate::election::memory::Memory;
use fencegate::election::zookeeper::{BarrierKind, Settings, ZooKeeper};
use fencegate::election::{Backend, Change, Link};
use fencegate::fence::handover::Sighting;
use fencegate::fence::name::AccountName;
use fencegate::fence::token::{Epoch, Seq, SessionId};
use fencegate::fence::view::{Reading, View};
use futures_util::FutureExt;
use support::instance::ROOT;
use support::place::Folder;
use support::{Ensemble, Instance, PATIENCE, Relay};

/// How a test moves the elections of one source. What a method does is done when it returns.
trait Driver {
    type Backend: Backend;

    fn start() -> Self;

    fn backend(&self) -> Self::Backend;

    /// An instance stands, and holds if nobody does; its seq and session.
    fn stand(&mut self, account: &str, instance: &'static str) -> (Seq, SessionId);

    /// An instance gives one account up; who stands first then holds.
    fn resign(&mut self, account: &str, instance: &'static str);

    /// An instance's session ends; in each of its accounts who stands first then holds.
    fn end(&mut self, instance: &'static str);

    /// Breaks the links that were made.
    fn lose_links(&mut self);
}

struct InMemory {
    memory: Memory,
    sessions: HashMap<&'static str, SessionId>,
}

impl InMemory {
    fn session(&mut self, instance: &'static str) -> SessionId {
        let next = SessionId(i64::try_from(self.sessions.len()).unwrap() + 1);
        *self.sessions.entry(instance).or_insert(next)
    }
}

impl Driver for InMemory {
    type Backend = Memory;

    fn start() -> Self {
        Self { memory: Memory::default(), sessions: HashMap::new() }
    }

    fn backend(&self) -> Memory {
        self.memory.clone()
    }

    fn stand(&mut self, account: &str, instance: &'static str) -> (Seq, SessionId) {
        let session = self.session(instance);
        (self.memory.stand(&name(account), session, instance), session)
    }

    fn resign(&mut self, account: &str, instance: &'static str) {
        let session = self.session(instance);
        self.memory.resign(&name(account), session);
    }

    fn end(&mut self, instance: &'static str) {
        let session = self.session(instance);
        self.memory.end(session);
    }

    fn lose_links(&mut self) {
        // A link that lags too far behind is over.
        for _ in 0..10_000 {
            self.stand("wxid_flood", "host-flood");
            self.resign("wxid_flood", "host-flood");
        }
    }
}

struct InEmbedded {
    embedded: Embedded,
    sessions: HashMap<&'static str, Begun>,
    /// Where its numbers are; removed last.
    _folder: Folder,
}

impl InEmbedded {
    fn session(&mut self, instance: &'static str) -> Begun {
        let begin = || self.embedded.begin(instance, Duration::from_secs(300)).unwrap();
        self.sessions.entry(instance).or_insert_with(begin).clone()
    }
}

impl Driver for InEmbedded {
    type Backend = Embedded;

    fn start() -> Self {
        let folder = Folder::new("embedded");
        let embedded = Embedded::open(&folder.join("state"), Clock::default()).unwrap();
        Self { embedded, sessions: HashMap::new(), _folder: folder }
    }

    fn backend(&self) -> Embedded {
        self.embedded.clone()
    }

    fn stand(&mut self, account: &str, instance: &'static str) -> (Seq, SessionId) {
        let begun = self.session(instance);
        (self.embedded.stand(&name(account), &begun.secret).unwrap(), begun.session)
    }

    fn resign(&mut self, account: &str, instance: &'static str) {
        let begun = self.session(instance);
        self.embedded.resign(&name(account), &begun.secret).unwrap();
    }

    fn end(&mut self, instance: &'static str) {
        let begun = self.session(instance);
        self.embedded.end(&begun.secret).unwrap();
        self.sessions.remove(instance);
    }

    fn lose_links(&mut self) {
        // A link that lags too far behind is over.
        for _ in 0..10_000 {
            self.stand("wxid_flood", "host-flood");
            self.resign("wxid_flood", "host-flood");
        }
    }
}

struct InZooKeeper {
    instances: HashMap<&'static str, Instance>,
    /// Who stands, in order; the first one holds.
    standing: HashMap<String, Vec<&'static str>>,
    relay: Relay,
    ensemble: Ensemble,
}

impl InZooKeeper {
    fn succeed(&self, account: &str) {
        if let Some(first) = self.standing.get(account).and_then(|standing| standing.first()) {
            self.instances[first].take(account);
        }
    }
}

impl Driver for InZooKeeper {
    type Backend = ZooKeeper;

    fn start() -> Self {
        let ensemble = Ensemble::start(1);
        let relay = Relay::to(ensemble.server(0).port());
        Self { instances: HashMap::new(), standing: HashMap::new(), relay, ensemble }
    }

    fn backend(&self) -> ZooKeeper {
        ZooKeeper::new(Settings {
            connect: self.relay.connect(),
            session_timeout: PATIENCE,
            connection_timeout: PATIENCE / 4,
            auth: Vec::new(),
            root: ROOT.to_owned(),
            require_candidate: true,
            barrier: BarrierKind::Quorum,
        })
    }

    fn stand(&mut self, account: &str, instance: &'static str) -> (Seq, SessionId) {
        let connect = self.ensemble.connect();
        let bot = self.instances.entry(instance).or_insert_with(|| Instance::open(&connect, instance));
        let seq = bot.join(account);
        let standing = self.standing.entry(account.to_owned()).or_default();
        standing.push(instance);
        if standing.len() == 1 {
            bot.take(account);
        }
        (Seq(u64::try_from(seq).unwrap()), SessionId(bot.session_id()))
    }

    fn resign(&mut self, account: &str, instance: &'static str) {
        let standing = self.standing.get_mut(account).unwrap();
        let held = standing.first() == Some(&instance);
        standing.retain(|stands| *stands != instance);
        if held {
            self.instances[instance].resign(account);
            self.succeed(account);
        } else {
            self.instances[instance].delete_candidate(account);
        }
    }

    fn end(&mut self, instance: &'static str) {
        self.instances.remove(instance).unwrap().leave();
        let mut held = Vec::new();
        for (account, standing) in &mut self.standing {
            if standing.first() == Some(&instance) {
                held.push(account.clone());
            }
            standing.retain(|stands| *stands != instance);
        }
        held.iter().for_each(|account| self.succeed(account));
    }

    fn lose_links(&mut self) {
        self.relay.cut_once();
    }
}

fn name(account: &str) -> AccountName {
    AccountName::new(account).expect("a name")
}

async fn connect<D: Driver>(driver: &D) -> <D::Backend as Backend>::Link {
    driver.backend().connect().await.expect("a link")
}

async fn read(link: &mut impl Link, account: &str) -> Reading {
    link.read(&[name(account)]).await.expect("an answer").remove(0)
}

/// Everything that was announced before the answer to a barrier that begins now.
async fn announced(link: &mut impl Link) -> Vec<(String, Sighting, Option<i64>)> {
    link.barrier().await.expect("an answer");
    let mut all = Vec::new();
    while let Some(change) = link.try_next() {
        match change {
            Change::Account { name, sighting, zxid } => all.push((name.to_string(), sighting, zxid)),
            Change::Lost(why) => panic!("the link is lost: {why}"),
        }
    }
    all
}

fn holder(reading: &Reading) -> (Seq, SessionId, &str, Epoch) {
    let View::Held(holder) = &reading.view else { panic!("nobody holds: {reading:?}") };
    (holder.seq, holder.session, &holder.instance, holder.epoch)
}

async fn what_changed_before_a_barrier_is_announced_before_its_answer<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    for turn in 0..100 {
        let account = format!("wxid_{}", turn % 3);
        for stands in [true, false] {
            if stands {
                driver.stand(&account, "host-a");
            } else {
                driver.resign(&account, "host-a")
            }
            let all = announced(&mut link).await;
            assert!(!all.is_empty(), "turn {turn}");
            assert!(all.iter().all(|(name, ..)| *name == account), "turn {turn}: {all:?}");
            // Without a change there is nothing to say.
            assert_eq!(announced(&mut link).await, []);
        }
    }
}

async fn announcements_are_taken_whole_however_many_there_are<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    for _ in 0..150 {
        driver.stand("wxid_1", "host-a");
        driver.resign("wxid_1", "host-a");
    }
    let all = announced(&mut link).await;
    let gone = all.iter().filter(|(_, sighting, _)| matches!(sighting, Sighting::CandidateGone(_))).count();
    assert_eq!(gone, 150, "of {}", all.len());
}

async fn a_listing_and_a_read_agree<D: Driver>() {
    let mut driver = D::start();
    let mut early = connect(&driver).await;
    assert!(early.list().await.expect("an answer").names.is_empty());
    let mut tokens = HashMap::new();
    for account in ["wxid_1", "wxid_2", "wxid_3"] {
        tokens.insert(account, driver.stand(account, "host-a"));
        driver.stand(account, "host-b");
    }
    let mut late = connect(&driver).await;
    for link in [&mut early, &mut late] {
        link.barrier().await.expect("an answer");
        let listing = link.list().await.expect("an answer");
        let mut names: Vec<_> = listing.names.iter().map(AccountName::as_str).collect();
        names.sort_unstable();
        assert_eq!((names, listing.strange), (vec!["wxid_1", "wxid_2", "wxid_3"], 0));
        let newest = listing.newest.expect("a transaction");
        for account in ["wxid_1", "wxid_2", "wxid_3"] {
            let reading = read(link, account).await;
            let (seq, session, instance, _) = holder(&reading);
            assert_eq!((seq, session), tokens[account]);
            assert_eq!((instance, reading.candidates.len()), ("host-a", 2));
            assert!(reading.candidates.contains(&seq.0));
            assert!(reading.marks.expect("marks").newest > 0 && newest > 0);
        }
        let nobody = read(link, "wxid_never").await;
        assert_eq!((nobody.view, nobody.candidates.len(), nobody.marks), (View::Absent, 0, None));
    }
}

async fn operations_are_answered_in_the_order_of_the_calls<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    for account in ["wxid_1", "wxid_2"] {
        driver.stand(account, "host-a");
        driver.stand(account, "host-b");
    }
    let names = [name("wxid_2"), name("wxid_never"), name("wxid_1"), name("wxid_2")];
    let readings = link.read(&names).await.expect("an answer");
    assert_eq!(readings.len(), 4);
    assert_eq!(readings[1].view, View::Absent);
    assert_eq!(readings[0], readings[3]);
    assert_ne!(holder(&readings[0]).3, holder(&readings[2]).3, "a term of its own for each account");
    // Later answers are never older, in whatever order they are looked at; and one that nobody wants hurts nobody.
    for turn in 0..50 {
        let first = link.read(&[name("wxid_1")]);
        drop(link.read(&[name("wxid_2")]));
        drop(link.barrier());
        let (old, new) = if turn % 2 == 0 { ("host-a", "host-b") } else { ("host-b", "host-a") };
        driver.resign("wxid_1", old);
        driver.stand("wxid_1", old);
        let barrier = link.barrier();
        let second = link.read(&[name("wxid_1")]);
        let second = second.await.expect("an answer").remove(0);
        barrier.await.expect("an answer");
        let first = first.await.expect("an answer").remove(0);
        // The first may have met the moment when nobody held.
        let older = first.view.holder().map(|holder| holder.epoch);
        assert!(older.is_none_or(|epoch| epoch <= holder(&second).3));
        assert_eq!(holder(&second).2, new);
        assert!(first.marks.unwrap().newest <= second.marks.unwrap().newest);
    }
}

async fn a_session_takes_its_candidates_and_its_holdings_along_in_one_step<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    for account in ["wxid_1", "wxid_2"] {
        driver.stand(account, "host-a");
        driver.stand(account, "host-b");
    }
    driver.stand("wxid_3", "host-b");
    let before = read(&mut link, "wxid_1").await;
    let (seq, _, _, epoch) = holder(&before);
    announced(&mut link).await;
    driver.end("host-a");
    let all = announced(&mut link).await;
    for account in ["wxid_1", "wxid_2"] {
        let of = |wanted: Sighting| {
            let found = all.iter().find(|(name, sighting, _)| name == account && *sighting == wanted);
            found.unwrap_or_else(|| panic!("{wanted:?} of {account} is not announced: {all:?}")).2
        };
        let reading = read(&mut link, account).await;
        assert_eq!((holder(&reading).2, reading.candidates.len()), ("host-b", 1));
        if account == "wxid_1" {
            assert_eq!(of(Sighting::CandidateGone(seq.0)), of(Sighting::HolderGone), "one transaction");
            assert!(holder(&reading).3 > epoch);
        }
    }
    assert!(all.iter().all(|(name, ..)| name != "wxid_3"));
    driver.end("host-b");
    let reading = read(&mut link, "wxid_1").await;
    assert_eq!((reading.view, reading.candidates.len()), (View::Vacant, 0));
    let marks = reading.marks.unwrap();
    assert_eq!(marks.holding, marks.standing, "one transaction");
    assert_ne!(marks.resigning, marks.standing);
}

async fn a_resignation_says_that_it_was_meant<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    driver.stand("wxid_1", "host-a");
    driver.resign("wxid_1", "host-a");
    let reading = read(&mut link, "wxid_1").await;
    let marks = reading.marks.unwrap();
    assert_eq!(
        (reading.view, marks.resigning, marks.holding),
        (View::Vacant, marks.standing, marks.standing)
    );
}

async fn terms_rise_over_all_and_a_new_candidate_has_a_higher_number<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    let (mut last, mut newest) = (None, i64::MIN);
    for _ in 0..20 {
        let (seq, session) = driver.stand("wxid_1", "host-a");
        let reading = read(&mut link, "wxid_1").await;
        let (held, by, _, epoch) = holder(&reading);
        assert_eq!((held, by), (seq, session));
        assert!(last.is_none_or(|(older, before)| older < seq && before < epoch));
        last = Some((seq, epoch));
        driver.resign("wxid_1", "host-a");
        let marks = reading.marks.unwrap();
        assert!(marks.newest >= newest);
        newest = marks.newest;
    }
}

async fn asking_for_an_announcement_and_leaving_loses_none<D: Driver>() {
    let mut driver = D::start();
    let mut link = connect(&driver).await;
    for _ in 0..20 {
        assert!(link.next().now_or_never().is_none());
        driver.stand("wxid_1", "host-a");
        let change = tokio::time::timeout(PATIENCE, link.next()).await.expect("an announcement");
        assert!(matches!(change, Change::Account { name, .. } if name.as_str() == "wxid_1"));
        announced(&mut link).await;
        driver.resign("wxid_1", "host-a");
        assert!(!announced(&mut link).await.is_empty());
    }
}

async fn a_lost_link_says_so_once_and_nothing_after_it<D: Driver>() {
    for wait in [true, false] {
        let mut driver = D::start();
        driver.stand("wxid_1", "host-a");
        let mut link = connect(&driver).await;
        link.barrier().await.expect("an answer");
        driver.lose_links();
        let lost = async {
            loop {
                let change = if wait { Some(link.next().await) } else { link.try_next() };
                match change {
                    Some(Change::Lost(_)) => return,
                    Some(Change::Account { .. }) => {}
                    None => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, lost).await.expect("the link is lost");
        let mut later = connect(&driver).await;
        driver.stand("wxid_2", "host-a");
        announced(&mut later).await;
        assert_eq!(link.try_next(), None);
        assert!(!matches!(link.next().now_or_never(), Some(Change::Account { .. })));
        assert_eq!(link.try_next(), None);
        // A new link sees everything.
        assert_eq!(holder(&read(&mut later, "wxid_1").await).2, "host-a");
        assert_eq!(holder(&read(&mut later, "wxid_2").await).2, "host-a");
    }
}

macro_rules! contract {
    ($($clause:ident,)*) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $clause() {
                    super::$clause::<super::InMemory>().await;
                }
            )*
        }
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $clause() {
                    super::$clause::<super::InEmbedded>().await;
                }
            )*
        }
        mod zookeeper {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $clause() {
                    super::$clause::<super::InZooKeeper>().await;
                }
            )*
        }
    };
}

contract! {
    what_changed_before_a_barrier_is_announced_before_its_answer,
    announcements_are_taken_whole_however_many_there_are,
    a_listing_and_a_read_agree,
    operations_are_answered_in_the_order_of_the_calls,
    a_session_takes_its_candidates_and_its_holdings_along_in_one_step,
    a_resignation_says_that_it_was_meant,
    terms_rise_over_all_and_a_new_candidate_has_a_higher_number,
    asking_for_an_announcement_and_leaving_loses_none,
    a_lost_link_says_so_once_and_nothing_after_it,
}

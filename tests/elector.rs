//! The elector on real ZooKeeper servers: what stands there after each turn, and what the instance says of itself.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod support;

use std::time::Duration;

use fencegate::election::session::{Notice, Session, Sessions};
use fencegate::election::zookeeper::{BarrierKind, Settings as ZkSettings, ZkSessions};
use fencegate::elector::{Accounts, Elector, NotLeader, Settings, Token};
use fencegate::fence::elector::{Role, Why};
use fencegate::fence::name::AccountName;
use serde_json::Value;
use support::{Ensemble, Instance, Relay, eventually, stays, wait_until};

const TIMEOUT: Duration = Duration::from_secs(6);

fn sessions(connect: &str, instance: &str) -> ZkSessions {
    let settings = ZkSettings {
        connect: connect.to_owned(),
        session_timeout: TIMEOUT,
        connection_timeout: TIMEOUT * 2 / 5,
        auth: Vec::new(),
        root: "/wx-accounts".to_owned(),
        require_candidate: true,
        barrier: BarrierKind::Quorum,
    };
    ZkSessions::new(settings, instance)
}

fn name(account: &str) -> AccountName {
    AccountName::new(account).unwrap()
}

fn these(accounts: &[&str]) -> Accounts {
    Accounts::These(accounts.iter().map(|account| name(account)).collect())
}

fn start(connect: &str, instance: &str, accounts: &[&str]) -> Elector {
    Elector::start(sessions(connect, instance), Settings::new(instance, these(accounts)))
}

fn role(elector: &Elector, account: &str) -> &'static str {
    elector.standing(account).map_or("-", |standing| standing.role.as_str())
}

async fn leads(elector: &Elector, account: &str) -> Token {
    eventually(&format!("{} leads {account}", elector.instance()), || elector.token(account).is_ok()).await;
    elector.token(account).unwrap()
}

async fn becomes(elector: &Elector, account: &str, wanted: &str) {
    eventually(&format!("{} is {wanted}", elector.instance()), || role(elector, account) == wanted).await;
}

/// What stands in ZooKeeper: `/active` and the number of candidates.
fn stands(observer: &Instance, account: &str) -> (Option<(Value, i64)>, usize) {
    let active = observer.read(&observer.path(account, "active"));
    let active = active.map(|(data, stat)| (serde_json::from_slice(&data).unwrap(), stat.czxid));
    let members = observer.path(account, "members");
    let children = observer.ask(move |client| async move { client.list_children(&members).await });
    (active, children.map_or(0, |children| children.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_the_other_follows_within_moments_of_its_resignation() {
    let ensemble = Ensemble::start(1);
    let observer = Instance::open(&ensemble.connect(), "observer");
    let first = start(&ensemble.connect(), "host-a", &["wxid_1"]);
    let token = leads(&first, "wxid_1").await;
    let (active, candidates) = stands(&observer, "wxid_1");
    let (active, epoch) = active.unwrap();
    assert_eq!((active["seq"].as_u64(), active["instanceId"].as_str()), (Some(0), Some("host-a")));
    assert_eq!(active["sessionId"].as_i64(), Some(token.session.0));
    assert_eq!((token.seq.0, token.epoch.0, candidates), (0, epoch, 1));
    assert_eq!(first.check(&name("wxid_1")).await, Ok(token.clone()));

    let second = start(&ensemble.connect(), "host-b", &["wxid_1"]);
    becomes(&second, "wxid_1", "WAITING").await;
    assert!(matches!(
        second.check(&name("wxid_1")).await,
        Err(NotLeader::Role(Role::Waiting, Why::HeldByOther))
    ));
    first.resign(&name("wxid_1")).await;
    assert!(first.token("wxid_1").is_err());
    let next = leads(&second, "wxid_1").await;
    assert!(next.epoch > token.epoch && next.seq.0 == 1);
    assert_eq!(stands(&observer, "wxid_1").1, 1);
    // It was meant, and the znodes say so.
    let (_, members) = observer.read(&observer.path("wxid_1", "members")).unwrap();
    assert_eq!(members.version, 1);

    first.stand(&name("wxid_1")).await;
    becomes(&first, "wxid_1", "WAITING").await;
    second.stop().await;
    assert_eq!(leads(&first, "wxid_1").await.seq.0, 2, "never a token that it had before");
    first.stop().await;
    assert_eq!(stands(&observer, "wxid_1"), (None, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_suspends_at_once_and_the_term_goes_on_when_it_is_back() {
    let ensemble = Ensemble::start(1);
    let relay = Relay::to(ensemble.server(0).port());
    let observer = Instance::open(&ensemble.connect(), "observer");
    let elector = start(&relay.connect(), "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    relay.cut();
    becomes(&elector, "wxid_1", "SUSPEND").await;
    assert_eq!(elector.standing("wxid_1").unwrap().why, Why::Disconnected);
    assert!(elector.token("wxid_1").is_err() && elector.check(&name("wxid_1")).await.is_err());
    relay.heal();
    assert_eq!(leads(&elector, "wxid_1").await, token, "found again by its owner");
    assert_eq!(stands(&observer, "wxid_1").1, 1);
    // The new watch tells: what an operator deletes is noticed, and the token never comes back.
    observer.delete(&observer.path("wxid_1", "active"));
    becomes(&elector, "wxid_1", "LEADER").await;
    eventually("a new term", || elector.token("wxid_1").is_ok_and(|next| next.seq > token.seq)).await;
    assert_eq!(stands(&observer, "wxid_1").1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_line_suspends_by_the_own_deadline_before_anybody_else_leads() {
    let ensemble = Ensemble::start(1);
    let relay = Relay::to(ensemble.server(0).port());
    let first = start(&relay.connect(), "host-a", &["wxid_1"]);
    let token = leads(&first, "wxid_1").await;
    let second = start(&ensemble.connect(), "host-b", &["wxid_1"]);
    becomes(&second, "wxid_1", "WAITING").await;
    relay.silence();
    eventually("another leads", || {
        let led = second.token("wxid_1").is_ok();
        assert!(!led || first.token("wxid_1").is_err(), "both lead");
        led
    })
    .await;
    relay.heal();
    becomes(&first, "wxid_1", "WAITING").await;
    let again = second.token("wxid_1").unwrap();
    assert!(again.epoch > token.epoch && again.session != token.session);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_whose_answer_was_lost_is_found_by_its_owner() {
    let ensemble = Ensemble::start(1);
    let relay = Relay::to(ensemble.server(0).port());
    let observer = Instance::open(&ensemble.connect(), "observer");
    let account = name("wxid_1");
    observer.make_path(&observer.path("wxid_1", "members"));
    let mut session = sessions(&relay.connect(), "host-a").open().await.unwrap();
    relay.silence_replies();
    let registered = session.register(&account);
    eventually("the candidate stands", || stands(&observer, "wxid_1").1 == 1).await;
    relay.cut();
    assert!(registered.await.is_err(), "nobody knows");
    relay.heal();
    while session.next().await != Notice::Connected {}
    let sights = session.look(std::slice::from_ref(&account)).await.unwrap();
    assert_eq!(sights[0].as_ref().unwrap().own, [0]);
    // What is not the session's own is never its candidate, whatever it is called.
    let other = Instance::open(&ensemble.connect(), "other");
    assert_eq!(other.join("wxid_1"), 1);
    let sights = session.look(std::slice::from_ref(&account)).await.unwrap();
    let sight = sights[0].as_ref().unwrap();
    assert_eq!((sight.own.as_slice(), sight.predecessor, sight.active), (&[0][..], None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_candidate_that_is_deleted_takes_its_active_with_it() {
    let ensemble = Ensemble::start(1);
    let observer = Instance::open(&ensemble.connect(), "observer");
    let elector = start(&ensemble.connect(), "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    observer.delete(&observer.path("wxid_1", &format!("members/m-{:010}", token.seq.0)));
    eventually("a new term", || elector.token("wxid_1").is_ok_and(|next| next.epoch > token.epoch)).await;
    let (active, candidates) = stands(&observer, "wxid_1");
    assert_eq!((active.unwrap().0["seq"].as_u64(), candidates), (Some(token.seq.0 + 1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_candidate_that_does_nothing_blocks_nobody_for_long() {
    let ensemble = Ensemble::plan(1).tick_ms(200).start();
    let idle = Instance::open(&ensemble.connect(), "idle");
    idle.join("wxid_1");
    let mut zk = sessions(&ensemble.connect(), "host-a");
    zk = zk.with_session_timeout(Duration::from_secs(1));
    let elector = Elector::start(zk, Settings::new("host-a", these(&["wxid_1"])));
    becomes(&elector, "wxid_1", "WAITING").await;
    assert_eq!(elector.standing("wxid_1").unwrap().why, Why::NotFirst);
    leads(&elector, "wxid_1").await;
    assert_eq!(stands(&idle, "wxid_1").1, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_accounts_are_found_as_they_appear_and_are_spread_over_sessions() {
    let ensemble = Ensemble::start(1);
    let observer = Instance::open(&ensemble.connect(), "observer");
    observer.make_path(&observer.path("wxid_1", "members"));
    let settings = Settings { accounts_per_session: 2, ..Settings::new("host-a", Accounts::All) };
    let elector = Elector::start(sessions(&ensemble.connect(), "host-a"), settings);
    leads(&elector, "wxid_1").await;
    for account in ["wxid_2", "wxid_3", "wxid_4", "wxid_5"] {
        observer.make_path(&observer.path(account, "members"));
        leads(&elector, account).await;
    }
    eventually("it is ready", || elector.is_ready()).await;
    assert_eq!((elector.sessions().len(), elector.standings().len()), (3, 5));
    let owners: std::collections::HashSet<_> =
        (1..=5).map(|n| elector.token(&format!("wxid_{n}")).unwrap().session.0).collect();
    assert_eq!(owners.len(), 3);
    elector.stop().await;
    assert!((1..=5).all(|n| stands(&observer, &format!("wxid_{n}")) == (None, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_service_leaves_one_candidate_for_each_account() {
    let ensemble = Ensemble::start(1);
    let observer = Instance::open(&ensemble.connect(), "observer");
    let accounts: Vec<String> = (0..50).map(|n| format!("wxid_{n}")).collect();
    let names: Vec<_> = accounts.iter().map(String::as_str).collect();
    let first = start(&ensemble.connect(), "host-a", &names);
    let second = start(&ensemble.connect(), "host-b", &names);
    let settled = |accounts: &[String]| {
        accounts.iter().all(|account| {
            let roles = [role(&first, account), role(&second, account)];
            roles == ["LEADER", "WAITING"] || roles == ["WAITING", "LEADER"]
        })
    };
    eventually("all are led", || settled(&accounts)).await;
    ensemble.server(0).restart();
    eventually("the loss is noticed", || !settled(&accounts)).await;
    eventually("all are led again", || settled(&accounts)).await;
    ensemble.wait_until_serving();
    wait_until("the observer is back", || accounts.iter().all(|account| stands(&observer, account).1 == 2));
    stays("two candidates for each account", Duration::from_secs(1), || {
        accounts.iter().all(|account| stands(&observer, account).1 == 2)
    });
}

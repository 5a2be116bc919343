//! The elector where elections are really held: what stands there after each turn, and what the instance says of itself.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod support;

use std::collections::HashSet;
use std::time::Duration;

use fencegate::election::session::{Notice, Session, Sessions};
use fencegate::elector::{Accounts, Elector, NotLeader, RoleChange, Settings, Token};
use fencegate::fence::elector::{Active, Role, Why};
use fencegate::fence::name::AccountName;
use support::{Elections, Ensemble, InZooKeeper, Instance, Relay, eventually, stays, wait_until};

fn name(account: &str) -> AccountName {
    AccountName::new(account).unwrap()
}

fn these(accounts: &[&str]) -> Accounts {
    Accounts::These(accounts.iter().map(|account| name(account)).collect())
}

fn start<E: Elections>(elections: &E, instance: &str, accounts: &[&str]) -> Elector {
    start_over(elections, elections.port(), instance, accounts)
}

/// Over a line to the service.
fn start_over<E: Elections>(elections: &E, port: u16, instance: &str, accounts: &[&str]) -> Elector {
    Elector::start(elections.sessions(port, instance), Settings::new(instance, these(accounts)))
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

/// Each against ZooKeeper and against elections that a gateway keeps.
macro_rules! wherever_they_are_held {
    ($($case:ident,)*) => {
        mod zookeeper {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case::<super::support::InZooKeeper>().await;
                }
            )*
        }
        mod gateway {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case::<super::support::InGateway>().await;
                }
            )*
        }
    };
}

wherever_they_are_held! {
    one_leads_the_other_follows_within_moments_of_its_resignation,
    a_lost_connection_suspends_at_once_and_the_term_goes_on_when_it_is_back,
    a_silent_line_suspends_by_the_own_deadline_before_anybody_else_leads,
    a_registration_whose_answer_was_lost_is_found_and_not_repeated,
    all_accounts_are_found_as_they_appear_and_are_spread_over_sessions,
    a_restarted_service_leaves_one_candidate_for_each_account,
}

async fn one_leads_the_other_follows_within_moments_of_its_resignation<E: Elections>() {
    let elections = E::start();
    let first = start(&elections, "host-a", &["wxid_1"]);
    let token = leads(&first, "wxid_1").await;
    let held = Some((token.seq.0, token.session.0, token.epoch.0));
    assert_eq!(elections.standing("wxid_1"), (held, 1));
    assert_eq!(first.check(&name("wxid_1")).await, Ok(token.clone()));

    let second = start(&elections, "host-b", &["wxid_1"]);
    becomes(&second, "wxid_1", "WAITING").await;
    assert!(matches!(
        second.check(&name("wxid_1")).await,
        Err(NotLeader::Role(Role::Waiting, Why::HeldByOther))
    ));
    assert_eq!(elections.standing("wxid_1"), (held, 2));
    assert_eq!(first.token("wxid_1"), Ok(token.clone()), "who only comes disturbs nobody");
    first.resign(&name("wxid_1")).await;
    assert!(first.token("wxid_1").is_err());
    let next = leads(&second, "wxid_1").await;
    assert!(next.epoch > token.epoch && next.seq > token.seq);
    assert_eq!(elections.standing("wxid_1").1, 1);

    first.stand(&name("wxid_1")).await;
    becomes(&first, "wxid_1", "WAITING").await;
    second.stop().await;
    assert!(leads(&first, "wxid_1").await.seq > next.seq, "never a token that it had before");
    first.stop().await;
    assert_eq!(elections.standing("wxid_1"), (None, 0));
}

async fn a_lost_connection_suspends_at_once_and_the_term_goes_on_when_it_is_back<E: Elections>() {
    let elections = E::start();
    let relay = Relay::to(elections.port());
    let elector = start_over(&elections, relay.address().port(), "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    relay.cut();
    becomes(&elector, "wxid_1", "SUSPEND").await;
    assert_eq!(elector.standing("wxid_1").unwrap().why, Why::Disconnected);
    assert!(elector.token("wxid_1").is_err() && elector.check(&name("wxid_1")).await.is_err());
    relay.heal();
    assert_eq!(leads(&elector, "wxid_1").await, token, "found again by its owner");
    assert_eq!(elections.standing("wxid_1").1, 1);
    // What happens is told again.
    let second = start(&elections, "host-b", &["wxid_1"]);
    becomes(&second, "wxid_1", "WAITING").await;
    elector.resign(&name("wxid_1")).await;
    elector.stand(&name("wxid_1")).await;
    leads(&second, "wxid_1").await;
    second.stop().await;
    assert!(leads(&elector, "wxid_1").await.seq > token.seq);
}

async fn a_silent_line_suspends_by_the_own_deadline_before_anybody_else_leads<E: Elections>() {
    let elections = E::start();
    let relay = Relay::to(elections.port());
    let first = start_over(&elections, relay.address().port(), "host-a", &["wxid_1"]);
    let token = leads(&first, "wxid_1").await;
    let second = start(&elections, "host-b", &["wxid_1"]);
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

async fn a_registration_whose_answer_was_lost_is_found_and_not_repeated<E: Elections>() {
    let elections = E::start();
    let relay = Relay::to(elections.port());
    let account = name("wxid_1");
    elections.make("wxid_1");
    let mut session = elections.sessions(relay.address().port(), "host-a").open().await.unwrap();
    relay.silence_replies();
    let registered = session.register(&account);
    eventually("the candidate stands", || elections.standing("wxid_1").1 == 1).await;
    relay.cut();
    assert!(matches!(session.next().await, Notice::Account { .. } | Notice::Disconnected(_)));
    assert!(registered.await.is_err(), "nobody knows");
    relay.heal();
    while session.next().await != Notice::Connected {}
    let sights = session.look(std::slice::from_ref(&account)).await.unwrap();
    let [own] = sights[0].as_ref().unwrap().own[..] else { panic!("{sights:?}") };
    // What is not the session's own is never its candidate, whatever it is called.
    let mut other = elections.sessions(elections.port(), "host-a").open().await.unwrap();
    other.register(&account).await.unwrap();
    let sights = session.look(std::slice::from_ref(&account)).await.unwrap();
    let sight = sights[0].as_ref().unwrap();
    assert_eq!((sight.own.as_slice(), sight.predecessor), (&[own][..], None));
    assert!(!matches!(sight.active, Some(Active::Theirs | Active::Odd)), "{sight:?}");
    let sights = other.look(std::slice::from_ref(&account)).await.unwrap();
    let sight = sights[0].as_ref().unwrap();
    assert_eq!((sight.predecessor, sight.ahead), (Some(own), 1));
    assert!(sight.own.len() == 1 && sight.own[0] > own, "{sight:?}");
}

async fn all_accounts_are_found_as_they_appear_and_are_spread_over_sessions<E: Elections>() {
    let elections = E::start();
    elections.make("wxid_1");
    let settings = Settings { accounts_per_session: 2, ..Settings::new("host-a", Accounts::All) };
    let elector = Elector::start(elections.sessions(elections.port(), "host-a"), settings);
    leads(&elector, "wxid_1").await;
    for account in ["wxid_2", "wxid_3", "wxid_4", "wxid_5"] {
        elections.make(account);
        leads(&elector, account).await;
    }
    eventually("it is ready", || elector.is_ready()).await;
    assert_eq!((elector.sessions().len(), elector.standings().len()), (3, 5));
    let owners: HashSet<_> =
        (1..=5).map(|n| elector.token(&format!("wxid_{n}")).unwrap().session.0).collect();
    assert_eq!(owners.len(), 3);
    elector.stop().await;
    assert!((1..=5).all(|n| elections.standing(&format!("wxid_{n}")) == (None, 0)));
}

async fn a_restarted_service_leaves_one_candidate_for_each_account<E: Elections>() {
    let elections = E::start();
    let accounts: Vec<String> = (0..50).map(|n| format!("wxid_{n}")).collect();
    let names: Vec<_> = accounts.iter().map(String::as_str).collect();
    let first = start(&elections, "host-a", &names);
    let second = start(&elections, "host-b", &names);
    let settled = || {
        accounts.iter().all(|account| {
            let roles = [role(&first, account), role(&second, account)];
            roles == ["LEADER", "WAITING"] || roles == ["WAITING", "LEADER"]
        })
    };
    eventually("all are led", settled).await;
    let mut changes = first.changes();
    elections.restart();
    let suspended = |change: std::sync::Arc<RoleChange>| change.to.role == Role::Suspend;
    eventually("the loss is noticed", || changes.try_recv().is_ok_and(suspended)).await;
    eventually("all are led again", settled).await;
    wait_until("two candidates for each account", || {
        accounts.iter().all(|account| elections.standing(account).1 == 2)
    });
    stays("and no more", Duration::from_secs(1), || {
        accounts.iter().all(|account| elections.standing(account).1 == 2)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resignation_says_in_zookeeper_that_it_was_meant() {
    let elections = InZooKeeper::start();
    let observer = &elections.observer;
    let elector = start(&elections, "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    let (active, _) = observer.read(&observer.path("wxid_1", "active")).unwrap();
    let active: serde_json::Value = serde_json::from_slice(&active).unwrap();
    assert_eq!((active["seq"].as_u64(), active["instanceId"].as_str()), (Some(token.seq.0), Some("host-a")));
    elector.resign(&name("wxid_1")).await;
    let (_, members) = observer.read(&observer.path("wxid_1", "members")).unwrap();
    assert_eq!(members.version, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_deletes_in_zookeeper_is_noticed_after_a_reconnect_too() {
    let elections = InZooKeeper::start();
    let relay = Relay::to(elections.port());
    let elector = start_over(&elections, relay.address().port(), "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    relay.cut();
    becomes(&elector, "wxid_1", "SUSPEND").await;
    relay.heal();
    assert_eq!(leads(&elector, "wxid_1").await, token);
    elections.observer.delete(&elections.observer.path("wxid_1", "active"));
    // The token never comes back.
    eventually("a new term", || elector.token("wxid_1").is_ok_and(|next| next.seq > token.seq)).await;
    assert_eq!(elections.standing("wxid_1").1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_candidate_that_is_deleted_takes_its_active_with_it() {
    let elections = InZooKeeper::start();
    let observer = &elections.observer;
    let elector = start(&elections, "host-a", &["wxid_1"]);
    let token = leads(&elector, "wxid_1").await;
    observer.delete(&observer.path("wxid_1", &format!("members/m-{:010}", token.seq.0)));
    eventually("a new term", || elector.token("wxid_1").is_ok_and(|next| next.epoch > token.epoch)).await;
    let (holder, candidates) = elections.standing("wxid_1");
    assert_eq!((holder.map(|(seq, ..)| seq), candidates), (Some(token.seq.0 + 1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_candidate_that_does_nothing_blocks_nobody_for_long() {
    let ensemble = Ensemble::plan(1).tick_ms(200).start();
    let observer = Instance::open(&ensemble.connect(), "observer");
    let elections = InZooKeeper { ensemble, observer };
    let idle = Instance::open(&elections.ensemble.connect(), "idle");
    idle.join("wxid_1");
    let sessions = elections.sessions(elections.port(), "host-a");
    let sessions = sessions.with_session_timeout(Duration::from_secs(1));
    let elector = Elector::start(sessions, Settings::new("host-a", these(&["wxid_1"])));
    becomes(&elector, "wxid_1", "WAITING").await;
    assert_eq!(elector.standing("wxid_1").unwrap().why, Why::NotFirst);
    leads(&elector, "wxid_1").await;
    assert_eq!(elections.standing("wxid_1").1, 2);
}

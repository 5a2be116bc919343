//! What ZooKeeper may show of an election: holders that count and holders that do not, trees that are recreated, histories
//! that go back, names of handovers, and how many may wait for all that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::thread::JoinHandle;

use serde_json::json;
use support::gateway::fencegate;
use support::instance::ROOT;
use support::{
    Ensemble, Gateway, Headers, Instance, Relay, Response, Sender, Setup, call, get_json, wait_for,
    wait_until,
};
use zookeeper_client::{Acl, AuthId, CreateMode, Permission};

const ACCOUNT: &str = "wxid_1";

struct Stage {
    gateway: Gateway,
    sender: Sender,
    ensemble: Ensemble,
}

impl Stage {
    fn start() -> Self {
        Self::with(Ensemble::start(1), |setup| setup)
    }

    fn with(ensemble: Ensemble, change: impl FnOnce(Setup) -> Setup) -> Self {
        let sender = Sender::new();
        let gateway = change(Setup::new(&ensemble.connect(), &sender.url())).start();
        Self { gateway, sender, ensemble }
    }

    fn instance(&self, name: &str) -> Instance {
        Instance::open(&self.ensemble.connect(), name)
    }

    #[track_caller]
    fn verdict(&self, account: &str, token: &Headers) -> String {
        let answer = self.gateway.send(account, token, b"x");
        let verdict = answer.header("x-fencing-verdict").expect("a verdict").to_owned();
        assert_eq!(answer.status == 200, verdict == "admitted");
        verdict
    }

    fn lines(&self, part: &str) -> usize {
        self.gateway.log().lines().filter(|line| line.contains(part)).count()
    }
}

#[test]
fn a_holder_whose_data_is_not_exact_is_nobody_and_other_accounts_go_on() {
    let ensemble = Ensemble::plan(1).property("jute.maxbuffer=4000000").start();
    let stage = Stage::with(ensemble, |setup| setup);
    let (bot, other) = (stage.instance("host-a"), stage.instance("host-b"));
    other.lead("wxid_other");
    bot.join(ACCOUNT);
    let good = bot.active_data(ACCOUNT);
    let with = |key: &str, value: serde_json::Value| {
        let mut data = good.clone();
        data[key] = value;
        data.to_string().into_bytes()
    };
    let without = |key: &str| {
        let mut data = good.clone();
        data.as_object_mut().unwrap().remove(key);
        data.to_string().into_bytes()
    };
    let mut large = good.to_string().into_bytes();
    large.resize(1_500_000, b' ');
    let twice = good.to_string().replacen('{', r#"{"seq":0,"#, 1);
    let bad = [
        Vec::new(),
        b"{}".to_vec(),
        b"null".to_vec(),
        b"not json".to_vec(),
        b"\xff\xfe{".to_vec(),
        [b"\xef\xbb\xbf", good.to_string().as_bytes()].concat(),
        large,
        twice.into_bytes(),
        with("seq", json!("0")),
        with("seq", json!(0.5)),
        with("seq", json!(-1)),
        with("seq", json!(2_147_483_648_u32)),
        with("seq", json!(5)),
        with("sessionId", json!(bot.session_id() + 1)),
        with("sessionId", json!(null)),
        with("instanceId", json!("")),
        with("instanceId", json!("x".repeat(257))),
        without("seq"),
        without("sessionId"),
        without("instanceId"),
    ];
    for data in &bad {
        bot.take_with(ACCOUNT, data);
        let shown = String::from_utf8_lossy(&data[..data.len().min(80)]).into_owned();
        for _ in 0..2 {
            assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder", "{shown}");
        }
        assert_eq!(stage.verdict("wxid_other", &other.token("wxid_other")), "admitted");
        let account = stage.gateway.account(ACCOUNT).unwrap();
        assert_eq!((&account["state"], &account["holder"]), (&json!("invalid"), &json!(null)), "{account}");
        assert!(account["invalid_reason"].is_string());
        bot.drop_active(ACCOUNT);
        assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "no_holder");
    }
    assert_eq!(stage.lines("invalid holder"), bad.len(), "each is said once");
    for data in [
        with("sessionId", json!(bot.session_id().to_string())),
        with("sessionId", json!(format!("{:#X}", bot.session_id()).to_lowercase())),
        with("more", json!({"a": [1, 2]})),
        without("activeSince"),
    ] {
        bot.take_with(ACCOUNT, &data);
        let shown = String::from_utf8_lossy(&data).into_owned();
        assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted", "{shown}");
        bot.drop_active(ACCOUNT);
    }
    // Not ephemeral, or without a candidate.
    let active = bot.path(ACCOUNT, "active");
    bot.create(&active, good.to_string(), CreateMode::Persistent);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
    bot.drop_active(ACCOUNT);
    bot.take(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted");
    bot.delete_candidate(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
}

#[test]
fn a_holder_that_changes_within_its_term_does_not_count_until_it_is_created_anew() {
    let stage = Stage::start();
    let bot = stage.instance("host-a");
    bot.lead(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted");
    let (active, good) = (bot.path(ACCOUNT, "active"), bot.active_data(ACCOUNT));
    // The same token in other words is no change.
    bot.set(&active, serde_json::to_string_pretty(&good).unwrap());
    assert_eq!(stage.verdict(ACCOUNT, &bot.full_token(ACCOUNT)), "admitted");
    let mut other = good.clone();
    other["instanceId"] = json!("host-b");
    bot.set(&active, other.to_string());
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
    bot.set(&active, good.to_string());
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
    assert_eq!(stage.lines("the holder's data changed within one term"), 1);
    bot.drop_active(ACCOUNT);
    bot.take(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted");
}

#[test]
fn an_account_that_may_not_be_read_is_refused_alone_and_works_once_its_acl_is_mended() {
    let ensemble = Ensemble::start(1);
    let (bot, other) =
        (Instance::open(&ensemble.connect(), "host-a"), Instance::open(&ensemble.connect(), "host-b"));
    other.lead("wxid_other");
    bot.lead(ACCOUNT);
    let nodes = ["", "/members", "/active"].map(|node| format!("{ROOT}/{ACCOUNT}{node}"));
    let set_acl = |permission: Permission| {
        for node in nodes.clone() {
            bot.ask(move |client| async move {
                let acls = [Acl::new(permission, AuthId::anyone())];
                client.set_acl(&node, &acls, None).await
            })
            .expect("an ACL");
        }
    };
    set_acl(Permission::CREATE | Permission::DELETE | Permission::WRITE | Permission::ADMIN);
    let stage = Stage::with(ensemble, |setup| setup);
    for _ in 0..3 {
        assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
        assert_eq!(stage.verdict("wxid_other", &other.token("wxid_other")), "admitted");
    }
    assert_eq!(stage.lines("no permission"), 1, "said once");
    let account = stage.gateway.account(ACCOUNT).unwrap();
    assert_eq!(account["invalid_reason"], "no permission to read the election");
    set_acl(Permission::ALL);
    wait_until("the mended ACL is seen", || stage.verdict(ACCOUNT, &bot.token(ACCOUNT)) == "admitted");
    assert_eq!(stage.lines("no permission"), 1, "said once");
}

/// ZooKeeper announces nothing of a znode that may not be read, so that no proof covers its end.
#[test]
fn an_end_that_is_not_announced_is_found_by_reading_again() {
    let stage = Stage::start();
    let bot = stage.instance("host-a");
    bot.lead(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted");
    let active = bot.path(ACCOUNT, "active");
    bot.ask(move |client| async move {
        let acls = [Acl::new(Permission::DELETE | Permission::ADMIN, AuthId::anyone())];
        client.set_acl(&active, &acls, None).await
    })
    .expect("an ACL");
    bot.drop_active(ACCOUNT);
    wait_until("the end is found", || stage.verdict(ACCOUNT, &bot.token(ACCOUNT)) == "no_holder");
}

#[test]
fn an_account_that_is_deleted_and_recreated_begins_at_zero_and_refuses_every_older_token() {
    let stage = Stage::start();
    let (a, b, c) = (stage.instance("host-a"), stage.instance("host-b"), stage.instance("host-c"));
    a.join(ACCOUNT);
    b.join(ACCOUNT);
    b.take(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &b.full_token(ACCOUNT)), "admitted");
    b.delete_tree(&format!("{ROOT}/{ACCOUNT}"));
    assert_eq!(stage.verdict(ACCOUNT, &b.token(ACCOUNT)), "unknown_account");
    assert_eq!(c.lead(ACCOUNT), 0);
    assert_eq!(stage.verdict(ACCOUNT, &c.token(ACCOUNT)), "admitted");
    assert_eq!(stage.verdict(ACCOUNT, &b.token(ACCOUNT)), "not_holder");
    assert_eq!(stage.verdict(ACCOUNT, &a.token(ACCOUNT)), "session_mismatch");
    assert_eq!(stage.gateway.metrics().sum("fencegate_seq_regressions_total", &[]), 1.0);
    let line = stage.gateway.wait_for_line("seq regression");
    assert!(line.contains(ACCOUNT), "{line}");
    stage.gateway.wait_for_line("leader changed account=wxid_1 oldSeq=1 oldInstance=host-b newSeq=0");
    assert_eq!(stage.gateway.account("wxid_never"), None);
}

#[test]
fn a_sequence_that_overflowed_makes_nobody_a_holder_and_raises_an_alarm() {
    let stage = Stage::start();
    let bot = stage.instance("host-a");
    bot.lead(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "admitted");
    let overflowed = bot.path(ACCOUNT, "members/m--2147483648");
    bot.create(&overflowed, "", CreateMode::Ephemeral);
    assert_eq!(stage.verdict(ACCOUNT, &bot.token(ACCOUNT)), "invalid_holder");
    stage.gateway.wait_for_line("a candidate's sequence number overflowed");
    let metrics = stage.gateway.metrics();
    assert_eq!(metrics.sum("fencegate_accounts", &[("state", "invalid")]), 1.0);
}

#[test]
fn a_handover_is_called_by_what_was_seen_of_it() {
    let stage = Stage::start();
    for (name, by, observe_vacancy) in [
        ("session_expired", "expire", false),
        ("session_expired", "expire", true),
        ("session_expired", "leave", true),
        ("resigned", "resign", false),
        ("resigned", "resign", true),
        ("active_deleted", "drop", false),
        ("active_deleted", "drop", true),
        ("node_deleted", "delete", true),
    ] {
        let account = format!("wxid_{by}_{observe_vacancy}");
        let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
        a.lead(&account);
        b.join(&account);
        assert_eq!(stage.verdict(&account, &a.token(&account)), "admitted");
        match by {
            "expire" => a.expire(),
            "leave" => a.leave(),
            "resign" => a.resign(&account),
            "drop" => a.drop_active(&account),
            _ => {
                a.delete_candidate(&account);
                a.drop_active(&account);
            }
        }
        if observe_vacancy {
            wait_until("it is vacant", || stage.gateway.account(&account).unwrap()["state"] == "vacant");
        }
        b.take(&account);
        assert_eq!(stage.verdict(&account, &b.token(&account)), "admitted");
        let line = stage.gateway.wait_for_line(&format!("leader changed account={account} "));
        let expected = format!(
            "leader changed account={account} oldSeq=0 oldInstance=host-a newSeq=1 newInstance=host-b reason={name}"
        );
        assert!(line.ends_with(&expected), "{line}\n{expected}");
        let handover = &stage.gateway.account(&account).unwrap()["last_handover"];
        assert_eq!((&handover["reason"], &handover["to"]["seq"]), (&json!(name), &json!(1)));
        let labels = [("account", account.as_str()), ("reason", name)];
        assert_eq!(stage.gateway.metrics().sum("fencegate_handovers_total", &labels), 1.0);
    }
    assert_eq!(stage.lines("holder observed"), 8, "the first holder seen is no handover");
}

#[test]
fn elections_below_a_chroot_and_the_sync_barrier_are_followed_all_the_same() {
    let ensemble = Ensemble::start(1);
    Instance::open(&ensemble.connect(), "admin").make_path("/fleet");
    let connect = format!("{}/fleet", ensemble.connect());
    let sender = Sender::new();
    let gateway = Setup::new(&connect, &sender.url())
        .section("election", "root = \"/bots/wx\"")
        .section("freshness", "barrier = \"sync\"")
        .start();
    let bots = ["a", "b"].map(|name| Instance::open(&connect, name).below("/bots/wx"));
    bots[0].lead(ACCOUNT);
    bots[1].join(ACCOUNT);
    for turn in 0..10 {
        let (holder, other) = (&bots[turn % 2], &bots[1 - turn % 2]);
        assert_eq!(gateway.send(ACCOUNT, &holder.token(ACCOUNT), b"x").status, 200);
        assert_eq!(gateway.send(ACCOUNT, &other.token(ACCOUNT), b"x").status, 409);
        holder.drop_active(ACCOUNT);
        other.take(ACCOUNT);
    }
    assert_eq!(get_json(gateway.admin(), "/v1/view")["proof"]["barrier"], "sync");
}

/// An account with a holder and a later one, and a copy of the data from between.
fn go_back(stage: &Stage, wipe: bool) {
    let server = stage.ensemble.server(0);
    let a = stage.instance("host-a");
    a.lead(ACCOUNT);
    assert_eq!(stage.verdict(ACCOUNT, &a.token(ACCOUNT)), "admitted");
    let backup = server.back_up();
    server.start();
    server.wait_until_serving();
    drop(a);
    let b = stage.instance("host-b");
    b.join(ACCOUNT);
    // Some history, so that the older copy cannot catch up unseen.
    for _ in 0..50 {
        wait_for("host-b takes it", || b.try_take(ACCOUNT).ok());
        b.drop_active(ACCOUNT);
    }
    b.take(ACCOUNT);
    wait_until("the later holder is admitted", || {
        stage.gateway.send(ACCOUNT, &b.token(ACCOUNT), b"x").status == 200
    });
    if wipe {
        server.wipe()
    } else {
        server.put_back(&backup)
    }
    server.start();
    server.wait_until_serving();
}

/// Somebody holds it in the history that is there now.
fn hold_anew(stage: &Stage) -> Instance {
    let c = stage.instance("host-c");
    c.join(ACCOUNT);
    wait_for("host-c takes it", || c.try_take(ACCOUNT).ok());
    c
}

#[test]
fn a_history_that_went_back_is_refused_whole_until_it_is_accepted() {
    for wipe in [false, true] {
        let stage =
            Stage::with(Ensemble::start(1), |setup| setup.section("freshness", "park_timeout = \"2s\""));
        let other = stage.instance("host-x");
        other.lead("wxid_other");
        assert_eq!(stage.verdict("wxid_other", &other.token("wxid_other")), "admitted");
        go_back(&stage, wipe);
        let c = hold_anew(&stage);
        let sent = stage.sender.count();
        wait_until("the reset is seen", || stage.verdict(ACCOUNT, &c.token(ACCOUNT)) == "history_reset");
        for account in [ACCOUNT, "wxid_other", "wxid_never"] {
            let refused = stage.gateway.send(account, &c.token(ACCOUNT), b"x");
            assert_eq!(refused.status, 503, "{account}");
            assert_eq!(refused.header("x-fencing-verdict"), Some("history_reset"), "{account}");
            assert!(refused.text().contains("accept-history"), "{}", refused.text());
        }
        assert_eq!(stage.sender.count(), sent);
        assert!(!stage.gateway.is_ready());
        assert_eq!(stage.lines("history reset:"), 1);
        let accept = || fencegate(&["accept-history", "--config", stage.gateway.config().to_str().unwrap()]);
        let accepted = accept();
        assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
        wait_until("the new history is admitted", || stage.verdict(ACCOUNT, &c.token(ACCOUNT)) == "admitted");
        stage.gateway.wait_until_ready();
        assert_eq!(accept().status.code(), Some(1), "there is nothing to accept any more");
        assert_eq!(stage.gateway.metrics().sum("fencegate_view_reloads_total", &[("cause", "history")]), 1.0);
    }
}

#[test]
fn a_history_that_went_back_is_accepted_at_once_where_the_configuration_says_so() {
    let stage =
        Stage::with(Ensemble::start(1), |setup| setup.section("election", "on_history_reset = \"accept\""));
    go_back(&stage, false);
    let c = hold_anew(&stage);
    wait_until("the new history is admitted", || stage.verdict(ACCOUNT, &c.token(ACCOUNT)) == "admitted");
    assert!(stage.lines("history accepted") >= 1);
}

fn posts(stage: &Stage, count: usize, account: &str, token: &Headers) -> Vec<JoinHandle<Response>> {
    let post = |_| {
        let (address, token) = (stage.gateway.proxy(), token.clone());
        let target = format!("/wx/{account}/send");
        std::thread::spawn(move || call(address, "POST", &target, &token, "x"))
    };
    (0..count).map(post).collect()
}

#[test]
fn places_to_wait_are_bounded_and_half_of_an_accounts_are_kept_for_its_holder_g7() {
    let ensemble = Ensemble::start(1);
    let relay = Relay::to(ensemble.server(0).port());
    let sender = Sender::new();
    let gateway = Setup::new(&relay.connect(), &sender.url())
        .section("freshness", "park_timeout = \"25s\"\nmax_parked = 10\nmax_parked_per_account = 4")
        .start();
    let stage = Stage { gateway, sender, ensemble };
    let bots = ["a", "b", "c"].map(|name| stage.instance(name));
    for (number, bot) in bots.iter().enumerate() {
        let account = format!("wxid_{number}");
        bot.lead(&account);
        assert_eq!(stage.verdict(&account, &bot.token(&account)), "admitted");
    }
    relay.silence();
    let parked = |count: f64| {
        wait_until(&format!("{count} are parked"), || {
            stage.gateway.metrics().sum("fencegate_parked", &[]) == count
        });
    };
    let overloaded = || stage.gateway.metrics().sum("fencegate_requests_total", &[("verdict", "overloaded")]);
    let zombie = bots[0].token("wxid_0").without("X-Fencing-Seq").with("X-Fencing-Seq", 7);
    let mut sends = posts(&stage, 6, "wxid_0", &zombie);
    wait_until("zombies have half of the places", || overloaded() == 4.0);
    parked(2.0);
    sends.extend(posts(&stage, 5, "wxid_0", &bots[0].token("wxid_0")));
    wait_until("the holder has the others", || overloaded() == 7.0);
    parked(4.0);
    sends.extend(posts(&stage, 4, "wxid_1", &bots[1].token("wxid_1")));
    parked(8.0);
    sends.extend(posts(&stage, 4, "wxid_2", &bots[2].token("wxid_2")));
    wait_until("the global bound holds", || overloaded() == 9.0);
    parked(10.0);
    relay.heal();
    let mut answers: Vec<_> = sends
        .into_iter()
        .map(|send| send.join().unwrap().header("x-fencing-verdict").unwrap().to_owned())
        .collect();
    answers.sort();
    let expected = [("admitted", 8), ("not_holder", 2), ("overloaded", 9)];
    let expected: Vec<_> =
        expected.iter().flat_map(|(code, count)| vec![(*code).to_owned(); *count]).collect();
    assert_eq!(answers, expected);
    parked(0.0);
    wait_until("and they can all wait again", || {
        stage.gateway.account("wxid_0").is_some_and(|account| account["parked"] == 0)
    });
}

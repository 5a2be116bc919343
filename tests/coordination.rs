//! ZooKeeper that is late, silent, frozen, killed, restarted or partitioned: no proof, no admission (G6), and everything
//! comes back by itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::{
    Connection, Ensemble, Gateway, Headers, Instance, Relay, Response, Sender, Setup, call, get_json, now,
    wait_for, wait_until,
};

const ACCOUNT: &str = "wxid_1";
const LONG: Duration = Duration::from_secs(30);

fn impatient(setup: Setup) -> Setup {
    setup.section("freshness", "park_timeout = \"500ms\"")
}

#[track_caller]
fn refusal(response: &Response) -> (u16, &str, &str) {
    let header = |name| response.header(name).unwrap_or_default();
    (response.status, header("x-fencing-verdict"), header("x-fencing-outcome"))
}

fn reasons(gateway: &Gateway) -> String {
    call(gateway.admin(), "GET", "/readyz", &Headers::none(), b"").text()
}

fn session(gateway: &Gateway) -> Option<String> {
    get_json(gateway.admin(), "/v1/view")["session"].as_str().map(str::to_owned)
}

#[track_caller]
fn wait_until_admitted(gateway: &Gateway, token: &Headers) {
    wait_until("the holder is admitted", || gateway.send(ACCOUNT, token, b"x").status == 200);
}

#[test]
fn a_gateway_that_starts_before_zookeeper_says_so_and_becomes_ready_by_itself() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    ensemble.server(0).stop();
    let gateway = impatient(Setup::new(&ensemble.connect(), &sender.url())).start_unready();
    wait_until("it says what is missing", || {
        Connection::try_open(gateway.admin()).is_ok() && reasons(&gateway).contains("cannot connect to")
    });
    let token = Headers::none().with("X-Fencing-Seq", 0).with("X-Fencing-Session", 7);
    let refused = gateway.send(ACCOUNT, &token, b"x");
    assert_eq!(refusal(&refused), (503, "view_unproven", "not_sent"));
    assert!(refused.header("retry-after").is_some());
    ensemble.server(0).start();
    gateway.wait_until_ready();
    assert_eq!(refusal(&gateway.send(ACCOUNT, &token, b"x")), (404, "unknown_account", "not_sent"));
    // Not even the root was there.
    let bot = Instance::open(&ensemble.connect(), "host-a");
    bot.lead(ACCOUNT);
    assert_eq!(gateway.send(ACCOUNT, &bot.token(ACCOUNT), b"x").status, 200);
    assert_eq!(sender.count(), 1);
}

#[test]
fn a_name_that_does_not_resolve_keeps_nobody_but_itself_away() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    let lost = impatient(Setup::new("no-such-host.invalid:2181", &sender.url())).start_unready();
    let mixed = format!("no-such-host.invalid:2181,{}", ensemble.connect());
    let gateway = Setup::new(&mixed, &sender.url()).start();
    let bot = Instance::open(&ensemble.connect(), "host-a");
    bot.lead(ACCOUNT);
    assert_eq!(gateway.send(ACCOUNT, &bot.token(ACCOUNT), b"x").status, 200);
    wait_until("the other says why", || reasons(&lost).contains("no-such-host.invalid"));
    let refused = lost.send(ACCOUNT, &bot.token(ACCOUNT), b"x");
    assert_eq!(refusal(&refused), (503, "view_unproven", "not_sent"));
    assert!(lost.is_running() && !lost.is_ready());
}

#[test]
fn a_server_that_freezes_or_dies_stops_admission_and_its_return_brings_it_back() {
    let ensemble = Ensemble::start(1);
    let (server, sender) = (ensemble.server(0), Sender::new());
    let gateway = impatient(Setup::new(&ensemble.connect(), &sender.url())).start();
    let bot = Instance::open_for(&ensemble.connect(), "host-a", LONG);
    bot.lead(ACCOUNT);
    let token = bot.token(ACCOUNT);
    for fail in [true, false] {
        wait_until_admitted(&gateway, &token);
        let sent = sender.count();
        if fail {
            server.freeze()
        } else {
            server.stop()
        }
        for _ in 0..3 {
            assert_eq!(refusal(&gateway.send(ACCOUNT, &token, b"x")), (503, "view_unproven", "not_sent"));
        }
        assert_eq!(sender.count(), sent, "without a proof nothing is admitted (I3)");
        if fail { server.thaw() } else { server.start() }
    }
    wait_until_admitted(&gateway, &token);
    wait_until("nothing waits", || gateway.metrics().sum("fencegate_parked", &[]) == 0.0);
}

#[test]
fn a_short_gap_is_parked_over_and_refuses_nobody() {
    let ensemble = Ensemble::start(1);
    let (server, sender) = (ensemble.server(0), Sender::new());
    let gateway =
        Setup::new(&ensemble.connect(), &sender.url()).section("freshness", "park_timeout = \"25s\"").start();
    let bot = Instance::open_for(&ensemble.connect(), "host-a", LONG);
    bot.lead(ACCOUNT);
    server.restart();
    let sends: Vec<_> = (0..8)
        .map(|_| {
            let (address, token) = (gateway.proxy(), bot.token(ACCOUNT));
            let target = format!("/wx/{ACCOUNT}/send");
            std::thread::spawn(move || call(address, "POST", &target, &token, "x"))
        })
        .collect();
    let answers: Vec<_> = sends.into_iter().map(|send| send.join().unwrap().status).collect();
    assert_eq!(answers, [200; 8]);
}

#[test]
fn without_a_quorum_nothing_is_admitted_and_with_one_everything_is_again() {
    let ensemble = Ensemble::start(3);
    let sender = Sender::new();
    let gateway = impatient(Setup::new(&ensemble.connect(), &sender.url())).start();
    let bot = Instance::open_for(&ensemble.connect(), "host-a", LONG);
    bot.lead(ACCOUNT);
    let token = bot.token(ACCOUNT);
    wait_until_admitted(&gateway, &token);
    let left = ensemble.leading().unwrap();
    let others: Vec<_> = (0..3).filter(|index| *index != left).collect();
    // The one that is left believes for a while that it still leads.
    others.iter().for_each(|index| ensemble.server(*index).freeze());
    let sent = sender.count();
    let frozen = now();
    while frozen.elapsed() < Duration::from_secs(6) {
        assert_eq!(refusal(&gateway.send(ACCOUNT, &token, b"x")), (503, "view_unproven", "not_sent"));
    }
    assert_eq!(sender.count(), sent);
    wait_until("it is not ready any more", || !gateway.is_ready());
    assert!(reasons(&gateway).contains("no proven view"), "{}", reasons(&gateway));
    others.iter().for_each(|index| ensemble.server(*index).thaw());
    gateway.wait_until_ready();
    wait_until_admitted(&gateway, &token);
}

#[test]
fn a_deposed_leader_that_wakes_up_proves_nothing() {
    let ensemble = Ensemble::start(3);
    let sender = Sender::new();
    let leads = ensemble.leading().unwrap();
    let others: Vec<_> = (0..3).filter(|index| *index != leads).map(|index| ensemble.server(index)).collect();
    let connect = others.iter().map(|server| server.connect()).collect::<Vec<_>>().join(",");
    // Patient enough that its link to the frozen server still stands when that wakes up.
    let gateway = Setup::new(&ensemble.server(leads).connect(), &sender.url())
        .section("freshness", "park_timeout = \"25s\"")
        .section(
            "zookeeper",
            &format!("connect = \"{}\"\nsession_timeout = \"40s\"", ensemble.server(leads).connect()),
        )
        .start();
    let (a, b) = (Instance::open_for(&connect, "a", LONG), Instance::open_for(&connect, "b", LONG));
    a.lead(ACCOUNT);
    b.join(ACCOUNT);
    assert_eq!(gateway.send(ACCOUNT, &a.token(ACCOUNT), b"x").status, 200);
    ensemble.server(leads).freeze();
    wait_until("another one leads", || {
        others.iter().any(|server| server.mode().as_deref() == Some("leader"))
    });
    let active = a.path(ACCOUNT, "active");
    persist(&a, || a.read(&active).is_none(), || a.drop_active(ACCOUNT));
    wait_for("b takes it", || b.try_take(ACCOUNT).ok());
    let post = |token: Headers| {
        let address = gateway.proxy();
        std::thread::spawn(move || call(address, "POST", &format!("/wx/{ACCOUNT}/send"), &token, "x"))
    };
    let (old, new) = (post(a.token(ACCOUNT)), post(b.token(ACCOUNT)));
    wait_until("both are parked", || gateway.metrics().sum("fencegate_parked", &[]) == 2.0);
    ensemble.server(leads).thaw();
    let woke = now();
    while woke.elapsed() < Duration::from_secs(3) {
        assert_ne!(gateway.send(ACCOUNT, &a.token(ACCOUNT), b"stale").status, 200);
    }
    assert_eq!(refusal(&old.join().unwrap()), (409, "stale_token", "not_sent"));
    assert_eq!(new.join().unwrap().status, 200);
    assert_eq!(sender.count(), 2);
}

/// What one send got, and when.
struct Sent {
    began: Instant,
    ended: Instant,
    seq: i64,
    verdict: String,
}

/// Does what fails while servers come and go, until it does not.
#[track_caller]
fn persist(bot: &Instance, done: impl Fn() -> bool, act: impl Fn()) {
    wait_for(&format!("{} gets through", bot.name()), || {
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&act));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&done)).unwrap_or(false);
        (acted.is_ok() || done).then_some(done)?.then_some(())
    });
}

#[test]
fn a_rolling_restart_refuses_nobody_early_and_admits_nobody_stale() {
    const PARK: Duration = Duration::from_secs(3);
    let ensemble = Ensemble::start(3);
    let sender = Sender::new();
    let gateway = Setup::new(&ensemble.connect(), &sender.url()).start();
    let bots = Arc::new([
        Instance::open_for(&ensemble.connect(), "host-a", LONG),
        Instance::open_for(&ensemble.connect(), "host-b", LONG),
    ]);
    bots[0].lead(ACCOUNT);
    bots[1].join(ACCOUNT);
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..8)
        .map(|number| {
            let (over, bots, address) = (Arc::clone(&over), Arc::clone(&bots), gateway.proxy());
            std::thread::spawn(move || {
                let (mut sent, bot) = (Vec::new(), &bots[number % 2]);
                while !over.load(SeqCst) {
                    let began = now();
                    let answer =
                        call(address, "POST", &format!("/wx/{ACCOUNT}/send"), &bot.token(ACCOUNT), "x");
                    let verdict = answer.header("x-fencing-verdict").unwrap_or_default().to_owned();
                    sent.push(Sent { began, ended: now(), seq: bot.seq(ACCOUNT), verdict });
                }
                sent
            })
        })
        .collect();
    // Who held, from when at the earliest, until when at the latest.
    let mut terms = vec![(bots[0].seq(ACCOUNT), now(), None)];
    for server in ensemble.servers() {
        server.restart();
        server.wait_until_serving();
        let (old, new) = (&bots[(terms.len() + 1) % 2], &bots[terms.len() % 2]);
        let active = old.path(ACCOUNT, "active");
        persist(old, || old.read(&active).is_none(), || old.drop_active(ACCOUNT));
        terms.last_mut().unwrap().2 = Some(now());
        terms.push((new.seq(ACCOUNT), now(), None));
        let mine = |bot: &Instance| {
            let found = bot.read(&active);
            found.is_some_and(|(_, stat)| stat.ephemeral_owner == bot.session_id())
        };
        persist(new, || mine(new), || drop(new.try_take(ACCOUNT)));
        let before = sender.count();
        wait_until("the load goes on", || sender.count() > before + 20);
    }
    over.store(true, SeqCst);
    let sent: Vec<_> = load.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert!(sent.len() > 200);
    for send in &sent {
        let took = send.ended.duration_since(send.began);
        let by_verdict =
            ["admitted", "stale_token", "not_holder", "no_holder"].contains(&send.verdict.as_str());
        let parked = send.verdict == "view_unproven" && took >= PARK;
        assert!(by_verdict || parked, "{} after {took:?}", send.verdict);
        // Whoever had lost the account before it asked is never admitted.
        let held = terms.iter().any(|(seq, from, until)| {
            *seq == send.seq && *from <= send.ended && until.is_none_or(|until| send.began <= until)
        });
        assert!(send.verdict != "admitted" || held, "seq {} is admitted after it was deposed", send.seq);
    }
}

#[test]
fn a_silent_line_stops_admission_at_once_and_hides_no_handover() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    for replies_only in [false, true] {
        let account = format!("wxid_{replies_only}");
        let relay = Relay::to(ensemble.server(0).port());
        let gateway = impatient(Setup::new(&relay.connect(), &sender.url())).start();
        let (a, b) = (Instance::open(&ensemble.connect(), "a"), Instance::open(&ensemble.connect(), "b"));
        a.lead(&account);
        assert_eq!(gateway.send(&account, &a.token(&account), b"x").status, 200);
        if replies_only {
            relay.silence_replies()
        } else {
            relay.silence()
        }
        a.expire();
        b.lead(&account);
        for token in [a.token(&account), b.token(&account)] {
            let begun = now();
            let refused = gateway.send(&account, &token, b"x");
            assert_eq!(refusal(&refused), (503, "view_unproven", "not_sent"));
            assert!(begun.elapsed() >= Duration::from_millis(500));
        }
        relay.heal();
        wait_until("the new holder is admitted", || {
            gateway.send(&account, &b.token(&account), b"x").status == 200
        });
        let refused = gateway.send(&account, &a.token(&account), b"x");
        assert_eq!(refusal(&refused), (409, "stale_token", "not_sent"));
        let line = gateway.wait_for_line("leader changed");
        assert!(line.ends_with("oldSeq=0 oldInstance=a newSeq=1 newInstance=b reason=unobserved"), "{line}");
    }
    assert_eq!(sender.count(), 4);
}

#[test]
fn an_older_proof_admits_for_as_long_as_it_may_and_refuses_nobody() {
    const STALENESS: Duration = Duration::from_secs(2);
    let ensemble = Ensemble::start(1);
    let (relay, sender) = (Relay::to(ensemble.server(0).port()), Sender::new());
    let gateway = Setup::new(&relay.connect(), &sender.url())
        .section("freshness", "max_staleness = \"2s\"\npark_timeout = \"500ms\"")
        .start();
    let (a, b) = (Instance::open(&ensemble.connect(), "a"), Instance::open(&ensemble.connect(), "b"));
    a.lead(ACCOUNT);
    b.join(ACCOUNT);
    // A new holder is never refused for being new, however old the proof at hand.
    for turn in 0..20 {
        let (old, new) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
        old.drop_active(ACCOUNT);
        new.take(ACCOUNT);
        assert_eq!(gateway.send(ACCOUNT, &new.token(ACCOUNT), b"x").status, 200);
    }
    let over = a.full_token(ACCOUNT);
    a.drop_active(ACCOUNT);
    a.take(ACCOUNT);
    gateway.wait_for_holder(ACCOUNT, a.seq(ACCOUNT));
    assert_eq!(gateway.send(ACCOUNT, &a.full_token(ACCOUNT), b"x").status, 200);
    relay.silence();
    let silent = now();
    // A term that is proven to be over is refused without a new proof; anything else would need one.
    assert_eq!(refusal(&gateway.send(ACCOUNT, &over, b"x")), (409, "epoch_mismatch", "not_sent"));
    assert_eq!(refusal(&gateway.send(ACCOUNT, &b.token(ACCOUNT), b"x")), (503, "view_unproven", "not_sent"));
    let mut last_admitted = None;
    while silent.elapsed() < STALENESS * 2 {
        let began = now();
        match refusal(&gateway.send(ACCOUNT, &a.token(ACCOUNT), b"x")) {
            (200, "admitted", "") => last_admitted = Some(began),
            other => assert_eq!(other, (503, "view_unproven", "not_sent")),
        }
    }
    let last = last_admitted.expect("some were admitted").duration_since(silent);
    assert!(last <= STALENESS, "admitted {last:?} after the last possible proof");
    relay.heal();
    wait_until_admitted(&gateway, &a.token(ACCOUNT));
}

#[test]
fn a_gateway_that_stood_still_until_its_session_expired_watches_again() {
    let ensemble = Ensemble::start(1);
    let (server, sender) = (ensemble.server(0), Sender::new());
    let gateway = Setup::new(&ensemble.connect(), &sender.url()).start();
    let (a, b) = (Instance::open(&ensemble.connect(), "a"), Instance::open(&ensemble.connect(), "b"));
    a.lead(ACCOUNT);
    wait_until_admitted(&gateway, &a.token(ACCOUNT));
    let before = session(&gateway).expect("a session");
    let listed = || server.four_letter("dump").unwrap_or_default().contains(&before);
    assert!(listed(), "{}", server.four_letter("dump").unwrap());
    gateway.freeze();
    // Asked while it stands still; judged when it wakes up.
    let mut asked = Connection::open(gateway.proxy());
    asked.request("POST", &format!("/wx/{ACCOUNT}/send"), &a.token(ACCOUNT), b"zombie").unwrap();
    wait_until("its session expires", || !listed());
    a.expire();
    b.lead(ACCOUNT);
    gateway.thaw();
    let refused = asked.read();
    let code = refused.header("x-fencing-verdict").unwrap();
    assert!(["stale_token", "view_unproven"].contains(&code), "{code}");
    wait_until_admitted(&gateway, &b.token(ACCOUNT));
    assert_eq!(refusal(&gateway.send(ACCOUNT, &a.token(ACCOUNT), b"x")), (409, "stale_token", "not_sent"));
    assert_ne!(session(&gateway), Some(before));
    assert!(gateway.metrics().sum("fencegate_view_reloads_total", &[("cause", "link_lost")]) >= 1.0);
    assert!(sender.requests().iter().all(|request| request.body != b"zombie"));
    // The new watch sees what comes.
    b.drop_active(ACCOUNT);
    wait_until("the vacancy is seen", || gateway.account(ACCOUNT).unwrap()["state"] == "vacant");
}

#[test]
fn every_way_to_lose_the_line_is_followed_by_a_new_session_and_watch() {
    let ensemble = Ensemble::start(1);
    let (relay, sender) = (Relay::to(ensemble.server(0).port()), Sender::new());
    let gateway = Setup::new(&relay.connect(), &sender.url()).start();
    let (a, b) = (Instance::open(&ensemble.connect(), "a"), Instance::open(&ensemble.connect(), "b"));
    let bots = [&a, &b];
    a.lead(ACCOUNT);
    b.join(ACCOUNT);
    wait_until_admitted(&gateway, &a.token(ACCOUNT));
    for turn in 0..6 {
        let (old, new) = (bots[turn % 2], bots[1 - turn % 2]);
        let before = session(&gateway);
        relay.cut_once();
        old.drop_active(ACCOUNT);
        new.take(ACCOUNT);
        assert_eq!(gateway.send(ACCOUNT, &new.token(ACCOUNT), b"x").status, 200, "parked over the gap");
        assert_eq!(gateway.send(ACCOUNT, &old.token(ACCOUNT), b"x").status, 409);
        assert_ne!(session(&gateway), before);
    }
    assert!(gateway.metrics().sum("fencegate_view_reloads_total", &[("cause", "link_lost")]) >= 6.0);
    // Old sessions are given up, not piled up.
    wait_until("one session of the gateway's is left beside the bots'", || {
        ensemble.server(0).monitor("zk_global_sessions").as_deref() == Some("3")
    });
}

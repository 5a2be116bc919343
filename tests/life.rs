//! The life of the process: its orderly end (G8), its sudden one, and how it refuses to begin.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use support::gateway::{BINARY, fencegate};
use support::{
    Answer, Connection, Ensemble, Folder, Gateway, Headers, Instance, Latch, PATIENCE, Relay, Response,
    Sender, Setup, call, free_port, loopback, stays, try_call, wait_until,
};

const ACCOUNT: &str = "wxid_1";
const TARGET: &str = "/wx/wxid_1/send";

struct Stage {
    gateway: Gateway,
    sender: Sender,
    slow: Latch,
    token: Headers,
    _bot: Instance,
    relay: Relay,
    _ensemble: Ensemble,
}

impl Stage {
    /// A holder, a gateway on a line of its own, and a sender that answers `slow` when the latch is released.
    fn with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let ensemble = Ensemble::start(1);
        let relay = Relay::to(ensemble.server(0).port());
        let slow = Latch::new();
        let held = slow.clone();
        let sender = Sender::start(move |request| match request.body.as_slice() {
            b"slow" => Answer::ok().held(&held),
            _ => Answer::ok(),
        });
        let gateway = change(Setup::new(&relay.connect(), &sender.url())).start();
        let bot = Instance::open(&ensemble.connect(), "host-a");
        bot.lead(ACCOUNT);
        let token = bot.token(ACCOUNT);
        Self { gateway, sender, slow, token, _bot: bot, relay, _ensemble: ensemble }
    }

    fn post(&self, body: &'static str) -> JoinHandle<Response> {
        let (address, token) = (self.gateway.proxy(), self.token.clone());
        std::thread::spawn(move || call(address, "POST", TARGET, &token, body))
    }

    fn open_and_ask(&self, body: &[u8]) -> Connection {
        let mut connection = Connection::open(self.gateway.proxy());
        connection.request("POST", TARGET, &self.token, body).expect("written");
        connection
    }
}

#[track_caller]
fn refusal(response: &Response) -> (u16, &str, &str) {
    let header = |name| response.header(name).unwrap_or_default();
    (response.status, header("x-fencing-verdict"), header("x-fencing-outcome"))
}

#[test]
fn sigterm_under_load_loses_no_request_g8() {
    let stage = Stage::with(|setup| setup.section("shutdown", "delay = \"1s\""));
    let answered = Arc::new(AtomicUsize::new(0));
    let kept: Vec<_> = (0..12)
        .map(|_| {
            let (address, token) = (stage.gateway.proxy(), stage.token.clone());
            let answered = Arc::clone(&answered);
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                loop {
                    connection.request("POST", TARGET, &token, b"x").map_err(|error| error.to_string())?;
                    let answer = connection.read_within(PATIENCE).map_err(|error| error.to_string())?;
                    answered.fetch_add(1, SeqCst);
                    if answer.status != 200 {
                        return Err(format!("{} {}", answer.status, answer.text()));
                    }
                    if answer.header("connection") == Some("close") {
                        return Ok(());
                    }
                }
            })
        })
        .collect();
    wait_until("the load is on", || answered.load(SeqCst) > 200);
    let ended = std::thread::scope(|scope| {
        stage.gateway.signal(Signal::TERM);
        // Not ready first; what comes meanwhile is still served.
        wait_until("it is not ready", || !stage.gateway.is_ready());
        let served = scope.spawn(|| call(stage.gateway.proxy(), "POST", TARGET, &stage.token, b"late"));
        assert_eq!(served.join().unwrap().status, 200);
        let before = answered.load(SeqCst);
        let ends: Vec<Result<(), String>> = kept.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ends, vec![Ok(()); 12]);
        assert!(answered.load(SeqCst) >= before);
        stage.gateway.wait(PATIENCE)
    });
    assert_eq!(ended, Some(0));
    let requests = stage.sender.wait_until_idle();
    assert!(requests.iter().all(|request| request.whole && !request.aborted));
    assert_eq!(requests.len(), answered.load(SeqCst) + 1, "each answer is of one send");
}

#[test]
fn a_connection_that_came_before_the_listener_closed_is_served() {
    let stage = Stage::with(|setup| setup);
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (address, token, over) = (stage.gateway.proxy(), stage.token.clone(), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut lost = Vec::new();
                while !over.load(SeqCst) {
                    match try_call(address, "POST", TARGET, &token, "x") {
                        Ok(answer) if answer.status == 200 => {}
                        Ok(answer) => lost.push(format!("{} {}", answer.status, answer.text())),
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
                        Err(error) => lost.push(error.to_string()),
                    }
                }
                lost
            })
        })
        .collect();
    wait_until("the load is on", || stage.sender.count() > 200);
    assert_eq!(stage.gateway.terminate(), Some(0));
    over.store(true, SeqCst);
    let lost: Vec<_> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
    // The system itself resets a connection that comes between the last accept and the end of the listener.
    assert!(lost.len() <= 2, "{lost:?}");
}

#[test]
fn what_waits_to_be_accepted_at_sigterm_is_served_however_much_it_is() {
    let stage = Stage::with(|setup| setup.section("limits", "max_in_flight_per_account = 2000"));
    stage.gateway.freeze();
    let mut asked: Vec<_> = (0..600).map(|_| stage.open_and_ask(b"x")).collect();
    stage.gateway.signal(Signal::TERM);
    stage.gateway.thaw();
    let answers: Vec<_> = asked
        .iter_mut()
        .map(|connection| {
            connection
                .read_within(PATIENCE)
                .map_or_else(|error| error.to_string(), |answer| answer.status.to_string())
        })
        .collect();
    let lost = answers.iter().filter(|answer| *answer != "200").collect::<Vec<_>>();
    assert!(lost.is_empty(), "{} of {}: {:?}", lost.len(), answers.len(), lost.first());
    assert_eq!(stage.gateway.wait(PATIENCE), Some(0));
}

#[test]
fn requests_that_are_parked_at_sigterm_are_judged_and_answered() {
    let stage = Stage::with(|setup| setup.section("freshness", "park_timeout = \"20s\""));
    assert_eq!(stage.post("x").join().unwrap().status, 200);
    stage.relay.silence();
    let parked: Vec<_> = (0..6).map(|_| stage.post("parked")).collect();
    wait_until("they are parked", || stage.gateway.metrics().sum("fencegate_parked", &[]) == 6.0);
    stage.gateway.signal(Signal::TERM);
    wait_until("it is not ready", || !stage.gateway.is_ready());
    stays("it waits for them", Duration::from_millis(500), || stage.gateway.is_running());
    stage.relay.heal();
    for answer in parked {
        let answer = answer.join().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    assert_eq!(stage.gateway.wait(PATIENCE), Some(0));
}

#[test]
fn what_outlasts_the_shutdowns_drain_is_cut_and_says_what_is_known_g5() {
    let stage = Stage::with(|setup| {
        setup
            .section("shutdown", "drain = \"1s\"")
            .section("freshness", "park_timeout = \"20s\"\nmax_staleness = \"0ms\"")
    });
    let mut slow: Vec<_> = (0..4).map(|_| stage.open_and_ask(b"slow")).collect();
    stage.sender.wait_for(4);
    stage.relay.silence();
    let mut parked = stage.open_and_ask(b"parked");
    wait_until("one is parked", || stage.gateway.metrics().sum("fencegate_parked", &[]) == 1.0);
    // One whose caller has left is cut as well.
    drop(slow.pop());
    assert_eq!(stage.gateway.terminate(), Some(0));
    for connection in &mut slow {
        assert_eq!(refusal(&connection.read()), (504, "shutdown_cut", "unknown"));
    }
    assert_eq!(refusal(&parked.read()), (503, "shutting_down", "not_sent"));
    let requests = stage.sender.wait_until_idle();
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|request| request.aborted), "the sender sees the end");
}

#[test]
fn a_send_whose_caller_left_is_waited_for_at_the_end() {
    let stage = Stage::with(|setup| setup);
    let caller = stage.open_and_ask(b"slow");
    stage.sender.wait_for(1);
    drop(caller);
    stage.gateway.signal(Signal::INT);
    wait_until("it is not ready", || !stage.gateway.is_ready());
    stays("it waits", Duration::from_millis(500), || stage.gateway.is_running());
    stage.slow.release();
    assert_eq!(stage.gateway.wait(PATIENCE), Some(0));
    let requests = stage.sender.wait_until_idle();
    assert!(!requests[0].aborted);
}

#[test]
fn it_ends_at_once_where_there_is_no_zookeeper() {
    let nowhere = loopback(free_port()).to_string();
    let gateway = Setup::new(&nowhere, "http://127.0.0.1:1").start_unready();
    wait_until("it runs", || {
        try_call(gateway.admin(), "GET", "/healthz", &Headers::none(), b"")
            .is_ok_and(|answer| answer.status == 200)
    });
    let begun = support::now();
    assert_eq!(gateway.terminate(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn after_a_kill_with_sends_in_flight_a_restart_needs_nothing_and_no_send_starts_twice_g3_i6() {
    let stage = Stage::with(|setup| setup);
    stage.sender.behave(|request| Answer::ok().after(Duration::from_millis(request.number as u64 % 20)));
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (address, token, over) = (stage.gateway.proxy(), stage.token.clone(), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut sent = Vec::new();
                while !over.load(SeqCst) {
                    let body = format!("{caller}-{}", sent.len());
                    let answered = try_call(address, "POST", TARGET, &token, &body);
                    sent.push((body, answered.is_ok_and(|answer| answer.status == 200)));
                }
                sent
            })
        })
        .collect();
    for round in 1..=3 {
        let before = stage.sender.count();
        wait_until("the load is on", || stage.sender.count() > before + 100);
        stage.gateway.kill();
        stage.gateway.restart();
        wait_until(&format!("it is back for the time number {round}"), || stage.gateway.is_ready());
    }
    let before = stage.sender.count();
    wait_until("the load goes on", || stage.sender.count() > before + 100);
    over.store(true, SeqCst);
    let sent: Vec<_> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
    let mut starts: HashMap<String, usize> = HashMap::new();
    for request in stage.sender.wait_until_idle().iter().filter(|request| request.whole) {
        *starts.entry(request.text()).or_default() += 1;
    }
    for (body, answered) in sent {
        let starts = starts.get(&body).copied().unwrap_or_default();
        assert!(starts <= 1, "{body} started {starts} times");
        assert!(!answered || starts == 1, "{body} was answered and never started");
    }
}

#[test]
fn a_second_gateway_on_the_same_ports_does_not_start() {
    let nowhere = loopback(free_port()).to_string();
    let gateway = Setup::new(&nowhere, "http://127.0.0.1:1").start_unready();
    let healthy = || {
        try_call(gateway.admin(), "GET", "/healthz", &Headers::none(), b"")
            .is_ok_and(|answer| answer.status == 200)
    };
    wait_until("it runs", healthy);
    for (key, other) in [("admin", "PROXY"), ("proxy", "ADMIN")] {
        let mut second = Command::new(BINARY);
        second.arg("serve").arg("--config").arg(gateway.config());
        second.env(format!("FENCEGATE__LISTEN__{other}"), loopback(free_port()).to_string());
        let output = second.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("address") && text.contains("in use") && text.contains(key), "{text}");
    }
    assert!(healthy() && gateway.is_running());
}

#[test]
fn wrong_usage_and_wrong_configuration_exit_with_2_and_say_where() {
    let folder = Folder::new("config");
    let good = folder.write("good.toml", Setup::new("127.0.0.1:2181", "http://127.0.0.1:1").text());
    let bad = folder.write("bad.toml", "[listen]\nprxy = \"127.0.0.1:1\"\n");
    let half = folder.write("half.toml", "[listen\n");
    let missing = folder.join("missing.toml");
    let run = |command: &str, file: &std::path::Path| {
        let output = fencegate(&[command, "--config", file.to_str().unwrap()]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(run("check", &good).0, Some(0));
    for command in ["check", "serve", "accept-history"] {
        for (file, says) in [(&bad, "bad.toml:2:1"), (&half, "half.toml:1:"), (&missing, "missing.toml")] {
            let (code, text) = run(command, file);
            assert_eq!(code, Some(2), "{command}: {text}");
            assert!(text.contains(says), "{command}: {text}");
        }
    }
    assert_eq!(fencegate(&["no-such-command"]).status.code(), Some(2));
    assert_eq!(fencegate(&["serve", "--no-such-option"]).status.code(), Some(2));
    let (code, text) = run("accept-history", &good);
    assert_eq!(code, Some(1), "no gateway runs there: {text}");
}

//! `fencegate status` and `fencegate healthcheck` against a running gateway.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::process::Output;

use support::gateway::fencegate;
use support::{Ensemble, Gateway, Instance, Sender, Setup, free_port, loopback};

fn run(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&fencegate(&[arguments, &["--config", gateway.config().to_str().unwrap()]].concat()))
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_status_is_a_table_of_all_accounts() {
    let (ensemble, sender) = (Ensemble::start(1), Sender::new());
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    let (old, new) =
        (Instance::open(&ensemble.connect(), "host a"), Instance::open(&ensemble.connect(), "host-b"));
    old.lead("wxid_1");
    new.join("wxid_1");
    gateway.wait_for_holder("wxid_1", 0);
    old.expire();
    new.take("wxid_1");
    gateway.wait_for_holder("wxid_1", 1);
    gateway.send("wxid_1", &old.token("wxid_1"), "{}");
    new.lead("a@b+c");
    gateway.wait_for_holder("a@b+c", 0);

    let (code, out, err) = run(&gateway, &["status"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(out.starts_with("zookeeper connected; last proof "), "{out}");
    assert!(out.contains("; accounts: 2\n"), "{out}");
    assert_eq!(lines[3][..9], ["a@b+c", "held", "host-b", "0", "1", "0", "0", "0", "0"]);
    assert_eq!(lines[4][..9], ["wxid_1", "held", "host-b", "1", "1", "0", "0", "1", "1"]);
    assert_eq!(lines[4][9], "session_expired,");

    let (code, out, _) = run(&gateway, &["status", "--prefix", "a@b+", "--state", "held"]);
    assert!(code == Some(0) && out.contains("accounts: 1 of 2") && !out.contains("wxid_1"), "{out}");
    let (code, out, _) = run(&gateway, &["status", "--state", "vacant"]);
    assert!(code == Some(0) && out.contains("accounts: 0 of 2"), "{out}");
    let (code, _, err) = run(&gateway, &["status", "--state", "nothing"]);
    assert!(code == Some(1) && err.contains("state must be"), "{err}");

    let url = format!("http://{}/", gateway.admin());
    let (code, by_url, _) = told(&fencegate(&["status", "--url", &url]));
    assert!(code == Some(0) && by_url.contains("a@b+c"), "{by_url}");
}

#[test]
fn the_status_of_more_accounts_than_a_page_has_is_whole() {
    let (ensemble, sender) = (Ensemble::start(1), Sender::new());
    let bot = Instance::open(&ensemble.connect(), "host-a");
    for number in 0..1100 {
        bot.make_path(&bot.path(&format!("wxid_{number:04}"), "members"));
    }
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    let (code, out, _) = run(&gateway, &["status"]);
    assert!(code == Some(0) && out.contains("accounts: 1100\n"), "{out}");
    assert_eq!(out.lines().filter(|line| line.starts_with("wxid_")).count(), 1100);
}

#[test]
fn a_healthcheck_tells_whether_the_gateway_runs_and_whether_it_is_ready() {
    let (nobody, sender) = (loopback(free_port()).to_string(), Sender::new());
    let gateway = Setup::new(&nobody, &sender.url()).start_unready();
    gateway.wait_for_line("operators on");
    assert_eq!(run(&gateway, &["healthcheck"]), (Some(0), "healthy\n".to_owned(), String::new()));
    let (code, out, err) = run(&gateway, &["healthcheck", "--ready"]);
    assert!(code == Some(1) && out.is_empty() && err.contains("connect"), "{err}");
    gateway.kill();
    let (code, out, err) = run(&gateway, &["healthcheck"]);
    assert!(code == Some(1) && out.is_empty() && err.contains("no gateway answers on 127.0.0.1:"), "{err}");

    let (ensemble, sender) = (Ensemble::start(1), Sender::new());
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    let ready = (Some(0), "ready\n".to_owned(), String::new());
    assert_eq!(run(&gateway, &["healthcheck", "--ready"]), ready);
}

#[test]
fn what_cannot_be_asked_is_wrong_usage() {
    for arguments in [
        &["status", "--url", "https://127.0.0.1:1"][..],
        &["healthcheck", "--url", "127.0.0.1:1"],
        &["healthcheck", "--url", "http://127.0.0.1/path"],
        &["status", "--config", "/nowhere/gateway.toml"],
        &["status", "--nothing"],
    ] {
        let (code, out, err) = told(&fencegate(arguments));
        assert!(code == Some(2) && out.is_empty() && !err.is_empty(), "{arguments:?}: {code:?} {err}");
    }
}

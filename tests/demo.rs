//! The first commands somebody tries: the demo, and a gateway without a file. What they print works.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use support::gateway::{BINARY, fencegate};
use support::place::{Folder, free_port, loopback};
use support::process::Process;
use support::sender::Sender;
use support::wait::{PATIENCE, wait_for};

fn shell(lines: &str) -> Output {
    Command::new("sh").args(["-c", lines]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the process has written, once it contains `part`.
fn written(log: &Path, part: &str) -> String {
    wait_for(part, || std::fs::read_to_string(log).ok().filter(|text| text.contains(part)))
}

#[test]
fn the_demo_says_the_score_and_succeeds_only_if_it_is_right() {
    let played = fencegate(&["demo", "--once"]);
    let said = text(&played.stdout);
    assert_eq!(played.status.code(), Some(0), "{said}{}", text(&played.stderr));
    assert!(said.contains("double sends without the gateway: 3"), "{said}");
    assert!(said.contains("double sends with the gateway:    0"), "{said}");
    assert!(said.contains("409 stale_token"), "the refusal is shown: {said}");
    assert!(!said.contains('\u{1b}'), "plain, since nobody sees colours");
}

#[test]
fn the_demo_stays_up_with_traffic_its_lines_work_and_ctrl_c_ends_it() {
    let folder = Folder::new("demo");
    let log = folder.join("log");
    let mut command = Command::new(BINARY);
    command.arg("demo");
    let process = Process::spawn("the demo", command, &log);
    let said = written(&log, "until Ctrl-C");
    let lines: Vec<_> = said.lines().filter(|line| line.trim_start().starts_with("curl ")).collect();
    let [accounts, zombie] = lines.as_slice() else { panic!("two lines: {said}") };
    wait_for("accounts with holders", || {
        let shown = text(&shell(accounts).stdout);
        (shown.contains("wxid_anna") && shown.contains("wxid_cleo")).then_some(())
    });
    let refused = text(&shell(zombie).stdout);
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("stale_token"), "{refused}");
    process.signal(Signal::INT);
    assert_eq!(process.wait(PATIENCE).code(), Some(0), "{}", process.log_tail());
}

#[test]
fn without_a_file_the_lines_that_serve_prints_send_a_message() {
    let (folder, sender) = (Folder::new("quick"), Sender::new());
    let log = folder.join("log");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--upstream", &sender.url()]).current_dir(folder.path());
    for listener in ["PROXY", "ADMIN", "ELECTIONS"] {
        command.env(format!("FENCEGATE__LISTEN__{listener}"), loopback(free_port()).to_string());
    }
    let process = Process::spawn("the gateway", command, &log);
    let said = written(&log, "serving bots on");
    let begin = said.find("field()").unwrap();
    let lines: Vec<_> = said[begin..].lines().take(4).collect();
    let answer = wait_for("an answer of the sender", || {
        let answer = text(&shell(&lines.join("\n")).stdout);
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    });
    assert_eq!(sender.count(), 1, "{answer}");

    let begin = said.find("cat >agent.toml").unwrap();
    let (file, rest) = said[begin..].split_once("\nEND\n").unwrap();
    let made = shell(&format!("cd {}\n{file}\nEND", folder.path().display()));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let bots = loopback(free_port()).to_string();
    let mut command = Command::new(BINARY);
    command.args(["agent", "--config", "agent.toml"]).current_dir(folder.path());
    command.env("FENCEGATE__AGENT__LISTEN", &bots);
    command.env("FENCEGATE__AGENT__ADMIN", loopback(free_port()).to_string());
    let agent = Process::spawn("the agent", command, &folder.join("agent.log"));
    let curl = &rest[rest.find("curl ").unwrap()..].lines().next().unwrap().replace("127.0.0.1:7070", &bots);
    let answer = wait_for("an answer of the sender", || {
        let answer = text(&shell(curl).stdout);
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    });
    assert_eq!(sender.count(), 2, "{answer}");
    drop(agent);
    process.signal(Signal::TERM);
    assert_eq!(process.wait(PATIENCE).code(), Some(0), "{}", process.log_tail());

    std::fs::write(folder.join("gateway.toml"), "").unwrap();
    let mut again = Command::new(BINARY);
    let ended =
        again.args(["serve", "--upstream", &sender.url()]).current_dir(folder.path()).output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(text(&ended.stderr).contains("there is a gateway.toml"), "{}", text(&ended.stderr));
}

#[test]
fn a_start_without_a_file_and_without_a_sender_says_how_to_start() {
    let folder = Folder::new("nothing");
    let ended =
        Command::new(BINARY).arg("serve").current_dir(folder.path()).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("--upstream") && said.contains("fencegate init"), "{said}");
}

#[test]
fn a_reader_that_reads_no_further_does_not_hurt_the_demo() {
    let mut demo = Command::new(BINARY)
        .args(["demo", "--once"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(demo.stdout.take());
    assert_eq!(demo.wait().expect("it ends").code(), Some(0));
}

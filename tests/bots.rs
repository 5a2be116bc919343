//! Every snippet of docs/bots.md, run as it stands there: it elects itself and sends once through a real gateway.
//!
//! Python and the agent always run. A language that is not on the machine is not run, and said so; where `FENCEGATE_ALL_BOTS`
//! is set, that fails.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{AgentSetup, Answer, Ensemble, Folder, Gateway, PATIENCE, Process, Sender, wait_until};

const TEXT: &str = include_str!("../docs/bots.md");

/// The one block of a language.
fn snippet(language: &str) -> String {
    let begin = format!("\n```{language}\n");
    let mut parts = TEXT.split(&begin);
    let (_, block) = (parts.next(), parts.next().unwrap_or_else(|| panic!("no snippet in {language}")));
    assert!(parts.next().is_none(), "one snippet in {language}");
    block.split_once("```").unwrap().0.to_owned()
}

struct Stage {
    ensemble: Ensemble,
    sender: Sender,
    gateway: Gateway,
    folder: Folder,
}

impl Stage {
    fn start() -> Self {
        let ensemble = Ensemble::start(1);
        let sender = Sender::start(|_| Answer::ok().body("sent"));
        let gateway = Gateway::start(&ensemble.connect(), &sender.url());
        Self { ensemble, sender, gateway, folder: Folder::new("bots") }
    }

    /// Runs a bot to its end; exactly its message has arrived, with its own account and instance.
    fn sends(&self, language: &str, mut command: Command) {
        let account = format!("wxid_{language}");
        let before = self.sender.count();
        command
            .env("ZOOKEEPER", self.ensemble.connect())
            .env("GATEWAY", self.gateway.proxy().to_string())
            .env("ACCOUNT", &account)
            .env("INSTANCE", format!("bot-{language}"));
        let log = self.folder.join(&format!("{language}.log"));
        let process = Process::spawn(language, command, &log);
        let status = process.wait(PATIENCE * 2);
        assert!(status.success(), "{language}: {status}\n{}", process.log_tail());
        let seen = self.sender.requests().split_off(before);
        assert_eq!(seen.len(), 1, "{language}\n{}", process.log_tail());
        assert_eq!(
            (seen[0].header("x-fencing-account"), seen[0].body.as_slice()),
            (Some(account.as_str()), &b"hello"[..])
        );
        assert_eq!(seen[0].header("x-fencing-instance"), Some(format!("bot-{language}").as_str()));
    }

    fn write(&self, name: &str, language: &str) -> PathBuf {
        self.folder.write(name, snippet(language))
    }
}

/// Whether a program runs and ends well.
fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

fn not_run(language: &str, why: &str) {
    assert!(std::env::var_os("FENCEGATE_ALL_BOTS").is_none(), "{language} cannot be run: {why}");
    // The harness hides what a passing test prints; this is to be seen.
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "NOT RUN: docs/bots.md, {language}: {why}");
}

#[test]
fn the_python_bot_sends() {
    let kazoo = works("python3", &["-c", "import kazoo"]);
    assert!(kazoo, "no Python with kazoo: install it (apt-get install python3-kazoo, or pip install kazoo)");
    let stage = Stage::start();
    let mut command = Command::new("python3");
    command.arg("-B").arg(stage.write("bot.py", "python"));
    stage.sends("python", command);
}

#[test]
fn the_bot_behind_the_agent_sends() {
    assert!(works("curl", &["--version"]), "no curl: install it (apt-get install curl)");
    let stage = Stage::start();
    let setup = AgentSetup::new(&stage.ensemble.connect(), stage.gateway.proxy(), "bot-sh", "[\"wxid_sh\"]");
    let agent = setup.start();
    agent.wait_for_role("wxid_sh", "LEADER");
    let mut command = Command::new("sh");
    command.arg("-ec").arg(snippet("sh")).env("AGENT", agent.bots().to_string());
    stage.sends("sh", command);
}

#[test]
fn the_rust_bot_sends_and_is_the_example() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bot.rs");
    assert_eq!(
        snippet("rust"),
        std::fs::read_to_string(example).unwrap(),
        "docs/bots.md shows examples/bot.rs"
    );
    assert!(works("curl", &["--version"]), "no curl: install it (apt-get install curl)");
    // Cargo builds the examples with the tests, beside the binary.
    let built = Path::new(support::gateway::BINARY).with_file_name("examples").join("bot");
    if !built.exists() {
        // One test alone: Cargo leaves the examples out then.
        assert!(
            works(env!("CARGO"), &["build", "--example", "bot", "--locked"]),
            "cargo build --example bot"
        );
    }
    Stage::start().sends("rust", Command::new(built));
}

#[test]
fn the_node_bot_sends() {
    let Some(version) = Command::new("node").arg("--version").output().ok() else {
        return not_run("Node", "no `node` on this machine");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let major: u32 = version.trim_start_matches('v').split('.').next().unwrap_or("").parse().unwrap_or(0);
    if major < 18 {
        return not_run("Node", "it has no fetch before Node 18");
    }
    let stage = Stage::start();
    let file = stage.write("bot.js", "javascript");
    let npm = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--silent", "node-zookeeper-client@1"])
        .current_dir(stage.folder.path())
        .output();
    if !npm.is_ok_and(|output| output.status.success()) {
        return not_run("Node", "npm cannot install node-zookeeper-client");
    }
    let mut command = Command::new("node");
    command.arg(file);
    stage.sends("javascript", command);
}

#[test]
fn the_java_bot_sends() {
    let jars = std::env::var("CURATOR_CLASSPATH").unwrap_or_else(|_| "/usr/share/java/*".to_owned());
    if !works("javac", &["-version"]) {
        return not_run("Java", "no `javac` on this machine");
    }
    let stage = Stage::start();
    let file = stage.write("Bot.java", "java");
    let mut compile = Command::new("javac");
    compile.args(["-cp", &jars, "-d"]).arg(stage.folder.path()).arg(&file);
    let compiled = compile.output().unwrap();
    if !compiled.status.success() {
        let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(text.contains("package org.apache.curator"), "{text}");
        return not_run("Java", "no Curator in CURATOR_CLASSPATH (Debian: libcurator-framework-java)");
    }
    let mut command = Command::new("java");
    command.arg("-cp").arg(format!("{}:{jars}", stage.folder.path().display())).arg("Bot");
    stage.sends("java", command);
}

#[test]
fn the_go_bot_sends() {
    if !works("go", &["version"]) {
        return not_run("Go", "no `go` on this machine");
    }
    let stage = Stage::start();
    stage.write("bot.go", "go");
    let go = |folder: &Path, arguments: &[&str]| {
        Command::new("go").args(arguments).current_dir(folder).output().unwrap().status.success()
    };
    let bot = stage.folder.path();
    assert!(go(bot, &["mod", "init", "bot"]));
    if !go(bot, &["get", "github.com/go-zookeeper/zk@v1.0.4"]) {
        // Debian's package is an older state of the same client, under its former name.
        let client = stage.folder.join("zk");
        let debian = "/usr/share/gocode/src/github.com/samuel/go-zookeeper/zk";
        if !works("cp", &["-rL", debian, client.to_str().unwrap()]) {
            return not_run(
                "Go",
                "its client cannot be fetched (Debian: golang-github-samuel-go-zookeeper-dev)",
            );
        }
        let replaced = "-replace=github.com/go-zookeeper/zk=./zk";
        assert!(go(&client, &["mod", "init", "github.com/go-zookeeper/zk"]));
        assert!(go(bot, &["mod", "edit", replaced, "-require=github.com/go-zookeeper/zk@v1.0.4"]));
    }
    let mut command = Command::new("go");
    command.args(["run", "."]).current_dir(stage.folder.path());
    stage.sends("go", command);
}

#[test]
fn two_bots_of_one_account_send_one_after_the_other() {
    let stage = Stage::start();
    let file = stage.write("bot.py", "python");
    let spawn = |name: &str| {
        let mut command = Command::new("python3");
        command.arg("-B").arg(&file).env("ZOOKEEPER", stage.ensemble.connect());
        command
            .env("GATEWAY", stage.gateway.proxy().to_string())
            .env("ACCOUNT", "wxid_1")
            .env("INSTANCE", name);
        Process::spawn(name, command, &stage.folder.join(&format!("{name}.log")))
    };
    let bots = ["one", "two"].map(spawn);
    for bot in &bots {
        assert!(bot.wait(PATIENCE).success(), "{}", bot.log_tail());
    }
    wait_until("both have sent", || stage.sender.count() == 2);
    let epochs: Vec<i64> = stage
        .sender
        .requests()
        .iter()
        .map(|seen| seen.header("x-fencing-epoch").unwrap().parse().unwrap())
        .collect();
    assert!(epochs.is_sorted() && epochs[0] < epochs[1]);
}

//! One election with our agent and with instances that are not ours, through kills, freezes and session ends.
//!
//! Needs Python with kazoo (Debian: package `python3-kazoo`). In ZooKeeper there is one holder at a time, a candidate that
//! stands; at the sender no message of an older holder comes after a newer one's first.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod support;

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{
    Agent, AgentSetup, Answer, Ensemble, Folder, Gateway, Headers, Instance, Process, Sender, Setup,
    try_call, wait_for, wait_until,
};

const ACCOUNT: &str = "wxid_1";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/plain_instance.py");
const TIMEOUT: Duration = Duration::from_secs(2);

/// An instance of somebody else.
struct Plain {
    name: String,
    connect: String,
    gateway: String,
    process: Mutex<Process>,
    folder: Folder,
}

impl Plain {
    fn start(connect: &str, name: &str, gateway: &str) -> Self {
        let folder = Folder::new("plain");
        let process = Mutex::new(spawn(connect, name, gateway, &folder));
        Self {
            name: name.to_owned(),
            connect: connect.to_owned(),
            gateway: gateway.to_owned(),
            process,
            folder,
        }
    }

    fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill();
        *process = spawn(&self.connect, &self.name, &self.gateway, &self.folder);
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

fn spawn(connect: &str, name: &str, gateway: &str, folder: &Folder) -> Process {
    let found = Command::new("python3").args(["-c", "import kazoo"]).output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "no Python with kazoo: install it (apt-get install python3-kazoo, or pip install kazoo)"
    );
    let mut command = Command::new("python3");
    let timeout = TIMEOUT.as_secs().to_string();
    command.args(["-B", SCRIPT, connect, ACCOUNT, name, gateway, &timeout]);
    Process::spawn(name, command, &folder.join("log"))
}

/// Who holds the account: its instance, and its epoch. Panics if its candidate does not stand.
fn holder(observer: &Instance) -> Option<(String, i64)> {
    let (active, members) = (observer.path(ACCOUNT, "active"), observer.path(ACCOUNT, "members"));
    let (data, stat) = observer.read(&active)?;
    let data: Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(data["sessionId"].as_i64(), Some(stat.ephemeral_owner), "{data}");
    let candidate = format!("{members}/m-{:010}", data["seq"].as_u64().unwrap());
    let stands = observer.read(&candidate);
    // Both went in one transaction, between the two reads.
    let again = observer.read(&active);
    if again.is_some_and(|(_, again)| again.czxid == stat.czxid) {
        assert_eq!(stands.unwrap().1.ephemeral_owner, stat.ephemeral_owner, "{data}");
    }
    Some((data["instanceId"].as_str().unwrap().to_owned(), stat.czxid))
}

fn next_holder(observer: &Instance, than: i64) -> (String, i64) {
    wait_for("a new holder", || holder(observer).filter(|(_, epoch)| *epoch > than))
}

struct Election {
    observer: Instance,
    sender: Sender,
    gateway: Gateway,
    agent: Agent,
    plain: Vec<Plain>,
    ensemble: Ensemble,
}

impl Election {
    fn start() -> Self {
        let ensemble = Ensemble::plan(1).tick_ms(200).start();
        let sender = Sender::start(|_| Answer::ok());
        let setup = Setup::new(&ensemble.connect(), &sender.url());
        let gateway = setup.section("handover", "drain_timeout = \"2s\"").start();
        let agent =
            AgentSetup::new(&ensemble.connect(), gateway.proxy(), "ours", &format!("[\"{ACCOUNT}\"]"))
                .section(
                    "[zookeeper]",
                    &format!("connect = \"{}\"\nsession_timeout = \"2s\"", ensemble.connect()),
                )
                .start();
        let address = gateway.proxy().to_string();
        let plain = ["plain-1", "plain-2"].map(|name| Plain::start(&ensemble.connect(), name, &address));
        let observer = Instance::open(&ensemble.connect(), "observer");
        Self { observer, sender, gateway, agent, plain: plain.into(), ensemble }
    }

    fn signal(&self, name: &str, signal: Signal) {
        match self.plain.iter().find(|plain| plain.name == name) {
            Some(plain) => plain.process.lock().unwrap().signal(signal),
            None => self.agent.signal(signal),
        }
    }

    fn restart(&self, name: &str) {
        match self.plain.iter().find(|plain| plain.name == name) {
            Some(plain) => plain.restart(),
            None => self.agent.restart(),
        }
    }

    fn logs(&self) -> String {
        let plain: String =
            self.plain.iter().map(|plain| format!("--- {}\n{}", plain.name, plain.log())).collect();
        format!("{plain}--- gateway\n{}", self.gateway.log())
    }
}

/// What is done to whoever holds.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Kill,
    Freeze,
    Stop,
}

#[test]
fn our_agent_and_instances_of_others_hold_one_election_through_kills_freezes_and_ends() {
    let election = Election::start();
    let done = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    let mut held: Vec<String> = Vec::new();
    std::thread::scope(|scope| {
        // A bot that sends through our agent, whatever it answers.
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let path = format!("/wx/{ACCOUNT}/send");
                let answer = try_call(election.agent.bots(), "POST", &path, &Headers::none(), b"ours");
                if answer.is_ok_and(|answer| answer.status == 200) {
                    sent.fetch_add(1, SeqCst);
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (mut name, mut epoch) = next_holder(&election.observer, 0);
            for blow in [Blow::Kill, Blow::Freeze, Blow::Stop].into_iter().cycle().take(9) {
                held.push(name.clone());
                let before = election.sender.count();
                wait_until(&format!("{name} sends"), || election.sender.count() > before + 3);
                let signal = match blow {
                    Blow::Kill => Signal::KILL,
                    Blow::Freeze => Signal::STOP,
                    Blow::Stop => Signal::TERM,
                };
                election.signal(&name, signal);
                let next = next_holder(&election.observer, epoch);
                assert!(next.1 > epoch);
                match blow {
                    // It wakes while another one holds, and believes that it still does.
                    Blow::Freeze => election.signal(&name, Signal::CONT),
                    Blow::Kill | Blow::Stop => election.restart(&name),
                }
                (name, epoch) = next;
            }
            let members = election.observer.path(ACCOUNT, "members");
            wait_until("one candidate for each instance", || {
                let members = members.clone();
                let children =
                    election.observer.ask(move |client| async move { client.list_children(&members).await });
                children.unwrap().len() == 3
            });
        }));
        done.store(true, SeqCst);
        if let Err(panic) = ended {
            eprintln!("{}", election.logs());
            std::panic::resume_unwind(panic);
        }
    });
    assert!(held.iter().any(|name| name == "ours") && held.iter().any(|name| name != "ours"), "{held:?}");
    assert!(sent.load(SeqCst) > 0, "our agent has sent as well: {held:?}");
    // At the sender: epochs never go back, over all that arrived.
    let mut newest = 0;
    let mut terms = 0;
    for request in election.sender.requests() {
        let epoch: i64 = request.header("x-fencing-epoch").unwrap().parse().unwrap();
        assert!(epoch >= newest, "a message of epoch {epoch} after one of {newest}\n{}", election.logs());
        terms += usize::from(epoch > newest);
        newest = epoch;
    }
    assert!(terms >= 9, "{terms} terms");
    election.agent.wait_until_answering();
    assert_eq!(election.agent.terminate(), Some(0));
    drop(election.ensemble);
}

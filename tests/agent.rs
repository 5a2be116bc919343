//! The agent, as bots and operators see it: beside a gateway, a sender that records, and a real ZooKeeper, or the gateway's own
//! elections.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use support::elections::make_account;
use support::gateway::fencegate;
use support::{
    Agent, AgentSetup, Answer, Connection, Ensemble, Folder, Gateway, Headers, Latch, PATIENCE, Sender,
    Setup, call, free_port, loopback, stays, wait_until,
};

/// Who holds the elections.
enum Held {
    ByZooKeeper(Ensemble),
    ByTheGateway(SocketAddr),
}

struct Stage {
    gateway: Gateway,
    sender: Sender,
    held: Held,
}

impl Stage {
    fn in_zookeeper() -> Self {
        let ensemble = Ensemble::start(1);
        let sender = Sender::start(|_| Answer::ok().body("sent"));
        let gateway = Gateway::start(&ensemble.connect(), &sender.url());
        Self { gateway, sender, held: Held::ByZooKeeper(ensemble) }
    }

    fn in_gateway() -> Self {
        let elections = free_port();
        let sender = Sender::start(|_| Answer::ok().body("sent"));
        let gateway = Setup::embedded(elections, &sender.url()).start();
        Self { gateway, sender, held: Held::ByTheGateway(loopback(elections)) }
    }

    fn setup(&self, instance: &str, accounts: &str) -> AgentSetup {
        let setup = |connect: &str| AgentSetup::new(connect, self.gateway.proxy(), instance, accounts);
        match &self.held {
            Held::ByZooKeeper(ensemble) => setup(&ensemble.connect()),
            Held::ByTheGateway(elections) => setup("unused").with_elections_at(*elections),
        }
    }

    fn agent(&self, instance: &str) -> Agent {
        self.setup(instance, "[\"wxid_1\"]").start()
    }

    /// Makes an account that nobody stands for.
    fn make(&self, account: &str) {
        match &self.held {
            Held::ByZooKeeper(ensemble) => {
                let maker = support::Instance::open(&ensemble.connect(), "maker");
                maker.make_path(&maker.path(account, "members"));
            }
            Held::ByTheGateway(elections) => make_account(*elections, account),
        }
    }
}

/// Each with ZooKeeper's elections and with those that the gateway keeps.
macro_rules! wherever_they_are_held {
    ($($case:ident,)*) => {
        mod zookeeper {
            $(
                #[test]
                fn $case() {
                    super::$case(&super::Stage::in_zookeeper());
                }
            )*
        }
        mod gateway {
            $(
                #[test]
                fn $case() {
                    super::$case(&super::Stage::in_gateway());
                }
            )*
        }
    };
}

wherever_they_are_held! {
    a_bot_needs_no_token_and_only_the_leaders_sends_arrive,
    sigterm_hands_over_at_once_and_loses_no_send_that_was_begun,
    a_frozen_leader_says_suspend_when_it_wakes_and_none_of_its_sends_is_admitted,
    changes_of_roles_are_told_as_events,
}

fn send(agent: &Agent) -> support::Response {
    agent.send("wxid_1", &Headers::none(), "{}")
}

fn a_bot_needs_no_token_and_only_the_leaders_sends_arrive(stage: &Stage) {
    let first = stage.agent("host-a");
    let led = first.wait_for_role("wxid_1", "LEADER");
    let second = stage.agent("host-b");
    second.wait_for_role("wxid_1", "WAITING");

    let sent = send(&first);
    assert_eq!((sent.status, sent.text().as_str()), (200, "sent"), "{}", first.log());
    assert_eq!(sent.header("x-fencing-verdict"), Some("admitted"));
    let refused = send(&second);
    assert_eq!((refused.status, refused.code().as_deref()), (409, Some("not_leader")));
    let problem = refused.json();
    assert_eq!(problem["request_id"].as_str(), refused.header("x-request-id"));
    assert_eq!((&problem["role"], &problem["outcome"]), (&"WAITING".into(), &"not_sent".into()));
    let seen = stage.sender.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("x-fencing-seq"), Some(led["seq"].to_string().as_str()));
    assert_eq!(seen[0].header("x-fencing-epoch"), led["epoch"].as_str());
    assert_eq!(seen[0].header("x-fencing-instance"), Some("host-a"));

    // An epoch is compared, never replaced; a token of a bot's own is refused.
    let epoch = led["epoch"].as_str().unwrap();
    assert_eq!(first.send("wxid_1", &Headers::none().with("X-Fencing-Epoch", epoch), "{}").status, 200);
    let other = first.send("wxid_1", &Headers::none().with("X-Fencing-Epoch", "7"), "{}");
    assert_eq!(other.code().as_deref(), Some("epoch_mismatch"));
    let own = first.send("wxid_1", &Headers::none().with("X-Fencing-Seq", "7"), "{}");
    assert_eq!(own.code().as_deref(), Some("malformed_token"));
    assert_eq!(first.send("wxid_2", &Headers::none(), "{}").code().as_deref(), Some("unknown_account"));
    assert_eq!(stage.sender.count(), 2);
    let metrics = first.metrics();
    assert_eq!(metrics.sum("fencegate_agent_requests_total", &[("verdict", "forwarded")]) as u64, 2);
    assert_eq!(
        second.metrics().sum("fencegate_agent_requests_total", &[("verdict", "not_leader")]) as u64,
        1
    );
    assert_eq!(metrics.sum("fencegate_agent_accounts", &[("role", "LEADER")]) as u64, 1);
}

#[test]
fn requests_are_read_as_strictly_as_by_the_gateway() {
    let stage = Stage::in_zookeeper();
    let agent = stage.agent("host-a");
    agent.wait_for_role("wxid_1", "LEADER");
    let code = |method, path: &str, headers: &Headers| call(agent.bots(), method, path, headers, "").code();
    assert_eq!(code("POST", "/other", &Headers::none()).as_deref(), Some("no_route"));
    assert_eq!(code("POST", "/wx/wxid_1/../x", &Headers::none()).as_deref(), Some("malformed_path"));
    assert_eq!(code("POST", "/wx/a%2Fb/x", &Headers::none()).as_deref(), Some("malformed_path"));
    let names_epoch = Headers::none().with("Connection", "X-Fencing-Epoch");
    assert_eq!(code("POST", "/wx/wxid_1/x", &names_epoch).as_deref(), Some("malformed_request"));
    // What ends at this hop, and what looks like the fence's own, does not get through.
    let mixed =
        Headers::none().with("X_Fencing_Seq", "9").with("X-Fencing-Account", "z").with("X-Other", "kept");
    assert_eq!(agent.send("wxid_1", &mixed, "{}").status, 200);
    let seen = stage.sender.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].header("x_fencing_seq"), seen[0].header("x-other")), (None, Some("kept")));
    assert_eq!(seen[0].header("x-fencing-account"), Some("wxid_1"));
}

#[test]
fn large_bodies_and_answers_pass_whole() {
    let stage = Stage::in_zookeeper();
    let agent = stage.agent("host-a");
    agent.wait_for_role("wxid_1", "LEADER");
    let answer = vec![b'y'; 3 << 20];
    let long = answer.clone();
    stage.sender.behave(move |_| Answer::ok().body(&long));
    let body = vec![b'x'; 5 << 20];
    let sent = agent.send("wxid_1", &Headers::none(), &body);
    assert_eq!((sent.status, sent.body.len()), (200, answer.len()));
    assert_eq!(stage.sender.requests()[0].body, body);
}

fn sigterm_hands_over_at_once_and_loses_no_send_that_was_begun(stage: &Stage) {
    let latch = Latch::new();
    let held = latch.clone();
    stage.sender.behave(move |request| match request.body.as_slice() {
        b"slow" => Answer::ok().held(&held),
        _ => Answer::ok(),
    });
    let first = stage.agent("host-a");
    first.wait_for_role("wxid_1", "LEADER");
    let second = stage.agent("host-b");
    second.wait_for_role("wxid_1", "WAITING");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| first.send("wxid_1", &Headers::none(), "slow"));
        wait_until("the slow send is with the sender", || stage.sender.in_flight() == 1);
        first.signal(rustix::process::Signal::TERM);
        second.wait_for_role("wxid_1", "LEADER");
        // The successor's send waits for the slow one; then both have arrived, in order.
        let next = scope.spawn(|| send(&second));
        stays("the gateway drains first", Duration::from_millis(300), || stage.sender.count() == 1);
        latch.release();
        assert_eq!(slow.join().unwrap().status, 200);
        assert_eq!(next.join().unwrap().status, 200);
    });
    assert_eq!(first.wait(PATIENCE), Some(0));
    assert!(stage.gateway.wait_for_line("leader changed").contains("reason=resigned"));
}

fn a_frozen_leader_says_suspend_when_it_wakes_and_none_of_its_sends_is_admitted(stage: &Stage) {
    let first = stage.agent("host-a");
    let led = first.wait_for_role("wxid_1", "LEADER");
    let second = stage.agent("host-b");
    second.wait_for_role("wxid_1", "WAITING");
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Traffic that goes on, connections that were open before.
        for _ in 0..4 {
            let stop = Arc::clone(&stop);
            let address = first.bots();
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    let Ok(mut connection) = Connection::try_open(address) else { continue };
                    while !stop.load(SeqCst) {
                        let sent = connection.request("POST", "/wx/wxid_1/send", &Headers::none(), b"zombie");
                        if sent.is_err() || connection.read_within(PATIENCE).is_err() {
                            break;
                        }
                    }
                }
            });
        }
        wait_until("traffic flows", || stage.sender.count() > 20);
        first.freeze();
        second.wait_for_role("wxid_1", "LEADER");
        assert_eq!(send(&second).status, 200);
        // Twice its session timeout in all: the rest of it in which nothing of the old one may arrive.
        stays("it stands still", Duration::from_secs(6), || !stage.sender.requests().is_empty());
        let before = stage.sender.count();
        first.thaw();
        first.wait_for_line("to=SUSPEND");
        first.wait_for_role("wxid_1", "WAITING");
        stop.store(true, SeqCst);
        let after: Vec<_> = stage.sender.requests().split_off(before);
        assert!(after.iter().all(|request| request.body != b"zombie"), "{} zombies", after.len());
    });
    let epochs: Vec<i64> = stage
        .sender
        .requests()
        .iter()
        .map(|request| request.header("x-fencing-epoch").unwrap().parse().unwrap())
        .collect();
    assert!(epochs.is_sorted(), "no message of an older holder after a newer one's first");
    let old: i64 = led["epoch"].as_str().unwrap().parse().unwrap();
    assert!(epochs.first() == Some(&old) && epochs.last() > Some(&old));
}

#[test]
fn hooks_run_with_the_token_when_leading_begins_and_ends() {
    let stage = Stage::in_zookeeper();
    let folder = Folder::new("hooks");
    let told = folder.join("told");
    let hook = |word: &str| {
        let script = format!(
            "echo {word} $FENCEGATE_ACCOUNT $FENCEGATE_SEQ $FENCEGATE_SESSION $FENCEGATE_EPOCH >> {}",
            told.display()
        );
        format!("[\"/bin/sh\", \"-c\", {script:?}]")
    };
    let agent = stage
        .setup("host-a", "[\"wxid_1\"]")
        .section("[hooks]", &format!("on_leader = {}\non_suspend = {}", hook("leads"), hook("ends")))
        .start();
    let led = agent.wait_for_role("wxid_1", "LEADER");
    assert_eq!(agent.terminate(), Some(0));
    let text = std::fs::read_to_string(&told).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!((lines[0][0], lines[0][1], lines[0][4]), ("leads", "wxid_1", led["epoch"].as_str().unwrap()));
    assert_eq!((lines[1][0], &lines[0][1..]), ("ends", &lines[1][1..]));
}

fn changes_of_roles_are_told_as_events(stage: &Stage) {
    let agent = stage.setup("host-a", "\"all\"").start();
    wait_until("it is ready", || agent.is_ready());
    let mut events = Connection::open(agent.admin());
    events.request("GET", "/v1/events", &Headers::none(), b"").unwrap();
    let text = events.read_until(b"event: roles", PATIENCE);
    assert!(text.contains("200 OK"), "{text}");
    // An account that appears is taken part in.
    stage.make("wxid_9");
    let text = events.read_until(b"\"role\":\"LEADER\"", PATIENCE);
    assert!(text.contains("event: role"), "{text}");
    assert_eq!(agent.wait_for_role("wxid_9", "LEADER")["reason"], "elected");
    assert_eq!(agent.send("wxid_9", &Headers::none(), "{}").status, 200);
}

#[test]
fn wrong_configurations_are_refused_with_their_places() {
    let folder = Folder::new("config");
    let file = folder.write(
        "agent.toml",
        "[agent]\ngateway = \"http://127.0.0.1:8080\"\naccounts = [\"a/b\"]\n[zookeeper]\nconnect = \"zk:2181\"\n\
         [[route]]\npath = \"/{account}\"\naccount = \"path:account\"\nupstream = \"http://x\"\n[hooks]\non_leader = \"x\"\n",
    );
    let output = fencegate(&["agent", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    for part in ["agent.toml:3:13:", "agent.toml:9:12: `upstream` is the gateway's part", "agent.toml:11:13:"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// Whether somebody on this machine waits for a connection to a port of loopback to be accepted by the system.
fn is_connecting_to(port: u16) -> bool {
    let remote = format!(":{port:04X}");
    std::fs::read_to_string("/proc/net/tcp").unwrap().lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[2].ends_with(&remote) && fields[3] == "02"
    })
}

#[test]
fn who_no_longer_leads_when_the_gateway_takes_the_connection_sends_nothing() {
    let ensemble = Ensemble::start(1);
    // A gateway whose queue is full: the agent's connection is not taken until it is emptied.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let gateway: std::net::TcpListener = socket.into();
    let address = gateway.local_addr().unwrap();
    let filling = std::net::TcpStream::connect(address).unwrap();
    let agent = Arc::new(AgentSetup::new(&ensemble.connect(), address, "host-a", "[\"wxid_1\"]").start());
    agent.wait_for_role("wxid_1", "LEADER");
    let bot = std::thread::spawn({
        let agent = Arc::clone(&agent);
        move || send(&agent)
    });
    wait_until("the agent waits for its connection", || is_connecting_to(address.port()));
    ensemble.server(0).stop();
    agent.wait_for_role("wxid_1", "SUSPEND");
    drop((gateway.accept().unwrap(), filling));
    let (mut taken, _) = gateway.accept().unwrap();
    let refused = bot.join().unwrap();
    assert_eq!((refused.status, refused.code().as_deref()), (409, Some("not_leader")), "{}", agent.log());
    let mut sent = Vec::new();
    std::io::Read::read_to_end(&mut taken, &mut sent).unwrap_or_default();
    assert!(sent.is_empty(), "{}", String::from_utf8_lossy(&sent));
}

//! Elections as electors meet them, whoever holds them: ZooKeeper, or a gateway that keeps them itself.
//!
//! What a test of both needs to move and to see; what only one of them has is asked of that one.

use std::net::SocketAddr;
use std::time::Duration;

use fencegate::config::{self, AgentCoordination, GatewayElections};
use fencegate::election::gateway::GatewaySessions;
use fencegate::election::session::Sessions;
use fencegate::election::zookeeper::{BarrierKind, Settings, ZkSessions};
use serde_json::{Value, json};

use super::gateway::{Gateway, Setup};
use super::http1::{Headers, call, try_call};
use super::instance::{Instance, ROOT};
use super::place::{free_port, loopback};
use super::zookeeper::Ensemble;

/// How long a session lives without being renewed.
pub const TIMEOUT: Duration = Duration::from_secs(6);

/// One service that holds elections.
pub trait Elections {
    /// What opens an elector's sessions.
    type Sessions: Sessions + Clone;

    /// Starts it.
    fn start() -> Self;

    /// The port that instances connect to.
    fn port(&self) -> u16;

    /// For an instance that connects to this port on loopback: the service's, or that of a line to it.
    fn sessions(&self, port: u16, instance: &str) -> Self::Sessions;

    /// The holder of an account with its seq, session and epoch, and the number of candidates.
    fn standing(&self, account: &str) -> (Option<(u64, i64, i64)>, usize);

    /// Makes an account that nobody stands for.
    fn make(&self, account: &str);

    /// kill -9, and a new start.
    fn restart(&self);
}

/// ZooKeeper, one server.
pub struct InZooKeeper {
    /// The server.
    pub ensemble: Ensemble,
    /// Sees and changes everything.
    pub observer: Instance,
}

impl Elections for InZooKeeper {
    type Sessions = ZkSessions;

    fn start() -> Self {
        let ensemble = Ensemble::start(1);
        let observer = Instance::open(&ensemble.connect(), "observer");
        Self { ensemble, observer }
    }

    fn port(&self) -> u16 {
        self.ensemble.server(0).port()
    }

    fn sessions(&self, port: u16, instance: &str) -> ZkSessions {
        let settings = Settings {
            connect: loopback(port).to_string(),
            session_timeout: TIMEOUT,
            connection_timeout: TIMEOUT * 2 / 5,
            auth: Vec::new(),
            root: ROOT.to_owned(),
            require_candidate: true,
            barrier: BarrierKind::Quorum,
        };
        ZkSessions::new(settings, instance)
    }

    fn standing(&self, account: &str) -> (Option<(u64, i64, i64)>, usize) {
        let active = self.observer.read(&self.observer.path(account, "active")).map(|(data, stat)| {
            let active: Value = serde_json::from_slice(&data).unwrap();
            (active["seq"].as_u64().unwrap(), active["sessionId"].as_i64().unwrap(), stat.czxid)
        });
        let members = self.observer.path(account, "members");
        let children = self.observer.ask(move |client| async move { client.list_children(&members).await });
        (active, children.map_or(0, |children| children.len()))
    }

    fn make(&self, account: &str) {
        self.observer.make_path(&self.observer.path(account, "members"));
    }

    fn restart(&self) {
        self.ensemble.server(0).restart();
        self.ensemble.wait_until_serving();
    }
}

/// A gateway that keeps them itself.
pub struct InGateway {
    /// The gateway; nobody sends through it.
    pub gateway: Gateway,
    elections: u16,
}

impl Elections for InGateway {
    type Sessions = GatewaySessions;

    fn start() -> Self {
        let elections = free_port();
        let gateway = Setup::embedded(elections, "http://127.0.0.1:1").start();
        Self { gateway, elections }
    }

    fn port(&self) -> u16 {
        self.elections
    }

    fn sessions(&self, port: u16, instance: &str) -> GatewaySessions {
        sessions_at(port, instance, TIMEOUT)
    }

    fn standing(&self, account: &str) -> (Option<(u64, i64, i64)>, usize) {
        let path = format!("/v1/elections/{account}");
        let Ok(shown) = try_call(loopback(self.elections), "GET", &path, &Headers::none(), b"") else {
            return (None, 0);
        };
        let shown = shown.json();
        let holder = shown["holder"].as_object().map(|holder| {
            let session = holder["session"].as_str().unwrap().trim_start_matches("0x");
            let session = u64::from_str_radix(session, 16).unwrap().cast_signed();
            let epoch = holder["epoch"].as_str().unwrap().parse().unwrap();
            (holder["seq"].as_u64().unwrap(), session, epoch)
        });
        (holder, shown["candidates"].as_array().unwrap().len())
    }

    fn make(&self, account: &str) {
        make_account(loopback(self.elections), account);
    }

    fn restart(&self) {
        self.gateway.restart();
        self.gateway.wait_until_ready();
    }
}

/// Sessions of an instance at a gateway's elections on this port of loopback.
pub fn sessions_at(port: u16, instance: &str, session_timeout: Duration) -> GatewaySessions {
    let timeout = session_timeout.as_millis();
    let config = elections_of(&format!(
        "elections = \"http://{}\"\nsession_timeout = \"{timeout}ms\"",
        loopback(port)
    ));
    GatewaySessions::new(&config, None, instance).unwrap()
}

/// What these keys of `[coordination]` say.
pub fn elections_of(keys: &str) -> GatewayElections {
    let text = format!(
        "[agent]\ngateway = \"http://127.0.0.1:1\"\naccounts = \"all\"\n[coordination]\nbackend = \"gateway\"\n{keys}\n\
         [[route]]\npath = \"/wx/{{account}}/{{*rest}}\"\naccount = \"path:account\"\n"
    );
    match config::parse_agent("agent.toml", &text, [], "host-a").unwrap().coordination {
        AgentCoordination::Gateway(elections) => elections,
        other @ AgentCoordination::ZooKeeper { .. } => panic!("{other:?}"),
    }
}

/// Makes an account at a gateway's elections that nobody stands for.
#[track_caller]
pub fn make_account(elections: SocketAddr, account: &str) {
    let ask = |method, path: &str, headers: &Headers, body: String| {
        let answer = call(elections, method, path, headers, body);
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer
    };
    let wish = json!({ "instance_id": "maker", "ttl": "60s" }).to_string();
    let begun = ask("POST", "/v1/sessions", &Headers::none(), wish).json();
    let secret = format!("Bearer {}", begun["secret"].as_str().unwrap());
    let secret = Headers::none().with("Authorization", secret);
    ask("POST", &format!("/v1/elections/{account}/candidates"), &secret, String::new());
    ask("DELETE", &format!("/v1/sessions/{}", begun["session"].as_str().unwrap()), &secret, String::new());
}

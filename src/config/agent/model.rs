//! The checked configuration of an agent: what the rest of it reads.
//!
//! Nothing here is optional for lack of a default, and nothing is out of bounds. It holds no way back to the file.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::model::{Layout, Log, Route, Secret, ZooKeeper};
use super::super::tls::Tls;
use super::super::upstream::{Protocol, Upstream};
use crate::fence::name::AccountName;

/// A whole configuration of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// `[agent]`
    pub agent: Agent,
    /// `[coordination]`, and `[zookeeper]` and `[election]` where it is ZooKeeper.
    pub coordination: AgentCoordination,
    /// `[[route]]`, in order: the first match wins. At least one; each leads to the gateway.
    pub routes: Vec<Route>,
    /// `[limits]`
    pub limits: AgentLimits,
    /// `[hooks]`
    pub hooks: Hooks,
    /// `[log]`
    pub log: Log,
}

/// The agent itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its id in elections and tokens.
    pub instance_id: String,
    /// Where bots send.
    pub listen: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// `[agent.tls]`; `None`: without.
    pub tls: Option<Tls>,
    /// Where the gateway listens.
    pub gateway: Upstream,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// For the gateway's whole answer.
    pub gateway_timeout: Duration,
    /// What it presents to a gateway that wants keys.
    pub gateway_key: Option<Secret>,
    /// Which accounts it takes part in.
    pub accounts: AgentAccounts,
}

/// Which accounts an agent takes part in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentAccounts {
    /// Every account below the root, as they appear.
    All,
    /// These; at least one.
    These(Vec<AccountName>),
}

/// Who holds the elections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentCoordination {
    /// ZooKeeper.
    ZooKeeper {
        /// `[zookeeper]`
        service: ZooKeeper,
        /// `[election]`
        election: AgentElection,
    },
    /// A gateway that keeps them itself.
    Gateway(GatewayElections),
}

/// The elections' listener of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayElections {
    /// Where it is.
    pub elections: Upstream,
    /// How it is spoken to: HTTP/1.1.
    pub protocol: Protocol,
    /// How long a session lives without being renewed: 2 s to 5 min.
    pub session_timeout: Duration,
}

/// How the elections are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentElection {
    /// What the znodes below an account mean.
    pub layout: Layout,
    /// The znode above all accounts: absolute, not `/`, no slash at its end.
    pub root: String,
}

/// What an agent reads, waits for and keeps at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// For a request's head, and for a connection between requests.
    pub idle_timeout: Duration,
    /// For the part of a body that is read before anything is sent, and for each pause of the rest.
    pub body_read_timeout: Duration,
    /// How many connections may be open.
    pub max_connections: usize,
    /// How many requests may be under way.
    pub max_in_flight: usize,
    /// How many bytes of bodies may be held; of answers read ahead a quarter of it.
    pub max_buffered: u64,
    /// How many bytes a request's head may have.
    pub max_header_bytes: usize,
}

/// What is run when a role changes: a program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    /// When an account is led.
    pub on_leader: Option<Vec<String>>,
    /// When it is no longer, for whatever reason.
    pub on_suspend: Option<Vec<String>>,
    /// How long each may run.
    pub timeout: Duration,
}

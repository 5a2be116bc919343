//! The checked configuration: what the rest of the gateway reads.
//!
//! Nothing here is optional for lack of a default, and nothing is out of bounds. It holds no way back to the file.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::identity::Identity;
use super::pointer::Pointer;
use super::refusal::Form;
use super::rewrite::Rewrite;
pub use super::secret::Secret;
use super::template::Template;
use super::tls::Tls;
use super::upstream::{Protocol, Upstream};
use crate::key::Key;

/// A whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `[listen]`
    pub listen: Listen,
    /// `[auth]`
    pub auth: Auth,
    /// `[coordination]` and its section
    pub coordination: Coordination,
    /// `[election]`
    pub election: Election,
    /// `[freshness]`
    pub freshness: Freshness,
    /// `[handover]`
    pub handover: Handover,
    /// `[[route]]`, in order: the first match wins. At least one.
    pub routes: Vec<Route>,
    /// `[limits]`
    pub limits: Limits,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[log]`
    pub log: Log,
    /// `[shutdown]`
    pub shutdown: Shutdown,
}

/// Where the gateway listens. Port 0 lets the system choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The proxy.
    pub proxy: SocketAddr,
    /// The admin listener, never reachable through the proxy's.
    pub admin: SocketAddr,
    /// Where elections are served, if the gateway keeps them itself.
    pub elections: SocketAddr,
    /// Whether listeners that others can reach may do without keys.
    pub insecure: bool,
    /// `[listen.tls]`; `None`: without.
    pub tls: Option<Tls>,
}

/// Who may come. Without keys: whoever can reach the listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// The keys that the proxy takes.
    pub keys: Vec<Key>,
    /// The keys that the admin listener takes; they have no accounts.
    pub admin_keys: Vec<Key>,
}

/// Who keeps the elections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// An ensemble.
    ZooKeeper(ZooKeeper),
    /// The gateway itself, with the numbers it has reserved in this file.
    Embedded(PathBuf),
}

/// The ensemble that holds the elections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeper {
    /// `host:port,host:port/chroot`
    pub connect: String,
    /// What the session asks for, one second to five minutes.
    pub session_timeout: Duration,
    /// Given to ZooKeeper in this order.
    pub auth: Vec<ZkAuth>,
}

/// One way to authenticate to ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZkAuth {
    /// Such as `digest`.
    pub scheme: String,
    /// Such as `user:password`; read from the environment where the file says so.
    pub credential: Secret,
}

/// How the elections are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// What the znodes below an account mean.
    pub layout: Layout,
    /// The znode above all accounts: absolute, not `/`, no slash at its end.
    pub root: String,
    /// Whether a holder must also be among the candidates.
    pub require_candidate: bool,
    /// What to do when ZooKeeper's history went back.
    pub on_history_reset: OnHistoryReset,
}

/// What the znodes below an account mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Candidates under `members`, the holder in `active`.
    ActiveNode,
}

/// What to do when ZooKeeper's history went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHistoryReset {
    /// Refuse everything until an operator accepts the new history.
    Refuse,
    /// Accept it at once.
    Accept,
}

/// How new the view must be, and how long to wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// How old a proof an admission may rest on; zero: begun after the request was in.
    pub max_staleness: Duration,
    /// What a proof is.
    pub barrier: Barrier,
    /// How long a request waits for a proof.
    pub park_timeout: Duration,
    /// How many requests may wait.
    pub max_parked: usize,
    /// How many of one account; at most `max_parked`.
    pub max_parked_per_account: usize,
    /// The least time between two proofs; below `park_timeout`.
    pub min_barrier_interval: Duration,
}

/// What a proof is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// A round trip through the quorum.
    Quorum,
    /// ZooKeeper's `sync`, which a deposed leader still answers for a while.
    Sync,
}

/// What happens when a new holder follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// How long sends of the old holder may still take, unless the route says otherwise.
    pub drain_timeout: Duration,
}

/// What a route does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward what is admitted.
    Enforce,
    /// Forward everything, and say what would have been refused.
    Shadow,
    /// Forward everything without judging.
    Pass,
    /// Refuse everything.
    Deny,
}

/// Requests that are alike, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// How many digits a seq may have.
    pub seq_digits: usize,
    /// The paths it takes.
    pub path: Template,
    /// The keys that a query must have, each once and with this value.
    pub query: Vec<(String, String)>,
    /// The values that a JSON body must have.
    pub json: Vec<(Pointer, JsonValue)>,
    /// Where the account is: all that are present must agree. Empty only where `mode` is [`Mode::Deny`].
    pub account: Vec<Source>,
    /// Whether [`Source::Json`] may also be a whole number.
    pub json_integer: bool,
    /// How what is found there becomes an account's name.
    pub identity: Identity,
    /// How refusals look; `None`: problem+json.
    pub refusal: Option<Form>,
    /// Where the sender listens. At least one; an account goes to one of them.
    pub upstreams: Vec<Upstream>,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// What is done with a request.
    pub mode: Mode,
    /// The methods it takes, in upper case; `None`: all.
    pub methods: Option<Vec<String>>,
    /// The path the sender sees; `None`: the request's own.
    pub rewrite: Option<Rewrite>,
    /// Whether the sender sees the request's Host instead of its own authority.
    pub preserve_host: bool,
    /// For a connection to the sender.
    pub connect_timeout: Duration,
    /// For the sender's whole answer.
    pub upstream_timeout: Duration,
    /// How long an unused connection to the sender is kept.
    pub upstream_idle_timeout: Duration,
    /// How many bytes of a body are read before anything is decided.
    pub buffer: u64,
    /// How many bytes a body may have.
    pub max_body: u64,
    /// How many bytes of an answer are read ahead of its caller.
    pub answer_buffer: u64,
    /// How long sends of an old holder may still take.
    pub drain_timeout: Duration,
    /// How many requests may be under way; at most the global limit.
    pub max_in_flight: Option<usize>,
}

/// Where in a request the account is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This capture of the path; the route's template has it.
    Path(String),
    /// The value of this key of the query.
    Query(String),
    /// The value of this header.
    Header(http::HeaderName),
    /// What `Authorization` says after `Bearer`.
    Bearer,
    /// The value of a JSON body at this place.
    Json(Pointer),
    /// The value of this field of an `application/x-www-form-urlencoded` body.
    Form(String),
    /// The value of this field of a `multipart/form-data` body.
    Multipart(String),
    /// Always this account; a well-formed name.
    Static(String),
}

impl Source {
    /// Whether it is in the body.
    #[must_use]
    pub fn is_in_body(&self) -> bool {
        matches!(self, Self::Json(_) | Self::Form(_) | Self::Multipart(_))
    }
}

/// As it is written in a route.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Query(key) => write!(f, "query:{key}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Form(key) => write!(f, "form:{key}"),
            Self::Multipart(key) => write!(f, "multipart:{key}"),
            Self::Static(name) => write!(f, "static:{name}"),
        }
    }
}

/// A value of a JSON body that a route can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonValue {
    /// This string.
    Text(String),
    /// This whole number.
    Integer(i64),
}

/// What is read, waited for and kept at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a request's head.
    pub header_read_timeout: Duration,
    /// For the next piece of a body.
    pub body_read_timeout: Duration,
    /// For a connection between requests.
    pub idle_timeout: Duration,
    /// How many connections may be open.
    pub max_connections: usize,
    /// How many requests may be under way.
    pub max_in_flight: usize,
    /// How many of one account; at most `max_in_flight`.
    pub max_in_flight_per_account: usize,
    /// How many bytes of bodies and answers may be held.
    pub max_buffered: u64,
    /// How many bytes a request's head may have.
    pub max_header_bytes: usize,
}

/// What is counted by account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Whether anything is.
    pub per_account: bool,
    /// How many accounts have series of their own.
    pub max_accounts: usize,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// From which level on lines are written.
    pub level: Level,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What failed.
    Error,
    /// And what may.
    Warn,
    /// And what an operator wants to know.
    Info,
    /// And what a developer wants to know.
    Debug,
    /// And everything else.
    Trace,
}

/// How the gateway ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Between "not ready" and closing the listener.
    pub delay: Duration,
    /// How long requests may still take.
    pub drain: Duration,
}

//! The keys of `gateway.toml`: one declarative pass from the tree to the checked configuration.
//!
//! Every key, its bounds and its default stand here and nowhere else; what is planned and not built is refused by
//! name. It reads no file and no environment of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::address;
use super::auth;
use super::error::{Problem, Read};
use super::model::{
    Auth, Barrier, Config, Coordination, Election, Freshness, Handover, Layout, Level, Limits, Listen, Log,
    LogFormat, Metrics, OnHistoryReset, Route, Secret, Shutdown, ZkAuth, ZooKeeper,
};
use super::route;
use super::route::SEQ_DIGITS;
use super::section::Section;
use super::tls::{self, TlsListener};
use super::tree::Node;
use super::value::{
    DAY, address as socket, choice, count, duration, flag, parsed, parsed_url, size, timeout,
};
use crate::key::Key;

/// A staleness above this would be no fence.
const STALENESS_MAX: Duration = Duration::from_secs(60 * 60);

/// Reads the whole tree; files that it names are relative to `folder`. `None` only with problems.
pub(super) fn read(
    root: &Node,
    env: &BTreeMap<String, String>,
    folder: &Path,
    problems: &mut Vec<Problem>,
) -> Option<Config> {
    let mut top = Section::new("the file", Some(root));
    let listeners = top.table("listen");
    let auth = auth::read(top.table("auth"), problems);
    let coordination = coordination(&mut top, env, folder, problems);
    let embedded = !matches!(coordination, Some(Coordination::ZooKeeper(_)));
    let listen = listen(listeners, &auth, embedded, problems);
    let election = election(top.table("election"), problems);
    let freshness = freshness(top.table("freshness"), problems);
    let handover = handover(top.table("handover"), problems);
    let sections = top.tables("route");
    let limits = limits(top.table("limits"), problems);
    // The numbers of embedded elections begin above the clock in microseconds.
    let seq_digits = if matches!(coordination, Some(Coordination::Embedded(_))) { 19 } else { SEQ_DIGITS };
    let shared = route::Shared { handover: &handover, limits: &limits, folder, upstream: None, seq_digits };
    let routes = routes(&mut top, sections, &shared, problems);
    let metrics = metrics(top.table("metrics"), problems);
    let log = log(top.table("log"), problems);
    let shutdown = shutdown(top.table("shutdown"), &routes, problems);
    top.not_built(&["trusted_proxies", "etcd", "agent", "hooks"]);
    top.finish(problems);
    Some(Config {
        listen,
        auth,
        coordination: coordination?,
        election,
        freshness,
        handover,
        routes,
        limits,
        metrics,
        log,
        shutdown,
    })
}

fn listen(mut section: Section<'_>, auth: &Auth, embedded: bool, problems: &mut Vec<Problem>) -> Listen {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let absent = (!embedded).then_some((TlsListener::Elections, "ZooKeeper holds the elections"));
    let listen = Listen {
        proxy: section.take("proxy", socket, local(8080)),
        admin: section.take("admin", socket, local(9090)),
        elections: section.take("elections", socket, local(9091)),
        insecure: section.take("insecure", flag, false),
        tls: tls::read(section.node("tls"), "[listen.tls]", &tls::GATEWAYS, absent, problems),
    };
    let guarded = |listener, keys: &[Key]| {
        listen.insecure || !keys.is_empty() || listen.tls.as_ref().is_some_and(|tls| tls.guards(listener))
    };
    let (proxy, admin) = (TlsListener::Proxy, TlsListener::Admin);
    auth::check_exposed(&mut section, "proxy", listen.proxy, "keys", guarded(proxy, &auth.keys));
    auth::check_exposed(&mut section, "admin", listen.admin, "admin_keys", guarded(admin, &auth.admin_keys));
    let mut taken = vec![("admin", listen.admin, "the proxy's", listen.proxy)];
    if embedded {
        let asks = guarded(TlsListener::Elections, &auth.keys);
        auth::check_exposed(&mut section, "elections", listen.elections, "keys", asks);
        taken.push(("elections", listen.elections, "the proxy's", listen.proxy));
        taken.push(("elections", listen.elections, "the admin listener's", listen.admin));
    }
    if !embedded && section.is_there("elections") {
        let place = section.place_of("elections");
        section.problem(
            &place,
            "`elections`: ZooKeeper holds them; allowed: without it, or without [zookeeper]",
        );
    }
    for (key, address, whose, other) in taken {
        if address == other && address.port() != 0 {
            let place = section.place_of(key);
            section.problem(&place, format!("`{key}`: {address} is {whose}; allowed: another address"));
        }
    }
    section.not_built(&["trusted_proxies"]);
    section.finish(problems);
    listen
}

/// Which source of elections, and its section: ZooKeeper where the file speaks of it, else the gateway itself.
fn coordination(
    top: &mut Section<'_>,
    env: &BTreeMap<String, String>,
    folder: &Path,
    problems: &mut Vec<Problem>,
) -> Option<Coordination> {
    const ADD: &str = "add [zookeeper] with connect = \"127.0.0.1:2181\"";
    let mut section = top.table("coordination");
    let named = section.node("backend");
    let embedded =
        section.optional("backend", choice(&[("zookeeper", false), ("embedded", true)], &["etcd"]));
    if section.is_there("state") && (embedded == Some(false) || top.is_there("zookeeper")) {
        let place = section.place_of("state");
        section.problem(
            &place,
            "`state`: ZooKeeper holds the elections; allowed: without it, or without [zookeeper]",
        );
    }
    let state = section.take("state", parsed("a file such as \"fencegate.state\"", state_file), STATE.into());
    section.finish(problems);
    // A backend that was refused already is the one thing to say.
    if named.is_some() && embedded.is_none() {
        let _ = top.node("zookeeper");
        return None;
    }
    let place = top.place_of("zookeeper");
    match (top.node("zookeeper"), embedded) {
        (None, None | Some(true)) => Some(Coordination::Embedded(folder.join(state))),
        (None, Some(false)) => {
            top.problem(&place, format!("there is no [zookeeper] section; allowed: {ADD}"));
            None
        }
        (Some(_), Some(true)) => {
            top.problem(
                &place,
                "[zookeeper] is not used by `backend = \"embedded\"`; allowed: one of the two",
            );
            None
        }
        (node, None | Some(false)) => {
            zookeeper(Section::new("[zookeeper]", node), Duration::from_secs(15), env, problems)
                .map(Coordination::ZooKeeper)
        }
    }
}

/// Where embedded elections keep their counter, unless the file says otherwise.
const STATE: &str = "fencegate.state";

fn state_file(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() { Err("no file; allowed: its path") } else { Ok(text.into()) }
}

/// `[zookeeper]`; the gateway's sessions and an instance's have different timeouts by default.
pub(super) fn zookeeper(
    mut section: Section<'_>,
    default_timeout: Duration,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> Option<ZooKeeper> {
    let hosts = "host:port,host:port/chroot";
    let connect = section.need("connect", hosts, parsed_url(hosts, address::connect));
    let session = duration(Duration::from_secs(1), Duration::from_secs(300));
    let session_timeout = section.take("session_timeout", session, default_timeout);
    let auth =
        section.tables("auth").into_iter().filter_map(|section| zk_auth(section, env, problems)).collect();
    section.finish(problems);
    Some(ZooKeeper { connect: connect?, session_timeout, auth })
}

fn zk_auth(
    mut section: Section<'_>,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> Option<ZkAuth> {
    let scheme = section.need(
        "scheme",
        "a scheme such as \"digest\"",
        parsed("a scheme such as \"digest\"", |text| {
            let word = (1..=32).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if word { Ok(text.to_owned()) } else { Err("no scheme; allowed: a word such as \"digest\"") }
        }),
    );
    let digest = scheme.as_deref() == Some("digest");
    let credential = section.need("credential", "\"env:NAME\", or the credential itself", |node| {
        let secret = credential(node, env)?;
        // ZooKeeper would take it for a user without a password, and nothing would be readable.
        if digest && !secret.expose().contains(':') {
            return node.refuse("no digest credential; allowed: user:password");
        }
        Ok(secret)
    });
    section.finish(problems);
    Some(ZkAuth { scheme: scheme?, credential: credential? })
}

/// Never shows what it reads.
pub(super) fn credential(node: &Node, env: &BTreeMap<String, String>) -> Read<Secret> {
    let allowed = "allowed: \"env:NAME\", or the credential itself";
    match node.text() {
        None => node.refuse(format!("not a string; {allowed}")),
        Some("") => node.refuse(format!("is empty; {allowed}")),
        Some(text) => match text.strip_prefix("env:") {
            None => Ok(Secret::new(text.to_owned())),
            Some(name) => match env.get(name) {
                Some(value) if !value.is_empty() => Ok(Secret::new(value.clone())),
                _ => node.refuse(format!(
                    "the environment variable {} is not set, or empty; {allowed}",
                    super::error::quote(name)
                )),
            },
        },
    }
}

fn election(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Election {
    let layouts = choice(&[("active-node", Layout::ActiveNode)], &["lowest-member", "single-node"]);
    let resets = choice(&[("refuse", OnHistoryReset::Refuse), ("accept", OnHistoryReset::Accept)], &[]);
    let election = Election {
        layout: section.take("layout", layouts, Layout::ActiveNode),
        root: section.take(
            "root",
            parsed("a path such as \"/wx-accounts\"", address::znode),
            "/wx-accounts".to_owned(),
        ),
        require_candidate: section.take("require_candidate", flag, true),
        on_history_reset: section.take("on_history_reset", resets, OnHistoryReset::Refuse),
    };
    section.finish(problems);
    election
}

fn freshness(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Freshness {
    let barriers = choice(&[("quorum", Barrier::Quorum), ("sync", Barrier::Sync)], &[]);
    let max_parked = section.take("max_parked", count, 10_000);
    let freshness = Freshness {
        max_staleness: section.take("max_staleness", duration(Duration::ZERO, STALENESS_MAX), Duration::ZERO),
        barrier: section.take("barrier", barriers, Barrier::Quorum),
        park_timeout: section.take("park_timeout", timeout, Duration::from_secs(3)),
        max_parked,
        max_parked_per_account: share(&mut section, "max_parked_per_account", 2500, "max_parked", max_parked),
        min_barrier_interval: section.take(
            "min_barrier_interval",
            duration(Duration::ZERO, DAY),
            Duration::ZERO,
        ),
    };
    if freshness.min_barrier_interval >= freshness.park_timeout {
        let place = section.place_of("min_barrier_interval");
        let text =
            "`min_barrier_interval`: no request would see a proof in time; allowed: less than park_timeout";
        section.problem(&place, text);
    }
    section.finish(problems);
    freshness
}

/// One account's share of a global limit: a quarter of it unless it says otherwise, and never more than the whole.
fn share(
    section: &mut Section<'_>,
    key: &'static str,
    default: usize,
    whole_key: &str,
    whole: usize,
) -> usize {
    let share = section.take(key, count, default.min(whole.div_ceil(4)));
    if share > whole {
        let place = section.place_of(key);
        section.problem(&place, format!("`{key}`: {share} is above {whole_key}; allowed: 1 to {whole}"));
    }
    share
}

fn handover(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Handover {
    let handover =
        Handover { drain_timeout: section.take("drain_timeout", timeout, Duration::from_secs(10)) };
    section.take("scope", choice(&[("replica", ())], &["fleet"]), ());
    section.finish(problems);
    handover
}

fn routes(
    top: &mut Section<'_>,
    sections: Vec<Section<'_>>,
    shared: &route::Shared<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Route> {
    let none = sections.is_empty();
    let routes = sections.into_iter().filter_map(|section| route::read(section, shared, problems)).collect();
    if none {
        let place = top.place_of("route");
        top.problem(
            &place,
            "there is no [[route]]; allowed: one or more, each with path, account and upstream",
        );
    }
    routes
}

/// Limits as far as a route is read against them.
pub(super) fn limits_of_requests(max_in_flight: usize) -> Limits {
    Limits { max_in_flight, ..limits(Section::new("[limits]", None), &mut Vec::new()) }
}

fn limits(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Limits {
    let seconds = Duration::from_secs;
    let max_in_flight = section.take("max_in_flight", count, 10_000);
    let limits = Limits {
        header_read_timeout: section.take("header_read_timeout", timeout, seconds(10)),
        body_read_timeout: section.take("body_read_timeout", timeout, seconds(30)),
        idle_timeout: section.take("idle_timeout", timeout, seconds(75)),
        max_connections: section.take("max_connections", count, 10_000),
        max_in_flight,
        max_in_flight_per_account: share(
            &mut section,
            "max_in_flight_per_account",
            64,
            "max_in_flight",
            max_in_flight,
        ),
        max_buffered: section.take("max_buffered", size(1, 1 << 40), 256 << 20),
        // Below 8 KiB the HTTP library does not work.
        max_header_bytes: section.take("max_header_bytes", header_bytes, 64 << 10),
    };
    section.finish(problems);
    limits
}

pub(super) fn header_bytes(node: &Node) -> Read<usize> {
    size(8 << 10, 16 << 20)(node).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn metrics(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Metrics {
    let metrics = Metrics {
        per_account: section.take("per_account", flag, true),
        max_accounts: section.take("max_accounts", count, 10_000),
    };
    section.finish(problems);
    metrics
}

pub(super) fn log(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Log {
    let formats = choice(&[("text", LogFormat::Text), ("json", LogFormat::Json)], &[]);
    let levels = choice(
        &[
            ("error", Level::Error),
            ("warn", Level::Warn),
            ("info", Level::Info),
            ("debug", Level::Debug),
            ("trace", Level::Trace),
        ],
        &[],
    );
    let log = Log {
        format: section.take("format", formats, LogFormat::Text),
        level: section.take("level", levels, Level::Info),
    };
    section.finish(problems);
    log
}

fn shutdown(mut section: Section<'_>, routes: &[Route], problems: &mut Vec<Problem>) -> Shutdown {
    let longest = routes.iter().map(|route| route.upstream_timeout).max().unwrap_or_default();
    let any = || duration(Duration::ZERO, DAY);
    let shutdown = Shutdown {
        delay: section.take("delay", any(), Duration::ZERO),
        drain: section.take("drain", any(), longest + Duration::from_secs(5)),
    };
    section.finish(problems);
    shutdown
}

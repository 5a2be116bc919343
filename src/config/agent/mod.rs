//! The keys of `agent.toml`: one declarative pass from the tree to the checked configuration of an agent.
//!
//! Every key of its own, its bounds and its default stand here; what it has in common with the gateway is read by the same
//! functions. It reads no file and no environment of its own.

mod coordination;
pub(super) mod model;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use model::{Agent, AgentAccounts, AgentConfig, AgentLimits, Hooks};

use super::auth;
use super::error::{Place, Problem, Read};
use super::gateway;
use super::model::{Handover, Mode, Route};
use super::route;
use super::section::Section;
use super::tls::{self, TlsListener};
use super::tree::{Node, Value};
use super::upstream::{self, Endpoint, Upstream};
use super::value::{address as socket, count, duration, flag, list, parsed, parsed_url, size, timeout};
use crate::fence::name::AccountName;
use crate::fence::token::encode_instance;

/// Keys of a gateway's route that mean nothing to an agent: its upstream is the gateway.
pub(super) const GATEWAYS: [&str; 14] = [
    "upstream",
    "upstream_ca",
    "upstream_cert",
    "upstream_cert_key",
    "upstream_name",
    "upstream_http",
    "mode",
    "rewrite",
    "preserve_host",
    "drain_timeout",
    "refusal",
    "connect_timeout",
    "upstream_timeout",
    "upstream_idle_timeout",
];

/// Reads the whole tree; files that it names are relative to `folder`. `None` only with problems.
pub(super) fn read(
    root: &Node,
    env: &BTreeMap<String, String>,
    folder: &Path,
    default_instance: &str,
    problems: &mut Vec<Problem>,
) -> Option<AgentConfig> {
    let mut top = Section::new("the file", Some(root));
    let agent = agent(top.table("agent"), env, default_instance, problems);
    let coordination = coordination::read(&mut top, env, problems);
    let sections = top.tables("route");
    let limits = limits(top.table("limits"), problems);
    let routes = routes(&mut top, sections, &limits, agent.as_ref(), folder, problems);
    let hooks = hooks(top.table("hooks"), problems);
    let log = gateway::log(top.table("log"), problems);
    top.finish(problems);
    Some(AgentConfig { agent: agent?, coordination: coordination?, routes, limits, hooks, log })
}

fn agent(
    mut section: Section<'_>,
    env: &BTreeMap<String, String>,
    default_instance: &str,
    problems: &mut Vec<Problem>,
) -> Option<Agent> {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let id = parsed("text such as \"host-a-001\"", |text| {
        let fits = (1..=256).contains(&encode_instance(text).len());
        if fits { Ok(text.to_owned()) } else { Err("no instance id; allowed: text of 1 to 256 characters") }
    });
    let instance_id = section.take("instance_id", id, default_instance.to_owned());
    let listen = section.take("listen", socket, local(7070));
    let admin = section.take("admin", socket, local(7071));
    if listen == admin && listen.port() != 0 {
        let place = section.place_of("admin");
        section.problem(&place, format!("`admin`: {admin} is where bots send; allowed: another address"));
    }
    let insecure = section.take("insecure", flag, false);
    let tls = tls::read(section.node("tls"), "[agent.tls]", &tls::AGENTS, None, problems);
    let guarded = |listener| insecure || tls.as_ref().is_some_and(|tls| tls.guards(listener));
    auth::check_agent_exposed(&mut section, "listen", listen, guarded(TlsListener::Bots));
    auth::check_agent_exposed(&mut section, "admin", admin, guarded(TlsListener::Admin));
    let url = parsed_url(upstream::GATEWAY, upstream::upstream);
    let gateway = section.need("gateway", upstream::GATEWAY, url);
    let addresses = gateway.as_ref().map(std::slice::from_ref);
    let protocol = upstream::protocol(&mut section, &upstream::AGENTS, addresses);
    let accounts = section.need("accounts", ACCOUNTS, accounts);
    let agent = Some(()).and_then(|()| {
        Some(Agent {
            instance_id,
            listen,
            admin,
            tls,
            gateway: gateway?,
            protocol,
            gateway_timeout: section.take("gateway_timeout", timeout, Duration::from_secs(90)),
            gateway_key: section.optional("gateway_key", |node| gateway::credential(node, env)),
            accounts: accounts?,
        })
    });
    section.finish(problems);
    agent
}

const ACCOUNTS: &str = "a list such as [\"wxid_1\"], or \"all\"";

fn accounts(node: &Node) -> Read<AgentAccounts> {
    if node.text() == Some("all") && !matches!(node.value, Value::List(_)) {
        return Ok(AgentAccounts::All);
    }
    let name = parsed("account names", |text| {
        AccountName::new(text).ok_or("no account's name; allowed: 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -")
    });
    list(ACCOUNTS, name)(node).map(AgentAccounts::These)
}

fn routes(
    top: &mut Section<'_>,
    sections: Vec<Section<'_>>,
    limits: &AgentLimits,
    agent: Option<&Agent>,
    folder: &Path,
    problems: &mut Vec<Problem>,
) -> Vec<Route> {
    if sections.is_empty() {
        let place = top.place_of("route");
        top.problem(&place, "there is no [[route]]; allowed: one or more, each with path and account");
    }
    // Where the gateway is missing, that is the one thing to say.
    let nowhere =
        Upstream { authority: String::new(), endpoint: Endpoint::Tcp(String::new(), 0), tls: false };
    let upstream = agent.map_or(&nowhere, |agent| &agent.gateway);
    let limits = gateway::limits_of_requests(limits.max_in_flight);
    let handover = Handover { drain_timeout: Duration::ZERO };
    let shared = route::Shared {
        handover: &handover,
        limits: &limits,
        folder,
        upstream: Some(upstream),
        seq_digits: route::SEQ_DIGITS,
    };
    let read = |mut section: Section<'_>| {
        for key in GATEWAYS {
            if let Some(node) = section.node(key) {
                let place: &Place = &node.place;
                section.problem(place, format!("`{key}` is the gateway's part; allowed: without it"));
            }
        }
        let mut route = route::read(section, &shared, problems)?;
        // Bots send no token: the agent adds it.
        route.mode = Mode::Pass;
        if let Some(agent) = agent {
            route.upstream_timeout = agent.gateway_timeout;
        }
        Some(route)
    };
    sections.into_iter().filter_map(read).collect()
}

fn limits(mut section: Section<'_>, problems: &mut Vec<Problem>) -> AgentLimits {
    let seconds = Duration::from_secs;
    let limits = AgentLimits {
        idle_timeout: section.take("idle_timeout", timeout, seconds(75)),
        body_read_timeout: section.take("body_read_timeout", timeout, seconds(30)),
        max_connections: section.take("max_connections", count, 10_000),
        max_in_flight: section.take("max_in_flight", count, 10_000),
        max_buffered: section.take("max_buffered", size(1, 1 << 40), 256 << 20),
        max_header_bytes: section.take("max_header_bytes", gateway::header_bytes, 64 << 10),
    };
    section.finish(problems);
    limits
}

fn hooks(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Hooks {
    const COMMAND: &str = "a program and its arguments such as [\"./on-leader.sh\"]";
    let command = |node: &Node| -> Read<Vec<String>> {
        let Value::List(items) = &node.value else { return node.refuse_type(COMMAND) };
        let words: Option<Vec<String>> = items.iter().map(|item| item.text().map(str::to_owned)).collect();
        match words {
            Some(words) if words.first().is_some_and(|program| !program.is_empty()) => Ok(words),
            Some(_) | None => node.refuse_type(COMMAND),
        }
    };
    let hooks = Hooks {
        on_leader: section.optional("on_leader", command),
        on_suspend: section.optional("on_suspend", command),
        timeout: section.take(
            "timeout",
            duration(Duration::from_millis(100), Duration::from_secs(300)),
            Duration::from_secs(10),
        ),
    };
    section.finish(problems);
    hooks
}

//! What the agent counts, and its `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use super::Agent;
use crate::code::Code;
use crate::telemetry::help::{self, Kind};
use crate::telemetry::name;
use crate::web::process;

/// Counters of one agent.
#[derive(Debug)]
pub(super) struct Counts {
    /// Requests that the gateway answered.
    pub(super) forwarded: AtomicU64,
    /// Requests for accounts that are not led.
    pub(super) not_leader: AtomicU64,
    refused: Vec<AtomicU64>,
    /// Hooks that ended well, and those that did not.
    pub(super) hooks: [AtomicU64; 2],
    changes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            forwarded: AtomicU64::new(0),
            not_leader: AtomicU64::new(0),
            refused: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            hooks: [AtomicU64::new(0), AtomicU64::new(0)],
            changes: Mutex::default(),
        }
    }
}

impl Counts {
    pub(super) fn refuse(&self, code: Code) {
        if let Some(counter) = self.refused.get(code.index()) {
            counter.fetch_add(1, SeqCst);
        }
    }

    pub(super) fn change(&self, role: &'static str, why: &'static str) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner).entry((role, why)).or_default() += 1;
    }
}

/// Everything, as Prometheus' text format 0.0.4 has it.
pub(super) fn render(agent: &Agent) -> String {
    let counts = &agent.counts;
    let mut text = String::new();
    head(&mut text, name::AGENT_ACCOUNTS);
    let mut roles =
        BTreeMap::from(["INIT", "CANDIDATE", "WAITING", "LEADER", "SUSPEND"].map(|role| (role, 0)));
    for (_, standing) in agent.elector.standings() {
        *roles.entry(standing.role.as_str()).or_insert(0) += 1;
    }
    for (role, accounts) in roles {
        line(&mut text, name::AGENT_ACCOUNTS, &[("role", role)], accounts);
    }
    head(&mut text, name::AGENT_REQUESTS);
    let load = |counter: &AtomicU64| counter.load(SeqCst);
    line(&mut text, name::AGENT_REQUESTS, &[("verdict", "forwarded")], load(&counts.forwarded));
    line(&mut text, name::AGENT_REQUESTS, &[("verdict", "not_leader")], load(&counts.not_leader));
    for (code, counter) in Code::ALL.iter().zip(&counts.refused) {
        line(&mut text, name::AGENT_REQUESTS, &[("verdict", code.as_str())], load(counter));
    }
    head(&mut text, name::AGENT_CHANGES);
    for ((role, why), times) in counts.changes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        line(&mut text, name::AGENT_CHANGES, &[("role", role), ("reason", why)], *times);
    }
    head(&mut text, name::AGENT_HOOKS);
    for (result, counter) in ["ok", "failed"].iter().zip(&counts.hooks) {
        line(&mut text, name::AGENT_HOOKS, &[("result", result)], load(counter));
    }
    let gauge = |text: &mut String, name, value: u64| {
        head(text, name);
        line(text, name, &[], value);
    };
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    gauge(&mut text, name::AGENT_IN_FLIGHT, count(agent.rooms.in_flight()));
    gauge(&mut text, name::AGENT_CONNECTED, count(agent.elector.sessions().len()));
    listeners(agent, &mut text);
    head(&mut text, name::BUILD_INFO);
    line(&mut text, name::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(usage) = process::usage() {
        gauge(&mut text, name::RESIDENT, usage.resident_bytes);
        head(&mut text, name::CPU);
        let _ = writeln!(text, "{} {}", name::CPU, usage.cpu_seconds);
    }
    if let Some(fds) = process::open_fds() {
        gauge(&mut text, name::FDS, fds);
    }
    text
}

/// What is counted of listeners, whoever has them.
fn listeners(agent: &Agent, text: &mut String) {
    const FAMILIES: [&str; 3] = [name::CONNECTIONS, name::CONNECTION_ERRORS, name::CERTIFICATE_RELOADS];
    for line in agent.telemetry.render().lines() {
        let rest = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
        let family = rest.split([' ', '{']).next().unwrap_or_default();
        if FAMILIES.contains(&family) {
            text.push_str(line);
            text.push('\n');
        }
    }
}

fn head(text: &mut String, name: &str) {
    let about = help::ALL.iter().chain(help::AGENTS).find(|(known, ..)| *known == name);
    let (kind, about) = about.map_or((Kind::Gauge, ""), |(_, kind, about)| (*kind, *about));
    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {}", kind.as_str());
}

/// Values of labels are words of ours: nothing has to be escaped.
fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    let _ = match labels.is_empty() {
        true => writeln!(text, "{name} {value}"),
        false => writeln!(text, "{name}{{{}}} {value}", labels.join(",")),
    };
}

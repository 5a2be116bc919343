//! `/metrics`: what telemetry counts, what is computed when it is asked for, and the series with an account's name.
//!
//! Accounts are looked at one after the other, each under its own lock for as long as copying it takes.

use std::fmt::{Display, Write};
use std::sync::PoisonError;

use super::Admin;
use super::shape::{Snapshot, Standing};
use crate::code::Code;
use crate::fence::handover::Reason;
use crate::gateway::entry::Tally;
use crate::telemetry::{help, name};
use crate::web::process;

/// Under this name counters of accounts beyond `max_accounts` are summed.
const OTHER: &str = "_other";

/// Under this name are refusals of names never seen in the elections.
const UNKNOWN: &str = "_unknown";

/// Gauges that the proxy owns: zero while it does not tell them.
const PROXYS: [&str; 3] = [name::IN_FLIGHT, name::READING, name::BUFFERED];

/// Everything, as Prometheus' text format 0.0.4 has it.
pub(super) fn render(admin: &Admin) -> String {
    let mut entries = admin.registry.entries();
    if admin.per_account {
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    }
    let mut states = [0_u64; Standing::ALL.len()];
    let mut series = Series::new(if admin.per_account { admin.max_accounts } else { 0 });
    for entry in entries {
        let account = Snapshot::of(&entry);
        if account.present
            && let Some(count) = states.get_mut(account.standing as usize)
        {
            *count += 1;
        }
        series.add(&account);
    }
    let unknown = admin.registry.unknown_rejections.lock().unwrap_or_else(PoisonError::into_inner).clone();
    set_gauges(admin, &states);
    let mut text = admin.registry.telemetry.render();
    if let Some(usage) = process::usage() {
        head(&mut text, name::CPU);
        line(&mut text, name::CPU, &[], usage.cpu_seconds);
    }
    if admin.per_account {
        series.unknown(&unknown);
        series.finish(&mut text);
    } else {
        series.finish_summed(&unknown, &mut text);
    }
    text
}

#[allow(clippy::cast_precision_loss, reason = "2^53 of anything here is out of reach")]
fn set_gauges(admin: &Admin, states: &[u64; Standing::ALL.len()]) {
    let telemetry = &admin.registry.telemetry;
    for (standing, count) in Standing::ALL.into_iter().zip(states) {
        telemetry.gauge(name::ACCOUNTS, &[("state", standing.as_str())], *count as f64);
    }
    let connected = admin.status.link().session.is_some();
    telemetry.gauge(name::VIEW_CONNECTED, &[], if connected { 1.0 } else { 0.0 });
    telemetry.gauge(name::VIEW_AGE, &[], admin.registry.view_age_seconds());
    telemetry.gauge(name::PARKED, &[], admin.registry.places.taken() as f64);
    telemetry.gauge(name::START, &[], admin.started_at_ms as f64 / 1e3);
    let told = (admin.gauges)();
    for gauge in PROXYS {
        if told.iter().all(|(name, _)| *name != gauge) {
            telemetry.gauge(gauge, &[], 0.0);
        }
    }
    for (gauge, value) in told {
        telemetry.gauge(gauge, &[], value);
    }
    if let Some(usage) = process::usage() {
        telemetry.gauge(name::RESIDENT, &[], usage.resident_bytes as f64);
    }
    if let Some(fds) = process::open_fds() {
        telemetry.gauge(name::FDS, &[], fds as f64);
    }
}

/// Counts of accounts without series of their own.
#[derive(Default)]
struct Sum {
    handovers: [u64; Reason::ALL.len()],
    rejections: Tally,
    shadow: Tally,
}

/// The series with an account's name, each metric in a text of its own: the format wants them together.
struct Series {
    /// How many more accounts may have series of their own.
    places: usize,
    other: Sum,
    holders: String,
    candidates: String,
    handovers: String,
    last_handovers: String,
    rejections: String,
    shadow: String,
}

impl Series {
    fn new(places: usize) -> Self {
        Self {
            places,
            other: Sum::default(),
            holders: String::new(),
            candidates: String::new(),
            handovers: String::new(),
            last_handovers: String::new(),
            rejections: String::new(),
            shadow: String::new(),
        }
    }

    /// Takes an account. Without a znode it has only its counters, and a place only if there are any: whoever goes on
    /// sending for a deleted account is seen, and nothing else is left of it.
    fn add(&mut self, account: &Snapshot) {
        let counted = account.handovers.iter().any(|count| *count > 0)
            || account.rejections.iter().next().is_some()
            || account.shadow.iter().next().is_some();
        if !account.present && !counted {
            return;
        }
        let name = account.name.as_str();
        // An account that is called like a sum would make the same series twice.
        if self.places == 0 || [OTHER, UNKNOWN].contains(&name) {
            self.other.rejections.merge(&account.rejections);
            self.other.shadow.merge(&account.shadow);
            for (sum, count) in self.other.handovers.iter_mut().zip(account.handovers) {
                *sum += count;
            }
            return;
        }
        self.places -= 1;
        self.counters(name, &account.handovers, &account.rejections, &account.shadow);
        if !account.present {
            return;
        }
        line(&mut self.candidates, name::CANDIDATES, &[("account", name)], account.candidates);
        if let Some(holder) = &account.holder {
            let seq = holder.seq.to_string();
            let labels = [("account", name), ("instance_id", &holder.instance), ("seq", &seq)];
            line(&mut self.holders, name::HOLDER_INFO, &labels, 1);
        }
        if let Some(last) = &account.last_handover {
            let at = Milliseconds(last.at_ms);
            line(&mut self.last_handovers, name::LAST_HANDOVER, &[("account", name)], at);
        }
    }

    /// Those that were ever counted.
    fn counters(&mut self, name: &str, handovers: &[u64], rejections: &Tally, shadow: &Tally) {
        for (reason, count) in Reason::ALL.iter().zip(handovers).filter(|(_, count)| **count > 0) {
            let labels = [("account", name), ("reason", reason.as_str())];
            line(&mut self.handovers, name::HANDOVERS, &labels, count);
        }
        tally(&mut self.rejections, name::REJECTIONS, name, rejections);
        tally(&mut self.shadow, name::SHADOW_REJECTIONS, name, shadow);
    }

    fn unknown(&mut self, unknown: &Tally) {
        let other = std::mem::take(&mut self.other);
        self.counters(OTHER, &other.handovers, &other.rejections, &other.shadow);
        tally(&mut self.rejections, name::REJECTIONS, UNKNOWN, unknown);
    }

    fn finish(self, text: &mut String) {
        for (name, lines) in [
            (name::HOLDER_INFO, self.holders),
            (name::CANDIDATES, self.candidates),
            (name::HANDOVERS, self.handovers),
            (name::LAST_HANDOVER, self.last_handovers),
            (name::REJECTIONS, self.rejections),
            (name::SHADOW_REJECTIONS, self.shadow),
        ] {
            head(text, name);
            text.push_str(&lines);
        }
    }

    /// All accounts as one, without their names; at zero from the start.
    fn finish_summed(mut self, unknown: &Tally, text: &mut String) {
        self.other.rejections.merge(unknown);
        head(text, name::HANDOVERS);
        for (reason, count) in Reason::ALL.iter().zip(self.other.handovers) {
            line(text, name::HANDOVERS, &[("reason", reason.as_str())], count);
        }
        for (name, tally) in
            [(name::REJECTIONS, &self.other.rejections), (name::SHADOW_REJECTIONS, &self.other.shadow)]
        {
            head(text, name);
            for code in Code::ALL {
                let count = tally.iter().find(|(counted, _)| counted == code).map_or(0, |(_, count)| count);
                line(text, name, &[("code", code.as_str())], count);
            }
        }
    }
}

fn tally(out: &mut String, metric: &str, account: &str, tally: &Tally) {
    for (code, count) in tally.iter() {
        line(out, metric, &[("account", account), ("code", code.as_str())], count);
    }
}

/// `# HELP` and `# TYPE`.
fn head(out: &mut String, metric: &str) {
    if let Some((_, kind, text)) = help::ALL.iter().find(|(name, _, _)| *name == metric) {
        // Writing to a string does not fail, here and below.
        let _ = write!(out, "\n# HELP {metric} {text}\n# TYPE {metric} {}\n", kind.as_str());
    }
}

fn line(out: &mut String, metric: &str, labels: &[(&str, &str)], value: impl Display) {
    out.push_str(metric);
    let mut before = '{';
    for (key, value) in labels {
        out.push(before);
        out.push_str(key);
        out.push_str("=\"");
        escape(out, value);
        out.push('"');
        before = ',';
    }
    if !labels.is_empty() {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

/// A label's value: backslash, quote and newline are escaped, everything else stands for itself.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
}

/// Milliseconds, written as seconds.
struct Milliseconds(u64);

impl Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped_as_the_format_wants_it() {
        let mut out = String::new();
        line(&mut out, "m", &[("a", "x\\y\"z\n{}=, ü"), ("b", "")], 1);
        assert_eq!(out, "m{a=\"x\\\\y\\\"z\\n{}=, ü\",b=\"\"} 1\n");
    }

    #[test]
    fn moments_are_written_in_seconds() {
        assert_eq!(Milliseconds(1_700_000_000_007).to_string(), "1700000000.007");
    }

    #[test]
    fn every_state_stands_at_its_index() {
        for (index, standing) in Standing::ALL.into_iter().enumerate() {
            assert_eq!(standing as usize, index);
        }
    }
}

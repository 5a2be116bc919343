//! What is counted and measured, and the names it has: the only file that spells a metric's name.
//!
//! Handles are made once, so that counting on a request's way is one atomic addition. Series with an account's name are
//! not here: they are rendered from the registry, so that they end when they should.

use metrics::{Counter, Gauge, Histogram, Key, Label, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::help::Kind;
use crate::code::Code;

pub mod help;

/// Names of metrics.
pub mod name {
    #![allow(missing_docs, reason = "each is described where it is registered or rendered")]
    pub const REQUESTS: &str = "fencegate_requests_total";
    pub const SENDS: &str = "fencegate_sends_total";
    pub const REJECTIONS: &str = "fencegate_rejections_total";
    pub const SHADOW_REJECTIONS: &str = "fencegate_shadow_rejections_total";
    pub const HOLDER_INFO: &str = "fencegate_holder_info";
    pub const ACCOUNTS: &str = "fencegate_accounts";
    pub const CANDIDATES: &str = "fencegate_candidates";
    pub const HANDOVERS: &str = "fencegate_handovers_total";
    pub const LAST_HANDOVER: &str = "fencegate_last_handover_timestamp_seconds";
    pub const VACANCY: &str = "fencegate_vacancy_seconds";
    pub const DRAIN: &str = "fencegate_drain_seconds";
    pub const HANDOVER_CUTS: &str = "fencegate_handover_cuts_total";
    pub const SEQ_REGRESSIONS: &str = "fencegate_seq_regressions_total";
    pub const VIEW_CONNECTED: &str = "fencegate_view_connected";
    pub const VIEW_AGE: &str = "fencegate_view_age_seconds";
    pub const VIEW_RELOADS: &str = "fencegate_view_reloads_total";
    pub const PROOFS: &str = "fencegate_proofs_total";
    pub const PROOF: &str = "fencegate_proof_seconds";
    pub const PARKED: &str = "fencegate_parked";
    pub const IN_FLIGHT: &str = "fencegate_in_flight";
    pub const READING: &str = "fencegate_requests_being_read";
    pub const RECEIVED: &str = "fencegate_requests_received_total";
    pub const BUFFERED: &str = "fencegate_buffered_bytes";
    pub const UPSTREAM: &str = "fencegate_upstream_seconds";
    pub const OVERHEAD: &str = "fencegate_overhead_seconds";
    pub const CONNECTIONS: &str = "fencegate_connections";
    pub const CONNECTION_ERRORS: &str = "fencegate_connection_errors_total";
    pub const CERTIFICATE_RELOADS: &str = "fencegate_certificate_reloads_total";
    pub const BUILD_INFO: &str = "fencegate_build_info";
    pub const AGENT_ACCOUNTS: &str = "fencegate_agent_accounts";
    pub const AGENT_REQUESTS: &str = "fencegate_agent_requests_total";
    pub const AGENT_CHANGES: &str = "fencegate_agent_role_changes_total";
    pub const AGENT_IN_FLIGHT: &str = "fencegate_agent_in_flight";
    pub const AGENT_CONNECTED: &str = "fencegate_agent_sessions_connected";
    pub const AGENT_HOOKS: &str = "fencegate_agent_hooks_total";
    pub const CPU: &str = "process_cpu_seconds_total";
    pub const RESIDENT: &str = "process_resident_memory_bytes";
    pub const FDS: &str = "process_open_fds";
    pub const START: &str = "process_start_time_seconds";
}

/// How a parsed request came out. Each is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Judged the holder's, and forwarded.
    Admitted,
    /// Forwarded without judging.
    Passed,
    /// Forwarded whatever the judgement, which is counted beside.
    Shadow,
    /// The client left before the verdict.
    Withdrawn,
    /// Refused.
    Refused(Code),
}

/// Why the view was read anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The first link since the start.
    Start,
    /// The link before it was lost.
    LinkLost,
    /// A new history was accepted.
    History,
}

/// How a proof ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofResult {
    /// It proves.
    Proven,
    /// The barrier failed.
    Failed,
    /// The link was lost under it.
    Voided,
}

/// Which listener a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The bots'.
    Proxy,
    /// The operators'.
    Admin,
}

/// Why a connection ended early or never began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// Nothing that can be parsed.
    Parse,
    /// The request's head did not arrive in time.
    HeaderTimeout,
    /// Nothing was asked for too long.
    Idle,
    /// `max_connections` was reached.
    TooMany,
    /// accept(2) failed.
    Accept,
    /// Reset, or gone in the middle of something.
    Broken,
    /// The handshake of TLS failed.
    Tls,
}

impl ConnectionError {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Parse, "parse"),
        (Self::HeaderTimeout, "header_timeout"),
        (Self::Idle, "idle"),
        (Self::TooMany, "too_many"),
        (Self::Accept, "accept"),
        (Self::Broken, "broken"),
        (Self::Tls, "tls"),
    ];
}

/// All handles.
pub struct Telemetry {
    admitted: Counter,
    passed: Counter,
    shadow: Counter,
    withdrawn: Counter,
    refused: Vec<Counter>,
    answered: Counter,
    send_failed: Vec<Counter>,
    /// Requests whose head was parsed.
    pub received: Counter,
    reloads: [Counter; 3],
    proofs: [Counter; 3],
    connection_errors: Vec<Counter>,
    connections: [Gauge; 2],
    certificate_reloads: [Counter; 2],
    /// Sends cut at a handover's deadline.
    pub handover_cuts: Counter,
    /// Holders whose number is below their predecessor's.
    pub seq_regressions: Counter,
    /// Round trip of a proof.
    pub proof_seconds: Histogram,
    /// How long nobody held an account.
    pub vacancy_seconds: Histogram,
    /// How long a drain took.
    pub drain_seconds: Histogram,
    /// From the permit to the end of the sender's answer.
    pub upstream_seconds: Histogram,
    /// The rest of a forwarded request's time.
    pub overhead_seconds: Histogram,
    recorder: metrics_exporter_prometheus::PrometheusRecorder,
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

const METADATA: Metadata<'static> = Metadata::new("fencegate", metrics::Level::INFO, Some(module_path!()));

/// From 100 µs to a minute.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
];

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// Registers everything, so that each series stands at zero from the start.
    #[must_use]
    pub fn new() -> Self {
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS);
        // Only an empty list of buckets is refused.
        let recorder = builder.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder();
        let counter = |name: &'static str, key: &'static str, value: &'static str| {
            recorder.register_counter(&Key::from_parts(name, vec![Label::new(key, value)]), &METADATA)
        };
        let plain = |name: &'static str| recorder.register_counter(&Key::from_name(name), &METADATA);
        let seconds = |name: &'static str| recorder.register_histogram(&Key::from_name(name), &METADATA);
        let refusal =
            |name| Code::ALL.iter().map(|code| counter(name, code_label(name), code.as_str())).collect();
        for (name, kind, text) in help::ALL {
            match kind {
                Kind::Counter => recorder.describe_counter((*name).into(), None, (*text).into()),
                Kind::Gauge => recorder.describe_gauge((*name).into(), None, (*text).into()),
                Kind::Histogram => recorder.describe_histogram((*name).into(), None, (*text).into()),
            }
        }
        let listener = |value| {
            recorder.register_gauge(
                &Key::from_parts(name::CONNECTIONS, vec![Label::new("listener", value)]),
                &METADATA,
            )
        };
        recorder
            .register_gauge(
                &Key::from_parts(name::BUILD_INFO, vec![Label::new("version", env!("CARGO_PKG_VERSION"))]),
                &METADATA,
            )
            .set(1.0);
        Self {
            admitted: counter(name::REQUESTS, "verdict", "admitted"),
            passed: counter(name::REQUESTS, "verdict", "passed"),
            shadow: counter(name::REQUESTS, "verdict", "shadow"),
            withdrawn: counter(name::REQUESTS, "verdict", "withdrawn"),
            refused: refusal(name::REQUESTS),
            answered: counter(name::SENDS, "result", "answered"),
            send_failed: refusal(name::SENDS),
            received: plain(name::RECEIVED),
            reloads: ["start", "link_lost", "history"]
                .map(|cause| counter(name::VIEW_RELOADS, "cause", cause)),
            proofs: ["proven", "failed", "voided"].map(|result| counter(name::PROOFS, "result", result)),
            connection_errors: ConnectionError::ALL
                .iter()
                .map(|(_, kind)| counter(name::CONNECTION_ERRORS, "kind", kind))
                .collect(),
            connections: ["proxy", "admin"].map(listener),
            certificate_reloads: ["read", "failed"]
                .map(|result| counter(name::CERTIFICATE_RELOADS, "result", result)),
            handover_cuts: plain(name::HANDOVER_CUTS),
            seq_regressions: plain(name::SEQ_REGRESSIONS),
            proof_seconds: seconds(name::PROOF),
            vacancy_seconds: seconds(name::VACANCY),
            drain_seconds: seconds(name::DRAIN),
            upstream_seconds: seconds(name::UPSTREAM),
            overhead_seconds: seconds(name::OVERHEAD),
            handle: recorder.handle(),
            recorder,
        }
    }

    /// Counts a request's verdict.
    pub fn verdict(&self, verdict: Verdict) {
        match verdict {
            Verdict::Admitted => self.admitted.increment(1),
            Verdict::Passed => self.passed.increment(1),
            Verdict::Shadow => self.shadow.increment(1),
            Verdict::Withdrawn => self.withdrawn.increment(1),
            Verdict::Refused(code) => bump(&self.refused, code.index()),
        }
    }

    /// Counts how a permit's send ended: `None` if it was answered.
    pub fn send(&self, failure: Option<Code>) {
        match failure {
            None => self.answered.increment(1),
            Some(code) => bump(&self.send_failed, code.index()),
        }
    }

    /// Counts a reading of everything.
    pub fn reload(&self, cause: Reload) {
        bump(&self.reloads, cause as usize);
    }

    /// Counts a proof's end.
    pub fn proof(&self, result: ProofResult) {
        bump(&self.proofs, result as usize);
    }

    /// Counts a reading of the certificates after the first.
    pub fn certificate_reload(&self, failed: bool) {
        bump(&self.certificate_reloads, usize::from(failed));
    }

    /// Counts a connection's early end.
    pub fn connection_error(&self, kind: ConnectionError) {
        bump(&self.connection_errors, kind as usize);
    }

    /// The gauge of open connections.
    pub fn connections(&self, listener: Listener) -> Gauge {
        self.connections.get(listener as usize).cloned().unwrap_or_else(Gauge::noop)
    }

    /// Sets a gauge that is computed when it is asked for.
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &'static str)], value: f64) {
        let labels = labels.iter().map(|(key, value)| Label::new(*key, *value)).collect::<Vec<_>>();
        self.recorder.register_gauge(&Key::from_parts(name, labels), &METADATA).set(value);
    }

    /// Everything registered here, as Prometheus' text format has it.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Moves measured values into their buckets; to be called every few seconds, so that they do not pile up.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn code_label(name: &str) -> &'static str {
    if name == name::SENDS { "result" } else { "verdict" }
}

fn bump(counters: &[Counter], index: usize) {
    if let Some(counter) = counters.get(index) {
        counter.increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_stands_at_zero_from_the_start() {
        let telemetry = Telemetry::new();
        let text = telemetry.render();
        for code in Code::ALL {
            assert!(
                text.contains(&format!("{}{{verdict=\"{}\"}} 0", name::REQUESTS, code.as_str())),
                "{text}"
            );
        }
        telemetry.verdict(Verdict::Refused(Code::StaleToken));
        assert!(telemetry.render().contains("fencegate_requests_total{verdict=\"stale_token\"} 1"));
    }

    #[test]
    fn histograms_stand_at_zero_before_any_sample() {
        let text = Telemetry::new().render();
        for name in [name::VACANCY, name::DRAIN, name::PROOF, name::UPSTREAM, name::OVERHEAD] {
            for line in [
                format!("# TYPE {name} histogram"),
                format!("{name}_bucket{{le=\"0.0001\"}} 0"),
                format!("{name}_bucket{{le=\"+Inf\"}} 0"),
                format!("{name}_sum 0"),
                format!("{name}_count 0"),
            ] {
                assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
            }
        }
    }

    #[test]
    fn connection_errors_stand_at_their_index() {
        for (index, (kind, _)) in ConnectionError::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }
}

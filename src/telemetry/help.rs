//! One line about every metric, and its kind, as `# HELP` and `# TYPE` say it.

use super::name;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Seconds in fixed buckets.
    Histogram,
}

impl Kind {
    /// As `# TYPE` spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Every metric.
pub const ALL: &[(&str, Kind, &str)] = &[
    (name::REQUESTS, Kind::Counter, "Parsed requests by verdict; each once."),
    (name::SENDS, Kind::Counter, "Permits by how their send ended; each once."),
    (name::REJECTIONS, Kind::Counter, "Refused requests by account and code."),
    (name::SHADOW_REJECTIONS, Kind::Counter, "What shadow mode would have refused, by account and code."),
    (name::HOLDER_INFO, Kind::Gauge, "1 for the current holder of an account, while it holds."),
    (name::ACCOUNTS, Kind::Gauge, "Accounts by state."),
    (name::CANDIDATES, Kind::Gauge, "Candidates that stand for an account."),
    (name::HANDOVERS, Kind::Counter, "New holders that followed an old one, by account and reason."),
    (name::LAST_HANDOVER, Kind::Gauge, "When an account's last handover was seen, seconds since 1970."),
    (name::VACANCY, Kind::Histogram, "How long nobody was seen to hold an account between two holders."),
    (name::DRAIN, Kind::Histogram, "How long a new holder waited for the sends of earlier ones."),
    (name::HANDOVER_CUTS, Kind::Counter, "Sends cut because their holder's successor waited long enough."),
    (
        name::SEQ_REGRESSIONS,
        Kind::Counter,
        "New holders with a lower seq than their predecessor: a tree was recreated.",
    ),
    (name::VIEW_CONNECTED, Kind::Gauge, "1 while there is a session with the coordination service."),
    (name::VIEW_AGE, Kind::Gauge, "Age of the proof behind the latest verdict, in seconds."),
    (name::VIEW_RELOADS, Kind::Counter, "How often the whole view was read, and why."),
    (name::PROOFS, Kind::Counter, "Proofs by result."),
    (name::PROOF, Kind::Histogram, "Round trip of a proof."),
    (name::PARKED, Kind::Gauge, "Requests that wait for a proof, a read or a drain."),
    (name::IN_FLIGHT, Kind::Gauge, "Requests that are being forwarded."),
    (name::READING, Kind::Gauge, "Requests whose body is being read."),
    (name::RECEIVED, Kind::Counter, "Requests whose head was parsed."),
    (name::BUFFERED, Kind::Gauge, "Bytes of bodies and answers in buffers."),
    (name::UPSTREAM, Kind::Histogram, "From the permit to the end of the sender's answer."),
    (
        name::OVERHEAD,
        Kind::Histogram,
        "The gateway's own time for a forwarded request, the sender's excluded.",
    ),
    (name::CONNECTIONS, Kind::Gauge, "Open connections by listener."),
    (name::CONNECTION_ERRORS, Kind::Counter, "Connections that ended early or never began."),
    (name::CERTIFICATE_RELOADS, Kind::Counter, "Readings of the certificates on SIGHUP by result."),
    (name::AGENT_ACCOUNTS, Kind::Gauge, "Accounts of an agent by its role."),
    (name::AGENT_REQUESTS, Kind::Counter, "Requests of bots to an agent by verdict; each once."),
    (name::AGENT_CHANGES, Kind::Counter, "Changes of an agent's roles, by new role and reason."),
    (name::AGENT_IN_FLIGHT, Kind::Gauge, "Requests of bots that an agent has under way."),
    (name::AGENT_CONNECTED, Kind::Gauge, "Sessions of an agent that are connected."),
    (name::AGENT_HOOKS, Kind::Counter, "Hooks that an agent ran, by result."),
    (name::BUILD_INFO, Kind::Gauge, "1, with the version that runs."),
    (name::CPU, Kind::Counter, "Processor time used, user and system, in seconds."),
    (name::RESIDENT, Kind::Gauge, "Resident memory in bytes."),
    (name::FDS, Kind::Gauge, "Open file descriptors."),
    (name::START, Kind::Gauge, "When the process started, seconds since 1970."),
];

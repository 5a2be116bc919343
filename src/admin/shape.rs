//! The JSON of the room: one account, the view, and what the event stream tells.
//!
//! An account is copied out under its lock and written afterwards. 64-bit numbers are strings, so that JavaScript
//! keeps them; seq is a number.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::Admin;
use crate::code::Code;
use crate::fence::handover::Reason;
use crate::fence::name::AccountName;
use crate::fence::view::{Holder, Invalid, View};
use crate::gateway::entry::{Entry, Handover, Tally};
use crate::gateway::events::HolderSummary;

/// The state of an account, as the API and the metrics spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Somebody holds it.
    Held,
    /// Nobody does.
    Vacant,
    /// Somebody claims to, and does not count.
    Invalid,
    /// It has not been read yet.
    Unknown,
}

impl Standing {
    pub(super) const ALL: [Self; 4] = [Self::Held, Self::Vacant, Self::Invalid, Self::Unknown];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Vacant => "vacant",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
        }
    }
}

/// One account at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) name: AccountName,
    pub(super) standing: Standing,
    /// False if the account is known to have no znode and nothing goes on for it.
    pub(super) present: bool,
    pub(super) holder: Option<Arc<Holder>>,
    pub(super) invalid: Option<Invalid>,
    pub(super) candidates: usize,
    pub(super) in_flight: usize,
    pub(super) parked: usize,
    /// In the order of [`Reason::ALL`].
    pub(super) handovers: [u64; Reason::ALL.len()],
    pub(super) last_handover: Option<Handover>,
    pub(super) rejections: Tally,
    pub(super) shadow: Tally,
}

impl Snapshot {
    /// Copies an account out; its lock is held for nothing else.
    pub(super) fn of(entry: &Entry) -> Self {
        let (parked, unjudged) = (entry.parked(), entry.unjudged());
        let state = entry.state();
        let gate = state.account.gate();
        let in_flight = gate.in_flight() + unjudged;
        let (standing, invalid) = match gate.view() {
            _ if !state.account.is_known() => (Standing::Unknown, None),
            View::Absent | View::Vacant => (Standing::Vacant, None),
            View::Invalid(why) => (Standing::Invalid, Some(*why)),
            View::Held(_) => (Standing::Held, None),
        };
        let gone = state.account.is_known() && *gate.view() == View::Absent;
        Self {
            name: entry.name.clone(),
            standing,
            present: !gone || in_flight > 0 || parked > 0,
            holder: gate.view().holder().cloned(),
            invalid,
            candidates: state.account.candidates(),
            in_flight,
            parked,
            handovers: state.record.handovers,
            last_handover: state.record.last_handover.clone(),
            rejections: state.record.rejections.clone(),
            shadow: state.record.shadow.clone(),
        }
    }

    /// An account whose entry is forgotten.
    pub(super) fn gone(name: AccountName) -> Self {
        Self {
            name,
            standing: Standing::Vacant,
            present: false,
            holder: None,
            invalid: None,
            candidates: 0,
            in_flight: 0,
            parked: 0,
            handovers: Default::default(),
            last_handover: None,
            rejections: Tally::default(),
            shadow: Tally::default(),
        }
    }
}

#[derive(Serialize)]
struct HolderJson<'a> {
    seq: u64,
    session: String,
    instance_id: &'a str,
    epoch: String,
    active_since: Option<i64>,
}

/// A holder without its session.
#[derive(Debug, Serialize)]
struct SummaryJson<'a> {
    seq: u64,
    instance_id: &'a str,
}

impl<'a> SummaryJson<'a> {
    fn of(holder: &'a Holder) -> Self {
        Self { seq: holder.seq.0, instance_id: &holder.instance }
    }
}

#[derive(Serialize)]
struct LastHandoverJson<'a> {
    at: u64,
    reason: &'static str,
    from: SummaryJson<'a>,
    to: SummaryJson<'a>,
    vacant_ms: u64,
    drain_ms: Option<u64>,
}

#[derive(Serialize)]
struct AccountJson<'a> {
    account: &'a str,
    state: &'static str,
    holder: Option<HolderJson<'a>>,
    invalid_reason: Option<String>,
    candidates: usize,
    in_flight: usize,
    parked: usize,
    handovers: u64,
    last_handover: Option<LastHandoverJson<'a>>,
    rejections: BTreeMap<&'static str, u64>,
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        AccountJson {
            account: self.name.as_str(),
            state: self.standing.as_str(),
            holder: self.holder.as_ref().map(|holder| HolderJson {
                seq: holder.seq.0,
                session: holder.session.to_string(),
                instance_id: &holder.instance,
                epoch: holder.epoch.to_string(),
                active_since: holder.active_since,
            }),
            invalid_reason: self.invalid.map(|why| why.to_string()),
            candidates: self.candidates,
            in_flight: self.in_flight,
            parked: self.parked,
            handovers: self.handovers.iter().sum(),
            last_handover: self.last_handover.as_ref().map(|last| LastHandoverJson {
                at: last.at_ms,
                reason: last.reason.as_str(),
                from: SummaryJson::of(&last.from),
                to: SummaryJson::of(&last.to),
                vacant_ms: last.vacant_ms,
                drain_ms: last.drain_ms,
            }),
            rejections: self.rejections.iter().map(|(code, count)| (code.as_str(), count)).collect(),
        }
        .serialize(serializer)
    }
}

/// One page of the list.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    pub(super) accounts: Vec<Snapshot>,
    /// The name to go on after; null at the end.
    pub(super) next: Option<String>,
}

/// The newest proof.
#[derive(Debug, Serialize)]
struct ProofJson {
    age_ms: u64,
    last_ms: f64,
    barrier: &'static str,
}

/// The view as a whole.
#[derive(Debug, Serialize)]
pub(super) struct ViewJson {
    backend: &'static str,
    connected: bool,
    session: Option<String>,
    accounts: usize,
    loading: bool,
    proof: Option<ProofJson>,
}

impl ViewJson {
    pub(super) fn of(admin: &Admin) -> Self {
        let link = admin.status.link();
        let registry = &admin.registry;
        let proof = registry.proofs.latest().map(|proven| ProofJson {
            age_ms: u64::try_from(registry.clock.now().since(proven.begun_at).as_millis())
                .unwrap_or(u64::MAX),
            // Whole microseconds: the rest is noise.
            last_ms: (proven.took.as_secs_f64() * 1e6).round() / 1e3,
            barrier: admin.barrier,
        });
        Self {
            backend: admin.backend,
            connected: link.session.is_some(),
            session: link.session.map(|session| session.to_string()),
            accounts: registry.present(),
            loading: link.loading,
            proof,
        }
    }
}

/// A handover, as the event stream tells it.
#[derive(Debug, Serialize)]
pub(super) struct HandoverJson<'a> {
    account: &'a str,
    at: u64,
    reason: &'static str,
    from: SummaryJson<'a>,
    to: SummaryJson<'a>,
}

impl<'a> HandoverJson<'a> {
    pub(super) fn of(
        account: &'a AccountName,
        at: u64,
        reason: Reason,
        from: &'a HolderSummary,
        to: &'a HolderSummary,
    ) -> Self {
        let summary =
            |holder: &'a HolderSummary| SummaryJson { seq: holder.seq, instance_id: &holder.instance };
        Self { account: account.as_str(), at, reason: reason.as_str(), from: summary(from), to: summary(to) }
    }
}

/// A refusal, as the event stream tells it.
#[derive(Debug, Serialize)]
pub(super) struct RefusalJson<'a> {
    account: Option<&'a str>,
    code: &'static str,
    request_id: &'a str,
}

impl<'a> RefusalJson<'a> {
    pub(super) fn of(account: Option<&'a AccountName>, code: Code, request_id: &'a str) -> Self {
        Self { account: account.map(AccountName::as_str), code: code.as_str(), request_id }
    }
}

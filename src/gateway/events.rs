//! What the event stream tells: small records, made only while somebody listens.

use crate::code::Code;
use crate::fence::handover::Reason;
use crate::fence::name::AccountName;
use crate::fence::view::Holder;

/// A holder without its session.
#[derive(Clone, Debug)]
pub struct HolderSummary {
    /// Its number.
    pub seq: u64,
    /// Its instance id.
    pub instance: String,
}

impl HolderSummary {
    pub(super) fn of(holder: &Holder) -> Self {
        Self { seq: holder.seq.0, instance: holder.instance.clone() }
    }
}

/// One event.
#[derive(Clone, Debug)]
pub enum Event {
    /// The link came or went, or the view was loaded.
    View,
    /// An account's view is another one.
    Account(AccountName),
    /// A holder followed another one.
    Handover {
        /// Of which account.
        account: AccountName,
        /// Wall clock, milliseconds since 1970.
        at_ms: u64,
        /// Why.
        reason: Reason,
        /// The old one.
        from: HolderSummary,
        /// The new one.
        to: HolderSummary,
    },
    /// A request was refused.
    Refusal {
        /// Of which account, where it is known.
        account: Option<AccountName>,
        /// With which code.
        code: Code,
        /// The request's id.
        request_id: String,
    },
}

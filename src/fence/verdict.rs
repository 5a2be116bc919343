//! The verdict: a view and a claim in, admit or a refusal out.
//!
//! A pure function over the table of the contract. It never knows about proofs, permits or time.

use std::sync::Arc;

use super::token::Claim;
use super::view::{Holder, View};
use crate::code::Code;
use crate::mutant::{self, Mutant};

/// What a claim deserves under a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim is the current holder's.
    Admit(Arc<Holder>),
    /// It is not, for this reason.
    Refuse(Code),
}

/// Judges `claim` under `view`: the first line of the table that applies.
#[must_use]
pub fn judge(view: &View, claim: &Claim) -> Verdict {
    let holder = match view {
        View::Absent => return Verdict::Refuse(Code::UnknownAccount),
        View::Vacant => return Verdict::Refuse(Code::NoHolder),
        View::Invalid(_) => return Verdict::Refuse(Code::InvalidHolder),
        View::Held(holder) => holder,
    };
    if claim.seq < holder.seq {
        Verdict::Refuse(Code::StaleToken)
    } else if mutant::is(Mutant::LessOnly) {
        Verdict::Admit(Arc::clone(holder))
    } else if claim.seq > holder.seq {
        Verdict::Refuse(Code::NotHolder)
    } else if claim.session != holder.session {
        Verdict::Refuse(Code::SessionMismatch)
    } else if claim.instance.as_ref().is_some_and(|instance| *instance != holder.instance) {
        Verdict::Refuse(Code::InstanceMismatch)
    } else if claim.epoch.is_some_and(|epoch| epoch != holder.epoch) {
        Verdict::Refuse(Code::EpochMismatch)
    } else {
        Verdict::Admit(Arc::clone(holder))
    }
}

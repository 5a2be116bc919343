//! What to call a change of holder, from the evidence that reads and events left.
//!
//! Words for people: nothing is admitted or refused by a reason.

use std::sync::Arc;
use std::time::Duration;

use super::view::{Holder, Invalid, Reading, View};
use crate::clock::Moment;

/// Why a holder was followed by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Candidate and holding ended in one transaction: expired or closed.
    SessionExpired,
    /// The same, and the transaction said that it was meant.
    Resigned,
    /// The candidate was removed on its own.
    NodeDeleted,
    /// The holding was removed while the candidate stands.
    ActiveDeleted,
    /// It happened while the gateway could not see it.
    Unobserved,
}

impl Reason {
    /// Every reason.
    pub const ALL: &[Self] =
        &[Self::SessionExpired, Self::Resigned, Self::NodeDeleted, Self::ActiveDeleted, Self::Unobserved];

    /// As logs, labels and the API spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionExpired => "session_expired",
            Self::Resigned => "resigned",
            Self::NodeDeleted => "node_deleted",
            Self::ActiveDeleted => "active_deleted",
            Self::Unobserved => "unobserved",
        }
    }
}

/// One event below an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sighting {
    /// The holder's znode was deleted.
    HolderGone,
    /// The candidate with this number was deleted.
    CandidateGone(u64),
    /// A candidate was created.
    CandidateCame,
    /// Anything else: it only says that the account changed.
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The place among the account's events.
    number: u64,
    /// The transaction, where the server tells it (3.9 and later).
    zxid: Option<i64>,
    at: Moment,
}

/// What a read made known about who holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The first holder seen of an account.
    Observed(Arc<Holder>),
    /// A new holder follows an old one.
    Handover {
        /// The old one.
        from: Arc<Holder>,
        /// The new one.
        to: Arc<Holder>,
        /// Why.
        reason: Reason,
        /// How long nobody was seen to hold.
        vacant: Duration,
    },
}

/// The memory of one account's holders: the last one, and what is known of its end.
#[derive(Debug, Default)]
pub struct Chronicle {
    last: Option<Arc<Holder>>,
    events: u64,
    holder_gone: Option<Seen>,
    candidate_gone: Option<Seen>,
    candidate_came: Option<u64>,
    ended: Option<(Reason, Moment)>,
}

impl Chronicle {
    /// The last holder that counted.
    #[must_use]
    pub fn last(&self) -> Option<&Arc<Holder>> {
        self.last.as_ref()
    }

    /// Takes an event, in the order in which events arrive.
    pub fn sighted(&mut self, sighting: Sighting, zxid: Option<i64>, at: Moment) {
        self.events += 1;
        let seen = Seen { number: self.events, zxid, at };
        match sighting {
            Sighting::HolderGone => self.holder_gone = Some(seen),
            Sighting::CandidateGone(seq) if self.last.as_ref().is_some_and(|last| last.seq.0 == seq) => {
                self.candidate_gone = Some(seen);
            }
            Sighting::CandidateCame => self.candidate_came = Some(self.events),
            Sighting::CandidateGone(_) | Sighting::Other => {}
        }
    }

    /// Takes a read that is in force. `observed`: it follows the read before it without a gap in the events.
    pub fn read(&mut self, reading: &Reading, observed: bool, at: Moment) -> Option<Turn> {
        match &reading.view {
            View::Absent | View::Vacant => {
                if let Some(last) = &self.last
                    && self.ended.is_none()
                {
                    let reason =
                        if observed { self.classify(last, reading, true) } else { Reason::Unobserved };
                    self.ended = Some((reason, self.holder_gone.map_or(at, |seen| seen.at)));
                }
                None
            }
            View::Invalid(Invalid::NoCandidate) => {
                self.separate(reading);
                None
            }
            View::Invalid(_) => None,
            View::Held(holder) => {
                let Some(last) = self.last.replace(Arc::clone(holder)) else {
                    self.forget_evidence();
                    return Some(Turn::Observed(Arc::clone(holder)));
                };
                if last.is_same_term(holder) {
                    self.separate(reading);
                    self.ended = None;
                    return None;
                }
                let (reason, since) = self.ended.take().unwrap_or_else(|| {
                    let reason =
                        if observed { self.classify(&last, reading, false) } else { Reason::Unobserved };
                    (reason, self.holder_gone.map_or(at, |seen| seen.at))
                });
                self.forget_evidence();
                Some(Turn::Handover { from: last, to: Arc::clone(holder), reason, vacant: at.since(since) })
            }
        }
    }

    /// A new history begins: who held in the old one ended with it, unseen.
    pub fn forget(&mut self, at: Moment) {
        if self.last.is_some() {
            self.ended.get_or_insert((Reason::Unobserved, at));
        }
    }

    /// A read that shows the holding without its candidate stands between their ends: they are not back to back.
    fn separate(&mut self, reading: &Reading) {
        if self.last.as_ref().is_some_and(|last| !reading.candidates.contains(&last.seq.0)) {
            self.events += 1;
        }
    }

    fn forget_evidence(&mut self) {
        (self.holder_gone, self.candidate_gone, self.candidate_came, self.ended) = (None, None, None, None);
    }

    /// Why `last` ended, seen without a gap. `vacant`: the read shows that nobody holds.
    fn classify(&self, last: &Holder, reading: &Reading, vacant: bool) -> Reason {
        // Unless it was seen to go: then a recreated tree has given its number away again.
        if self.candidate_gone.is_none() && reading.candidates.contains(&last.seq.0) {
            return Reason::ActiveDeleted;
        }
        let (back_to_back, zxids) = match (self.candidate_gone, self.holder_gone) {
            (Some(one), Some(other)) => (one.number.abs_diff(other.number) == 1, one.zxid.zip(other.zxid)),
            _ => (false, None),
        };
        let marks = reading.marks.unwrap_or_default();
        // Zero is the mark of what is not there.
        let equal = |one: i64, other: i64| one == other && one > 0;
        let together = if let Some((one, other)) = zxids {
            one == other
        } else if vacant {
            // A candidate that came later hides the mark of the one that went.
            let hidden = marks.standing > marks.holding
                && self.candidate_came > self.candidate_gone.map(|seen| seen.number);
            equal(marks.holding, marks.standing)
                || equal(marks.holding, marks.resigning)
                || (hidden && back_to_back)
        } else {
            back_to_back
        };
        let resigned = equal(marks.resigning, marks.standing)
            || (vacant && equal(marks.resigning, marks.holding))
            || zxids.is_some_and(|(one, _)| equal(marks.resigning, one));
        match (together, resigned) {
            (false, _) => Reason::NodeDeleted,
            (true, true) => Reason::Resigned,
            (true, false) => Reason::SessionExpired,
        }
    }
}

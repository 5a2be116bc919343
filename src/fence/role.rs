//! What an instance is for an account, and why that changed.
//!
//! Plain data and its spellings. It decides nothing.

use super::token::{Epoch, Seq, SessionId};

/// One term of leading: the fencing token without the instance's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// The own candidate's number.
    pub seq: Seq,
    /// The own session.
    pub session: SessionId,
    /// The epoch.
    pub epoch: Epoch,
}

/// What an instance is for an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It has no candidate.
    Init,
    /// It takes part now.
    Candidate,
    /// It stands by.
    Waiting,
    /// It holds the account.
    Leader(Term),
    /// It does not know, or it is being set right: nothing is sent.
    Suspend,
}

impl Role {
    /// As logs and the API spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Candidate => "CANDIDATE",
            Self::Waiting => "WAITING",
            Self::Leader(_) => "LEADER",
            Self::Suspend => "SUSPEND",
        }
    }

    /// The term, while it leads.
    #[must_use]
    pub const fn term(self) -> Option<Term> {
        match self {
            Self::Leader(term) => Some(term),
            Self::Init | Self::Candidate | Self::Waiting | Self::Suspend => None,
        }
    }
}

/// Why a role changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It has not begun.
    NotStarted,
    /// Its candidate stands, and the account is free.
    Free,
    /// Another candidate comes first.
    NotFirst,
    /// Another instance holds the account.
    HeldByOther,
    /// `/active` is its own.
    Elected,
    /// `/active` is still its own after the connection was away.
    StillHolds,
    /// The connection was lost.
    Disconnected,
    /// Nothing proved the session alive for too long.
    Deadline,
    /// The session is over.
    SessionEnded,
    /// Its `/active` was deleted.
    ActiveGone,
    /// `/active` became another instance's.
    ActiveTaken,
    /// `/active` is its session's and not as it writes it.
    ActiveOdd,
    /// Its candidate was deleted.
    CandidateGone,
    /// It gave the account up.
    Resigned,
}

impl Why {
    /// As logs and the API spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Free => "account_free",
            Self::NotFirst => "not_first",
            Self::HeldByOther => "held_by_other",
            Self::Elected => "elected",
            Self::StillHolds => "still_holds",
            Self::Disconnected => "disconnected",
            Self::Deadline => "deadline",
            Self::SessionEnded => "session_ended",
            Self::ActiveGone => "active_gone",
            Self::ActiveTaken => "active_taken",
            Self::ActiveOdd => "active_odd",
            Self::CandidateGone => "candidate_gone",
            Self::Resigned => "resigned",
        }
    }
}

//! What is known of one account's election.
//!
//! Plain data, made by a layout from one read of the coordination service. It never judges.

use std::fmt;
use std::sync::Arc;

use super::token::{Epoch, Seq, SessionId};

/// Who holds an account: the counterpart of a [claim](super::token::Claim).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its candidate number.
    pub seq: Seq,
    /// Its session.
    pub session: SessionId,
    /// Its instance id.
    pub instance: String,
    /// The czxid of the znode that proves the holding.
    pub epoch: Epoch,
    /// When it says it began, in milliseconds since 1970. Shown, never compared.
    pub active_since: Option<i64>,
}

impl Holder {
    /// True if `other` is the same holder in the same term.
    #[must_use]
    pub fn is_same_term(&self, other: &Self) -> bool {
        self.epoch == other.epoch
            && self.seq == other.seq
            && self.session == other.session
            && self.instance == other.instance
    }
}

/// Why a holder does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invalid {
    /// The znode's data is not the JSON it must be.
    Data(&'static str),
    /// The znode is not ephemeral.
    NotEphemeral,
    /// `ephemeralOwner` is another session than the data's.
    OtherOwner,
    /// No candidate has the holder's number.
    NoCandidate,
    /// The gateway may not read the election.
    NoPermission,
    /// seq, instance or session changed under an unchanged czxid.
    Rewritten,
    /// The epoch is lower than one seen before.
    EpochWentBack,
    /// A sequence number overflowed: the election needs a new tree.
    SequenceOverflow,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data(what) => what,
            Self::NotEphemeral => "the holder's znode is not ephemeral",
            Self::OtherOwner => "the holder's znode belongs to another session than its data says",
            Self::NoCandidate => "no candidate has the holder's number",
            Self::NoPermission => "no permission to read the election",
            Self::Rewritten => "the holder's data changed within one term",
            Self::EpochWentBack => "the holder's epoch is lower than one seen before",
            Self::SequenceOverflow => "a candidate's sequence number overflowed",
        })
    }
}

/// The view of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// There is no such account.
    #[default]
    Absent,
    /// Nobody holds it.
    Vacant,
    /// Somebody claims to hold it, and does not count.
    Invalid(Invalid),
    /// Held.
    Held(Arc<Holder>),
}

impl View {
    /// The holder, if there is one that counts.
    #[must_use]
    pub fn holder(&self) -> Option<&Arc<Holder>> {
        match self {
            Self::Held(holder) => Some(holder),
            Self::Absent | Self::Vacant | Self::Invalid(_) => None,
        }
    }
}

/// One read of one account: everything seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The view it gives.
    pub view: View,
    /// The numbers of the candidates that stand.
    pub candidates: Vec<u64>,
    /// Transaction marks of the account's own znodes, where they exist and could be read.
    pub marks: Option<Marks>,
    /// The size of what was read, in bytes: bounds the next read.
    pub bytes: usize,
}

impl Reading {
    /// Whether the account may not be read.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.view == View::Invalid(Invalid::NoPermission)
    }
}

/// Transaction ids that tell how an account came to be as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The newest of the account znode's czxid, mzxid and pzxid: rises within one history.
    pub newest: i64,
    /// The account's pzxid: the last creation or deletion of the holder's znode.
    pub holding: i64,
    /// The candidates' pzxid: the last registration or end of a candidate.
    pub standing: i64,
    /// The mzxid of the candidates' parent: set by a resignation.
    pub resigning: i64,
}

//! Why there is no answer, and whether the sender may have seen the request.
//!
//! It decides nothing: a stop means what the moment makes of it.

use super::Stop;
use crate::code::Code;

/// Why there is no answer. The code says whether the sender may have seen the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the caller.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
}

impl Failure {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// A stop before a byte may have been written.
pub(super) fn not_sent(stop: Stop) -> Failure {
    match stop {
        Stop::ShuttingDown => Failure::new(Code::ShuttingDown, ""),
        Stop::Superseded | Stop::Cut => Failure::new(Code::Superseded, ""),
        Stop::Late => Failure::new(Code::UpstreamUnreachable, "the sender could not be reached in time"),
    }
}

/// A stop after it.
pub(super) fn maybe_sent(stop: Stop) -> Failure {
    match stop {
        Stop::ShuttingDown => Failure::new(Code::ShutdownCut, ""),
        Stop::Superseded | Stop::Cut => Failure::new(Code::HandoverCut, ""),
        Stop::Late => Failure::new(Code::UpstreamTimeout, "the sender did not answer in time"),
    }
}

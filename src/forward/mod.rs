//! One request to one upstream, at most once, and what became of it.
//!
//! [`exchange`] sends, [`target`] says where to, [`pool`] keeps connections (`wire` is what is below them, `link` and `call` are
//! HTTP/2's), [`body`] is what is sent. Nothing here knows accounts or verdicts: an [`Authority`] stands for them.

pub mod body;
mod call;
pub mod exchange;
mod failure;
mod link;
pub mod memory;
pub mod pieces;
pub mod pool;
mod says;
pub mod target;
mod wire;

use std::task::{Context, Poll};
use std::time::Duration;

use crate::code::Code;

/// Why an exchange has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its holder was superseded before a byte was written.
    Superseded,
    /// A new holder follows and has waited long enough.
    Cut,
    /// The process has to end.
    ShuttingDown,
    /// It had its time.
    Late,
}

/// What allows one send. The forwarder asks for it immediately before the first byte and gives way when it is revoked;
/// without one nothing can be sent. Dropped, it is given back: only once the exchange has ended.
pub trait Authority: Send + Sync + 'static {
    /// How long the exchange may take, from now on.
    fn allow(&self, total: Duration);

    /// Called immediately before a byte may be written.
    ///
    /// # Errors
    /// The code for the caller: nothing may be written.
    fn begin(&self) -> Result<(), Code>;

    /// Takes [`begin`](Self::begin) back: it is certain that no byte was written.
    fn unbegin(&self);

    /// Ready once the send has to stop.
    fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop>;
}

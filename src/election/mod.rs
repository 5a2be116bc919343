//! Where holders come from: the seam between the gateway and a coordination service.
//!
//! A [`Backend`] makes [`Link`]s. A link is an unbroken, ordered conversation: what is sent first is answered first, and
//! a change that was made before an operation was executed is announced before that operation's answer. When
//! anything breaks that promise, the link is over and a new one is made. Nothing here judges, and nothing here
//! remembers what it read.

pub mod embedded;
pub mod gateway;
pub mod memory;
pub mod session;
pub mod zookeeper;

use std::future::Future;
use std::pin::Pin;

use thiserror::Error;

use crate::fence::handover::Sighting;
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;
use crate::fence::view::Reading;

/// Why a link cannot be made or is over. Any error ends a link.
#[derive(Clone, Debug, Error)]
pub enum BackendError {
    /// The service cannot be reached, or the session is gone.
    #[error("{0}")]
    Lost(String),
    /// The service answers, and refuses.
    #[error("{what}: {why}")]
    Refused {
        /// What was asked.
        what: String,
        /// Why it was refused, and what to do.
        why: String,
    },
}

/// An answer that is on its way. The operation was sent before this was returned; dropping it does not recall it.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// All accounts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Their names, in no order. Children whose names are no account's are left out.
    pub names: Vec<AccountName>,
    /// How many were left out.
    pub strange: usize,
    /// The newest transaction that the root bears, if there is a root.
    pub newest: Option<i64>,
}

/// What a link announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something below an account changed.
    Account {
        /// Which account.
        name: AccountName,
        /// What happened.
        sighting: Sighting,
        /// In which transaction, where the service says so.
        zxid: Option<i64>,
    },
    /// The link is over; nothing will follow.
    Lost(String),
}

/// Makes links.
pub trait Backend: Send + Sync + 'static {
    /// What it makes.
    type Link: Link;

    /// The backend's name in the configuration.
    fn name(&self) -> &'static str;

    /// Makes a new link, whose announcements begin before it is returned.
    ///
    /// # Errors
    /// Any; the caller tries again. Takes as long as the service takes to appear, but never much longer than a
    /// session's timeout. Dropping the future gives up.
    fn connect(&mut self) -> impl Future<Output = Result<Self::Link, BackendError>> + Send;
}

/// An unbroken, ordered conversation with the service. Operations are executed in the order of the calls.
pub trait Link: Send + 'static {
    /// The session it runs on.
    fn session(&self) -> SessionId;

    /// A round trip through the service's agreement: once it is answered, everything that was committed before it
    /// was called has been announced.
    fn barrier(&mut self) -> Pending<()>;

    /// Lists all accounts.
    fn list(&mut self) -> Pending<Listing>;

    /// Reads accounts, each as of one moment, in the order asked for.
    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>>;

    /// The next announcement. Dropping the future loses none.
    fn next(&mut self) -> impl Future<Output = Change> + Send;

    /// The next announcement, if it has arrived.
    fn try_next(&mut self) -> Option<Change>;
}

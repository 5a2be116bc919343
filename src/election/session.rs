//! The instance's side of a coordination service: the seam between an elector and where its candidates stand.
//!
//! A [`Sessions`] opens [`Session`]s. A session stands as a candidate, reads what stands, takes and gives up accounts; it
//! outlives its connection. It decides nothing: that is [`fence::elector`](crate::fence::elector)'s part.

use std::future::Future;
use std::time::Duration;

use super::{BackendError, Pending};
use crate::fence::elector::Sight;
use crate::fence::handover::Sighting;
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;

/// What a session tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something below an account changed, the session's own doing as well. A change is told before the answer to any
    /// operation that was executed after it.
    Account {
        /// Which account.
        name: AccountName,
        /// What happened.
        sighting: Sighting,
    },
    /// The connection is lost; the session may live on. Until [`Notice::Connected`] nothing else is told, and what changes
    /// meanwhile never is.
    Disconnected(String),
    /// The connection is there again, for the same session. Operations that were under way before have been answered or
    /// failed, or are executed before any that are sent from now on.
    Connected,
    /// The session is over, with all of its candidates. Nothing follows.
    Ended(String),
}

/// Opens sessions for one instance.
pub trait Sessions: Send + 'static {
    /// What it opens.
    type Session: Session;

    /// Opens a new session, whose notices begin before it is returned.
    ///
    /// # Errors
    /// Any; the caller tries again. Takes as long as the service takes to appear, but never much longer than a session's
    /// timeout. Dropping the future gives up.
    fn open(&mut self) -> impl Future<Output = Result<Self::Session, BackendError>> + Send;
}

/// One session of an instance. Operations are sent when they are called and executed in that order; dropping an answer
/// recalls nothing.
///
/// # Errors
/// [`BackendError::Lost`]: nobody knows whether it was executed. [`BackendError::Refused`]: it was not, and will not be.
/// That others were faster is no error: [`look`](Self::look) shows it.
pub trait Session: Send + 'static {
    /// Its id: that of the tokens.
    fn id(&self) -> SessionId;

    /// How long it lives without being renewed, as the service has granted it.
    fn timeout(&self) -> Duration;

    /// A round trip through the service's agreement. Answered, the session lived when this was called, and everything
    /// committed before is seen by whatever is read after.
    fn renew(&mut self) -> Pending<()>;

    /// The names of all accounts.
    fn list(&mut self) -> Pending<Vec<AccountName>>;

    /// Looks at accounts, each as of one moment, in the order asked for. A candidate whose registration's answer was lost is
    /// found. One that may not be read does not keep the others from being seen.
    fn look(&mut self, names: &[AccountName]) -> Pending<Vec<Result<Sight, BackendError>>>;

    /// Registers a candidate, and makes the account where it is missing.
    fn register(&mut self, name: &AccountName) -> Pending<()>;

    /// Takes a free account for this candidate, if it still stands. Where the service itself makes the first candidate the
    /// holder, nothing needs to be done.
    fn take(&mut self, name: &AccountName, seq: u64) -> Pending<()>;

    /// Deletes this candidate of the own session.
    fn withdraw(&mut self, name: &AccountName, seq: u64) -> Pending<()>;

    /// Ends the own session's holding, whatever it says; nobody else's.
    fn clear(&mut self, name: &AccountName) -> Pending<()>;

    /// Gives the account up: deletes this candidate and, in the same step, the own session's holding.
    fn resign(&mut self, name: &AccountName, seq: u64) -> Pending<()>;

    /// The next notice. Dropping the future loses none. After [`Notice::Ended`] it is never asked again.
    fn next(&mut self) -> impl Future<Output = Notice> + Send;

    /// Ends the session and everything it owns. Ready once the service has heard it, or after a moment.
    fn close(self) -> impl Future<Output = ()> + Send;
}

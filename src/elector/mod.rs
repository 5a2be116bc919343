//! An instance that elects itself: for bots in Rust, and for the agent.
//!
//! [`Elector::start`] takes part in the elections of any number of accounts, over one session with one watch (above
//! [`Settings::accounts_per_session`], over several). [`Elector::check`] proves before an action that an account is still held;
//! [`Elector::token`] is what sends carry; [`Elector::changes`] tells each change of a role, with its reason. What is done when
//! is decided by [`fence::elector`](crate::fence::elector); what it is done with is behind
//! [`election::session`](crate::election::session). It never sends anything itself.
//!
//! ```no_run
//! # async fn example(sessions: fencegate::election::zookeeper::ZkSessions) {
//! use fencegate::elector::{Accounts, Elector, Settings};
//! use fencegate::fence::name::AccountName;
//!
//! let account = AccountName::new("wxid_1").expect("a name");
//! let elector = Elector::start(sessions, Settings::new("host-a-001", Accounts::These(vec![account.clone()])));
//! let sent = elector.execute_if_leader(&account, |token| async move {
//!     // POST to the gateway with X-Fencing-Seq: token.seq, X-Fencing-Session: token.session, …
//!     token.seq
//! });
//! match sent.await {
//!     Ok(seq) => println!("sent as candidate {seq}"),
//!     Err(not) => println!("{not}"),
//! }
//! elector.stop().await;
//! # }
//! ```

mod board;
mod lease;
mod roster;
mod serving;
mod shard;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use self::board::Board;
pub use self::board::{RoleChange, Standing};
use self::roster::Order;
use crate::clock::Clock;
use crate::election::session::Sessions;
use crate::fence::elector::{Role, Why};
use crate::fence::name::AccountName;
use crate::fence::token::{Epoch, Seq, SessionId};

/// Which accounts an instance takes part in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accounts {
    /// These, whether or not they exist yet.
    These(Vec<AccountName>),
    /// Every account that exists, as they appear.
    All,
}

/// How an instance takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its id, in tokens and for people.
    pub instance: String,
    /// Which accounts.
    pub accounts: Accounts,
    /// How many accounts share a session. A session that owns very many nodes makes ZooKeeper unable to restart.
    pub accounts_per_session: usize,
    /// How often everything is read again although nothing was told.
    pub reread: Duration,
    /// The clock of deadlines.
    pub clock: Clock,
}

impl Settings {
    /// The usual settings: 10,000 accounts a session, everything read again every 30 seconds.
    #[must_use]
    pub fn new(instance: &str, accounts: Accounts) -> Self {
        Self {
            instance: instance.to_owned(),
            accounts,
            accounts_per_session: 10_000,
            reread: Duration::from_secs(30),
            clock: Clock::default(),
        }
    }
}

/// What a send presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// `X-Fencing-Seq`.
    pub seq: Seq,
    /// `X-Fencing-Session`.
    pub session: SessionId,
    /// `X-Fencing-Instance`, before it is percent-encoded.
    pub instance: Arc<str>,
    /// `X-Fencing-Epoch`.
    pub epoch: Epoch,
}

/// Why an account must not be acted for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotLeader {
    /// Its role is another one.
    #[error("not the leader: {} because of {}", .0.as_str(), .1.as_str())]
    Role(Role, Why),
    /// It was led a moment ago, and is not any more.
    #[error("not the leader: the account has changed hands")]
    Changed,
    /// The session could not be proven alive, or the account could not be read.
    #[error("not known to lead: the session or the account could not be read in time")]
    Unproven,
    /// It takes no part in the account's election.
    #[error("takes no part in this account's election")]
    Unknown,
}

/// An instance's part in its elections. Clones are the same instance. When the last is dropped, its sessions are closed
/// without resigning: use [`Elector::stop`].
#[derive(Clone, Debug)]
pub struct Elector {
    board: Arc<Board>,
    orders: mpsc::Sender<Order>,
    roster: Arc<std::sync::Mutex<Option<JoinHandle<()>>>>,
}

impl Elector {
    /// Begins to take part, on the runtime it is called on.
    pub fn start<S: Sessions + Clone>(sessions: S, settings: Settings) -> Self {
        let board = Arc::new(Board::new(settings.clock.clone(), settings.instance.as_str().into()));
        let (orders, roster) = roster::start(sessions, settings, Arc::clone(&board));
        Self { board, orders, roster: Arc::new(std::sync::Mutex::new(Some(roster))) }
    }

    /// The token, while the account is led and the session is known to live: by what was told, without asking anybody. The
    /// gateway is what makes sure.
    ///
    /// # Errors
    /// Why it must not be acted for.
    pub fn token(&self, account: &str) -> Result<Token, NotLeader> {
        self.board.token(account)
    }

    /// The same, proven: passes a barrier, reads the account, and compares seq, session, instance and epoch.
    ///
    /// # Errors
    /// Why it must not be acted for. Dropping the future gives up.
    pub async fn check(&self, account: &AccountName) -> Result<Token, NotLeader> {
        let before = self.token(account.as_str())?;
        let (reply, told) = oneshot::channel();
        let order = Order::Check(account.clone(), reply);
        self.orders.send(order).await.map_err(|_| NotLeader::Unproven)?;
        let seen = told.await.map_err(|_| NotLeader::Unproven)??;
        let now = self.token(account.as_str())?;
        if before == now && (seen.seq, seen.session, seen.epoch) == (now.seq, now.session, now.epoch) {
            Ok(now)
        } else {
            Err(NotLeader::Changed)
        }
    }

    /// Runs `act` with the token if [`check`](Self::check) proves that the account is led.
    ///
    /// # Errors
    /// Why it was not run. Dropping the future drops `act`'s.
    pub async fn execute_if_leader<T, F: Future<Output = T>>(
        &self,
        account: &AccountName,
        act: impl FnOnce(Token) -> F,
    ) -> Result<T, NotLeader> {
        Ok(act(self.check(account).await?).await)
    }

    /// Every change of a role from now on. A reader that is too slow is told how many it missed.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<RoleChange>> {
        self.board.changes()
    }

    /// What an account's role is, and why.
    #[must_use]
    pub fn standing(&self, account: &str) -> Option<Standing> {
        self.board.standing(account)
    }

    /// The same for all accounts, by name.
    #[must_use]
    pub fn standings(&self) -> Vec<(AccountName, Standing)> {
        self.board.standings()
    }

    /// Its sessions that are open and connected, oldest first.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionId> {
        self.board.open_sessions()
    }

    /// Whether every account that it knows of takes part: nothing is being opened or registered for the first time.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.board.is_ready()
    }

    /// The instance's id.
    #[must_use]
    pub fn instance(&self) -> &Arc<str> {
        &self.board.instance
    }

    /// Gives one account up and stays out of its election; ready when it is out.
    pub async fn resign(&self, account: &AccountName) {
        let (reply, out) = oneshot::channel();
        if self.orders.send(Order::Resign(account.clone(), reply)).await.is_ok() {
            let _ = out.await;
        }
    }

    /// Takes part again after [`resign`](Self::resign).
    pub async fn stand(&self, account: &AccountName) {
        let _ = self.orders.send(Order::Stand(account.clone())).await;
    }

    /// Gives everything up: successors lead within milliseconds. Then closes the sessions. From its call on no token is given
    /// out. Where the service is away it takes a few seconds at most.
    pub async fn stop(&self) {
        self.board.stop();
        let (reply, out) = oneshot::channel();
        if self.orders.send(Order::Stop(reply)).await.is_ok() {
            let _ = out.await;
        }
        let roster = self.roster.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(roster) = roster {
            let _ = roster.await;
        }
    }
}

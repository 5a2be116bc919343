//! What is known of each account's role, for whoever asks: bots, the agent, people.
//!
//! Written by the shards, read by everybody. It asks no service and decides nothing.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use tokio::sync::broadcast;
use tracing::info;

use super::lease::Lease;
use super::{NotLeader, Token};
use crate::clock::{Clock, wall_ms};
use crate::fence::elector::{Role, Why};
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;

/// How many changes a reader may lag behind.
const MOST_PENDING: usize = 16 * 1024;

/// What an instance is for one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its role.
    pub role: Role,
    /// Why it has it.
    pub why: Why,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
}

/// One change of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// Of which account.
    pub account: AccountName,
    /// What it was.
    pub from: Role,
    /// What it is.
    pub to: Standing,
}

#[derive(Debug)]
struct Entry {
    standing: Standing,
    lease: Arc<Lease>,
    /// It has looked for the first time.
    begun: bool,
}

/// Everything that is known.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) clock: Clock,
    pub(super) instance: Arc<str>,
    entries: DashMap<AccountName, Entry>,
    /// By shard; `None` while it has no connected session.
    sessions: Mutex<Vec<Option<SessionId>>>,
    changes: broadcast::Sender<Arc<RoleChange>>,
    stopping: AtomicBool,
    /// The accounts are known, where they have to be listed first.
    listed: AtomicBool,
}

impl Board {
    pub(super) fn new(clock: Clock, instance: Arc<str>) -> Self {
        Self {
            clock,
            instance,
            entries: DashMap::new(),
            sessions: Mutex::default(),
            changes: broadcast::channel(MOST_PENDING).0,
            stopping: AtomicBool::new(false),
            listed: AtomicBool::new(false),
        }
    }

    pub(super) fn token(&self, account: &str) -> Result<Token, NotLeader> {
        let entry = self.entries.get(account).ok_or(NotLeader::Unknown)?;
        let Standing { role, why, .. } = entry.standing;
        if self.stopping.load(SeqCst) {
            return Err(NotLeader::Role(Role::Suspend, Why::Resigned));
        }
        let term = role.term().ok_or(NotLeader::Role(role, why))?;
        // Compared now, not when a timer says so: whoever stood still must not send when it wakes.
        if !entry.lease.lasts(self.clock.now()) {
            return Err(NotLeader::Role(Role::Suspend, Why::Deadline));
        }
        let instance = Arc::clone(&self.instance);
        Ok(Token { seq: term.seq, session: term.session, instance, epoch: term.epoch })
    }

    /// The standing; a leader whose session's deadline has passed leads no longer, whatever it was told.
    pub(super) fn standing(&self, account: &str) -> Option<Standing> {
        self.entries.get(account).map(|entry| self.shown(&entry))
    }

    pub(super) fn standings(&self) -> Vec<(AccountName, Standing)> {
        let mut all: Vec<_> =
            self.entries.iter().map(|entry| (entry.key().clone(), self.shown(&entry))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    fn shown(&self, entry: &Entry) -> Standing {
        let standing = entry.standing;
        if standing.role.term().is_some() && !entry.lease.lasts(self.clock.now()) {
            return Standing { role: Role::Suspend, why: Why::Deadline, ..standing };
        }
        standing
    }

    pub(super) fn changes(&self) -> broadcast::Receiver<Arc<RoleChange>> {
        self.changes.subscribe()
    }

    pub(super) fn add(&self, account: AccountName, lease: Arc<Lease>) {
        let standing = Standing { role: Role::Init, why: Why::NotStarted, since_ms: wall_ms() };
        self.entries.insert(account, Entry { standing, lease, begun: false });
    }

    /// The account was looked at.
    pub(super) fn begun(&self, account: &AccountName) {
        if let Some(mut entry) = self.entries.get_mut(account) {
            entry.begun = true;
        }
    }

    pub(super) fn listed(&self) {
        self.listed.store(true, SeqCst);
    }

    pub(super) fn is_ready(&self) -> bool {
        let connected = self.sessions().iter().all(Option::is_some);
        self.listed.load(SeqCst)
            && !self.stopping.load(SeqCst)
            && connected
            && self.entries.iter().all(|entry| entry.begun)
    }

    /// A role changed: noted, logged and told.
    pub(super) fn announce(&self, account: &AccountName, role: Role, why: Why) {
        let Some(mut entry) = self.entries.get_mut(account) else { return };
        let from = entry.standing.role;
        let to = Standing { role, why, since_ms: wall_ms() };
        entry.standing = to;
        drop(entry);
        let (before, now, why) = (from.as_str(), role.as_str(), why.as_str());
        match role.term().or(from.term()) {
            Some(term) => info!(
                "role changed account={account} from={before} to={now} seq={} session={} epoch={} reason={why}",
                term.seq, term.session, term.epoch
            ),
            None => info!("role changed account={account} from={before} to={now} reason={why}"),
        }
        // Without a reader nobody is told, and nothing is lost: whoever comes reads the standings.
        let _ = self.changes.send(Arc::new(RoleChange { account: account.clone(), from, to }));
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, SeqCst);
    }

    /// The session of a shard, while it is connected.
    pub(super) fn connected(&self, shard: usize, session: Option<SessionId>) {
        let mut sessions = self.sessions();
        if sessions.len() <= shard {
            sessions.resize(shard + 1, None);
        }
        if let Some(place) = sessions.get_mut(shard) {
            *place = session;
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Option<SessionId>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open_sessions(&self) -> Vec<SessionId> {
        self.sessions().iter().flatten().copied().collect()
    }
}

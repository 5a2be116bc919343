//! Hooks: a command that is run when an account is led, and one when it is no longer.
//!
//! In order and one at a time for each account, a bounded number at once. A hook decides nothing and holds nothing up: the role
//! has changed already.

use std::collections::{HashMap, HashSet, VecDeque};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use super::metrics::Counts;
use crate::config::Hooks;
use crate::elector::{Elector, RoleChange};
use crate::fence::elector::Term;
use crate::fence::name::AccountName;

/// How many commands run at once.
const MOST_AT_ONCE: usize = 32;
/// How many wait for one account; further ones displace the oldest pair.
const MOST_WAITING: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Leader,
    Suspend,
}

/// Runs hooks until it is told to finish.
#[derive(Debug)]
pub(super) struct HookRunner {
    finish: oneshot::Sender<()>,
    task: JoinHandle<()>,
    patience: Duration,
}

struct Runner {
    hooks: Hooks,
    elector: Elector,
    counts: Arc<Counts>,
    /// The term that each account's last hook was told of.
    led: HashMap<AccountName, Term>,
    waiting: HashMap<AccountName, VecDeque<(Kind, Term)>>,
    running: JoinSet<(AccountName, bool)>,
    busy: HashSet<AccountName>,
}

impl HookRunner {
    pub(super) fn start(hooks: Hooks, elector: Elector, counts: Arc<Counts>) -> Self {
        let patience = hooks.timeout;
        let changes = elector.changes();
        let runner = Runner {
            hooks,
            elector,
            counts,
            led: HashMap::new(),
            waiting: HashMap::new(),
            running: JoinSet::new(),
            busy: HashSet::new(),
        };
        let (finish, finishing) = oneshot::channel();
        Self { finish, task: tokio::spawn(runner.run(changes, finishing)), patience }
    }

    /// Runs what is due, for as long as one hook may take.
    pub(super) async fn finish(self) {
        let _ = self.finish.send(());
        let mut task = self.task;
        if tokio::time::timeout(self.patience, &mut task).await.is_err() {
            task.abort();
        }
    }
}

impl Runner {
    async fn run(
        mut self,
        mut changes: broadcast::Receiver<Arc<RoleChange>>,
        mut finishing: oneshot::Receiver<()>,
    ) {
        let mut finish = false;
        loop {
            self.start_due();
            if finish && self.running.is_empty() && self.waiting.is_empty() && changes.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Ok(change) => self.take_in(&change),
                    Err(RecvError::Lagged(missed)) => {
                        warn!("hooks missed {missed} changes of roles; going by the roles as they are");
                        self.catch_up();
                    }
                    Err(RecvError::Closed) => finish = true,
                },
                Some(ended) = self.running.join_next() => {
                    if let Ok((account, well)) = ended {
                        self.busy.remove(&account);
                        if let Some(counter) = self.counts.hooks.get(usize::from(!well)) {
                            counter.fetch_add(1, SeqCst);
                        }
                    }
                }
                _ = &mut finishing, if !finish => finish = true,
            }
        }
    }

    fn take_in(&mut self, change: &RoleChange) {
        self.counts.change(change.to.role.as_str(), change.to.why.as_str());
        if let Some(term) = change.from.term() {
            self.led.remove(&change.account);
            self.due(&change.account, Kind::Suspend, term);
        }
        if let Some(term) = change.to.role.term() {
            self.led.insert(change.account.clone(), term);
            self.due(&change.account, Kind::Leader, term);
        }
    }

    fn catch_up(&mut self) {
        for (account, standing) in self.elector.standings() {
            let (told, now) = (self.led.get(&account).copied(), standing.role.term());
            if told == now {
                continue;
            }
            if let Some(term) = told {
                self.led.remove(&account);
                self.due(&account, Kind::Suspend, term);
            }
            if let Some(term) = now {
                self.led.insert(account.clone(), term);
                self.due(&account, Kind::Leader, term);
            }
        }
    }

    fn due(&mut self, account: &AccountName, kind: Kind, term: Term) {
        let wanted = match kind {
            Kind::Leader => self.hooks.on_leader.is_some(),
            Kind::Suspend => self.hooks.on_suspend.is_some(),
        };
        if !wanted {
            return;
        }
        let waiting = self.waiting.entry(account.clone()).or_default();
        if waiting.len() >= MOST_WAITING {
            warn!("hooks of account={account} are too slow for its changes; two are left out");
            waiting.drain(..2);
        }
        waiting.push_back((kind, term));
    }

    fn start_due(&mut self) {
        while self.running.len() < MOST_AT_ONCE {
            let next = self.waiting.keys().find(|account| !self.busy.contains(*account)).cloned();
            let Some(account) = next else { return };
            let Some(waiting) = self.waiting.get_mut(&account) else { return };
            let due = waiting.pop_front();
            if waiting.is_empty() {
                self.waiting.remove(&account);
            }
            let Some((kind, term)) = due else { continue };
            let words = match kind {
                Kind::Leader => self.hooks.on_leader.clone(),
                Kind::Suspend => self.hooks.on_suspend.clone(),
            };
            let Some(words) = words else { continue };
            self.busy.insert(account.clone());
            self.running.spawn(run(words, account, term, self.hooks.timeout));
        }
    }
}

/// Runs one command to its end, or kills it when it had its time. True if it ended well.
async fn run(
    words: Vec<String>,
    account: AccountName,
    term: Term,
    patience: Duration,
) -> (AccountName, bool) {
    let Some((program, arguments)) = words.split_first() else { return (account, false) };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("FENCEGATE_ACCOUNT", account.as_str())
        .env("FENCEGATE_SEQ", term.seq.to_string())
        .env("FENCEGATE_SESSION", term.session.0.to_string())
        .env("FENCEGATE_EPOCH", term.epoch.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let shown = program.escape_debug();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            warn!("hook {shown} for account={account} cannot be run: {why}");
            return (account, false);
        }
    };
    match tokio::time::timeout(patience, child.wait()).await {
        Ok(Ok(status)) if status.success() => {
            info!("hook {shown} for account={account} has run");
            (account, true)
        }
        Ok(Ok(status)) => {
            warn!("hook {shown} for account={account} failed: {status}");
            (account, false)
        }
        Ok(Err(why)) => {
            warn!("hook {shown} for account={account} is lost: {why}");
            (account, false)
        }
        Err(_) => {
            warn!("hook {shown} for account={account} is killed after {} ms", patience.as_millis());
            (account, false)
        }
    }
}

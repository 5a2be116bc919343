//! All accounts: what both planes share.
//!
//! The follower writes what it reads and hears; requests judge by it. It never waits and never talks to anybody.

use std::sync::{Arc, PoisonError};

use dashmap::DashMap;
use tokio::sync::broadcast;
use tracing::{error, info, warn};

use super::entry::{Entry, Handover, Send, State, Tally};
use super::events::{Event, HolderSummary};
use super::parking::Places;
use super::proofs::Proofs;
use crate::clock::{Clock, wall_ms};
use crate::code::Code;
use crate::fence::account::{Mark, Proof};
use crate::fence::gate::{Effects, Order};
use crate::fence::handover::{Sighting, Turn};
use crate::fence::name::AccountName;
use crate::fence::view::{Reading, View};
use crate::mutant::{self, Mutant};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
use crate::sync::{Mutex, Notify, spawn};
use crate::telemetry::Telemetry;

/// Accounts without a znode that are remembered: beyond it, the idle ones are forgotten.
const MOST_ABSENT: usize = if cfg!(feature = "interleavings") { 0 } else { 10_000 };

/// How many events a slow reader of the event stream may lag behind.
const MOST_EVENTS: usize = 1024;

/// All accounts.
#[derive(Debug)]
pub struct Registry {
    /// Keys come from ZooKeeper only, so that a fast hash is good enough.
    accounts: DashMap<AccountName, Arc<Entry>, foldhash::fast::RandomState>,
    /// Where proofs are asked for.
    pub proofs: Proofs,
    /// What is counted.
    pub telemetry: Arc<Telemetry>,
    /// Time.
    pub clock: Clock,
    events: broadcast::Sender<Arc<Event>>,
    /// The barrier before the listing that is in force: names without an entry do not exist.
    listed: AtomicU64,
    /// Notified when a listing comes into force.
    pub(super) listing: Notify,
    /// The newest transaction seen on the root.
    root_newest: AtomicI64,
    history_reset: AtomicBool,
    accept_asked: AtomicBool,
    relink: AtomicBool,
    urgent: Mutex<Vec<AccountName>>,
    absent: AtomicUsize,
    /// All requests that wait.
    pub places: Arc<Places>,
    /// Those of names without an entry.
    pub unknown_places: Arc<Places>,
    /// Their sends that are forwarded without a permit.
    pub(super) unknown_unjudged: Arc<AtomicUsize>,
    /// Refusals of names without an entry.
    pub unknown_rejections: Mutex<Tally>,
    /// What shadow mode would have refused of names without an entry.
    pub unknown_shadow: Mutex<Tally>,
    /// The order of the newest verdict's proof, as nanoseconds of its beginning.
    view_age: AtomicU64,
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new(clock: Clock, telemetry: Arc<Telemetry>) -> Self {
        Self {
            accounts: DashMap::default(),
            proofs: Proofs::new(clock.clone()),
            telemetry,
            clock,
            events: broadcast::Sender::new(MOST_EVENTS),
            listed: AtomicU64::new(0),
            listing: Notify::new(),
            root_newest: AtomicI64::new(i64::MIN),
            history_reset: AtomicBool::new(false),
            accept_asked: AtomicBool::new(false),
            relink: AtomicBool::new(false),
            urgent: Mutex::default(),
            absent: AtomicUsize::new(0),
            places: Arc::default(),
            unknown_places: Arc::default(),
            unknown_unjudged: Arc::default(),
            unknown_rejections: Mutex::default(),
            unknown_shadow: Mutex::default(),
            view_age: AtomicU64::new(0),
        }
    }

    /// The entry of an account that was ever seen.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.accounts.get(name).map(|entry| Arc::clone(&entry))
    }

    /// All entries, in no order.
    #[must_use]
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.accounts.iter().map(|entry| Arc::clone(entry.value())).collect()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// How many accounts there are: those known to have no znode are left out.
    #[must_use]
    pub fn present(&self) -> usize {
        self.accounts.len().saturating_sub(self.absent.load(SeqCst))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    pub(super) fn entry(&self, name: &AccountName) -> Arc<Entry> {
        Arc::clone(&self.accounts.entry(name.clone()).or_insert_with(|| Arc::new(Entry::new(name.clone()))))
    }

    /// Whether a name without an entry is known not to exist under `proof`.
    #[must_use]
    pub fn is_listed(&self, proof: Proof) -> bool {
        self.listed.load(SeqCst) >= proof.link.0
    }

    /// Follows the events of the registry.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    /// Tells whoever listens; the event is made only if somebody does.
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if self.events.receiver_count() > 0 {
            // Nobody listening any more is no failure.
            let _ = self.events.send(Arc::new(event()));
        }
    }

    /// Somebody waits for this account to be read: it goes first.
    pub fn urge(&self, name: &AccountName) {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        self.proofs.nudge();
    }

    pub(super) fn take_urgent(&self) -> Vec<AccountName> {
        std::mem::take(&mut *self.urgent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes when the proof behind the newest verdict began.
    pub fn judged_by(&self, begun_at: crate::clock::Moment) {
        self.view_age.store(begun_at.as_nanos(), SeqCst);
    }

    /// How old the proof behind the newest verdict is, in seconds; zero before the first.
    #[must_use]
    pub fn view_age_seconds(&self) -> f64 {
        match self.view_age.load(SeqCst) {
            0 => 0.0,
            begun => self.clock.now().since(crate::clock::Moment::from_nanos(begun)).as_secs_f64(),
        }
    }

    /// Counts a refusal for an account, with or without an entry.
    pub fn reject(&self, entry: Option<&Entry>, code: Code) {
        match entry {
            Some(entry) => entry.state().record.rejections.add(code),
            None => self.unknown_rejections.lock().unwrap_or_else(PoisonError::into_inner).add(code),
        }
    }

    /// Counts what shadow mode would have refused.
    pub fn reject_shadow(&self, entry: Option<&Entry>, code: Code) {
        match entry {
            Some(entry) => entry.state().record.shadow.add(code),
            None => self.unknown_shadow.lock().unwrap_or_else(PoisonError::into_inner).add(code),
        }
    }

    // What the follower brings.

    /// An account changed. True if it has to be queued for reading.
    pub(super) fn sighted(&self, name: &AccountName, sighting: Sighting, zxid: Option<i64>) -> bool {
        let entry = self.entry(name);
        let mut state = entry.state();
        state.account.sighted(sighting, zxid, self.clock.now());
        let due = !state.queued && !state.being_read;
        state.queued |= due;
        due
    }

    /// Queues an account for reading, unless it is. True if it has to be.
    pub(super) fn queue(&self, name: &AccountName) -> bool {
        let entry = self.entry(name);
        let mut state = entry.state();
        // A read that is on its way is enough; what changes under it makes it be read again.
        !state.being_read && !std::mem::replace(&mut state.queued, true)
    }

    /// Queues an account that somebody waits for, if a read is not on its way already.
    pub(super) fn queue_urgent(&self, name: &AccountName) -> bool {
        let Some(entry) = self.get(name.as_str()) else { return false };
        let mut state = entry.state();
        state.queued |= !state.being_read;
        state.queued
    }

    /// Whether a queued account is still to be read; if so it counts as being read from now on.
    pub(super) fn start_reading(&self, name: &AccountName) -> Option<(Arc<Entry>, Mark, usize)> {
        let entry = self.get(name.as_str())?;
        let mut state = entry.state();
        if !std::mem::take(&mut state.queued) {
            return None;
        }
        state.being_read = true;
        let (mark, bytes) = (state.account.freshness().mark(), state.bytes);
        drop(state);
        Some((entry, mark, bytes))
    }

    /// All reads that were on their way are lost.
    pub(super) fn unlink(&self) {
        for entry in self.entries() {
            let mut state = entry.state();
            (state.queued, state.being_read) = (false, false);
        }
    }

    /// The newest transaction on the root. False: ZooKeeper's history went back.
    pub(super) fn is_newer_root(&self, newest: Option<i64>) -> bool {
        newest.is_none_or(|newest| self.root_newest.fetch_max(newest, SeqCst) <= newest)
    }

    /// A listing is in force, and all that it names has an entry: names without one do not exist.
    pub(super) fn listed(&self, order: Order) {
        self.listed.store(order.0, SeqCst);
        self.listing.notify_waiters();
    }

    /// Whether a listing has ever been in force.
    pub(super) fn was_ever_listed(&self) -> bool {
        self.listed.load(SeqCst) > 0
    }

    /// Applies a read. True if the account has to be queued again; the second says whether a drain begins that
    /// somebody has to watch.
    pub(super) fn apply(
        &self,
        entry: &Arc<Entry>,
        reading: Reading,
        mark: Mark,
        order: Order,
        link: Order,
    ) -> AppliedRead {
        let name = &entry.name;
        let now = self.clock.now();
        let mut state = entry.state();
        let was = state.account.gate().deadline();
        let was_absent = state.account.is_known() && *state.account.gate().view() == View::Absent;
        state.bytes = reading.bytes;
        let applied = state.account.apply(reading, mark, order, link, now);
        state.being_read = false;
        if applied.is_unsure {
            // It is read again and again until there is a barrier, and nobody else may want one.
            self.proofs.want();
        }
        // Nothing was applied of a history that went back, and nothing is until it is accepted.
        let again = state.account.freshness().is_dirty()
            && !applied.history_went_back
            && !std::mem::replace(&mut state.queued, true);
        if applied.changed {
            // Made at the term's first send: most of many accounts do not send, and it is a third of an entry.
            state.identity = None;
        }
        let deadline = state.account.gate().deadline();
        let drains = was.is_none() && deadline.is_some();
        let absent = *state.account.gate().view() == View::Absent;
        let idle = !state.account.gate().is_busy() && entry.parked() == 0 && !again;
        let drop_gate = mutant::is(Mutant::DropGate);
        let forget = absent && (idle || drop_gate);
        self.say(name, &mut state, applied.turn);
        self.carry_out(name, &mut state, applied.effects);
        drop(state);
        entry.changed.notify_waiters();
        if applied.changed {
            self.tell(|| Event::Account(name.clone()));
        }
        match (was_absent, absent) {
            (false, true) => drop(self.absent.fetch_add(1, SeqCst)),
            (true, false) => drop(self.absent.fetch_sub(1, SeqCst)),
            (true, true) | (false, false) => {}
        }
        // Asked at every read, not only at the first that shows it gone: it may have been busy then.
        let many = drop_gate || self.absent.load(SeqCst) > MOST_ABSENT;
        if forget && many && self.accounts.remove(name.as_str()).is_some() {
            entry.forgotten.store(true, SeqCst);
            self.absent.fetch_sub(1, SeqCst);
        }
        let drains = drains.then(|| Arc::clone(entry));
        AppliedRead { again, drains, history_went_back: applied.history_went_back }
    }

    /// Gives a permit's end, a withdrawal or a deadline its effects.
    pub(super) fn carry_out(&self, name: &AccountName, state: &mut State, effects: Effects<Arc<Send>>) {
        for send in &effects.withdrawn {
            send.revoke(false);
        }
        for send in &effects.cut {
            send.revoke(true);
            self.telemetry.handover_cuts.increment(1);
            warn!(account = %name, request_id = ?send.request_id, "send cut at the handover's deadline; its outcome is unknown");
        }
        if let Some(since) = effects.drained {
            let took = self.clock.now().since(since);
            self.telemetry.drain_seconds.record(took.as_secs_f64());
            if let Some(last) = &mut state.record.last_handover
                && last.drain_ms.is_none()
            {
                last.drain_ms = Some(millis(took));
            }
        }
    }

    /// Logs and records what became known about a holder.
    fn say(&self, name: &AccountName, state: &mut State, turn: Option<Turn>) {
        match turn {
            None => {}
            Some(Turn::Observed(holder)) => {
                info!(account = %name, seq = %holder.seq, instance = %Escaped(&holder.instance), "holder observed");
            }
            Some(Turn::Handover { from, to, reason, vacant }) => {
                #[allow(non_snake_case, reason = "the contract's log line")]
                {
                    info!(
                        account = %name,
                        oldSeq = %from.seq,
                        oldInstance = %Escaped(&from.instance),
                        newSeq = %to.seq,
                        newInstance = %Escaped(&to.instance),
                        reason = %reason.as_str(),
                        "leader changed"
                    );
                }
                if to.seq < from.seq {
                    self.telemetry.seq_regressions.increment(1);
                    warn!(account = %name, "seq regression: the account's tree was recreated; every older token is refused");
                }
                self.telemetry.vacancy_seconds.record(vacant.as_secs_f64());
                if let Some(count) = state.record.handovers.get_mut(reason as usize) {
                    *count += 1;
                }
                let draining = state.account.gate().deadline().is_some();
                let handover = Handover {
                    at_ms: wall_ms(),
                    reason,
                    from,
                    to,
                    vacant_ms: millis(vacant),
                    drain_ms: (!draining).then_some(0),
                };
                self.tell(|| Event::Handover {
                    account: name.clone(),
                    at_ms: handover.at_ms,
                    reason,
                    from: HolderSummary::of(&handover.from),
                    to: HolderSummary::of(&handover.to),
                });
                state.record.last_handover = Some(handover);
            }
        }
        let invalid = match state.account.gate().view() {
            View::Invalid(why) => Some(*why),
            View::Absent | View::Vacant | View::Held(_) => None,
        };
        if let Some(why) = invalid
            && state.said != Some(why)
        {
            warn!(account = %name, "invalid holder: {why}; nobody is admitted for this account");
        }
        state.said = invalid;
    }

    // History.

    /// Whether everything is refused because ZooKeeper's history went back.
    #[must_use]
    pub fn is_history_reset(&self) -> bool {
        self.history_reset.load(SeqCst)
    }

    /// ZooKeeper's history went back: everything is refused until the new one is accepted.
    pub(crate) fn refuse_history(&self) {
        if !self.history_reset.swap(true, SeqCst) {
            error!(
                "history reset: ZooKeeper shows transactions older than ones seen before, so it was wiped or restored; \
                 everything is refused. If that was meant: fencegate accept-history, or POST /v1/history/accept"
            );
        }
    }

    /// Asks the follower to accept ZooKeeper's history as it is: what was remembered of an older one is forgotten, and
    /// everything is read again; sends under way are drained. Returns false if there is nothing to accept, or somebody asked
    /// before.
    pub fn accept_history(&self) -> bool {
        let asked = self.is_history_reset() && !self.accept_asked.swap(true, SeqCst);
        if asked {
            self.proofs.nudge();
        }
        asked
    }

    /// Whether somebody asked for it; asked once, by the follower, which alone moves between histories.
    pub(super) fn take_accept(&self) -> bool {
        self.accept_asked.swap(false, SeqCst) && self.is_history_reset()
    }

    pub(super) fn forget_history(self: &Arc<Self>) {
        self.root_newest.store(i64::MIN, SeqCst);
        self.listed.store(0, SeqCst);
        let now = self.clock.now();
        for entry in self.entries() {
            let mut state = entry.state();
            if state.account.is_known() && *state.account.gate().view() == View::Absent {
                // Not known to be absent any more; counted again when it is read.
                self.absent.fetch_sub(1, SeqCst);
            }
            let was = state.account.gate().deadline();
            let effects = state.account.forget(now);
            state.identity = None;
            self.carry_out(&entry.name, &mut state, effects);
            let drains = was.is_none() && state.account.gate().deadline().is_some();
            drop(state);
            if drains {
                spawn(super::admission::watch_drain(Arc::clone(self), Arc::clone(&entry)));
            }
            entry.changed.notify_waiters();
        }
        self.relink.store(true, SeqCst);
        self.history_reset.store(false, SeqCst);
        warn!("history accepted: epochs start over, everything is read again");
        self.proofs.nudge();
    }

    /// Whether the follower has to make a new link.
    pub(super) fn is_relink_due(&self) -> bool {
        self.relink.load(SeqCst)
    }

    /// The same, and asked for the last time.
    pub(super) fn take_relink(&self) -> bool {
        self.relink.swap(false, SeqCst)
    }
}

/// What applying a read asks of the follower.
#[derive(Debug)]
pub(super) struct AppliedRead {
    /// Queue it again.
    pub(super) again: bool,
    /// A drain begins: somebody has to watch its deadline.
    pub(super) drains: Option<Arc<Entry>>,
    /// ZooKeeper's history went back.
    pub(super) history_went_back: bool,
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Text from outside, as one line of visible characters.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write;
        for c in self.0.chars() {
            // Control, formatting and bidirectional characters, and whatever separates fields or lines.
            if c.is_alphanumeric() || (c.is_ascii_graphic() && c != '\\') {
                f.write_char(c)?;
            } else {
                write!(f, "{}", c.escape_unicode())?;
            }
        }
        Ok(())
    }
}

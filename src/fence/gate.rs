//! The gate of one account: who may send now, who is still sending, and when the next one may begin.
//!
//! At most one epoch has live permits (I1), epochs admitted never decrease (I2), and every permit issued is ended
//! exactly once (I5). The gate never waits, logs or reads a clock: moments are arguments, and what has to be done to
//! others comes back as [`Effects`].

use std::time::Duration;

use slab::Slab;

use super::token::{Claim, Epoch};
use super::verdict::{Verdict, judge};
use super::view::{Holder, View};
use crate::clock::Moment;
use crate::code::Code;
use crate::mutant::{self, Mutant};
use std::sync::Arc;

/// The number of a barrier: barriers are numbered in the order in which they began, over all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub u64);

/// The right to forward one send. Only a gate makes one; it is given back by [`Gate::end`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit that is not ended holds up the next holder"]
pub struct Permit {
    slot: usize,
    epoch: Epoch,
}

impl Permit {
    /// The term it was issued in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte has been written.
    Issued,
    /// A byte may have been written.
    Begun,
    /// Superseded before a byte was written: it may never begin, and nobody waits for it.
    Withdrawn,
    /// Told to close its connection; it counts until it has.
    Cut,
}

#[derive(Debug)]
struct Issue<T> {
    epoch: Epoch,
    phase: Phase,
    /// How long after its epoch is superseded it may go on.
    patience: Duration,
    tag: T,
}

/// On which terms a permit is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long after its epoch is superseded the send may go on before it is cut.
    pub patience: Duration,
    /// How many sends of the account may be in flight, this one included.
    pub most_in_flight: usize,
}

/// The answer to one claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Forward it. The permit and who it is for.
    Admitted(Permit, Arc<Holder>),
    /// Refuse it, by the view.
    Refused(Code),
    /// Admissible, but the account has as many sends in flight as it may have.
    Full,
    /// Admissible once the earlier holder's sends have ended. The last of them is cut at this moment, which may be
    /// past if one that was cut has not ended yet. Ask again when a drain has ended.
    Draining(Moment),
    /// Admissible, but only under a proof begun after the drain that just ended.
    Unproven,
}

/// What a change does to sends that are under way.
#[derive(Debug, PartialEq, Eq)]
pub struct Effects<T> {
    /// Superseded before a byte was written: to be told so.
    pub withdrawn: Vec<T>,
    /// To be cut off from the sender, visibly.
    pub cut: Vec<T>,
    /// A drain ended: since when it ran.
    pub drained: Option<Moment>,
}

impl<T> Default for Effects<T> {
    fn default() -> Self {
        Self { withdrawn: Vec::new(), cut: Vec::new(), drained: None }
    }
}

/// The gate of one account. `T` is what the shell knows a send by.
#[derive(Debug)]
pub struct Gate<T> {
    view: View,
    issues: Slab<Issue<T>>,
    /// How many of `issues` count: issued, begun or cut, not withdrawn. All are of `live`.
    counting: usize,
    /// The epoch of the permits that count, while any does.
    live: Option<Epoch>,
    /// When `live` was first seen superseded; until its last permit has ended.
    drain: Option<Moment>,
    /// The highest epoch admitted so far.
    admitted: Option<Epoch>,
    /// Barriers up to this one began before the last drain ended.
    cleared: Order,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self {
            view: View::Absent,
            issues: Slab::new(),
            counting: 0,
            live: None,
            drain: None,
            admitted: None,
            cleared: Order(0),
        }
    }
}

impl<T: Clone> Gate<T> {
    /// The view it judges by.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Sends that may still reach the sender.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.counting
    }

    /// True while anything of a permit is still to come, withdrawn ones included.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.issues.is_empty()
    }

    /// True while sends of a superseded epoch are under way.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// When the next send of a superseded epoch is to be cut, while there is one that has not been.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let since = self.drain?;
        let begun = self.issues.iter().filter(|(_, issue)| issue.phase == Phase::Begun);
        begun.map(|(_, issue)| since.after(issue.patience)).min()
    }

    /// Takes a newer view. Sends of another epoch that have not begun are withdrawn; the others have their patience
    /// from the first time their epoch was seen superseded, and that moment never moves, even if the epoch comes back.
    pub fn observe(&mut self, view: View, now: Moment) -> Effects<T> {
        let mut effects = Effects::default();
        let holding = view.holder().map(|holder| holder.epoch);
        if let Some(live) = self.live
            && holding != Some(live)
            && self.drain.is_none()
        {
            self.drain = Some(now);
            for (_, issue) in &mut self.issues {
                if issue.phase == Phase::Issued {
                    issue.phase = Phase::Withdrawn;
                    self.counting -= 1;
                    effects.withdrawn.push(issue.tag.clone());
                }
            }
        }
        self.view = view;
        // If only such sends were left, nothing was written and nothing was waited for: proofs begun before will do.
        effects.drained = self.settle();
        self.check();
        effects
    }

    /// Judges a claim under a proof and issues the permit in the same step (I3: without a proof there is no call).
    pub fn ask(&mut self, claim: &Claim, proof: Order, terms: Terms, tag: impl FnOnce() -> T) -> Answer {
        let holder = match judge(&self.view, claim) {
            Verdict::Refuse(code) => return Answer::Refused(code),
            Verdict::Admit(holder) => holder,
        };
        // I2, whatever order the views came in.
        if self.admitted.is_some_and(|epoch| holder.epoch < epoch) {
            return Answer::Refused(Code::InvalidHolder);
        }
        if let Some(since) = self.drain
            && !mutant::is(Mutant::SkipDrain)
        {
            let counting = self.issues.iter().filter(|(_, issue)| issue.phase != Phase::Withdrawn);
            let patience = counting.map(|(_, issue)| issue.patience).max().unwrap_or_default();
            return Answer::Draining(since.after(patience));
        }
        if proof <= self.cleared {
            return Answer::Unproven;
        }
        if self.counting >= terms.most_in_flight {
            return Answer::Full;
        }
        // Without a drain, whatever counts is of the epoch that holds.
        debug_assert!(mutant::is_any() || self.live.is_none_or(|live| live == holder.epoch), "I1");
        self.live = Some(holder.epoch);
        self.admitted = Some(holder.epoch);
        let issue = Issue { epoch: holder.epoch, phase: Phase::Issued, patience: terms.patience, tag: tag() };
        let slot = self.issues.insert(issue);
        self.counting += 1;
        self.check();
        Answer::Admitted(Permit { slot, epoch: holder.epoch }, holder)
    }

    /// To be called immediately before the first byte is written. False: superseded, nothing may be written.
    pub fn begin(&mut self, permit: &Permit) -> bool {
        match self.issues.get_mut(permit.slot) {
            Some(issue) if issue.phase == Phase::Issued => {
                issue.phase = Phase::Begun;
                true
            }
            Some(issue) => issue.phase == Phase::Begun,
            None => false,
        }
    }

    /// Takes [`begin`](Self::begin) back: it is certain that no byte was written. False: superseded meanwhile, and
    /// withdrawn, now or before. `begun` is as in [`end`](Self::end), because the drain may end here too.
    pub fn unbegin(&mut self, permit: &Permit, begun: Order) -> (bool, Effects<T>) {
        let superseded = self.drain.is_some();
        let still = match self.issues.get_mut(permit.slot) {
            Some(Issue { phase: Phase::Withdrawn, .. }) | None => false,
            Some(issue) if superseded => {
                issue.phase = Phase::Withdrawn;
                self.counting -= 1;
                false
            }
            Some(issue) => {
                issue.phase = Phase::Issued;
                true
            }
        };
        (still, self.clear(begun))
    }

    /// Gives a permit back: its send has ended, or will never begin. `begun` is the barrier that began last: after a
    /// drain only later ones admit.
    pub fn end(&mut self, permit: Permit, begun: Order) -> Effects<T> {
        let Permit { slot, epoch } = permit;
        if let Some(issue) = self.issues.try_remove(slot) {
            debug_assert_eq!(issue.epoch, epoch, "a permit comes back to the gate that made it");
            if issue.phase != Phase::Withdrawn {
                self.counting -= 1;
            }
        }
        self.clear(begun)
    }

    /// Cuts the sends of a superseded epoch whose patience has run out.
    pub fn tick(&mut self, now: Moment) -> Effects<T> {
        let mut effects = Effects::default();
        if let Some(since) = self.drain {
            for (_, issue) in &mut self.issues {
                if issue.phase == Phase::Begun && since.after(issue.patience) <= now {
                    issue.phase = Phase::Cut;
                    effects.cut.push(issue.tag.clone());
                }
            }
        }
        effects
    }

    /// A new history is accepted: epochs start over. Sends under way go on as of a superseded epoch.
    pub fn forget(&mut self, now: Moment) -> Effects<T> {
        let effects = self.observe(View::Absent, now);
        self.admitted = None;
        effects
    }

    /// Something waited for may be over: if it was the last, only barriers after `begun` prove from here on.
    fn clear(&mut self, begun: Order) -> Effects<T> {
        let drained = self.settle();
        if drained.is_some() {
            self.cleared = self.cleared.max(begun);
        }
        self.check();
        Effects { drained, ..Effects::default() }
    }

    fn settle(&mut self) -> Option<Moment> {
        if self.counting > 0 {
            return None;
        }
        self.live = None;
        self.drain.take()
    }

    fn check(&self) {
        if mutant::is_any() {
            return;
        }
        debug_assert_eq!(
            self.counting,
            self.issues.iter().filter(|(_, issue)| issue.phase != Phase::Withdrawn).count(),
            "I5"
        );
        debug_assert!(
            self.issues
                .iter()
                .filter(|(_, issue)| issue.phase != Phase::Withdrawn)
                .all(|(_, issue)| Some(issue.epoch) == self.live),
            "I1"
        );
        debug_assert!(
            self.drain.is_some()
                || self.live.is_none()
                || self.live == self.view.holder().map(|holder| holder.epoch),
            "permits of an epoch that does not hold are being drained"
        );
    }
}

//! One account: its view, how current that is, its gate, and the memory of its holders.
//!
//! A proof says that everything up to a barrier has been seen; [`Account::ask`] says whether this account's view rests
//! on it. Pure like everything here.

use std::sync::Arc;

use super::gate::{Answer, Effects, Gate, Order, Permit, Terms};
use super::handover::{Chronicle, Sighting, Turn};
use super::token::{Claim, Epoch};
use super::view::{Holder, Invalid, Reading, View};
use crate::clock::Moment;
use crate::code::Code;

/// Evidence that the view was current: the barrier, and the first barrier of the link it went over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The barrier that came back.
    pub order: Order,
    /// The first barrier of the same unbroken link, begun when its watch stood: reads and events before it say
    /// nothing about this proof.
    pub link: Order,
}

/// How current one thing that is read is: which changes were announced, and which read it rests on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness {
    changes: u64,
    /// `changes` when the newest applied read was sent.
    covered: u64,
    /// The barrier before the newest applied read; zero before the first.
    read: Order,
}

/// The state of changes when a read was sent; comes back with its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Freshness {
    /// A change was announced.
    pub fn changed(&mut self) {
        self.changes += 1;
    }

    /// To be taken when a read is sent.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.changes)
    }

    /// True if a read that was sent later is in: what this one says is older.
    #[must_use]
    pub fn is_overtaken(&self, mark: Mark, order: Order) -> bool {
        order < self.read || mark.0 < self.covered
    }

    /// A read that was sent at `mark`, after barrier `order` and before the next, is in.
    pub fn applied(&mut self, mark: Mark, order: Order) {
        self.covered = self.covered.max(mark.0);
        self.read = self.read.max(order);
    }

    /// True if a change was announced that no applied read covers.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.covered != self.changes
    }

    /// Whether `proof` covers what was read: the read was sent after the proof's barrier, or it came over the same
    /// link and no change was announced since.
    #[must_use]
    pub fn rests_on(&self, proof: Proof) -> bool {
        self.read >= proof.order || (!self.is_dirty() && self.read >= proof.link)
    }

    /// The barrier before the newest applied read.
    #[must_use]
    pub fn read(&self) -> Order {
        self.read
    }
}

/// What a claim gets from an account.
#[derive(Debug, PartialEq, Eq)]
pub enum Response {
    /// The view does not rest on the proof yet: a read is due. Ask again when one is in.
    Unread,
    /// The gate's answer.
    Judged(Answer),
}

/// What applying a read did.
#[derive(Debug)]
pub struct Applied<T> {
    /// What has to be done to sends under way.
    pub effects: Effects<T>,
    /// A holder became known.
    pub turn: Option<Turn>,
    /// The account's marks went back: ZooKeeper's history is another one. Nothing was applied.
    pub history_went_back: bool,
    /// They went back without a barrier between the two reads: a read after the next one tells. Nothing was applied.
    pub is_unsure: bool,
    /// The view is another one than before.
    pub changed: bool,
}

/// One account. `T` is what the shell knows a send by.
#[derive(Debug)]
pub struct Account<T> {
    gate: Gate<T>,
    freshness: Freshness,
    chronicle: Chronicle,
    candidates: usize,
    newest: Option<i64>,
    /// The holder of the highest epoch that counted in this history.
    highest: Option<Arc<Holder>>,
    /// An epoch whose data changed: it never counts again.
    tainted: Option<Epoch>,
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        Self {
            gate: Gate::default(),
            freshness: Freshness::default(),
            chronicle: Chronicle::default(),
            candidates: 0,
            newest: None,
            highest: None,
            tainted: None,
        }
    }
}

impl<T: Clone> Account<T> {
    /// The gate, to look at.
    #[must_use]
    pub fn gate(&self) -> &Gate<T> {
        &self.gate
    }

    /// How current the view is.
    #[must_use]
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// How many candidates stand.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.candidates
    }

    /// True once a read was applied.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.freshness.read() > Order(0)
    }

    /// The last holder that counted.
    #[must_use]
    pub fn last_holder(&self) -> Option<&Arc<Holder>> {
        self.chronicle.last()
    }

    /// Takes an event: the view is dirty until a read that was sent later is applied.
    pub fn sighted(&mut self, sighting: Sighting, zxid: Option<i64>, now: Moment) {
        self.freshness.changed();
        self.chronicle.sighted(sighting, zxid, now);
    }

    /// Takes the read that was sent at `mark`, after barrier `order`, over the link that began with `link`. Nothing is
    /// applied of a read that was sent before its link's first barrier (the server may lag) or that a later one has
    /// overtaken: the account stays as dirty as it is.
    pub fn apply(
        &mut self,
        mut reading: Reading,
        mark: Mark,
        order: Order,
        link: Order,
        now: Moment,
    ) -> Applied<T> {
        let nothing = |history_went_back, is_unsure| Applied {
            effects: Effects::default(),
            turn: None,
            history_went_back,
            is_unsure,
            changed: false,
        };
        if order < link || self.freshness.is_overtaken(mark, order) {
            return nothing(false, false);
        }
        if let (Some(marks), Some(newest)) = (reading.marks, self.newest)
            && marks.newest < newest
        {
            // Without a barrier between them, two reads may have been applied in another order than they were executed.
            let is_later = order > self.freshness.read();
            return nothing(is_later, !is_later);
        }
        if let Some(marks) = reading.marks {
            self.newest = Some(marks.newest);
        }
        reading.view = self.guard(reading.view);
        let observed = self.freshness.read() >= link;
        self.freshness.applied(mark, order);
        self.candidates = reading.candidates.len();
        let turn = self.chronicle.read(&reading, observed, now);
        let changed = *self.gate.view() != reading.view;
        let effects = self.gate.observe(reading.view, now);
        Applied { effects, turn, history_went_back: false, is_unsure: false, changed }
    }

    /// A holder that goes back or changes within its term does not count.
    fn guard(&mut self, view: View) -> View {
        let View::Held(holder) = &view else { return view };
        if let Some(highest) = &self.highest {
            if holder.epoch < highest.epoch {
                return View::Invalid(Invalid::EpochWentBack);
            }
            if holder.epoch == highest.epoch && !holder.is_same_term(highest) {
                self.tainted = Some(holder.epoch);
            }
        }
        if self.tainted == Some(holder.epoch) {
            return View::Invalid(Invalid::Rewritten);
        }
        self.highest = Some(Arc::clone(holder));
        view
    }

    /// Judges a claim under a proof; on admission the permit is issued in the same step.
    pub fn ask(&mut self, claim: &Claim, proof: Proof, terms: Terms, tag: impl FnOnce() -> T) -> Response {
        if !self.freshness.rests_on(proof) {
            return Response::Unread;
        }
        Response::Judged(self.gate.ask(claim, proof.order, terms, tag))
    }

    /// What the verdict would be, without a permit: before a body is read, and in shadow mode.
    #[must_use]
    pub fn preview(&self, claim: &Claim, proof: Option<Proof>) -> Option<Result<Arc<Holder>, Code>> {
        if proof.is_some_and(|proof| !self.freshness.rests_on(proof)) {
            return None;
        }
        Some(match super::verdict::judge(self.gate.view(), claim) {
            super::verdict::Verdict::Admit(holder) => Ok(holder),
            super::verdict::Verdict::Refuse(code) => Err(code),
        })
    }

    /// Whether a refusal needs no newer proof: the claim's epoch is below one already proven.
    #[must_use]
    pub fn is_surely_over(&self, claim: &Claim) -> bool {
        matches!((claim.epoch, &self.highest), (Some(claimed), Some(highest)) if claimed < highest.epoch)
    }

    /// See [`Gate::begin`].
    pub fn begin(&mut self, permit: &Permit) -> bool {
        self.gate.begin(permit)
    }

    /// See [`Gate::unbegin`].
    pub fn unbegin(&mut self, permit: &Permit, begun: Order) -> (bool, Effects<T>) {
        self.gate.unbegin(permit, begun)
    }

    /// See [`Gate::end`].
    pub fn end(&mut self, permit: Permit, begun: Order) -> Effects<T> {
        self.gate.end(permit, begun)
    }

    /// See [`Gate::tick`].
    pub fn tick(&mut self, now: Moment) -> Effects<T> {
        self.gate.tick(now)
    }

    /// A new history is accepted: what was remembered of the old one no longer counts, and a read is due.
    pub fn forget(&mut self, now: Moment) -> Effects<T> {
        (self.newest, self.highest, self.tainted) = (None, None, None);
        self.freshness.changed();
        self.freshness.read = Order(0);
        self.chronicle.forget(now);
        self.gate.forget(now)
    }
}

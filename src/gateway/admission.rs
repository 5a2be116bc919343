//! From a claim to the right to forward it: proof, verdict, drain, permit.
//!
//! The one way by which a send becomes admissible. It waits here and nowhere else, and every wait has a deadline (I4).
//! It never touches a body or a sender.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::entry::{Entry, Identity, Send};
use super::parking::{Bounds, park};
use super::proofs::{Proven, Relay};
use super::registry::Registry;
use crate::clock::{Clock, Moment};
use crate::code::Code;
use crate::fence::account::{Proof, Response};
use crate::fence::gate::{Answer, Permit, Terms};
use crate::fence::token::Claim;
use crate::fence::view::Holder;
use crate::forward::{Authority, Stop};
use crate::mutant::{self, Mutant};
use crate::sync::Notified;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// How requests are judged and how long they may wait.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// An admission may rest on a proof up to this old; zero: only on one begun after the request was in.
    pub max_staleness: Duration,
    /// How long a request may wait for a proof or a read.
    pub park_timeout: Duration,
    /// How many may wait.
    pub parking: Bounds,
    /// How many sends of one account may be in flight.
    pub most_in_flight_per_account: usize,
}

/// A refusal, and whom the gateway saw holding when it refused.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub code: Code,
    /// The holder under the view that refused.
    pub current: Option<Arc<Holder>>,
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Self { code, current: None }
    }
}

/// A permit together with what it is a permit for. Dropped, it ends; so a send cannot forget to give it back.
#[derive(Debug)]
pub struct Admission {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
    permit: Option<Permit>,
    send: Arc<Send>,
    /// What the sender is told about the holder.
    pub identity: Arc<Identity>,
}

impl Authority for Admission {
    fn allow(&self, total: Duration) {
        self.send.set_deadline(Some(self.registry.clock.now().after(total)));
    }

    fn begin(&self) -> Result<(), Code> {
        let begun = self.permit.as_ref().is_some_and(|permit| self.entry.state().account.begin(permit));
        if begun { Ok(()) } else { Err(Code::Superseded) }
    }

    fn unbegin(&self) {
        let Some(permit) = &self.permit else { return };
        let mut state = self.entry.state();
        let (_, effects) = state.account.unbegin(permit, self.registry.proofs.begun());
        let drained = effects.drained.is_some();
        self.registry.carry_out(&self.entry.name, &mut state, effects);
        drop(state);
        if drained {
            self.entry.changed.notify_waiters();
        }
    }

    fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        self.send.poll_stop(cx)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.entry.state();
        let effects = state.account.end(permit, self.registry.proofs.begun());
        let drained = effects.drained.is_some();
        self.registry.carry_out(&self.entry.name, &mut state, effects);
        drop(state);
        if drained {
            self.entry.changed.notify_waiters();
        }
    }
}

/// What one look at the account gives.
enum Look {
    Done(Result<Admission, Refused>),
    /// The account has to be read first.
    Unread,
    /// The names have to be listed first.
    Unlisted,
    /// Earlier sends have to end, at the latest then.
    Draining(Moment),
    /// A newer proof is needed.
    Unproven,
}

/// Judges one request. All of its body that has to be in is in.
#[derive(Debug)]
pub struct Judge<'a> {
    /// The accounts.
    pub registry: &'a Arc<Registry>,
    /// Where proofs arrive on this thread.
    pub relay: &'a Relay,
    /// The rules.
    pub rules: &'a Rules,
    /// Which account; known to be a name.
    pub account: &'a str,
    /// Its entry, as far as it was there when the request came.
    pub entry: Option<&'a Arc<Entry>>,
    /// The token.
    pub claim: &'a Claim,
    /// How its task is told when it is superseded or cut.
    pub send: &'a Arc<Send>,
    /// How long it may go on once its holder is superseded.
    pub patience: Duration,
}

impl Judge<'_> {
    /// The verdict, and with an admission the permit. Parks for a proof, a read or a drain.
    ///
    /// Cancellation: dropped while it waits, the request is withdrawn and leaves nothing behind; it holds a permit only
    /// once it has returned.
    ///
    /// # Errors
    /// A refusal by the view always rests on a proof begun after this call, unless the claim's epoch is below one
    /// already proven.
    pub async fn admit(&self) -> Result<Admission, Refused> {
        if self.registry.is_history_reset() {
            return Err(Code::HistoryReset.into());
        }
        if let Some(refused) = self.entry.and_then(|entry| self.at_once(entry)) {
            return Err(refused);
        }
        if let Some(done) = self.by_older_proof() {
            return done;
        }
        let _parked = self.park()?;
        let mut deadline = self.deadline();
        let mut proven = self.prove(deadline).await?;
        loop {
            let entry = self.entry();
            match self.look(entry.as_ref(), proven.proof) {
                Look::Done(done) => {
                    self.registry.judged_by(proven.begun_at);
                    return done;
                }
                Look::Unread => {
                    let Some(entry) = entry else { continue };
                    if let Some(done) = self.wait_read(&entry, proven.proof, deadline).await? {
                        self.registry.judged_by(proven.begun_at);
                        return done;
                    }
                }
                Look::Unlisted => self.wait_listed(proven.proof, deadline).await?,
                Look::Draining(until) => {
                    // Judged again at once: another holder may have come, and a refusal needs no newer proof. An admission
                    // does: the gate asks for one begun after the drain.
                    if let Some(entry) = entry {
                        self.wait_drained(&entry, until).await?;
                    }
                    deadline = self.deadline();
                }
                Look::Unproven => proven = self.prove(deadline).await?,
            }
        }
    }

    /// A preliminary verdict under a proof, before a body is asked for. Only a refusal counts.
    ///
    /// # Errors
    /// The refusal.
    pub async fn preview(&self) -> Result<(), Refused> {
        if self.registry.is_history_reset() {
            return Err(Code::HistoryReset.into());
        }
        let _parked = self.park()?;
        let deadline = self.deadline();
        let proof = self.prove(deadline).await?.proof;
        if !self.registry.is_listed(proof) {
            self.wait_listed(proof, deadline).await?;
        }
        let Some(entry) = self.entry() else { return Err(Code::UnknownAccount.into()) };
        loop {
            let changed = entry.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let seen = {
                let state = entry.state();
                state.account.preview(self.claim, Some(proof)).map(|judged| match judged {
                    Ok(_) => Ok(()),
                    Err(code) => {
                        Err(Refused { code, current: state.account.gate().view().holder().cloned() })
                    }
                })
            };
            match seen {
                Some(judged) => return judged,
                None => {
                    self.registry.urge(&entry.name);
                    self.until(deadline, changed).await?;
                }
            }
        }
    }

    /// The account's entry now: it may have come, or gone and come again, since the request came.
    fn entry(&self) -> Option<Arc<Entry>> {
        match self.entry {
            Some(entry) if !entry.forgotten.load(SeqCst) || mutant::is(Mutant::KeepEntry) => {
                Some(Arc::clone(entry))
            }
            Some(_) | None => self.registry.get(self.account),
        }
    }

    fn deadline(&self) -> Moment {
        self.registry.clock.now().after(self.rules.park_timeout)
    }

    async fn prove(&self, deadline: Moment) -> Result<Proven, Refused> {
        if let Some(latest) = self.registry.proofs.latest().filter(|_| mutant::is(Mutant::TrustView)) {
            return Ok(latest);
        }
        self.relay.after_now(&self.registry.proofs, deadline).await.ok_or_else(|| Code::ViewUnproven.into())
    }

    fn park(&self) -> Result<super::parking::Parked, Refused> {
        let (places, holder) = match self.entry {
            Some(entry) => {
                let state = entry.state();
                let last = state.account.last_holder();
                let mine =
                    |last: &Arc<Holder>| last.seq == self.claim.seq && last.session == self.claim.session;
                (&entry.places, last.is_some_and(mine))
            }
            // Before the first listing nobody has an entry, and nobody's share is known.
            None => (&self.registry.unknown_places, !self.registry.was_ever_listed()),
        };
        let mut bounds = self.rules.parking;
        if !self.registry.was_ever_listed() {
            bounds.most_per_account = bounds.most;
        }
        park(&self.registry.places, places, bounds, holder).ok_or_else(|| Code::Overloaded.into())
    }

    /// What needs no newer proof to be refused.
    fn at_once(&self, entry: &Entry) -> Option<Refused> {
        let state = entry.state();
        state.account.is_surely_over(self.claim).then(|| match state.account.preview(self.claim, None) {
            Some(Err(code)) => Refused { code, current: state.account.gate().view().holder().cloned() },
            Some(Ok(_)) | None => Code::EpochMismatch.into(),
        })
    }

    /// An admission by a proof that is young enough. Anything else needs one of its own.
    fn by_older_proof(&self) -> Option<Result<Admission, Refused>> {
        if self.rules.max_staleness.is_zero() {
            return None;
        }
        let proven = self.registry.proofs.within(self.rules.max_staleness)?;
        match self.look(Some(&self.entry()?), proven.proof) {
            Look::Done(done) if done.is_ok() || mutant::is(Mutant::OldRefusal) => {
                self.registry.judged_by(proven.begun_at);
                Some(done)
            }
            Look::Done(_) | Look::Unread | Look::Unlisted | Look::Draining(_) | Look::Unproven => None,
        }
    }

    fn look(&self, entry: Option<&Arc<Entry>>, proof: Proof) -> Look {
        if self.registry.is_history_reset() {
            return Look::Done(Err(Code::HistoryReset.into()));
        }
        let Some(entry) = entry else {
            if !self.registry.is_listed(proof) {
                return Look::Unlisted;
            }
            // Looked up again: the listing may have come into force between the look-up and the question.
            return match self.registry.get(self.account) {
                Some(entry) => self.look(Some(&entry), proof),
                None => Look::Done(Err(Code::UnknownAccount.into())),
            };
        };
        let terms = Terms { patience: self.patience, most_in_flight: self.rules.most_in_flight_per_account };
        let mut state = entry.state();
        let tag = || Arc::clone(self.send);
        match state.account.ask(self.claim, proof, terms, tag) {
            Response::Unread => Look::Unread,
            Response::Judged(Answer::Admitted(permit, holder)) => {
                let identity = state
                    .identity
                    .get_or_insert_with(|| Arc::new(Identity::new(&entry.name, &holder)))
                    .clone();
                drop(state);
                Look::Done(Ok(Admission {
                    registry: Arc::clone(self.registry),
                    entry: Arc::clone(entry),
                    permit: Some(permit),
                    send: Arc::clone(self.send),
                    identity,
                }))
            }
            Response::Judged(Answer::Refused(code)) => {
                let current = state.account.gate().view().holder().cloned();
                Look::Done(Err(Refused { code, current }))
            }
            Response::Judged(Answer::Full) => Look::Done(Err(Code::Overloaded.into())),
            Response::Judged(Answer::Draining(until)) => Look::Draining(until),
            Response::Judged(Answer::Unproven) => Look::Unproven,
        }
    }

    /// Waits until the account is read; the verdict if there is one under the same proof.
    async fn wait_read(
        &self,
        entry: &Arc<Entry>,
        proof: Proof,
        deadline: Moment,
    ) -> Result<Option<Result<Admission, Refused>>, Refused> {
        self.registry.urge(&entry.name);
        let mut changed = std::pin::pin!(entry.changed.notified());
        // Enabled before looking again: a read that is applied in between is not missed.
        changed.as_mut().enable();
        match self.look(Some(entry), proof) {
            Look::Done(done) => Ok(Some(done)),
            Look::Unread => self.until(deadline, changed).await.map(|()| None),
            Look::Unlisted | Look::Draining(_) | Look::Unproven => Ok(None),
        }
    }

    async fn wait_listed(&self, proof: Proof, deadline: Moment) -> Result<(), Refused> {
        let mut listed = std::pin::pin!(self.registry.listing.notified());
        listed.as_mut().enable();
        if self.registry.is_listed(proof) {
            return Ok(());
        }
        self.until(deadline, listed).await
    }

    /// Waits for the drain, or for another change of the account. Bounded by the drain's own deadline, and by
    /// `park_timeout` beyond it for the cut to come through.
    async fn wait_drained(&self, entry: &Arc<Entry>, until: Moment) -> Result<(), Refused> {
        let mut changed = std::pin::pin!(entry.changed.notified());
        changed.as_mut().enable();
        // Asked before waiting whether it is over already; the claim is judged anew in any case.
        if !entry.state().account.gate().is_draining() {
            return Ok(());
        }
        if mutant::is(Mutant::LateDrain) {
            changed.set(entry.changed.notified());
        }
        self.until(until.after(self.rules.park_timeout), changed).await
    }

    async fn until(
        &self,
        deadline: Moment,
        changed: std::pin::Pin<&mut Notified<'_>>,
    ) -> Result<(), Refused> {
        let wait = deadline.until(self.registry.clock.now());
        match tokio::time::timeout(wait, changed).await {
            Ok(()) if self.registry.clock.now() <= deadline => Ok(()),
            Ok(()) | Err(_) => Err(Code::ViewUnproven.into()),
        }
    }
}

/// Cuts the sends of a superseded epoch when their time has come, and ends when none is left.
pub(super) async fn watch_drain(registry: Arc<Registry>, entry: Arc<Entry>) {
    loop {
        let wait = {
            let mut state = entry.state();
            let now = registry.clock.now();
            let effects = state.account.tick(now);
            registry.carry_out(&entry.name, &mut state, effects);
            let Some(deadline) = state.account.gate().deadline() else { return };
            deadline.until(now)
        };
        // A timer only wakes. It may sleep through a pause of the machine: look at least every second.
        tokio::time::sleep(wait.min(Duration::from_secs(1)).max(Duration::from_millis(1))).await;
    }
}

/// A place among the sends of an account that are forwarded without a permit.
#[derive(Debug)]
pub struct Unjudged {
    places: Arc<AtomicUsize>,
    send: Arc<Send>,
    clock: Clock,
}

impl Unjudged {
    /// Takes a place; `None` if the account has as many as it may. Names without an entry share theirs.
    #[must_use]
    pub fn enter(registry: &Registry, entry: Option<&Entry>, send: Arc<Send>, most: usize) -> Option<Self> {
        let places = Arc::clone(entry.map_or(&registry.unknown_unjudged, |entry| &entry.unjudged));
        let before = places.fetch_add(1, SeqCst);
        let place = Self { places, send, clock: registry.clock.clone() };
        (before < most).then_some(place)
    }
}

impl Authority for Unjudged {
    fn allow(&self, total: Duration) {
        self.send.set_deadline(Some(self.clock.now().after(total)));
    }

    fn begin(&self) -> Result<(), Code> {
        Ok(())
    }

    fn unbegin(&self) {}

    fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        self.send.poll_stop(cx)
    }
}

impl Drop for Unjudged {
    fn drop(&mut self) {
        self.places.fetch_sub(1, SeqCst);
    }
}

//! The election seen by one instance, for one account: INIT, CANDIDATE, WAITING, LEADER, SUSPEND.
//!
//! Pure: [`Elector::step`] takes an event and the time, and gives what is to be done. It never talks to a service, keeps
//! no timer, draws no random number, and decides only by what a [`Sight`] shows at one moment: three signals, by the table
//! in [`Elector::decide`].
//!
//! To drive it: give [`Event::Opened`] when a session is there, and do the [`Action`]s. At most one act
//! ([`Action::is_act`]) is under way at a time; its end is told by [`Tiding::Seen`] (for [`Action::Look`]) or
//! [`Tiding::Done`]. Whatever changes below the account is told by [`Tiding::Touched`]. [`Action::WakeAt`] asks for
//! [`Event::Due`] at that moment; an earlier or a second one does no harm. A change of role is told by
//! [`Action::Announce`].

use std::time::Duration;

use super::handover::Sighting;
pub use super::role::{Role, Term, Why};
use super::token::{Epoch, Seq, SessionId};
use crate::clock::Moment;

/// What one look shows, all of it at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The numbers of the candidates that the own session has, ascending. More than one is a fault to be mended.
    pub own: Vec<u64>,
    /// The highest number of another candidate below the lowest own one; without an own one, of all.
    pub predecessor: Option<u64>,
    /// How many candidates stand below the own one.
    pub ahead: usize,
    /// What `/active` shows.
    pub active: Option<Active>,
}

/// Whose `/active` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Active {
    /// The own session's, with the own instance id and this number.
    Ours {
        /// The number it names.
        seq: u64,
        /// Its term.
        epoch: Epoch,
    },
    /// The own session's, but not as this instance writes it.
    Odd,
    /// Somebody else's.
    Theirs,
}

/// What happens to an elector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A session is there and connected; nothing is known on it.
    Opened {
        /// Its id.
        session: SessionId,
        /// Its timeout.
        timeout: Duration,
    },
    /// Something of a session. Of another than the current one it is discarded.
    Of(SessionId, Tiding),
    /// A moment that was asked for has come, or it is time to read again.
    Due,
    /// It shall give the account up, and stay out.
    Resign,
    /// It shall take part again.
    Stand,
}

/// What happens on a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tiding {
    /// The connection is lost.
    Disconnected,
    /// The session was not proven alive in time, whatever the connection says.
    Silent,
    /// The session is proven alive again; what changed meanwhile was not told.
    Back,
    /// The session is over, with all of its nodes.
    Ended,
    /// Something changed below the account.
    Touched(Sighting),
    /// A look was answered.
    Seen(Sight),
    /// The act under way has ended. False: it failed, or nobody knows.
    Done(bool),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the account.
    Look,
    /// Create a candidate.
    Register,
    /// Create `/active`, naming this candidate of the own session, which must still stand.
    Take(u64),
    /// Delete this candidate of the own session.
    Withdraw(u64),
    /// Delete `/active` if it is the own session's.
    Clear,
    /// Delete this candidate and, in the same step, `/active` if it is the own session's.
    Resign(u64),
    /// Give [`Event::Due`] at this moment.
    WakeAt(Moment),
    /// The role changed.
    Announce(Role, Why),
}

impl Action {
    /// Whether its end has to be told.
    #[must_use]
    pub const fn is_act(self) -> bool {
        !matches!(self, Self::WakeAt(_) | Self::Announce(..))
    }
}

/// The first pause after something failed or a term was short; each further one is twice as long, up to the timeout.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// One instance's part in one account's election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elector {
    /// Drawn once for each elector, so that many do not act at the same moment.
    jitter: u16,
    /// The session's timeout.
    timeout: Duration,
    role: Role,
    /// Since when it has been.
    since: Moment,
    session: Option<SessionId>,
    /// The session is connected and proven alive.
    up: bool,
    /// It takes part.
    stands: bool,
    /// The act under way.
    act: Option<Action>,
    /// Something changed since the act was begun: its answer may be older.
    again: bool,
    /// The candidate that leads or has led, and its term. It never leads in another one, so that no token comes back.
    led: Option<(u64, Epoch)>,
    /// The own candidate and its predecessor, as last seen.
    seen: (Option<u64>, Option<u64>),
    /// Since when nobody has held the account.
    vacant: Option<Moment>,
    /// Failures and short terms in a row.
    strikes: u32,
    /// Nothing but looking before this moment.
    pause: Option<Moment>,
}

impl Elector {
    /// One that has not begun. It takes part from its first session on. `jitter` is any number, another for each elector.
    #[must_use]
    pub const fn new(jitter: u16, now: Moment) -> Self {
        Self {
            jitter,
            timeout: Duration::ZERO,
            role: Role::Init,
            since: now,
            session: None,
            up: false,
            stands: true,
            act: None,
            again: false,
            led: None,
            seen: (None, None),
            vacant: None,
            strikes: 0,
            pause: None,
        }
    }

    /// What it is now. A leader is one only while its session's own deadline has not passed: whoever sends compares that
    /// too.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Whether it has given the account up and nothing of it is left.
    #[must_use]
    pub fn is_out(&self) -> bool {
        !self.stands && self.act.is_none() && self.role == Role::Init
    }

    /// Takes an event. The actions are to be done in their order.
    #[must_use]
    pub fn step(mut self, event: Event, now: Moment) -> (Self, Vec<Action>) {
        let mut actions = Vec::new();
        match event {
            Event::Opened { session, timeout } => {
                self.suspend(Why::SessionEnded, now, &mut actions);
                self.forget();
                (self.session, self.timeout, self.up) = (Some(session), timeout, true);
                self.look(&mut actions);
            }
            Event::Of(session, tiding) if self.session == Some(session) => {
                self.hear(tiding, now, &mut actions);
            }
            Event::Of(..) => {}
            Event::Due => self.look(&mut actions),
            Event::Resign => {
                self.stands = false;
                self.fall(Why::Resigned, now, &mut actions);
                self.pause = None;
                self.look(&mut actions);
            }
            Event::Stand => {
                self.stands = true;
                self.look(&mut actions);
            }
        }
        (self, actions)
    }

    fn hear(&mut self, tiding: Tiding, now: Moment, actions: &mut Vec<Action>) {
        match tiding {
            Tiding::Disconnected | Tiding::Silent => {
                self.up = false;
                let why = if tiding == Tiding::Silent { Why::Deadline } else { Why::Disconnected };
                self.suspend(why, now, actions);
            }
            Tiding::Back => {
                (self.up, self.pause, self.vacant) = (true, None, None);
                self.look(actions);
            }
            Tiding::Ended => {
                self.suspend(Why::SessionEnded, now, actions);
                self.forget();
            }
            Tiding::Touched(sighting) => self.touched(sighting, now, actions),
            Tiding::Seen(sight) => {
                self.act = None;
                if !self.up || self.again {
                    self.look(actions);
                } else {
                    self.decide(&sight, now, actions);
                }
            }
            Tiding::Done(done) => {
                self.act = None;
                if done {
                    self.look(actions);
                } else {
                    self.strike(now);
                    self.again = true;
                    self.wake(actions);
                }
            }
        }
    }

    /// Nothing of an older session counts.
    fn forget(&mut self) {
        (self.session, self.up, self.act, self.again) = (None, false, None, false);
        (self.led, self.seen, self.vacant) = (None, (None, None), None);
    }

    /// Looks at the next opportunity: at once, if no act is under way.
    fn look(&mut self, actions: &mut Vec<Action>) {
        self.again = self.act.is_some() || !self.up;
        if !self.again {
            self.begin(Action::Look, actions);
        }
    }

    fn begin(&mut self, act: Action, actions: &mut Vec<Action>) {
        self.act = Some(act);
        actions.push(act);
    }

    fn touched(&mut self, sighting: Sighting, now: Moment, actions: &mut Vec<Action>) {
        let (own, predecessor) = self.seen;
        let leads = self.role.term().is_some();
        match sighting {
            Sighting::HolderGone => {
                self.fall(Why::ActiveGone, now, actions);
                self.look(actions);
            }
            Sighting::CandidateGone(number) if own == Some(number) => {
                self.fall(Why::CandidateGone, now, actions);
                self.look(actions);
            }
            Sighting::CandidateGone(number) if own.is_none() || predecessor == Some(number) => {
                self.look(actions);
            }
            // Its own data may be overwritten.
            Sighting::Other if leads => self.look(actions),
            // Somebody took the account: the time without a holder begins anew.
            Sighting::Other => self.vacant = None,
            Sighting::CandidateGone(_) | Sighting::CandidateCame => {}
        }
    }

    /// The table of the three signals: the own candidate, `/active`, and whether that is its own.
    fn decide(&mut self, sight: &Sight, now: Moment, actions: &mut Vec<Action>) {
        let ours = match sight.active {
            Some(Active::Ours { seq, .. }) => Some(seq),
            Some(Active::Odd | Active::Theirs) | None => None,
        };
        let own = ours.filter(|seq| sight.own.contains(seq)).or_else(|| sight.own.first().copied());
        self.seen = (own, sight.predecessor);
        if sight.active.is_some() {
            self.vacant = None;
        }
        if !self.stands {
            return self.give_up(own, sight.active, now, actions);
        }
        // A create whose answer was lost and that was repeated would stand twice.
        if let Some(extra) = sight.own.iter().copied().find(|seq| Some(*seq) != own) {
            return self.mend(Action::Withdraw(extra), actions);
        }
        let spent = own.is_some() && self.led.map(|(seq, _)| seq) == own;
        match (own, sight.active) {
            (Some(own), Some(Active::Ours { seq, epoch }))
                if own == seq && (!spent || self.led == Some((seq, epoch))) =>
            {
                self.lead(seq, epoch, now, actions);
            }
            (_, Some(Active::Odd | Active::Ours { .. })) => {
                let why = if own.is_none() { Why::CandidateGone } else { Why::ActiveOdd };
                self.suspend(why, now, actions);
                self.mend(Action::Clear, actions);
            }
            (None, Some(Active::Theirs) | None) => {
                self.fall(Why::CandidateGone, now, actions);
                self.after_pause(Action::Register, now, actions);
            }
            (Some(own), Some(Active::Theirs)) if spent => {
                self.suspend(Why::ActiveTaken, now, actions);
                self.mend(Action::Withdraw(own), actions);
            }
            (Some(own), None) if spent => {
                self.suspend(Why::ActiveGone, now, actions);
                self.mend(Action::Withdraw(own), actions);
            }
            (Some(_), Some(Active::Theirs)) => {
                self.become_role(Role::Waiting, Why::HeldByOther, now, actions)
            }
            (Some(own), None) => self.take_part(own, sight, now, actions),
        }
    }

    fn lead(&mut self, seq: u64, epoch: Epoch, now: Moment, actions: &mut Vec<Action>) {
        let Some(session) = self.session else { return };
        let again = self.led == Some((seq, epoch));
        let why = if again { Why::StillHolds } else { Why::Elected };
        self.led = Some((seq, epoch));
        self.pause = None;
        self.become_role(Role::Leader(Term { seq: Seq(seq), session, epoch }), why, now, actions);
    }

    /// Nobody holds the account: the first candidate takes it now, the others if it does not for two timeouts.
    fn take_part(&mut self, own: u64, sight: &Sight, now: Moment, actions: &mut Vec<Action>) {
        let since = *self.vacant.get_or_insert(now);
        let patience = match (sight.predecessor, u32::try_from(sight.ahead.min(8)).unwrap_or(8)) {
            (None, _) => Duration::ZERO,
            (Some(_), ahead) => {
                self.timeout * 2 + self.timeout * ahead.saturating_sub(1) / 4 + self.part_of(self.timeout / 8)
            }
        };
        if now.since(since) < patience {
            self.become_role(Role::Waiting, Why::NotFirst, now, actions);
            actions.push(Action::WakeAt(since.after(patience)));
        } else {
            self.become_role(Role::Candidate, Why::Free, now, actions);
            self.after_pause(Action::Take(own), now, actions);
        }
    }

    /// It does not take part: whatever is left of it goes.
    fn give_up(&mut self, own: Option<u64>, active: Option<Active>, now: Moment, actions: &mut Vec<Action>) {
        match (own, active) {
            (Some(own), _) => self.after_pause(Action::Resign(own), now, actions),
            (None, Some(Active::Ours { .. } | Active::Odd)) => self.after_pause(Action::Clear, now, actions),
            (None, Some(Active::Theirs) | None) => self.become_role(Role::Init, Why::Resigned, now, actions),
        }
    }

    /// Whatever is wrong with the own nodes is set right without a pause.
    fn mend(&mut self, act: Action, actions: &mut Vec<Action>) {
        self.begin(act, actions);
    }

    fn after_pause(&mut self, act: Action, now: Moment, actions: &mut Vec<Action>) {
        match self.pause.filter(|until| now < *until) {
            Some(until) => actions.push(Action::WakeAt(until)),
            None => self.begin(act, actions),
        }
    }

    fn wake(&self, actions: &mut Vec<Action>) {
        actions.extend(self.pause.map(Action::WakeAt));
    }

    /// It leads no longer, if it did.
    fn fall(&mut self, why: Why, now: Moment, actions: &mut Vec<Action>) {
        if self.role.term().is_some() {
            self.suspend(why, now, actions);
        }
    }

    fn suspend(&mut self, why: Why, now: Moment, actions: &mut Vec<Action>) {
        if self.role != Role::Init {
            self.become_role(Role::Suspend, why, now, actions);
        }
    }

    fn become_role(&mut self, role: Role, why: Why, now: Moment, actions: &mut Vec<Action>) {
        if self.role == role {
            return;
        }
        if self.role.term().is_some() {
            // Short terms in a row are flapping.
            if now.since(self.since) < self.timeout {
                self.strike(now);
            } else {
                self.strikes = 0;
            }
        }
        (self.role, self.since) = (role, now);
        actions.push(Action::Announce(role, why));
    }

    /// One more failure: the pause doubles, up to the timeout.
    fn strike(&mut self, now: Moment) {
        let whole = (FIRST_PAUSE * 2_u32.pow(self.strikes.min(16))).min(self.timeout);
        self.strikes = self.strikes.saturating_add(1);
        self.pause = Some(now.after(whole / 2 + self.part_of(whole / 2)));
    }

    /// A part of `whole` that differs from elector to elector and from strike to strike.
    fn part_of(&self, whole: Duration) -> Duration {
        let mixed = u32::from(self.jitter).wrapping_add(self.strikes.wrapping_mul(0x9e37)) & 0xffff;
        whole * mixed / 0xffff
    }
}

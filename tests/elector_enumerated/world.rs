//! What the elector is enumerated against: one account of a service, an operator, and another candidate.
//!
//! It knows nothing of the elector's fields. Whatever happens is told in order, as a session tells it; what happens while the
//! connection is away is never told.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fencegate::fence::elector::{Action, Active, Event, Sight, Tiding};
use fencegate::fence::handover::Sighting;
use fencegate::fence::token::{Epoch, SessionId};

/// The other candidate's session.
const OTHER: u8 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    pub(crate) owner: u8,
    pub(crate) seq: u64,
    pub(crate) epoch: i64,
    pub(crate) odd: bool,
}

/// Something that happens beside the elector. Each is bounded in number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Blow {
    OtherRegisters,
    OtherTakes,
    OtherEnds,
    ActiveDeleted,
    ActiveRewritten,
    CandidateDeleted,
    Disconnect,
    Expire,
    Silence,
    Resign,
}

pub(crate) const EVERY_BLOW: [Blow; 10] = [
    Blow::OtherRegisters,
    Blow::OtherTakes,
    Blow::OtherEnds,
    Blow::ActiveDeleted,
    Blow::ActiveRewritten,
    Blow::CandidateDeleted,
    Blow::Disconnect,
    Blow::Expire,
    Blow::Silence,
    Blow::Resign,
];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The elector's newest session, from 1 on; zero before the first.
    pub(crate) session: u8,
    pub(crate) alive: bool,
    pub(crate) connected: bool,
    /// The elector was told, or will be, that the session is over.
    pub(crate) over: bool,
    /// The session was not proven alive in time.
    pub(crate) silent: bool,
    pub(crate) candidates: BTreeMap<u64, u8>,
    pub(crate) active: Option<Holding>,
    next_seq: u64,
    next_epoch: i64,
    /// What the elector will be told next.
    pub(crate) told: VecDeque<Event>,
    /// The act that it asked for.
    pub(crate) act: Option<Action>,
}

impl World {
    pub(crate) fn own_candidates(&self) -> Vec<u64> {
        self.candidates.iter().filter(|(_, owner)| **owner == self.session).map(|(seq, _)| *seq).collect()
    }

    pub(crate) fn own_active(&self) -> Option<Holding> {
        self.active.filter(|active| active.owner == self.session)
    }

    fn tell(&mut self, tiding: Tiding) {
        if self.connected {
            self.told.push_back(Event::Of(SessionId(self.session.into()), tiding));
        }
    }

    /// A new session, after the last one has ended and its end was told.
    pub(crate) fn open(&mut self) {
        self.session += 1;
        (self.alive, self.connected, self.silent, self.over) = (true, true, false, false);
        self.act = None;
        self.told.push_back(Event::Opened {
            session: SessionId(self.session.into()),
            timeout: Duration::from_secs(20),
        });
    }

    pub(crate) fn reconnect(&mut self) {
        self.connected = true;
        if self.alive {
            self.tell(Tiding::Back);
        } else {
            self.tell(Tiding::Ended);
            (self.connected, self.over) = (false, true);
        }
    }

    /// The answer to the act is lost with the connection.
    pub(crate) fn lose_answer(&mut self, executed: bool) {
        if executed && self.alive {
            let act = self.act.unwrap();
            self.execute(act);
        }
        self.act = None;
        self.told.push_back(Event::Of(SessionId(self.session.into()), Tiding::Done(false)));
    }

    /// The act is executed and answered.
    pub(crate) fn answer(&mut self) {
        let act = self.act.take().unwrap();
        let answer = self.execute(act);
        self.tell(answer);
    }

    fn execute(&mut self, act: Action) -> Tiding {
        let own = |world: &Self, seq: u64| world.candidates.get(&seq) == Some(&world.session);
        match act {
            Action::Look => return Tiding::Seen(self.sight()),
            Action::Register => {
                self.register(self.session);
                assert_eq!(self.own_candidates().len(), 1, "one candidate for each instance: {self:?}");
            }
            Action::Take(seq) => {
                if own(self, seq) && self.active.is_none() {
                    self.take(self.session, seq);
                }
            }
            Action::Withdraw(seq) => {
                if own(self, seq) {
                    self.delete_candidate(seq);
                }
            }
            Action::Clear => {
                if self.own_active().is_some() {
                    self.delete_active();
                }
            }
            Action::Resign(seq) => {
                if own(self, seq) {
                    self.delete_candidate(seq);
                    if self.own_active().is_some() {
                        self.delete_active();
                    }
                }
            }
            Action::WakeAt(_) | Action::Announce(..) => unreachable!("no act"),
        }
        Tiding::Done(true)
    }

    fn sight(&self) -> Sight {
        let own = self.own_candidates();
        let lower = |seq: &&u64| own.first().is_none_or(|first| **seq < *first) && !own.contains(*seq);
        let ahead: Vec<u64> = self.candidates.keys().filter(lower).copied().collect();
        let active = self.active.map(|active| match active {
            Holding { owner, odd: false, seq, epoch } if owner == self.session => {
                Active::Ours { seq, epoch: Epoch(epoch) }
            }
            Holding { owner, .. } if owner == self.session => Active::Odd,
            Holding { .. } => Active::Theirs,
        });
        Sight { own, predecessor: ahead.last().copied(), ahead: ahead.len(), active }
    }

    fn register(&mut self, owner: u8) {
        self.candidates.insert(self.next_seq, owner);
        self.next_seq += 1;
        self.tell(Tiding::Touched(Sighting::CandidateCame));
    }

    fn take(&mut self, owner: u8, seq: u64) {
        self.next_epoch += 1;
        self.active = Some(Holding { owner, seq, epoch: self.next_epoch, odd: false });
        self.tell(Tiding::Touched(Sighting::Other));
    }

    fn delete_candidate(&mut self, seq: u64) {
        self.candidates.remove(&seq);
        self.tell(Tiding::Touched(Sighting::CandidateGone(seq)));
    }

    fn delete_active(&mut self) {
        self.active = None;
        self.tell(Tiding::Touched(Sighting::HolderGone));
    }

    fn other(&self) -> Option<u64> {
        self.candidates.iter().find(|(_, owner)| **owner == OTHER).map(|(seq, _)| *seq)
    }

    /// The other's session ends, with all it has.
    pub(crate) fn end_other(&mut self) {
        if self.active.is_some_and(|active| active.owner == OTHER) {
            self.delete_active();
        }
        if let Some(seq) = self.other() {
            self.delete_candidate(seq);
        }
    }

    /// Lets something happen; false if it cannot.
    pub(crate) fn suffer(&mut self, blow: Blow) -> bool {
        match blow {
            Blow::OtherRegisters if self.other().is_none() => self.register(OTHER),
            Blow::OtherTakes if self.active.is_none() && self.other().is_some() => {
                let seq = self.other().unwrap();
                self.take(OTHER, seq);
            }
            Blow::OtherEnds if self.other().is_some() => self.end_other(),
            Blow::ActiveDeleted if self.own_active().is_some() => self.delete_active(),
            Blow::ActiveRewritten if self.own_active().is_some_and(|active| !active.odd) => {
                self.active.as_mut().unwrap().odd = true;
                self.tell(Tiding::Touched(Sighting::Other));
            }
            Blow::CandidateDeleted if !self.own_candidates().is_empty() => {
                let seq = self.own_candidates()[0];
                self.delete_candidate(seq);
            }
            Blow::Disconnect if self.connected => {
                self.tell(Tiding::Disconnected);
                self.connected = false;
            }
            // Nobody hears of it before the connection is there again.
            Blow::Expire if self.alive && !self.connected => {
                self.alive = false;
                self.candidates.retain(|_, owner| *owner != self.session);
                self.active = self.active.filter(|active| active.owner != self.session);
            }
            Blow::Silence if self.connected && !self.silent => {
                self.silent = true;
                self.tell(Tiding::Silent);
            }
            Blow::Resign => self.told.push_back(Event::Resign),
            Blow::OtherRegisters
            | Blow::OtherTakes
            | Blow::OtherEnds
            | Blow::ActiveDeleted
            | Blow::ActiveRewritten
            | Blow::CandidateDeleted
            | Blow::Disconnect
            | Blow::Expire
            | Blow::Silence => return false,
        }
        true
    }

    /// The session is proven alive again.
    pub(crate) fn revive(&mut self) {
        self.silent = false;
        self.tell(Tiding::Back);
    }
}

//! What the gate is enumerated against: a record of its own, send by send, and what follows from it for each input.

use std::sync::Arc;
use std::time::Duration;

use fencegate::clock::Moment;
use fencegate::code::Code;
use fencegate::fence::gate::{Answer, Order, Terms};
use fencegate::fence::token::{Claim, Epoch, Seq, SessionId};
use fencegate::fence::view::{Holder, Invalid, View};

/// Permits that are out at the same time.
pub(crate) const MOST_OUT: usize = 3;
/// Sends of one account that may count at the same time.
pub(crate) const MOST_IN_FLIGHT: usize = 2;
pub(crate) const PATIENCES: [u8; 2] = [1, 2];

/// How far one enumeration goes.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Permits issued on one path.
    pub(crate) issued: u8,
    /// Seconds on one path. The patience of a send is one or two.
    pub(crate) last_second: u8,
    /// Whether a holder of a lower term may be seen after one of a higher: an account never lets that through.
    pub(crate) goes_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    Vacant,
    Invalid,
    /// The holder of this term: A is 1, B is 2, C is 3.
    Held(u8),
}

pub(crate) const EVERY_VIEW: [Seen; 5] =
    [Seen::Vacant, Seen::Invalid, Seen::Held(1), Seen::Held(2), Seen::Held(3)];

impl Seen {
    pub(crate) fn view(self) -> View {
        match self {
            Self::Vacant => View::Vacant,
            Self::Invalid => View::Invalid(Invalid::NoCandidate),
            Self::Held(term) => View::Held(holder(term)),
        }
    }
}

pub(crate) fn holder(term: u8) -> Arc<Holder> {
    Arc::new(Holder {
        seq: Seq(term.into()),
        session: SessionId(term.into()),
        instance: String::new(),
        epoch: Epoch(term.into()),
        active_since: None,
    })
}

pub(crate) fn claim(term: u8) -> Claim {
    Claim { seq: Seq(term.into()), session: SessionId(term.into()), instance: None, epoch: None }
}

pub(crate) fn second(second: u8) -> Moment {
    Moment::from_nanos(u64::from(second) * 1_000_000_000)
}

pub(crate) fn terms(patience: u8, most_in_flight: usize) -> Terms {
    Terms { patience: Duration::from_secs(patience.into()), most_in_flight }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    Observe(Seen),
    /// A barrier begins; whoever asks later may present it.
    Barrier,
    /// The current holder asks, with the newest barrier for a proof.
    Ask {
        patience: u8,
    },
    Begin(usize),
    Unbegin(usize),
    End(usize),
    /// Time passes, and nobody looks yet.
    Second,
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fate {
    Waiting,
    Writing,
    Withdrawn,
    Cut,
}

/// One permit that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Send {
    pub(crate) term: u8,
    pub(crate) patience: u8,
    pub(crate) fate: Fate,
    /// The second in which another view than its term's was first seen.
    pub(crate) superseded: Option<u8>,
}

impl Send {
    pub(crate) fn counts(&self) -> bool {
        self.fate != Fate::Withdrawn
    }

    /// A later send has to wait for it.
    pub(crate) fn blocks(&self) -> bool {
        self.counts() && self.superseded.is_some()
    }

    pub(crate) fn end_of_patience(&self) -> u8 {
        self.superseded.unwrap() + self.patience
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    pub(crate) seen: Seen,
    pub(crate) now: u8,
    /// Barriers begun, numbered from one.
    pub(crate) barriers: u8,
    /// Barriers begun by the time the last wait was over.
    pub(crate) barriers_at_wait_end: u8,
    pub(crate) out: [Option<Send>; MOST_OUT],
    pub(crate) issued: u8,
    pub(crate) ended: u8,
    pub(crate) highest_admitted: u8,
    pub(crate) highest_seen: u8,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Admitted,
    Not(Answer),
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            seen: Seen::Vacant,
            now: 0,
            barriers: 1,
            barriers_at_wait_end: 0,
            out: [None; MOST_OUT],
            issued: 0,
            ended: 0,
            highest_admitted: 0,
            highest_seen: 0,
        }
    }

    pub(crate) fn sends(&self) -> impl Iterator<Item = &Send> {
        self.out.iter().flatten()
    }

    pub(crate) fn counting(&self) -> usize {
        self.sends().filter(|send| send.counts()).count()
    }

    pub(crate) fn free(&self) -> Option<usize> {
        self.out.iter().position(Option::is_none)
    }

    pub(crate) fn wait_since(&self) -> Option<u8> {
        self.sends().filter(|send| send.blocks()).filter_map(|send| send.superseded).min()
    }

    pub(crate) fn expected(&self, term: u8, proof: u8, most_in_flight: usize) -> Expected {
        let Seen::Held(holding) = self.seen else {
            let code = if self.seen == Seen::Vacant { Code::NoHolder } else { Code::InvalidHolder };
            return Expected::Not(Answer::Refused(code));
        };
        if term != holding {
            let code = if term < holding { Code::StaleToken } else { Code::NotHolder };
            Expected::Not(Answer::Refused(code))
        } else if term < self.highest_admitted {
            Expected::Not(Answer::Refused(Code::InvalidHolder))
        } else if self.wait_since().is_some() {
            let last = self.sends().filter(|send| send.blocks()).map(Send::end_of_patience).max();
            Expected::Not(Answer::Draining(second(last.unwrap())))
        } else if proof <= self.barriers_at_wait_end {
            Expected::Not(Answer::Unproven)
        } else if self.counting() >= most_in_flight {
            Expected::Not(Answer::Full)
        } else {
            Expected::Admitted
        }
    }

    /// The inputs that change something, or could.
    pub(crate) fn inputs(&self, bounds: Bounds) -> Vec<Input> {
        let lowest = if bounds.goes_back { 0 } else { self.highest_seen };
        let may_follow = |seen: &Seen| match *seen {
            Seen::Vacant | Seen::Invalid => *seen != self.seen,
            Seen::Held(term) => *seen != self.seen && term >= lowest,
        };
        let mut inputs: Vec<_> = EVERY_VIEW.into_iter().filter(may_follow).map(Input::Observe).collect();
        if self.barriers == self.barriers_at_wait_end {
            inputs.push(Input::Barrier);
        }
        if let Seen::Held(term) = self.seen
            && self.free().is_some()
            && self.issued < bounds.issued
            && self.expected(term, self.barriers, MOST_IN_FLIGHT) == Expected::Admitted
        {
            inputs.extend(PATIENCES.map(|patience| Input::Ask { patience }));
        }
        for (index, send) in self.out.iter().enumerate() {
            // Of sends that are alike, one stands for all.
            let Some(send) = send else { continue };
            if self.out[..index].contains(&Some(*send)) {
                continue;
            }
            inputs.push(Input::End(index));
            match send.fate {
                Fate::Waiting => inputs.push(Input::Begin(index)),
                Fate::Writing | Fate::Cut => inputs.push(Input::Unbegin(index)),
                Fate::Withdrawn => {}
            }
        }
        // Time matters only to those who are waited for.
        if self.wait_since().is_some() && self.now < bounds.last_second {
            inputs.push(Input::Second);
        }
        if self.sends().any(|send| self.is_due(send)) {
            inputs.push(Input::Tick);
        }
        inputs
    }

    pub(crate) fn is_due(&self, send: &Send) -> bool {
        send.fate == Fate::Writing && send.superseded.is_some() && send.end_of_patience() <= self.now
    }

    /// Takes `send` out of what is waited for by `change`; whether that ended the wait, and since when it ran.
    pub(crate) fn release(&mut self, change: impl FnOnce(&mut Self)) -> Option<Moment> {
        let since = self.wait_since();
        change(self);
        if self.wait_since().is_some() {
            return None;
        }
        since.inspect(|_| self.barriers_at_wait_end = self.barriers).map(second)
    }
}

pub(crate) fn order(number: u8) -> Order {
    Order(number.into())
}

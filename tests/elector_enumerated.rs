//! The elector, enumerated: every sequence of a few blows, with every order of what is executed, answered, told and lost.
//!
//! After every step the service and the elector are held against each other, and from every state the elector has to find
//! its way: to lead, to stand by behind somebody who holds the account, or out, if it was told to resign.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::collections::{BTreeMap, HashSet};

use fencegate::clock::Moment;
use fencegate::fence::elector::{Action, Active, Elector, Event, Role, Tiding};
use fencegate::fence::handover::Sighting;
use fencegate::fence::token::SessionId;

#[path = "elector_enumerated/world.rs"]
mod world;
use world::{Blow, EVERY_BLOW, World};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    elector: Elector,
    now: Moment,
    wake: Option<Moment>,
    /// The term in which each candidate of each session has led.
    led: BTreeMap<(i64, u64), i64>,
    newest: i64,
    /// What the elector was shown last.
    shown: Option<Active>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Blow(Blow),
    Hear,
    Answer,
    LoseAnswer { executed: bool },
    Reconnect,
    Revive,
    Open,
    Wake,
}

impl State {
    fn new() -> Self {
        let now = Moment::from_nanos(1);
        let (led, elector) = (BTreeMap::new(), Elector::new(7, now));
        Self { world: World::default(), elector, now, wake: None, led, newest: 0, shown: None }
    }

    /// The state after a step, if it is possible.
    fn after(&self, step: Step) -> Option<Self> {
        let mut next = self.clone();
        let World { connected, over, session, .. } = self.world;
        match step {
            Step::Blow(blow) if session > 0 => next.world.suffer(blow).then_some(())?,
            Step::Hear if !self.world.told.is_empty() => {
                let event = next.world.told.pop_front().unwrap();
                next.hear(event);
            }
            Step::Answer if connected && self.world.act.is_some() => next.world.answer(),
            Step::LoseAnswer { executed } if !connected && self.world.act.is_some() => {
                next.world.lose_answer(executed);
            }
            Step::Reconnect if !connected && !over && session > 0 && self.world.told.is_empty() => {
                next.world.reconnect();
            }
            Step::Revive if connected && self.world.silent => next.world.revive(),
            Step::Open if (over || session == 0) && self.world.told.is_empty() => next.world.open(),
            Step::Wake => {
                next.now = next.now.max(self.wake?);
                next.wake = None;
                next.hear(Event::Due);
            }
            Step::Blow(_)
            | Step::Hear
            | Step::Answer
            | Step::LoseAnswer { .. }
            | Step::Reconnect
            | Step::Revive
            | Step::Open => return None,
        }
        Some(next)
    }

    fn hear(&mut self, event: Event) {
        if let Event::Of(_, Tiding::Seen(sight)) = &event {
            self.shown = sight.active;
        }
        let lost = matches!(event, Event::Of(_, Tiding::Disconnected | Tiding::Silent | Tiding::Ended));
        let current = SessionId(self.world.session.into());
        let (elector, actions) = self.elector.clone().step(event, self.now);
        self.elector = elector;
        assert!(!lost || self.elector.role().term().is_none(), "nobody leads over a loss: {self:?}");
        for action in actions {
            match action {
                Action::WakeAt(at) => self.wake = Some(self.wake.map_or(at, |before| before.min(at))),
                Action::Announce(Role::Leader(term), _) => {
                    let ours = Active::Ours { seq: term.seq.0, epoch: term.epoch };
                    assert_eq!(self.shown, Some(ours), "whoever leads has seen it");
                    assert_eq!(term.session, current, "of the newest session");
                    let before = self.led.insert((term.session.0, term.seq.0), term.epoch.0);
                    assert!(before.is_none_or(|epoch| epoch == term.epoch.0), "a token came back: {self:?}");
                    assert!(term.epoch.0 >= self.newest, "terms rise");
                    self.newest = term.epoch.0;
                }
                Action::Announce(..) => {}
                act => {
                    assert_eq!(self.world.act, None, "one act at a time: {self:?}");
                    if let Action::Take(seq) = act {
                        assert!(
                            !self.led.contains_key(&(current.0, seq)),
                            "a spent candidate takes: {self:?}"
                        );
                    }
                    self.world.act = Some(act);
                }
            }
        }
        // What is left of an act after a session's end is nobody's.
        self.discards_what_is_not_of_its_session();
    }

    fn discards_what_is_not_of_its_session(&self) {
        for tiding in [
            Tiding::Disconnected,
            Tiding::Ended,
            Tiding::Back,
            Tiding::Done(true),
            Tiding::Touched(Sighting::HolderGone),
        ] {
            let stale = Event::Of(SessionId(77), tiding);
            assert_eq!(self.elector.clone().step(stale, self.now), (self.elector.clone(), Vec::new()));
        }
    }

    /// With nothing more going wrong it finds its way.
    fn settles(&self) {
        let mut state = self.clone();
        for _ in 0..80 {
            let steps = [Step::Hear, Step::Answer, Step::Reconnect, Step::Revive, Step::Open, Step::Wake];
            let Some(next) = steps.iter().find_map(|step| state.after(*step)) else { break };
            state = next;
        }
        let World { active, .. } = state.world;
        let (own, role) = (state.world.own_candidates(), state.elector.role());
        let well = match role {
            Role::Leader(term) => {
                let holding = state.world.own_active();
                own == [term.seq.0] && holding.is_some_and(|held| held.epoch == term.epoch.0 && !held.odd)
            }
            Role::Waiting => own.len() == 1 && active.is_some_and(|held| held.owner != state.world.session),
            Role::Init => state.elector.is_out() && own.is_empty() && state.world.own_active().is_none(),
            Role::Candidate | Role::Suspend => false,
        };
        assert!(well, "it stays {role:?}:\n{state:?}\nbegun at\n{self:?}");
    }
}

/// Explores everything that can happen with at most `blows` blows; how many states there are.
fn enumerate(blows: u32, which: &[Blow]) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![(State::new(), blows)];
    while let Some((state, left)) = open.pop() {
        if !seen.insert((state.clone(), left)) {
            continue;
        }
        state.settles();
        let free = [
            Step::Hear,
            Step::Answer,
            Step::LoseAnswer { executed: false },
            Step::LoseAnswer { executed: true },
            Step::Reconnect,
            Step::Revive,
            Step::Open,
            Step::Wake,
        ];
        open.extend(free.iter().filter_map(|step| Some((state.after(*step)?, left))));
        if left > 0 {
            let struck = which.iter().filter_map(|blow| Some((state.after(Step::Blow(*blow))?, left - 1)));
            open.extend(struck);
        }
    }
    seen.len()
}

#[test]
fn whatever_happens_no_token_comes_back_and_it_finds_its_way() {
    let states = enumerate(3, &EVERY_BLOW);
    assert!(states > 10_000, "{states}");
}

#[test]
fn losses_of_connection_and_session_are_survived_in_any_order() {
    let states = enumerate(4, &[Blow::Disconnect, Blow::Expire, Blow::OtherRegisters, Blow::OtherTakes]);
    assert!(states > 10_000, "{states}");
}

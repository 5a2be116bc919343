//! The instances: the real elector's core for each account, a session that its service may end, and freezes.
//!
//! What an elector wants done is done at the service after a while, and told to it after another. A frozen instance does
//! neither hear nor act; its session is ended like anybody's who is silent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fencegate::clock::Moment;
use fencegate::fence::elector::{Action, Active as Shown, Elector, Event, Sight, Tiding};
use fencegate::fence::handover::Sighting;
use fencegate::fence::token::{Claim, Epoch, Seq, SessionId};
use tokio::sync::Notify;

use super::service::Service;
use super::world::World;

/// One bot process.
pub struct Instance {
    pub name: String,
    pub session: i64,
    pub electors: Vec<Elector>,
    frozen: bool,
    /// Its line to the service passes nothing.
    cut: bool,
    /// It was cut, and the instance does not know yet.
    lost: bool,
    pub work: Arc<Notify>,
    timeout: Duration,
    /// When the service last heard of it.
    heard: Moment,
    /// The service has ended its session.
    ended: bool,
    /// It was told that its line is cut.
    disconnected: bool,
    /// A new session is there at this moment.
    opens: Option<Moment>,
    /// Under way to it.
    inbox: VecDeque<(Moment, usize, Event)>,
    /// Under way to the service: account, session, what.
    outbox: VecDeque<(Moment, usize, i64, Action)>,
    wakes: Vec<Option<Moment>>,
    rng: fastrand::Rng,
}

impl Instance {
    pub fn new(
        number: usize,
        accounts: usize,
        timeout: Duration,
        now: Moment,
        mut rng: fastrand::Rng,
    ) -> Self {
        let mut elector = || Elector::new(rng.u16(..), now);
        Self {
            name: format!("host-{number}"),
            session: 0,
            electors: (0..accounts).map(|_| elector()).collect(),
            frozen: false,
            cut: false,
            lost: false,
            work: Arc::default(),
            timeout,
            heard: now,
            ended: true,
            disconnected: false,
            opens: Some(now),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            wakes: vec![None; accounts],
            rng,
        }
    }

    /// The token it believes to lead with.
    pub fn token(&self, account: usize) -> Option<Claim> {
        let term = self.electors[account].role().term()?;
        let instance = Some(self.name.clone());
        Some(Claim { seq: term.seq, session: term.session, instance, epoch: Some(term.epoch) })
    }

    /// It freezes, or goes on.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
        self.work.notify_one();
    }

    /// Its line to the service is cut, or mended.
    pub fn cut_off(&mut self, cut: bool) {
        self.cut = cut;
        self.lost |= cut;
        self.work.notify_one();
    }

    /// Somebody tells it to do something.
    pub fn order(&mut self, account: usize, event: Event, now: Moment) {
        self.receive(account, event, now);
        self.work.notify_one();
    }

    /// The service announces a change to whoever is connected.
    pub fn announce(&mut self, account: usize, sighting: Sighting, now: Moment) {
        if !self.cut && !self.ended {
            let tiding = Event::Of(SessionId(self.session), Tiding::Touched(sighting));
            self.receive(account, tiding, now);
            self.work.notify_one();
        }
    }

    fn receive(&mut self, account: usize, event: Event, now: Moment) {
        let way = Duration::from_millis(self.rng.u64(..15));
        let earliest = self.inbox.back().map_or(now, |(at, ..)| *at);
        self.inbox.push_back((now.after(way).max(earliest), account, event));
    }

    fn tell_all(&mut self, tiding: &Tiding, now: Moment) {
        for account in 0..self.electors.len() {
            self.receive(account, Event::Of(SessionId(self.session), tiding.clone()), now);
        }
    }

    /// The service ends its session.
    pub fn end_session(&mut self) {
        self.ended = true;
        self.work.notify_one();
    }

    /// What is due now; when something is next.
    fn live(&mut self, service: &mut Service, sessions: &mut i64, now: Moment) -> Moment {
        if !self.ended && now.since(self.heard) >= self.timeout {
            service.expire(self.session, now);
            self.ended = true;
        }
        if self.frozen {
            return if self.ended {
                now.after(Duration::from_secs(3600))
            } else {
                self.heard.after(self.timeout)
            };
        }
        self.reach(sessions, now);
        self.act(service, now);
        while let Some((_, account, event)) = self.inbox.pop_front_if(|(at, ..)| *at <= now) {
            self.step(account, event, now);
        }
        for account in 0..self.wakes.len() {
            if self.wakes[account].take_if(|at| *at <= now).is_some() {
                self.step(account, Event::Due, now);
            }
        }
        let wakes = self.wakes.iter().flatten().copied();
        let ways =
            self.inbox.front().map(|(at, ..)| *at).into_iter().chain(self.outbox.front().map(|(at, ..)| *at));
        wakes
            .chain(ways)
            .chain(self.opens)
            .min()
            .map_or(now.after(self.timeout / 3), |at| at.min(now.after(self.timeout / 3)))
    }

    /// Sees to its session.
    fn reach(&mut self, sessions: &mut i64, now: Moment) {
        if std::mem::take(&mut self.lost) && !std::mem::replace(&mut self.disconnected, true) && !self.ended {
            self.outbox.clear();
            self.tell_all(&Tiding::Disconnected, now);
        }
        if self.cut {
            return;
        }
        if self.ended {
            match self.opens {
                None => {
                    self.outbox.clear();
                    self.tell_all(&Tiding::Ended, now);
                    self.opens = Some(now.after(Duration::from_millis(self.rng.u64(1..100))));
                }
                Some(at) if at <= now => {
                    *sessions += 1;
                    (self.session, self.ended, self.opens, self.disconnected) =
                        (*sessions, false, None, false);
                    for account in 0..self.electors.len() {
                        self.receive(
                            account,
                            Event::Opened { session: SessionId(self.session), timeout: self.timeout },
                            now,
                        );
                    }
                }
                Some(_) => return,
            }
        } else if std::mem::take(&mut self.disconnected) {
            // Answers that were under way are lost, and so is what was asked or done.
            self.tell_all(&Tiding::Done(false), now);
            self.tell_all(&Tiding::Back, now);
        }
        self.heard = now;
    }

    fn step(&mut self, account: usize, event: Event, now: Moment) {
        let (elector, actions) = self.electors[account].clone().step(event, now);
        self.electors[account] = elector;
        for action in actions {
            match action {
                Action::WakeAt(at) => {
                    let wake = &mut self.wakes[account];
                    *wake = Some(wake.map_or(at, |earlier| earlier.min(at)));
                }
                Action::Announce(..) => {}
                act => {
                    let way = Duration::from_millis(self.rng.u64(..15));
                    let earliest = self.outbox.back().map_or(now, |(at, ..)| *at);
                    self.outbox.push_back((now.after(way).max(earliest), account, self.session, act));
                }
            }
        }
    }

    /// Does at the service what has arrived there.
    fn act(&mut self, service: &mut Service, now: Moment) {
        while let Some((_, account, session, action)) = self.outbox.pop_front_if(|(at, ..)| *at <= now) {
            if self.ended || session != self.session {
                continue;
            }
            let done = match action {
                Action::Look => Tiding::Seen(self.look(service, account)),
                Action::Register => {
                    service.register(account, session, now);
                    Tiding::Done(true)
                }
                Action::Take(number) => {
                    service.take(account, session, &self.name, number, now);
                    Tiding::Done(true)
                }
                Action::Withdraw(number) => {
                    Tiding::Done(service.delete(account, &[number], false, false, now))
                }
                Action::Clear | Action::Resign(_) => {
                    let active = service.tree(account).and_then(|tree| tree.active.as_ref());
                    let mine = active.is_some_and(|active| active.session == session);
                    let own = if let Action::Resign(number) = action { vec![number] } else { Vec::new() };
                    service.delete(account, &own, mine, !own.is_empty(), now);
                    Tiding::Done(true)
                }
                Action::WakeAt(_) | Action::Announce(..) => continue,
            };
            self.receive(account, Event::Of(SessionId(session), done), now);
        }
    }

    fn look(&self, service: &Service, account: usize) -> Sight {
        let Some(tree) = service.tree(account) else { return Sight::default() };
        let mine = |session: i64| session == self.session;
        let own: Vec<u64> =
            tree.candidates.iter().filter(|(_, s)| mine(**s)).map(|(number, _)| *number).collect();
        let lowest = own.first().copied().unwrap_or(u64::MAX);
        let below: Vec<u64> = tree.candidates.keys().copied().filter(|number| *number < lowest).collect();
        let active = tree.active.as_ref().map(|active| match mine(active.session) {
            true if active.instance == self.name => {
                Shown::Ours { seq: active.seq, epoch: Epoch(active.epoch) }
            }
            true => Shown::Odd,
            false => Shown::Theirs,
        });
        Sight { own, predecessor: below.last().copied(), ahead: below.len(), active }
    }
}

/// The life of one instance.
pub async fn live(world: Arc<World>, number: usize) {
    loop {
        let now = world.clock.now();
        let (next, work) = {
            let mut state = world.state();
            let state = &mut *state;
            let instance = &mut state.instances[number];
            let next = instance.live(&mut state.service, &mut state.sessions, now);
            let work = Arc::clone(&instance.work);
            state.settle(now);
            (next, work)
        };
        let _ = tokio::time::timeout(next.until(now).max(Duration::from_millis(1)), work.notified()).await;
    }
}

/// A token that a candidate would have if it held.
pub fn candidate(number: u64, session: i64) -> Claim {
    Claim { seq: Seq(number), session: SessionId(session), instance: None, epoch: None }
}

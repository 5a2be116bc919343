//! One session and the electors on it: turns what a session tells into their events, and their actions into its calls.
//!
//! One task; nothing in it waits for an answer, so that a slow account holds up no other. It decides nothing about roles, and
//! what is left of an older session is dropped with it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::board::Board;
use super::lease::Lease;
use super::serving::{Answer, Serving};
use super::{NotLeader, Settings};
use crate::clock::Moment;
use crate::election::BackendError;
use crate::election::session::{Notice, Session, Sessions};
use crate::fence::elector::{Action, Elector, Event, Term, Tiding};
use crate::fence::name::AccountName;

/// The pauses between attempts to open a session.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long giving everything up may take.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What a shard is asked to do.
#[derive(Debug)]
pub(super) enum Errand {
    Add(AccountName),
    Check(AccountName, oneshot::Sender<Result<Term, NotLeader>>),
    Resign(AccountName, oneshot::Sender<()>),
    Stand(AccountName),
    Stop,
}

/// Where a shard stands.
pub(super) struct Place {
    pub(super) number: usize,
    pub(super) settings: Arc<Settings>,
    pub(super) board: Arc<Board>,
    pub(super) lease: Arc<Lease>,
    /// Where accounts are told that exist; only by the first shard, and only where all are wanted.
    pub(super) found: Option<mpsc::Sender<Vec<AccountName>>>,
}

struct Shard {
    place: Place,
    electors: HashMap<AccountName, Elector>,
    wakes: BinaryHeap<Reverse<(Moment, AccountName)>>,
    /// Who waits until an account is given up.
    leaving: HashMap<AccountName, Vec<oneshot::Sender<()>>>,
    /// Until when everything has to be given up.
    stop_by: Option<Moment>,
}

/// Runs until it is told to stop, or nobody can tell it anything any more.
pub(super) async fn run<S: Sessions>(mut sessions: S, place: Place, mut errands: mpsc::Receiver<Errand>) {
    let mut shard = Shard {
        place,
        electors: HashMap::new(),
        wakes: BinaryHeap::new(),
        leaving: HashMap::new(),
        stop_by: None,
    };
    loop {
        let Some(session) = shard.open(&mut sessions, &mut errands).await else { return };
        if !shard.serve(session, &mut errands).await {
            return;
        }
    }
}

impl Shard {
    fn now(&self) -> Moment {
        self.place.board.clock.now()
    }

    /// A session, however long it takes. `None`: it has to stop.
    async fn open<S: Sessions>(
        &mut self,
        sessions: &mut S,
        errands: &mut mpsc::Receiver<Errand>,
    ) -> Option<S::Session> {
        let mut opening = Box::pin(open(sessions));
        loop {
            tokio::select! {
                session = &mut opening => return Some(session),
                errand = errands.recv() => match errand? {
                    Errand::Stop => return None,
                    // Without a session there is nothing to give up.
                    Errand::Resign(name, reply) => {
                        self.tell(None::<&mut Serving<S::Session>>, &name, Event::Resign);
                        let _ = reply.send(());
                    }
                    errand => self.run_errand(None::<&mut Serving<S::Session>>, errand),
                },
            }
        }
    }

    /// Serves a session to its end. False: it has to stop.
    async fn serve<C: Session>(&mut self, session: C, errands: &mut mpsc::Receiver<Errand>) -> bool {
        let mut serving = Serving::new(session, &self.place);
        info!("session {} is open, its timeout is {} ms", serving.id, serving.timeout.as_millis());
        self.place.board.connected(self.place.number, Some(serving.id));
        serving.renew(self.now());
        loop {
            self.pass_deadlines(&mut serving);
            serving.send_looks();
            self.tell_who_left();
            let by = self.stop_by;
            if by.is_some_and(|by| by <= self.now() || self.electors.values().all(Elector::is_out)) {
                self.place.lease.end();
                self.place.board.connected(self.place.number, None);
                serving.close().await;
                return false;
            }
            let wait = self.next_deadline(&serving).until(self.now());
            // What was announced before an answer is heard before it. Tokio's budget would pretend that there is nothing.
            let happened = tokio::select! {
                biased;
                notice = tokio::task::unconstrained(serving.session.next()) => Happened::Notice(notice),
                Some(answer) = serving.answers.next() => Happened::Answer(answer),
                errand = errands.recv() => Happened::Errand(errand),
                () = tokio::time::sleep(wait) => continue,
            };
            match happened {
                Happened::Notice(Notice::Ended(why)) => {
                    warn!("session {} is over: {why}", serving.id);
                    self.place.lease.end();
                    self.place.board.connected(self.place.number, None);
                    let ended = Event::Of(serving.id, Tiding::Ended);
                    self.tell_all(&mut serving, &ended);
                    return self.stop_by.is_none();
                }
                Happened::Notice(notice) => self.hear(&mut serving, notice),
                Happened::Answer(answer) => self.take_in(&mut serving, answer),
                Happened::Errand(Some(errand)) => self.run_errand(Some(&mut serving), errand),
                // Nobody is there any more: the session goes with this task.
                Happened::Errand(None) => return false,
            }
        }
    }

    /// Gives an event to an elector, and does what it asks for.
    fn tell<C: Session>(&mut self, serving: Option<&mut Serving<C>>, name: &AccountName, event: Event) {
        let now = self.now();
        let Some(elector) = self.electors.get_mut(name) else { return };
        let (next, actions) = elector.clone().step(event, now);
        *elector = next;
        let mut serving = serving;
        for action in actions {
            match action {
                Action::WakeAt(at) => self.wakes.push(Reverse((at, name.clone()))),
                Action::Announce(role, why) => self.place.board.announce(name, role, why),
                act => {
                    if let Some(serving) = &mut serving {
                        serving.act(name, act);
                    }
                }
            }
        }
    }

    fn tell_all<C: Session>(&mut self, serving: &mut Serving<C>, event: &Event) {
        let names: Vec<_> = self.electors.keys().cloned().collect();
        for name in names {
            self.tell(Some(&mut *serving), &name, event.clone());
        }
    }

    fn run_errand<C: Session>(&mut self, serving: Option<&mut Serving<C>>, errand: Errand) {
        match errand {
            Errand::Add(name) => {
                let elector = Elector::new(fastrand::u16(..), self.now());
                self.electors.insert(name.clone(), elector);
                let Some(serving) = serving.filter(|serving| serving.opened) else { return };
                let (id, opened, proven) = (serving.id, serving.opening(), serving.proven);
                self.tell(Some(&mut *serving), &name, opened);
                if !proven {
                    self.tell(Some(serving), &name, Event::Of(id, Tiding::Disconnected));
                }
            }
            Errand::Check(name, reply) => match serving {
                Some(serving) if serving.connected => serving.check(&name, reply),
                Some(_) | None => drop(reply.send(Err(NotLeader::Unproven))),
            },
            Errand::Resign(name, reply) => {
                self.leaving.entry(name.clone()).or_default().push(reply);
                self.tell(serving, &name, Event::Resign);
            }
            Errand::Stand(name) => self.tell(serving, &name, Event::Stand),
            Errand::Stop => {
                self.stop_by = Some(self.now().after(LAST_WORDS));
                if let Some(serving) = serving {
                    self.tell_all(serving, &Event::Resign);
                }
            }
        }
    }

    fn hear<C: Session>(&mut self, serving: &mut Serving<C>, notice: Notice) {
        match notice {
            Notice::Account { name, sighting } => {
                if self.electors.contains_key(&name) {
                    let id = serving.id;
                    self.tell(Some(serving), &name, Event::Of(id, Tiding::Touched(sighting)));
                } else if let Some(found) = &self.place.found {
                    // Where too many appear at once, the next list has them.
                    let _ = found.try_send(vec![name]);
                }
            }
            Notice::Disconnected(why) => {
                warn!("session {} lost its connection: {why}", serving.id);
                (serving.connected, serving.proven) = (false, false);
                self.place.lease.end();
                self.place.board.connected(self.place.number, None);
                self.tell_all(serving, &Event::Of(serving.id, Tiding::Disconnected));
            }
            Notice::Connected => {
                info!("session {} is connected again", serving.id);
                serving.connected = true;
                self.place.board.connected(self.place.number, Some(serving.id));
                let now = self.now();
                serving.renew(now);
            }
            Notice::Ended(_) => {}
        }
    }

    fn take_in<C: Session>(&mut self, serving: &mut Serving<C>, answer: Answer) {
        let id = serving.id;
        match answer {
            Answer::Renewed(sent, Ok(())) if serving.connected => {
                self.place.lease.renew(sent, serving.timeout);
                // What changed while it was not proven may never have been told.
                if !serving.proven && self.place.lease.lasts(self.now()) {
                    serving.proven = true;
                    let opened = std::mem::replace(&mut serving.opened, true);
                    let event = if opened { Event::Of(id, Tiding::Back) } else { serving.opening() };
                    self.tell_all(serving, &event);
                    if self.place.found.is_some() {
                        serving.list();
                    }
                }
            }
            Answer::Renewed(_, Err(why)) if serving.connected => warn!("session {id} is not renewed: {why}"),
            Answer::Looked(names, Ok(sights)) => {
                serving.looked();
                for (name, sight) in names.iter().zip(sights) {
                    let tiding = match sight {
                        Ok(sight) => Tiding::Seen(sight),
                        Err(why) => failed("look at", name, &why),
                    };
                    self.tell(Some(&mut *serving), name, Event::Of(id, tiding));
                    self.place.board.begun(name);
                }
            }
            Answer::Looked(names, Err(why)) => {
                serving.looked();
                for name in names {
                    let tiding = failed("look at", &name, &why);
                    self.tell(Some(&mut *serving), &name, Event::Of(id, tiding));
                }
            }
            Answer::Acted(name, result) => {
                let tiding = match result {
                    Ok(()) => Tiding::Done(true),
                    Err(why) => failed("act for", &name, &why),
                };
                self.tell(Some(serving), &name, Event::Of(id, tiding));
            }
            Answer::Listed(Ok(names)) => {
                if let Some(found) = &self.place.found {
                    let _ = found.try_send(names);
                }
            }
            Answer::Listed(Err(why)) => warn!("the accounts cannot be listed: {why}"),
            Answer::Renewed(..) | Answer::Told => {}
        }
    }

    /// Whatever is due by now.
    fn pass_deadlines<C: Session>(&mut self, serving: &mut Serving<C>) {
        let now = self.now();
        if serving.proven && !self.place.lease.lasts(now) {
            warn!("session {} was not proven alive in time", serving.id);
            serving.proven = false;
            self.tell_all(serving, &Event::Of(serving.id, Tiding::Silent));
        }
        if serving.connected && serving.renew_at <= now {
            serving.renew(now);
        }
        if serving.reread_at <= now {
            serving.reread_at = now.after(self.place.settings.reread);
            if self.place.found.is_some() && serving.connected {
                serving.list();
            }
            self.tell_all(serving, &Event::Due);
        }
        while let Some(Reverse((at, _))) = self.wakes.peek()
            && *at <= now
        {
            if let Some(Reverse((_, name))) = self.wakes.pop() {
                self.tell(Some(&mut *serving), &name, Event::Due);
            }
        }
    }

    fn next_deadline<C: Session>(&self, serving: &Serving<C>) -> Moment {
        let mut next = serving.reread_at;
        if serving.connected {
            next = next.min(serving.renew_at);
        }
        if serving.proven {
            next = next.min(self.place.lease.until());
        }
        if let Some(Reverse((at, _))) = self.wakes.peek() {
            next = next.min(*at);
        }
        self.stop_by.map_or(next, |by| next.min(by))
    }

    fn tell_who_left(&mut self) {
        let electors = &self.electors;
        let is_out = |name: &AccountName| electors.get(name).is_none_or(Elector::is_out);
        let out: Vec<_> = self.leaving.keys().filter(|name| is_out(name)).cloned().collect();
        for name in out {
            for reply in self.leaving.remove(&name).into_iter().flatten() {
                let _ = reply.send(());
            }
        }
    }
}

enum Happened {
    Notice(Notice),
    Answer(Answer),
    Errand(Option<Errand>),
}

/// Tries until it has a session.
async fn open<S: Sessions>(sessions: &mut S) -> S::Session {
    let mut pause = FIRST_PAUSE;
    loop {
        match sessions.open().await {
            Ok(session) => return session,
            Err(why) => warn!("no session yet: {why}; trying again"),
        }
        // Many that lost one service do not come back at one moment.
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn failed(what: &str, name: &AccountName, why: &BackendError) -> Tiding {
    match why {
        // The session's own events say so.
        BackendError::Lost(_) => {}
        BackendError::Refused { .. } => warn!("cannot {what} account={name}: {why}"),
    }
    Tiding::Done(false)
}

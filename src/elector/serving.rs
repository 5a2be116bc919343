//! A session while it is served: what is asked of it, and the answers that are awaited.
//!
//! Asks and gathers. It knows no electors.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::NotLeader;
use super::shard::Place;
use crate::clock::Moment;
use crate::election::BackendError;
use crate::election::session::Session;
use crate::fence::elector::{Action, Active, Event, Sight, Term};
use crate::fence::name::AccountName;
use crate::fence::token::{Seq, SessionId};

/// How many accounts are looked at with one request, and how many such requests are under way.
const ACCOUNTS_A_LOOK: usize = 100;
const MOST_LOOKS: usize = 8;

type Sights = Vec<Result<Sight, BackendError>>;

/// What a session answered.
pub(super) enum Answer {
    /// A renewal, and when it was sent.
    Renewed(Moment, Result<(), BackendError>),
    Looked(Vec<AccountName>, Result<Sights, BackendError>),
    Acted(AccountName, Result<(), BackendError>),
    Listed(Result<Vec<AccountName>, BackendError>),
    /// Whoever asked was told.
    Told,
}

type Awaited = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(super) struct Serving<C> {
    pub(super) session: C,
    pub(super) id: SessionId,
    pub(super) timeout: Duration,
    pub(super) connected: bool,
    /// The electors know of it.
    pub(super) opened: bool,
    /// The lease lasts.
    pub(super) proven: bool,
    pub(super) renew_at: Moment,
    pub(super) reread_at: Moment,
    /// What is awaited.
    pub(super) answers: FuturesUnordered<Awaited>,
    to_look: VecDeque<AccountName>,
    looks: usize,
}

impl<C: Session> Serving<C> {
    pub(super) fn new(session: C, place: &Place) -> Self {
        let (id, timeout, now) = (session.id(), session.timeout(), place.board.clock.now());
        // Proven, and opened, when the first renewal is answered: a new session may be with a server that lags behind.
        Self {
            session,
            id,
            timeout,
            connected: true,
            opened: false,
            proven: false,
            renew_at: now,
            reread_at: now.after(place.settings.reread),
            answers: FuturesUnordered::new(),
            to_look: VecDeque::new(),
            looks: 0,
        }
    }

    /// What the electors are told when it is proven for the first time.
    pub(super) fn opening(&self) -> Event {
        Event::Opened { session: self.id, timeout: self.timeout }
    }

    /// Often enough that one may fail.
    pub(super) fn renew(&mut self, now: Moment) {
        self.renew_at = now.after(self.timeout / 6);
        let renewed = self.session.renew();
        self.answers.push(Box::pin(async move { Answer::Renewed(now, renewed.await) }));
    }

    pub(super) fn list(&mut self) {
        let listed = self.session.list();
        self.answers.push(Box::pin(async move { Answer::Listed(listed.await) }));
    }

    pub(super) fn act(&mut self, name: &AccountName, act: Action) {
        let acted = match act {
            Action::Look => return self.to_look.push_back(name.clone()),
            Action::Register => self.session.register(name),
            Action::Take(seq) => self.session.take(name, seq),
            Action::Withdraw(seq) => self.session.withdraw(name, seq),
            Action::Clear => self.session.clear(name),
            Action::Resign(seq) => self.session.resign(name, seq),
            Action::WakeAt(_) | Action::Announce(..) => return,
        };
        let name = name.clone();
        self.answers.push(Box::pin(async move { Answer::Acted(name, acted.await) }));
    }

    /// Looks at what has to be looked at, many with one request.
    pub(super) fn send_looks(&mut self) {
        while self.looks < MOST_LOOKS && !self.to_look.is_empty() {
            let names: Vec<_> = self.to_look.drain(..self.to_look.len().min(ACCOUNTS_A_LOOK)).collect();
            let looked = self.session.look(&names);
            self.looks += 1;
            self.answers.push(Box::pin(async move { Answer::Looked(names, looked.await) }));
        }
    }

    /// Passes a barrier, then reads: both are sent at once and answered in order.
    pub(super) fn check(&mut self, name: &AccountName, reply: oneshot::Sender<Result<Term, NotLeader>>) {
        let (renewed, looked) = (self.session.renew(), self.session.look(std::slice::from_ref(name)));
        let (id, patience) = (self.id, self.timeout);
        let checked = async move {
            renewed.await.ok()?;
            let sight = looked.await.ok()?.into_iter().next()?.ok()?;
            Some(match sight.active {
                Some(Active::Ours { seq, epoch }) if sight.own.contains(&seq) => {
                    Ok(Term { seq: Seq(seq), session: id, epoch })
                }
                Some(_) | None => Err(NotLeader::Changed),
            })
        };
        self.answers.push(Box::pin(async move {
            let checked = tokio::time::timeout(patience, checked).await.ok().flatten();
            let _ = reply.send(checked.unwrap_or(Err(NotLeader::Unproven)));
            Answer::Told
        }));
    }

    /// One more look may be sent.
    pub(super) fn looked(&mut self) {
        self.looks = self.looks.saturating_sub(1);
    }

    pub(super) async fn close(self) {
        // Whoever awaits an answer keeps a hold of the session.
        drop(self.answers);
        self.session.close().await;
    }
}

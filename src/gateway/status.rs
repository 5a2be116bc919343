//! Whether the elections can be seen, and whether the gateway takes part: what readiness is made of.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::fence::token::SessionId;

/// How long the coordination service may be away before the gateway calls itself not ready.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Inner {
    session: Option<SessionId>,
    loaded: bool,
    ever_loaded: bool,
    lost_at: Option<Moment>,
    why: String,
    stopping: bool,
}

/// The state of the link and of the process.
#[derive(Debug, Default)]
pub struct Status(Mutex<Inner>);

/// What is shown of it.
#[derive(Clone, Debug)]
pub struct Link {
    /// The session, while there is one.
    pub session: Option<SessionId>,
    /// The accounts have not all been read on this link.
    pub loading: bool,
}

impl Status {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connected(&self, session: SessionId) {
        let mut inner = self.inner();
        (inner.session, inner.loaded) = (Some(session), false);
    }

    pub(super) fn loaded(&self) {
        let mut inner = self.inner();
        (inner.loaded, inner.ever_loaded, inner.lost_at) = (true, true, None);
    }

    /// The link is gone. True if that is news: another reason than the last one.
    pub(super) fn lost(&self, now: Moment, why: &str) -> bool {
        let mut inner = self.inner();
        let news = inner.session.is_some() || inner.why != why;
        (inner.session, inner.loaded) = (None, false);
        inner.lost_at.get_or_insert(now);
        why.clone_into(&mut inner.why);
        news
    }

    /// From now on not ready.
    pub fn stop(&self) {
        self.inner().stopping = true;
    }

    /// Whether the process is stopping.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.inner().stopping
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> Link {
        let inner = self.inner();
        Link { session: inner.session, loading: !inner.loaded }
    }

    /// Why the gateway is not ready; empty if it is. `proven`: there has been a proof.
    #[must_use]
    pub fn reasons(&self, now: Moment, proven: bool, history_reset: bool) -> Vec<String> {
        let inner = self.inner();
        let mut reasons = Vec::new();
        if inner.stopping {
            reasons.push("shutting down".to_owned());
        }
        if history_reset {
            reasons.push("history reset: accept the new history if it was meant".to_owned());
        }
        let away = inner.lost_at.is_some_and(|lost| now.since(lost) > GRACE);
        if !inner.ever_loaded || !proven {
            reasons.push(match (&inner.session, inner.why.as_str()) {
                (None, "") => "not connected yet".to_owned(),
                (None, why) => why.to_owned(),
                (Some(_), _) => "the accounts are being read".to_owned(),
            });
        } else if away {
            reasons.push(format!("no proven view for more than {} s: {}", GRACE.as_secs(), inner.why));
        }
        reasons
    }
}

//! One account in the registry: its fence behind a mutex, who waits for it, and what is told about it.
//!
//! The mutex is held for a few instructions, never across an await, and no other one is taken under it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use http::HeaderValue;
use tokio::sync::Notify;

use super::parking::Places;
use crate::code::Code;
use crate::fence::account::Account;
use crate::fence::handover::Reason;
use crate::fence::name::AccountName;
use crate::fence::token::encode_instance;
use crate::fence::view::Holder;

/// What a send is known by while it is under way: how its task is told that it is superseded or cut.
#[derive(Debug)]
pub struct Send {
    /// For the log line that says what was cut.
    pub request_id: HeaderValue,
    state: AtomicU8,
    waker: AtomicWaker,
}

const LIVE: u8 = 0;
const WITHDRAWN: u8 = 1;
const CUT: u8 = 2;
const SHUT_DOWN: u8 = 3;

impl Send {
    /// A send that goes on.
    #[must_use]
    pub fn new(request_id: HeaderValue) -> Self {
        Self { request_id, state: AtomicU8::new(LIVE), waker: AtomicWaker::new() }
    }

    /// Tells its task that it may not begin, or has to stop.
    pub(super) fn revoke(&self, cut: bool) {
        self.state.store(if cut { CUT } else { WITHDRAWN }, SeqCst);
        self.waker.wake();
    }

    /// Tells its task that the process has to end.
    pub(super) fn shut_down(&self) {
        self.state.store(SHUT_DOWN, SeqCst);
        self.waker.wake();
    }

    /// Ready once it is revoked, with the code for its caller.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<Code> {
        self.waker.register(cx.waker());
        match self.state.load(SeqCst) {
            LIVE => Poll::Pending,
            WITHDRAWN => Poll::Ready(Code::Superseded),
            SHUT_DOWN => Poll::Ready(Code::ShutdownCut),
            _ => Poll::Ready(Code::HandoverCut),
        }
    }
}

/// What the sender is told about who sends: made once per term.
#[derive(Debug)]
pub struct Identity {
    /// `X-Fencing-Account`.
    pub account: HeaderValue,
    /// `X-Fencing-Seq`.
    pub seq: HeaderValue,
    /// `X-Fencing-Session`, signed decimal.
    pub session: HeaderValue,
    /// `X-Fencing-Instance`.
    pub instance: HeaderValue,
    /// `X-Fencing-Epoch`.
    pub epoch: HeaderValue,
}

impl Identity {
    pub(super) fn new(name: &AccountName, holder: &Holder) -> Self {
        // Names and encoded instances are visible ASCII, the rest are numbers.
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"));
        Self {
            account: value(name.as_str()),
            seq: HeaderValue::from(holder.seq.0),
            session: HeaderValue::from(holder.session.0),
            instance: value(&encode_instance(&holder.instance)),
            epoch: HeaderValue::from(holder.epoch.0),
        }
    }
}

/// The last handover, for the API.
#[derive(Clone, Debug)]
pub struct Handover {
    /// Wall clock, milliseconds since 1970.
    pub at_ms: u64,
    /// Why.
    pub reason: Reason,
    /// The old holder.
    pub from: Arc<Holder>,
    /// The new one.
    pub to: Arc<Holder>,
    /// How long nobody was seen to hold, in milliseconds.
    pub vacant_ms: u64,
    /// How long the new holder had to wait for the old one's sends, in milliseconds; `None` while it waits.
    pub drain_ms: Option<u64>,
}

/// What is told about an account.
#[derive(Debug, Default)]
pub struct Record {
    /// Handovers by reason, in the order of [`Reason::ALL`].
    pub handovers: [u64; Reason::ALL.len()],
    /// The last one.
    pub last_handover: Option<Handover>,
    /// Refusals by code.
    pub rejections: Tally,
    /// What shadow mode would have refused, by code.
    pub shadow: Tally,
}

/// A few counters by code.
#[derive(Clone, Debug, Default)]
pub struct Tally(Vec<(Code, u64)>);

impl Tally {
    /// Counts one.
    pub fn add(&mut self, code: Code) {
        match self.0.iter_mut().find(|(counted, _)| *counted == code) {
            Some((_, count)) => *count += 1,
            None => self.0.push((code, 1)),
        }
    }

    /// Adds another tally's counts.
    pub fn merge(&mut self, other: &Self) {
        for (code, count) in &other.0 {
            match self.0.iter_mut().find(|(counted, _)| counted == code) {
                Some((_, sum)) => *sum += count,
                None => self.0.push((*code, *count)),
            }
        }
    }

    /// What was counted.
    pub fn iter(&self) -> impl Iterator<Item = (Code, u64)> + '_ {
        self.0.iter().copied()
    }
}

/// What the mutex guards.
#[derive(Debug, Default)]
pub struct State {
    /// The fence.
    pub account: Account<Arc<Send>>,
    /// What is told about it.
    pub record: Record,
    /// For the term that holds.
    pub identity: Option<Arc<Identity>>,
    /// The last invalid holder that was logged, so that each is said once.
    pub(super) said: Option<crate::fence::view::Invalid>,
    /// Waiting to be read.
    pub(super) queued: bool,
    /// A read is on its way.
    pub(super) being_read: bool,
    /// The size of its last read, in bytes.
    pub(super) bytes: usize,
}

/// One account.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: AccountName,
    state: Mutex<State>,
    /// Notified whenever somebody who waits should ask again.
    pub(super) changed: Notify,
    /// Requests that wait.
    pub(super) places: Arc<Places>,
    /// It is in the registry no longer: whoever still has it looks the name up again.
    pub(super) forgotten: AtomicBool,
    /// Sends that are forwarded without a permit, in shadow and pass mode.
    pub(super) unjudged: AtomicUsize,
    /// Bytes of bodies that are kept for it.
    pub(super) buffered: Arc<AtomicU64>,
}

impl Entry {
    pub(super) fn new(name: AccountName) -> Self {
        Self {
            name,
            state: Mutex::default(),
            changed: Notify::new(),
            places: Arc::default(),
            forgotten: AtomicBool::new(false),
            unjudged: AtomicUsize::new(0),
            buffered: Arc::default(),
        }
    }

    /// Its state. A panic elsewhere leaves it whole: every change is one call into the fence.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that wait.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.places.taken()
    }

    /// Sends under way without a permit. For whoever has locked the state already.
    #[must_use]
    pub fn unjudged(&self) -> usize {
        self.unjudged.load(SeqCst)
    }

    /// Sends under way, judged or not. Locks the state.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.unjudged.load(SeqCst) + self.state().account.gate().in_flight()
    }
}

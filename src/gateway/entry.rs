//! One account in the registry: its fence behind a mutex, who waits for it, and what is told about it.
//!
//! The mutex is held for a few instructions, never across an await, and no other one is taken under it.

use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderValue;

use super::parking::Places;
use crate::clock::Moment;
use crate::code::Code;
use crate::fence::account::Account;
use crate::fence::handover::Reason;
use crate::fence::name::AccountName;
use crate::fence::token::encode_instance;
use crate::fence::view::Holder;
use crate::forward::Stop;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use crate::sync::{AtomicWaker, Mutex, MutexGuard, Notify};

/// What a request is known by while it is under way: how its task is told that it has to stop.
#[derive(Debug)]
pub struct Send {
    /// For the log line that says what was cut.
    pub request_id: HeaderValue,
    state: AtomicU8,
    /// In nanoseconds; zero: none; [`PASSED`]: it has passed. One value, so that a deadline that is replaced while somebody
    /// looks at it never counts for the next one.
    deadline: AtomicU64,
    waker: AtomicWaker,
}

const LIVE: u8 = 0;
const WITHDRAWN: u8 = 1;
const CUT: u8 = 2;
const SHUT_DOWN: u8 = 3;
const PASSED: u64 = u64::MAX;

impl Send {
    /// A request that goes on.
    #[must_use]
    pub fn new(request_id: HeaderValue) -> Self {
        Self {
            request_id,
            state: AtomicU8::new(LIVE),
            deadline: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        }
    }

    fn stop(&self, state: u8) {
        self.state.store(state, SeqCst);
        self.waker.wake();
    }

    /// Tells its task that it may not begin, or has to stop.
    pub(super) fn revoke(&self, cut: bool) {
        self.stop(if cut { CUT } else { WITHDRAWN });
    }

    /// Tells its task that the process has to end.
    pub(super) fn shut_down(&self) {
        self.stop(SHUT_DOWN);
    }

    /// It has to be done with what it does by then; `None`: it may take as long as it takes.
    pub(super) fn set_deadline(&self, deadline: Option<Moment>) {
        self.deadline.store(deadline.map_or(0, Moment::as_nanos), SeqCst);
    }

    /// Tells its task if its deadline has passed; asked by its worker every few milliseconds, which is cheaper than a timer
    /// for each.
    pub(super) fn check_deadline(&self, now: Moment) {
        let deadline = self.deadline.load(SeqCst);
        if deadline != 0
            && deadline <= now.as_nanos()
            && self.deadline.compare_exchange(deadline, PASSED, SeqCst, SeqCst).is_ok()
        {
            self.waker.wake();
        }
    }

    /// Ready once it has to stop.
    pub fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        self.waker.register(cx.waker());
        match self.state.load(SeqCst) {
            LIVE if self.deadline.load(SeqCst) == PASSED => Poll::Ready(Stop::Late),
            LIVE => Poll::Pending,
            WITHDRAWN => Poll::Ready(Stop::Superseded),
            CUT => Poll::Ready(Stop::Cut),
            _ => Poll::Ready(Stop::ShuttingDown),
        }
    }
}

/// What the sender is told about who sends: made once per term, at its first send. All of it lies in one piece of memory, because with many
/// accounts it is not in any cache when it is needed.
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
        let texts = [
            name.as_str(),
            &holder.seq.to_string(),
            &holder.session.0.to_string(),
            &encode_instance(&holder.instance),
            &holder.epoch.to_string(),
        ];
        let all = Bytes::from(texts.concat());
        let mut end = 0;
        let [account, seq, session, instance, epoch] = texts.map(|text| {
            let start = end;
            end += text.len();
            // Names and encoded instances are visible ASCII, the rest are numbers.
            HeaderValue::from_maybe_shared(all.slice(start..end)).unwrap_or(HeaderValue::from_static("-"))
        });
        Self { account, seq, session, instance, epoch }
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
    /// For the term that holds, from its first send on.
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
    pub(super) unjudged: Arc<AtomicUsize>,
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
            unjudged: Arc::default(),
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

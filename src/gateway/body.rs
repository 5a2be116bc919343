//! A request's body before the verdict: read first, up to the route's buffer, so that a slow body neither holds a
//! permit nor is judged too early.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::entry::Entry;
use super::service::{Gateway, Route};
use crate::claim::body::{self as bodies, Beginning};
use crate::code::Code;
use crate::forward::body::{Progress, RequestBody, Rest, Screen};
use crate::forward::pieces::Pieces;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bodies up to this size are not counted against the limits: the number of connections bounds them well enough.
const SMALL: u64 = 4 * 1024;

/// What the connection takes in of a body that goes on, before it is read; counted while a body goes on.
const AHEAD: u64 = 64 * 1024;

/// How much of a body may come, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct BodyBounds {
    /// Read before anything is decided.
    pub buffer: u64,
    /// In all.
    pub most: u64,
    /// For the buffered part as a whole, and for each pause of the rest.
    pub pause: Duration,
}

/// Buffered bytes that are counted against the limits; given back when dropped.
#[derive(Debug, Default)]
pub struct Budget {
    taken: u64,
    counters: Vec<Arc<AtomicU64>>,
}

impl Budget {
    /// Counts `more` bytes against each limit. False if one is exceeded.
    pub fn take(&mut self, more: u64, limits: [(&Arc<AtomicU64>, u64); 3]) -> bool {
        if self.counters.is_empty() {
            self.counters.extend(limits.iter().map(|(counter, _)| Arc::clone(counter)));
        }
        self.taken += more;
        let mut fits = true;
        for (counter, most) in limits {
            fits &= counter.fetch_add(more, SeqCst) + more <= most;
        }
        fits
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        for counter in &self.counters {
            counter.fetch_sub(self.taken, SeqCst);
        }
    }
}

/// What was received before the verdict.
#[derive(Debug, Default)]
pub struct Received {
    pieces: Pieces,
    size: u64,
    complete: bool,
    /// What looks through the rest, where its account was read from the beginning.
    pub(super) rest: Option<bodies::Rest>,
    /// Held until the exchange has ended.
    pub(super) budget: Budget,
}

impl Received {
    /// How many bytes are in.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// What is in, all of it.
    #[must_use]
    pub fn beginning(&mut self) -> Beginning<'_> {
        Beginning { frames: self.pieces.gathered(), complete: self.complete }
    }

    /// The body to send: what was received, and what still comes.
    #[must_use]
    pub fn into_body(self, incoming: Incoming, bounds: &BodyBounds) -> (RequestBody, Option<Progress>) {
        let frames = self.pieces.into_frames();
        if self.complete {
            return (RequestBody::buffered(frames), None);
        }
        let rest = Rest {
            incoming,
            most: bounds.most.saturating_sub(self.size),
            pause: bounds.pause,
            screen: self.rest.map(|rest| Box::new(rest) as Box<dyn Screen>),
        };
        let (body, progress) = RequestBody::streaming(frames, rest);
        (body, Some(progress))
    }
}

impl Screen for bodies::Rest {
    fn look(&mut self, data: &[u8]) -> bool {
        self.look(data)
    }

    fn end(&mut self) -> bool {
        self.end()
    }
}

/// Reads the body up to the route's buffer. `None`: the caller left in the middle of it, and reads no answer.
///
/// # Errors
/// `body_too_large`, `overloaded`, or `malformed_request` where the caller broke its framing.
pub async fn receive(
    gateway: &Gateway,
    route: &Route,
    entry: Option<&Arc<Entry>>,
    incoming: &mut Incoming,
) -> Result<Option<Received>, Code> {
    if incoming.is_end_stream() {
        return Ok(Some(Received { complete: true, ..Received::default() }));
    }
    let bounds = &route.body_bounds;
    let own = entry.map_or(&gateway.unknown_buffered, |entry| &entry.buffered);
    let mut received = Received::default();
    loop {
        let data = match incoming.frame().await {
            None => {
                received.complete = true;
                return Ok(Some(received));
            }
            // Trailers end here; they carry nothing that counts.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) if has_left(&error) => return Ok(None),
            Some(Err(_)) => return Err(Code::MalformedRequest),
        };
        if data.is_empty() {
            continue;
        }
        received.size += data.len() as u64;
        if received.size > bounds.most {
            return Err(Code::BodyTooLarge);
        }
        let complete = incoming.is_end_stream();
        let goes_on = received.size > bounds.buffer && !complete;
        let held = received.size + if goes_on { AHEAD } else { 0 };
        if held > SMALL {
            let uncounted = held - received.budget.taken;
            let share = gateway.limits.max_buffered.div_ceil(4);
            let limits = [
                (&gateway.buffered, gateway.limits.max_buffered),
                (&route.buffered, if gateway.routes.len() > 1 { share } else { u64::MAX }),
                (own, share),
            ];
            if !received.budget.take(uncounted, limits) {
                return Err(Code::Overloaded);
            }
        }
        received.pieces.push(data);
        if complete || goes_on {
            received.complete = complete;
            return Ok(Some(received));
        }
    }
}

/// Whether a body broke off because its connection or stream ended, and not because it is malformed: over HTTP/1 an I/O
/// error tells both, over HTTP/2 a malformed one is reset by the library.
fn has_left(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_none_or(|cause| {
        [UnexpectedEof, ConnectionReset, ConnectionAborted, BrokenPipe].contains(&cause.kind())
    })
}

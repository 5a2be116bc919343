//! What a connection is doing, and since when: so that one that does nothing can be closed.
//!
//! The connection's stream and its requests note what happens; a watchdog compares moments. It never closes anything
//! itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::clock::{Clock, Moment};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::telemetry::ConnectionError;

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a request, or from the beginning, to the end of its head.
    pub head: Duration,
    /// Between requests; and for a caller that does not take its answer.
    pub idle: Duration,
}

/// Moments as nanoseconds; zero: it is not so now.
#[derive(Debug)]
pub struct Activity {
    clock: Clock,
    /// HTTP/2 talks between requests; only its requests count.
    chatty: bool,
    /// Requests that are being read, served or answered.
    requests: AtomicUsize,
    /// A head has begun and is not complete.
    head_since: AtomicU64,
    /// Nothing has been asked.
    idle_since: AtomicU64,
    /// The caller has not taken what is to be written.
    stuck_since: AtomicU64,
    /// Answers over HTTP/2 of which the caller has not made room for the next piece. It does so by stream, not by what
    /// can be written.
    owed: AtomicUsize,
    /// When one of them last went on.
    owed_since: AtomicU64,
    /// Its end must not look like an orderly one.
    aborted: AtomicBool,
}

impl Activity {
    /// A connection that just came.
    #[must_use]
    pub fn new(clock: Clock, chatty: bool) -> Arc<Self> {
        let now = clock.now().as_nanos();
        Arc::new(Self {
            clock,
            chatty,
            requests: AtomicUsize::new(0),
            head_since: AtomicU64::new(now),
            idle_since: AtomicU64::new(now),
            stuck_since: AtomicU64::new(0),
            owed: AtomicUsize::new(0),
            owed_since: AtomicU64::new(now),
            aborted: AtomicBool::new(false),
        })
    }

    /// A request's head is complete; it is busy until what is returned is dropped.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> Arc<Busy> {
        self.requests.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        Arc::new(Busy { activity: Arc::clone(self), owed: AtomicBool::new(false) })
    }

    /// Whether nothing is being asked or answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.load(Relaxed) == 0
    }

    /// Whether nothing was asked for this long.
    #[must_use]
    pub fn is_idle_for(&self, long: Duration) -> bool {
        self.is_idle()
            && self.head_since.load(Relaxed) == 0
            && self.clock.now().since(Moment::from_nanos(self.idle_since.load(Relaxed))) >= long
    }

    /// What is overdue, or how long until something can be.
    ///
    /// # Errors
    /// What the connection has to be closed for.
    pub fn judge(&self, patience: Patience) -> Result<Duration, ConnectionError> {
        let now = self.clock.now();
        let left = |since: &AtomicU64, most: Duration| match since.load(Relaxed) {
            0 => Some(most),
            since => most.checked_sub(now.since(Moment::from_nanos(since))).filter(|left| !left.is_zero()),
        };
        let stuck = left(&self.stuck_since, patience.idle).ok_or(ConnectionError::Broken)?;
        if !self.is_idle() {
            let owed = match self.owed.load(Relaxed) {
                0 => patience.idle,
                _ => left(&self.owed_since, patience.idle).ok_or(ConnectionError::Broken)?,
            };
            return Ok(stuck.min(owed).min(patience.head));
        }
        let head = left(&self.head_since, patience.head).ok_or(ConnectionError::HeaderTimeout)?;
        let idle = left(&self.idle_since, patience.idle).ok_or(ConnectionError::Idle)?;
        Ok(stuck.min(head).min(idle))
    }

    fn read(&self) {
        if !self.chatty && self.is_idle() && self.head_since.load(Relaxed) == 0 {
            self.head_since.store(self.clock.now().as_nanos(), Relaxed);
        }
    }

    fn wrote(&self, stuck: bool) {
        match (stuck, self.stuck_since.load(Relaxed)) {
            (true, 0) => self.stuck_since.store(self.clock.now().as_nanos(), Relaxed),
            (false, since) if since != 0 => self.stuck_since.store(0, Relaxed),
            _ => {}
        }
    }
}

/// A request on its connection; dropped when its answer has been handed over.
#[derive(Debug)]
pub struct Busy {
    activity: Arc<Activity>,
    owed: AtomicBool,
}

impl Busy {
    /// Its answer broke off. HTTP/2 tells that of the one stream; HTTP/1 has only the connection to tell it by.
    pub(super) fn abort(&self) {
        if !self.activity.chatty {
            self.activity.aborted.store(true, Relaxed);
        }
    }

    /// A piece of its answer, or the head, is handed over: the caller makes room for the next one.
    pub(super) fn hand_over(&self) {
        if self.activity.chatty {
            self.went_on();
            if !self.owed.swap(true, Relaxed) {
                self.activity.owed.fetch_add(1, Relaxed);
            }
        }
    }

    /// There is room for the next piece.
    pub(super) fn make_room(&self) {
        if self.owed.swap(false, Relaxed) {
            self.went_on();
            self.activity.owed.fetch_sub(1, Relaxed);
        }
    }

    fn went_on(&self) {
        self.activity.owed_since.store(self.activity.clock.now().as_nanos(), Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.make_room();
        self.activity.idle_since.store(self.activity.clock.now().as_nanos(), Relaxed);
        self.activity.requests.fetch_sub(1, Relaxed);
    }
}

/// What a caller is spoken to over.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// It takes more than the caller does: what waits shows only when it is flushed.
    const KEEPS: bool;
    /// The connection below.
    fn tcp(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    const KEEPS: bool = false;

    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Stream for TlsStream<TcpStream> {
    const KEEPS: bool = true;

    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A stream that notes what happens on it.
#[derive(Debug)]
pub struct Watched<S: Stream> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S: Stream> Watched<S> {
    /// Watches a stream.
    #[must_use]
    pub fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

/// To a caller that reads an answer until the connection ends, an orderly end of a broken one would look whole.
impl<S: Stream> Drop for Watched<S> {
    fn drop(&mut self) {
        if self.activity.aborted.load(Relaxed) {
            let _ = SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.read();
        }
        polled
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.activity.wrote(polled.is_pending());
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if S::KEEPS {
            self.activity.wrote(polled.is_pending());
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { head: Duration::from_secs(10), idle: Duration::from_secs(75) };

    #[test]
    fn a_connection_that_says_nothing_has_as_long_as_a_head_may_take() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let activity = Activity::new(clock.clone(), false);
        assert_eq!(activity.judge(PATIENCE), Ok(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(10));
        assert_eq!(activity.judge(PATIENCE), Err(ConnectionError::HeaderTimeout));
    }

    #[test]
    fn a_request_counts_until_its_answer_is_handed_over() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let activity = Activity::new(clock.clone(), false);
        let busy = activity.request();
        clock.advance(Duration::from_secs(1000));
        assert!(activity.judge(PATIENCE).is_ok());
        drop(busy);
        assert!(activity.judge(PATIENCE).is_ok());
        clock.advance(Duration::from_secs(75));
        assert_eq!(activity.judge(PATIENCE), Err(ConnectionError::Idle));
    }

    #[test]
    fn an_answer_over_http_2_that_finds_no_room_is_overdue_and_one_that_waits_for_its_sender_is_not() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let activity = Activity::new(clock.clone(), true);
        let (one, other) = (activity.request(), activity.request());
        one.hand_over();
        clock.advance(Duration::from_secs(70));
        other.hand_over();
        assert_eq!(activity.judge(PATIENCE), Ok(Duration::from_secs(10)), "one of them went on");
        one.make_room();
        drop(other);
        clock.advance(Duration::from_secs(1000));
        assert!(activity.judge(PATIENCE).is_ok(), "the sender is slow");
        one.hand_over();
        clock.advance(Duration::from_secs(75));
        assert_eq!(activity.judge(PATIENCE), Err(ConnectionError::Broken));
    }

    #[test]
    fn a_dripped_head_is_timed_from_its_first_byte() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let activity = Activity::new(clock.clone(), false);
        drop(activity.request());
        clock.advance(Duration::from_secs(60));
        activity.read();
        clock.advance(Duration::from_secs(9));
        activity.read();
        assert_eq!(activity.judge(PATIENCE), Ok(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(activity.judge(PATIENCE), Err(ConnectionError::HeaderTimeout));
    }
}

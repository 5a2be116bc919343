//! One HTTP/2 connection to a sender: the task that drives it, how much room it has, and whether it is still alive.
//!
//! It opens no streams: that is the call's part. No stream's answer that nobody reads holds up another one: the connection's
//! window has room for all of them.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Sleep;

use super::wire::{Cuttable, Stream};
use crate::clock::Moment;

/// Streams on one connection, or fewer if the sender says so. What they lose together if it breaks is bounded by it.
const MOST_STREAMS: usize = 64;
/// What a sender may send of one answer before it is read.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS as u32;
/// For the head of an answer.
const MOST_HEAD: u32 = 64 * 1024;
/// A connection with streams that is silent for so long gets no new ones: it may hang.
const SILENT: Duration = Duration::from_secs(1);
/// Silent for all of such a span it is asked whether it lives, and silent for the next one as well it is closed.
const QUIET: Duration = Duration::from_secs(5);
/// How long the end of a stream may take to be written. After it the connection is closed: nothing else ends the stream for
/// sure.
const LONGEST_END: Duration = Duration::from_millis(25);
/// How long one is kept that nobody used.
const UNUSED: Duration = Duration::from_secs(1);

/// What is seen of a connection from outside of its task.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Rises at the begin and at the end of each turn of its task.
    turns: AtomicU64,
    /// How often something was given to the system, or was to be.
    writes: AtomicU64,
    reads: AtomicU64,
    /// Something is still to be written, and the system does not take it.
    blocked: AtomicBool,
    /// No stream can be opened any more.
    closing: AtomicBool,
    /// It is gone, its socket too.
    closed: AtomicBool,
    changed: Notify,
    /// Asks its task for a turn.
    task: AtomicWaker,
}

impl Watch {
    /// Waits until `holds`.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(self) {
                return;
            }
            changed.await;
        }
    }
}

/// A connection that several sends share.
#[derive(Debug)]
pub(super) struct Link {
    sender: SendRequest<Bytes>,
    watch: Arc<Watch>,
    cut: Arc<AtomicBool>,
    task: AbortHandle,
    /// Streams, and room that is taken for one.
    open: AtomicUsize,
    /// Streams whose request the sender does not take at the moment. It may be the whole connection's window that is used up.
    starved: AtomicUsize,
    /// False until its first answer: an upstream that closes at once is down, not idle.
    used: AtomicBool,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    /// As many reads were seen, then.
    reads: u64,
    heard: Option<Moment>,
    /// Since when it is idle, and for how long it may be.
    idle: Option<(Moment, Duration)>,
}

impl Link {
    /// Begins to speak HTTP/2, and waits until the sender has said that it does: before its settings nothing is sent.
    pub(super) async fn shake_hands<S: Stream>(stream: S) -> io::Result<Self> {
        let (stream, cut) = Cuttable::new(stream);
        let watch = Arc::<Watch>::default();
        let (sender, connection) = Builder::new()
            // Until it has said how many there may be.
            .initial_max_send_streams(0)
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MOST_HEAD)
            .handshake(Watched { stream, watch: Arc::clone(&watch) })
            .await
            .map_err(io::Error::other)?;
        let (probe, watched) = (sender.clone(), Arc::clone(&watch));
        let task = tokio::spawn(async move {
            let _ended = Ended(Arc::clone(&watched));
            drive(connection, probe, &watched).await;
        });
        let pace = Mutex::new(Pace { reads: 0, heard: None, idle: None });
        let (task, open, starved) = (task.abort_handle(), AtomicUsize::new(0), AtomicUsize::new(0));
        let link = Self { sender, watch, cut, task, open, starved, used: AtomicBool::new(false), pace };
        let is_over = |watch: &Watch| watch.closing.load(SeqCst) || watch.closed.load(SeqCst);
        link.watch.until(|watch| is_over(watch) || link.sender.current_max_send_streams() > 0).await;
        if is_over(&link.watch) {
            return Err(io::Error::other("it speaks no HTTP/2, or takes no requests"));
        }
        Ok(link)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a stream, if there is some.
    pub(super) fn take(self: &Arc<Self>, now: Moment) -> Option<Room> {
        if self.is_closing() || self.starved.load(SeqCst) > 0 {
            return None;
        }
        let mut pace = self.pace();
        let (open, reads) = (self.open.load(SeqCst), self.watch.reads.load(SeqCst));
        if open >= MOST_STREAMS.min(self.sender.current_max_send_streams()) {
            return None;
        }
        if open == 0 || pace.reads != reads {
            (pace.reads, pace.heard) = (reads, Some(now));
        }
        let is_silent = pace.heard.is_some_and(|heard| now.since(heard) >= SILENT);
        let is_old = pace.idle.is_some_and(|(since, most)| now.since(since) >= most);
        if is_silent || (open == 0 && is_old) {
            return None;
        }
        pace.idle = None;
        self.open.fetch_add(1, SeqCst);
        Some(Room { link: Arc::clone(self), starved: false })
    }

    /// Whether it is kept. Dropped, it is closed as soon as nothing is under way on it.
    pub(super) fn stays(&self, now: Moment) -> bool {
        if self.is_closing() {
            return false;
        }
        let mut pace = self.pace();
        if self.open.load(SeqCst) > 0 {
            return true;
        }
        let (since, most) = *pace.idle.get_or_insert((now, UNUSED));
        now.since(since) < most
    }

    fn is_closing(&self) -> bool {
        self.watch.closing.load(SeqCst) || self.watch.closed.load(SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Room for one stream; given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    link: Arc<Link>,
    starved: bool,
}

impl Room {
    /// Where streams are opened.
    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.link.sender.clone()
    }

    /// Whether it has ever given an answer.
    pub(super) fn is_used(&self) -> bool {
        self.link.used.load(SeqCst)
    }

    /// It has given one.
    pub(super) fn answered(&self) {
        self.link.used.store(true, SeqCst);
    }

    /// How often something was written. As long as it is what it was before a stream was opened, nothing of that stream was.
    pub(super) fn writes(&self) -> u64 {
        self.link.watch.writes.load(SeqCst)
    }

    /// Waits until everything is written that was to be, the reset of a stream too. Where the sender takes nothing, the
    /// connection is reset as a whole.
    pub(super) async fn settle(&self) {
        let watch = &self.link.watch;
        let begun = watch.turns.load(SeqCst);
        // One that is under way may have written already.
        let enough = begun + 2 + (begun & 1);
        watch.task.wake();
        let written = watch.until(|watch| {
            let is_through = watch.turns.load(SeqCst) >= enough && !watch.blocked.load(SeqCst);
            is_through || watch.closed.load(SeqCst)
        });
        if tokio::time::timeout(LONGEST_END, written).await.is_err() {
            self.link.cut.store(true, SeqCst);
            self.link.task.abort();
            watch.until(|watch| watch.closed.load(SeqCst)).await;
        }
    }

    /// Whether something is still to be written.
    pub(super) fn is_blocked(&self) -> bool {
        self.link.watch.blocked.load(SeqCst)
    }

    /// Whether its request waits for the sender. As long as one does, the connection gets no new streams.
    pub(super) fn starve(&mut self, starved: bool) {
        match (std::mem::replace(&mut self.starved, starved), starved) {
            (false, true) => drop(self.link.starved.fetch_add(1, SeqCst)),
            (true, false) => drop(self.link.starved.fetch_sub(1, SeqCst)),
            (true, true) | (false, false) => {}
        }
    }

    /// The connection gets no new streams; those that it has go on.
    pub(super) fn retire(&self) {
        self.link.watch.closing.store(true, SeqCst);
    }

    /// Its stream has ended. Without another one the connection stays for at most `most`.
    pub(super) fn leave(self, now: Moment, most: Duration) {
        self.link.pace().idle = Some((now, most));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.starve(false);
        self.link.open.fetch_sub(1, SeqCst);
    }
}

/// Told when the task has ended, and all that it had is gone.
struct Ended(Arc<Watch>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.closed.store(true, SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// Drives a connection to its end.
async fn drive<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<T, Bytes>,
    mut probe: SendRequest<Bytes>,
    watch: &Watch,
) {
    let mut alive = Alive {
        pings: connection.ping_pong(),
        timer: Box::pin(tokio::time::sleep(QUIET)),
        reads: 0,
        asked: false,
    };
    std::future::poll_fn(|cx| {
        watch.turns.fetch_add(1, SeqCst);
        watch.task.register(cx.waker());
        let is_dead = alive.is_dead(watch, cx);
        let has_ended = Pin::new(&mut connection).poll(cx).is_ready();
        // An error here is the sender's farewell: streams that are open may still be answered.
        if matches!(probe.poll_ready(cx), Poll::Ready(Err(_))) {
            watch.closing.store(true, SeqCst);
        }
        watch.turns.fetch_add(1, SeqCst);
        watch.changed.notify_waiters();
        if has_ended || is_dead { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Asks a silent sender whether it lives.
struct Alive {
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    reads: u64,
    asked: bool,
}

impl Alive {
    fn is_dead(&mut self, watch: &Watch, cx: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(cx).is_ready() {
            self.timer.set(tokio::time::sleep(QUIET));
            let reads = watch.reads.load(SeqCst);
            let is_silent = std::mem::replace(&mut self.reads, reads) == reads;
            if is_silent && self.asked {
                return true;
            }
            self.asked = is_silent;
            if let (true, Some(pings)) = (is_silent, &mut self.pings) {
                // The answer to the last one is in, if there was one.
                let _ = pings.poll_pong(cx);
                let _ = pings.send_ping(Ping::opaque());
            }
        }
        false
    }
}

/// A stream that is counted.
#[derive(Debug)]
struct Watched<S: Stream> {
    stream: Cuttable<S>,
    watch: Arc<Watch>,
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.watch.reads.fetch_add(1, SeqCst);
        }
        read
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // Before it is tried: what fails may have been written in part.
        self.watch.writes.fetch_add(1, SeqCst);
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch.blocked.store(written.is_pending(), SeqCst);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch.blocked.store(flushed.is_pending(), SeqCst);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

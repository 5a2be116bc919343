//! One connection of a caller: HTTP/1.1 or HTTP/2, by its first bytes or by what TLS agreed on, with a watchdog over both.
//!
//! Carries requests to [`ingress`]. It reads no request itself.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::activity::{Activity, Patience, Stream, Watched};
use super::ingress;
use super::outgoing::Peer;
use super::service::Worker;
use crate::telemetry::{ConnectionError, Listener};
use crate::tls::{Acceptor, is_http2};

/// How far the process is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It serves.
    Serving,
    /// It serves what comes on open connections, and closes those on which nothing does.
    Draining,
}

/// After a request could no longer be on its way, an idle connection is closed while draining.
const LINGER: Duration = Duration::from_secs(1);
/// Streams that one HTTP/2 connection may have open.
const MOST_STREAMS: u32 = 128;
/// What of one body a caller may send over HTTP/2 before some of it is read; four that are not read hold up their connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;
/// What of one answer waits for its caller beside what is counted.
const SEND_BUFFER: usize = 64 << 10;
/// What a client sends first that speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Counts a connection while it is open.
#[derive(Debug)]
pub(super) struct Open(Arc<Worker>);

impl Open {
    /// Counts one more; `None` if there are as many as there may be.
    pub(super) fn new(worker: &Arc<Worker>) -> Option<Self> {
        let before = worker.gateway.connections.fetch_add(1, SeqCst);
        let open = Self(Arc::clone(worker));
        open.0.gateway.registry.telemetry.connections(Listener::Proxy).increment(1.0);
        (before < worker.gateway.limits.max_connections).then_some(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.gateway.connections.fetch_sub(1, SeqCst);
        self.0.gateway.registry.telemetry.connections(Listener::Proxy).decrement(1.0);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    worker: Arc<Worker>,
    open: Open,
    stage: watch::Receiver<Stage>,
) {
    let _open = open;
    let limits = &worker.gateway.limits;
    let patience = Patience { head: limits.header_read_timeout, idle: limits.idle_timeout };
    let _ = stream.set_nodelay(true);
    let telemetry = Arc::clone(&worker.gateway.registry.telemetry);
    let ended = match &worker.gateway.tls {
        None => serve_plain(stream, peer.ip(), &worker, patience, stage).await,
        // In a box, so that other connections are not as large as these.
        Some(tls) => Box::pin(serve_tls(stream, peer.ip(), tls, &worker, patience, stage)).await,
    };
    if let Err(kind) = ended {
        telemetry.connection_error(kind);
    }
}

async fn serve_plain(
    stream: TcpStream,
    peer: IpAddr,
    worker: &Arc<Worker>,
    patience: Patience,
    stage: watch::Receiver<Stage>,
) -> Result<(), ConnectionError> {
    let peer = Peer { address: peer, tls: false };
    match tokio::time::timeout(patience.head, speaks_http2(&stream)).await {
        Ok(Ok(true)) => serve_http2(stream, peer, worker, patience, stage).await,
        Ok(Ok(false)) => serve_http1(stream, peer, worker, patience, stage).await,
        Ok(Err(_)) => Err(ConnectionError::Broken),
        Err(_) => Err(ConnectionError::HeaderTimeout),
    }
}

async fn serve_tls(
    stream: TcpStream,
    peer: IpAddr,
    tls: &Acceptor,
    worker: &Arc<Worker>,
    patience: Patience,
    stage: watch::Receiver<Stage>,
) -> Result<(), ConnectionError> {
    let peer = Peer { address: peer, tls: true };
    match tokio::time::timeout(patience.head, tls.handshake(stream)).await {
        Ok(Ok(stream)) if is_http2(&stream) => serve_http2(stream, peer, worker, patience, stage).await,
        Ok(Ok(stream)) => serve_http1(stream, peer, worker, patience, stage).await,
        Ok(Err(_)) => Err(ConnectionError::Tls),
        Err(_) => Err(ConnectionError::HeaderTimeout),
    }
}

/// Whether the first bytes are HTTP/2's; they stay to be read.
async fn speaks_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(2);
    loop {
        let seen = stream.peek(&mut start).await?;
        let seen = start.get(..seen).unwrap_or_default();
        if !PREFACE.starts_with(seen) || seen.is_empty() {
            return Ok(false);
        }
        if seen.len() == PREFACE.len() {
            return Ok(true);
        }
        // Some of the preface is there, and the socket stays readable: look again a little later.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

async fn serve_http1<S: Stream>(
    stream: S,
    peer: Peer,
    worker: &Arc<Worker>,
    patience: Patience,
    stage: watch::Receiver<Stage>,
) -> Result<(), ConnectionError> {
    let activity = Activity::new(worker.gateway.registry.clock.clone(), false);
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
    let (own, busy) = (Arc::clone(worker), Arc::clone(&activity));
    let service = service_fn(move |request| {
        // Boxed: the library moves it about, and it is large.
        Box::pin(ingress::serve(Arc::clone(&own), peer, request, busy.request()))
    });
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(2 * worker.gateway.limits.max_header_bytes)
        .auto_date_header(false)
        .writev(false)
        .serve_connection(io, service);
    watch_over(connection, &activity, patience, stage, |connection| connection.graceful_shutdown(), false)
        .await
}

async fn serve_http2<S: Stream>(
    stream: S,
    peer: Peer,
    worker: &Arc<Worker>,
    patience: Patience,
    stage: watch::Receiver<Stage>,
) -> Result<(), ConnectionError> {
    let activity = Activity::new(worker.gateway.registry.clock.clone(), true);
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
    let (own, busy) = (Arc::clone(worker), Arc::clone(&activity));
    let service = service_fn(move |request| {
        // Boxed: the library moves it about, and it is large.
        Box::pin(ingress::serve(Arc::clone(&own), peer, request, busy.request()))
    });
    let headers = u32::try_from(worker.gateway.limits.max_header_bytes).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(headers)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(patience.idle)
        .keep_alive_timeout(patience.head)
        .serve_connection(io, service);
    watch_over(connection, &activity, patience, stage, |connection| connection.graceful_shutdown(), true)
        .await
}

/// Polls a connection to its end, or closes it when it is overdue. While draining, an idle one is closed: HTTP/2 can be
/// told at once, HTTP/1.1 lingers, so that a request that is on its way is still served.
async fn watch_over<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    activity: &Activity,
    patience: Patience,
    mut stage: watch::Receiver<Stage>,
    shut: impl Fn(Pin<&mut C>),
    tell_at_once: bool,
) -> Result<(), ConnectionError> {
    let mut connection = std::pin::pin!(connection);
    let mut timer = std::pin::pin!(tokio::time::sleep(patience.head));
    let mut told = false;
    let mut draining = *stage.borrow() == Stage::Draining;
    loop {
        {
            let look = stage.clone();
            let mut changed = std::pin::pin!(stage.changed());
            let mut armed = false;
            let done = poll_fn(|cx| {
                if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                    return Poll::Ready(Some(done));
                }
                // Both stay registered with this task: polled once, a look is enough from then on.
                if !armed || timer.is_elapsed() || (!draining && look.has_changed().unwrap_or(true)) {
                    // Without budget both are pending and registered nowhere; this task is woken then in any case.
                    armed = tokio::task::coop::has_budget_remaining();
                    let staged = !draining && changed.as_mut().poll(cx).is_ready();
                    if staged || timer.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                }
                Poll::Pending
            });
            match done.await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if error.is_parse() || error.is_parse_too_large() => {
                    return Err(ConnectionError::Parse);
                }
                Some(Err(_)) => return Err(ConnectionError::Broken),
                None => {}
            }
        }
        draining |= stage.has_changed().is_err() || *stage.borrow() == Stage::Draining;
        if draining && !told && (tell_at_once || activity.is_idle_for(LINGER)) {
            told = true;
            shut(connection.as_mut());
        }
        let wait = match activity.judge(patience) {
            Ok(wait) => wait,
            // It has had its time; a caller that is in the middle of nothing is told politely.
            Err(ConnectionError::Idle) if !told => {
                told = true;
                shut(connection.as_mut());
                patience.head
            }
            Err(kind) => return Err(kind),
        };
        let wait = if draining && !told { wait.min(LINGER / 4) } else { wait };
        timer.set(tokio::time::sleep(wait.max(Duration::from_millis(1))));
    }
}

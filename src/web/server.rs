//! The listener: accepts, bounds, and ends in time.
//!
//! It knows nothing of what is asked.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use crate::telemetry::{ConnectionError, Listener, Telemetry};
use crate::tls::Acceptor;

/// How many connections may be open; further ones wait to be accepted.
const MOST_CONNECTIONS: usize = 256;

/// How long a request's head may take; an idle connection is closed after it as well.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How many bytes a request's head may have: browsers bring their cookies of this machine along.
const MOST_HEAD: usize = 64 * 1024;

/// How long a peer may leave what was written to it unread.
#[cfg(target_os = "linux")]
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long open requests may go on once the listener closes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The pauses after accept(2) failed: out of file descriptors, trying again at once only heats the room.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Says when the listener closes. Put into every request by the listener, so that streams end with it.
#[derive(Clone, Debug)]
pub struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Until the listener closes or is gone. Cancel safe.
    pub async fn wait(&mut self) {
        // An error: the listener is gone.
        let _ = self.0.wait_for(|closing| *closing).await;
    }
}

/// Serves until `shutdown` is ready. Then nothing more is accepted, event streams end, and open requests may go on
/// for a second.
///
/// Cancellation: dropped, it closes the listener and all connections at once.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Acceptor>,
    router: Router,
    telemetry: Arc<Telemetry>,
    shutdown: impl Future<Output = ()> + Send,
) {
    serve_at_most(MOST_CONNECTIONS, Listener::Admin, listener, tls, router, telemetry, shutdown).await;
}

/// The same for another kind of listener, with at most so many connections.
pub async fn serve_at_most(
    most: usize,
    kind: Listener,
    listener: TcpListener,
    tls: Option<Acceptor>,
    router: Router,
    telemetry: Arc<Telemetry>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let bounds = Bounds { most, last_words: LAST_WORDS };
    accept(bounds, listener, &telemetry, kind, shutdown, |stream, _, closing| {
        let router = router.clone().layer(Extension(closing.clone()));
        converse(stream, tls.clone(), router, Arc::clone(&telemetry), closing)
    })
    .await;
}

/// What bounds a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many connections may be open; further ones wait to be accepted.
    pub most: usize,
    /// How long open requests may go on once the listener closes.
    pub last_words: Duration,
}

/// Accepts until `shutdown` is ready, and has each connection served by `converse`, which ends when it is told of the closing.
///
/// Cancellation: dropped, it closes the listener and all connections at once.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(
    bounds: Bounds,
    listener: TcpListener,
    telemetry: &Telemetry,
    kind: Listener,
    shutdown: impl Future<Output = ()> + Send,
    converse: impl Fn(TcpStream, SocketAddr, Closing) -> F,
) {
    let (close, closing) = watch::channel(false);
    let closing = Closing(closing);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut pause = FIRST_PAUSE;
    loop {
        let full = connections.len() >= bounds.most;
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if !full => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pause = FIRST_PAUSE;
                let open = Open::new(telemetry.connections(kind));
                let conversation = converse(stream, peer, closing.clone());
                connections.spawn(async move {
                    let _open = open;
                    conversation.await;
                });
            }
            Err(why) if is_peers(&why) => {}
            Err(why) => {
                telemetry.connection_error(ConnectionError::Accept);
                warn!("a listener cannot accept: {why}; trying again in {} ms", pause.as_millis());
                tokio::select! {
                    () = &mut shutdown => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
    drop(listener);
    close.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(bounds.last_words, ended).await.is_err() {
        connections.shutdown().await;
    }
}

/// Whether accept(2) failed because of the one connection, so that the next may succeed.
fn is_peers(why: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(why.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// One connection, to its end.
async fn converse(
    stream: TcpStream,
    tls: Option<Acceptor>,
    router: Router,
    telemetry: Arc<Telemetry>,
    closing: Closing,
) {
    if let Err(why) = prepare(&stream) {
        debug!("a connection keeps its defaults: {why}");
    }
    let service = TowerToHyperService::new(router);
    let Some(tls) = tls else { return speak(stream, service, MANNERS, closing).await };
    if let Some(stream) = shake_hands(&tls, stream, HEADER_READ_TIMEOUT, &telemetry, closing.clone()).await {
        Box::pin(speak(stream, service, MANNERS, closing)).await;
    }
}

/// A connection on which TLS is agreed; `None` if it is not within `patience`, which is counted, or if the listener closes.
pub async fn shake_hands(
    tls: &Acceptor,
    stream: TcpStream,
    patience: Duration,
    telemetry: &Telemetry,
    mut closing: Closing,
) -> Option<TlsStream<TcpStream>> {
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(patience, tls.handshake(stream)) => shaken,
        () = closing.wait() => return None,
    };
    let kind = match shaken {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(why)) => {
            debug!("a handshake failed: {why}");
            ConnectionError::Tls
        }
        Err(_) => ConnectionError::HeaderTimeout,
    };
    telemetry.connection_error(kind);
    None
}

/// How a connection is treated.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// How long a head may take, and the pause before it.
    pub patience: Duration,
    /// How many bytes a head may have, and what is read or written at once; at least 8 KiB.
    pub most_head: usize,
    /// Whether a caller that says no more is still answered.
    pub half_close: bool,
}

/// Those of the listeners that [`serve`] serves.
const MANNERS: Manners = Manners { patience: HEADER_READ_TIMEOUT, most_head: MOST_HEAD, half_close: false };

/// Speaks HTTP/1.1 to the end of a connection. When the listener closes, what is under way is answered and nothing more is
/// read.
pub async fn speak<S, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: S,
    manners: Manners,
    mut closing: Closing,
) where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(manners.patience)
        .max_buf_size(manners.most_head)
        .half_close(manners.half_close)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = closing.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        debug!("a connection ended early: {why}");
    }
}

/// What every connection is made: quick, and given up when its peer reads nothing.
///
/// # Errors
/// What the system refuses.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
    Ok(())
}

/// Counts a connection while it is open, however it ends.
struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

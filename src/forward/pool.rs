//! Connections of one worker to its upstreams, last used first.
//!
//! Keeps and makes connections. It never sends: that is the exchange's part.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::body::RequestBody;
use super::target::Target;
use crate::clock::{Clock, Moment};

/// More idle connections to one upstream than this are closed.
const MOST_IDLE: usize = 256;

/// A connection on which nothing is under way.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: http1::SendRequest<RequestBody>,
    task: JoinHandle<()>,
    cut: Arc<AtomicBool>,
    /// False until its first answer: an upstream that closes at once is down, not idle.
    pub(super) used: bool,
}

impl Connection {
    /// Whether all of the last request is written. Its task may need one more turn to say so.
    pub(super) async fn is_through(&self) -> bool {
        if !self.sender.is_ready() {
            tokio::task::yield_now().await;
        }
        self.sender.is_ready()
    }

    /// Closes it in order and waits until it is closed. Dropped, it closes soon.
    pub(super) async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Resets it and waits until it is closed: what the system has not delivered yet is never delivered, and the sender
    /// cannot take what it has for a whole request.
    pub(super) async fn cut(self) {
        self.cut.store(true, SeqCst);
        self.close().await;
    }
}

/// A connection's stream; dropped after a cut, it resets the connection.
#[derive(Debug)]
struct Cuttable<S: Stream> {
    stream: S,
    cut: Arc<AtomicBool>,
}

/// What a sender is spoken to over.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The connection below.
    fn tcp(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Stream for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

impl<S: Stream> Drop for Cuttable<S> {
    fn drop(&mut self) {
        if self.cut.load(SeqCst) {
            // Where the system refuses, the connection is closed in order: late, but closed.
            let _ = socket2::SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl<S: Stream> AsyncRead for Cuttable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Stream> AsyncWrite for Cuttable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Moment,
    most: Duration,
}

/// A worker's connections.
#[derive(Debug)]
pub struct Pool {
    clock: Clock,
    /// By the target's number.
    idle: Mutex<Vec<Vec<Idle>>>,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last, if it is still open and young enough.
    pub(super) fn take(&self, target: &Target) -> Option<Connection> {
        let now = self.clock.now();
        let mut idle = self.idle();
        let stack = idle.get_mut(target.number)?;
        while let Some(Idle { connection, since, most }) = stack.pop() {
            if !connection.sender.is_closed() && now.since(since) < most {
                return Some(connection);
            }
        }
        None
    }

    /// Takes a connection back. It stays for at most `most` without use.
    pub(super) fn put(&self, target: &Target, connection: Connection, most: Duration) {
        let since = self.clock.now();
        let mut idle = self.idle();
        if idle.len() <= target.number {
            idle.resize_with(target.number + 1, Vec::new);
        }
        let Some(idle) = idle.get_mut(target.number) else { return };
        if idle.len() < MOST_IDLE {
            idle.push(Idle { connection, since, most });
        }
    }

    /// Closes what was idle for too long; to be called about every second.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for stack in self.idle().iter_mut() {
            stack.retain(|idle| !idle.connection.sender.is_closed() && now.since(idle.since) < idle.most);
        }
    }

    /// Makes a connection. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// The upstream cannot be reached; nothing was sent.
    pub(super) async fn connect(target: &Target) -> io::Result<Connection> {
        // A name is asked for anew each time: connections go where it leads now.
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        match &target.tls {
            None => shake_hands(stream).await,
            Some((config, name)) => {
                let tls = TlsConnector::from(Arc::clone(config));
                shake_hands(Box::pin(tls.connect(name.clone(), stream)).await?).await
            }
        }
    }

    /// What time it is for whoever connects.
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }
}

async fn shake_hands<S: Stream>(stream: S) -> io::Result<Connection> {
    let cut = Arc::<AtomicBool>::default();
    let (sender, connection) = http1::Builder::new()
        .writev(false)
        .handshake(TokioIo::new(Cuttable { stream, cut: Arc::clone(&cut) }))
        .await
        .map_err(io::Error::other)?;
    let task = tokio::spawn(async move {
        // The exchange learns of a failure through its own answer.
        let _ = connection.await;
    });
    Ok(Connection { sender, task, cut, used: false })
}

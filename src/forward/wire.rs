//! The stream below a connection to a sender: TCP, TLS over it, or a Unix socket; and how it is made and cut.
//!
//! It knows nothing of HTTP.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// How often a Unix socket is asked again whose queue is full: the system tells nobody when it has room.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Connects over TCP. A name is asked for anew each time: connections go where it leads now.
pub(super) async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a Unix socket. It waits as long as the sender's queue is full, as TCP does: bound it.
pub(super) async fn unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(full) if full.kind() == ErrorKind::WouldBlock => tokio::time::sleep(ASK_AGAIN).await,
            connected => return connected,
        }
    }
}

/// A connection's stream; dropped after a cut, it resets the connection.
#[derive(Debug)]
pub(super) struct Cuttable<S: Stream> {
    stream: S,
    cut: Arc<AtomicBool>,
}

impl<S: Stream> Cuttable<S> {
    /// The stream, and what is set before it is dropped to cut it.
    pub(super) fn new(stream: S) -> (Self, Arc<AtomicBool>) {
        let cut = Arc::<AtomicBool>::default();
        (Self { stream, cut: Arc::clone(&cut) }, cut)
    }
}

/// What a sender is spoken to over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Prepares it to be reset when it is closed.
    fn reset(&self);
}

impl Stream for TcpStream {
    fn reset(&self) {
        // Where the system refuses, the connection is closed in order: late, but closed.
        let _ = socket2::SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

impl Stream for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

impl Stream for UnixStream {
    /// There is no reset, and nothing on its way either: what was written is at the sender, and the close is seen at once.
    fn reset(&self) {}
}

impl<S: Stream> Drop for Cuttable<S> {
    fn drop(&mut self) {
        if self.cut.load(SeqCst) {
            self.stream.reset();
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

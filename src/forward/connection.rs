//! One connection to a sender, carried by whoever uses it.
//!
//! A task of its own would have to be woken for each step of an exchange, and would wake the exchange in turn. It never
//! decides what is sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::RequestBody;

/// Wakes whoever carries a connection; while it is being carried, that it was rung is only noted. The parts of one exchange
/// wake each other all the time, and each time would be another turn of the whole task.
#[derive(Debug, Default)]
struct Bell {
    carried: AtomicBool,
    rung: AtomicBool,
    carrier: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // In this order, and the other way round in `put_down`: one of the two sees the other.
        self.rung.store(true, SeqCst);
        if !self.carried.load(SeqCst) {
            self.carrier.wake();
        }
    }
}

impl Bell {
    fn pick_up(&self, cx: &Context<'_>) {
        self.carrier.register(cx.waker());
        self.carried.store(true, SeqCst);
        self.rung.store(false, SeqCst);
    }

    /// True if it was rung meanwhile.
    fn put_down(&self) -> bool {
        self.carried.store(false, SeqCst);
        self.rung.load(SeqCst)
    }
}

/// A connection; dropped, it is closed.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: http1::SendRequest<RequestBody>,
    /// `None` once it is over.
    wire: Option<Box<http1::Connection<TokioIo<TcpStream>, RequestBody>>>,
    bell: Arc<Bell>,
    waker: Waker,
    /// False until its first answer: an upstream that closes at once is down, not idle.
    pub(super) used: bool,
}

impl Connection {
    /// Makes one over a stream. Nothing is sent.
    ///
    /// # Errors
    /// What the HTTP library says.
    pub(super) async fn over(stream: TcpStream) -> io::Result<Self> {
        let (sender, wire) = http1::Builder::new()
            .writev(false)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let bell = Arc::<Bell>::default();
        let waker = Waker::from(Arc::clone(&bell));
        Ok(Self { sender, wire: Some(Box::new(wire)), bell, waker, used: false })
    }

    /// Carries what is under way one step further.
    fn step(&mut self) {
        if let Some(wire) = &mut self.wire
            && Pin::new(wire.as_mut()).poll(&mut Context::from_waker(&self.waker)).is_ready()
        {
            // Whoever waits for something of it is told by its drop.
            self.wire = None;
        }
    }

    /// Waits for `work` that only this connection can bring forward. It is polled without a waker of its own: its connection
    /// is carried in the same turn.
    pub(super) fn poll_carried<F: Future>(
        &mut self,
        mut work: Pin<&mut F>,
        cx: &Context<'_>,
    ) -> Poll<F::Output> {
        self.bell.pick_up(cx);
        let mut own = Context::from_waker(&self.waker);
        let mut done = work.as_mut().poll(&mut own);
        if done.is_pending() {
            self.step();
            done = work.as_mut().poll(&mut Context::from_waker(&self.waker));
        }
        if self.bell.put_down() && done.is_pending() {
            cx.waker().wake_by_ref();
        }
        done
    }

    /// Carries it while something else is waited for.
    pub(super) fn poll_carry(&mut self, cx: &Context<'_>) {
        let _ = self.poll_carried(std::pin::pin!(std::future::pending::<()>()), cx);
    }

    /// Whether the last exchange is through on both sides, so that a request may be sent. The sender may close it later; who
    /// sends then gets the request back.
    pub(super) fn is_through(&mut self) -> bool {
        if !self.sender.is_ready() {
            self.look();
        }
        self.wire.is_some() && self.sender.is_ready()
    }

    /// Looks after it while nothing is under way. False: the sender closed it.
    pub(super) fn look(&mut self) -> bool {
        // Nobody waits: what wakes is of no interest.
        self.bell.carried.store(true, SeqCst);
        self.step();
        self.bell.carried.store(false, SeqCst);
        self.wire.is_some()
    }

    /// Resets it: what the system has not delivered yet is never delivered, and the sender cannot take what it has for a
    /// whole request.
    pub(super) fn cut(self) {
        let Some(wire) = self.wire else { return };
        let stream = wire.into_parts().io.into_inner();
        // Where the system refuses, the connection is closed in order: late, but closed.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

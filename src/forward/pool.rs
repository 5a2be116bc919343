//! Connections of one worker to its upstreams, last used first.
//!
//! Keeps and makes connections. It never sends: that is the exchange's part.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use super::body::RequestBody;
use super::call::Call;
use super::link::{Link, Room};
use super::target::Target;
use super::wire::{self, Cuttable, Stream};
use crate::clock::{Clock, Moment};
use crate::config::{Endpoint, Http};
use crate::tls::sender::is_http2;

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

/// What a request goes out on.
#[derive(Debug)]
pub(super) enum Line {
    /// A connection of its own, for HTTP/1.1.
    Connection(Connection),
    /// Room on a shared one, for HTTP/2.
    Room(Room),
    /// Its stream there.
    Stream(Box<Call>),
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
    /// The same for those that several sends share.
    shared: Mutex<HashMap<usize, Arc<Shared>>>,
}

/// Connections to one upstream that several sends share.
#[derive(Debug, Default)]
struct Shared {
    /// In the order in which they were made: those that are not needed any more run idle and are closed.
    links: Mutex<Vec<Arc<Link>>>,
    /// One at a time is made, and whoever waits for it looks again.
    making: tokio::sync::Mutex<()>,
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, now: Moment) -> Option<Room> {
        self.links().iter().find_map(|link| link.take(now))
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, idle: Mutex::default(), shared: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room on a shared connection, or else the connection that was used last, if it is still open and young enough.
    pub(super) fn take(&self, target: &Target) -> Option<Line> {
        let now = self.clock.now();
        if target.may_share()
            && let Some(room) = self.shared(target).room(now)
        {
            return Some(Line::Room(room));
        }
        let mut idle = self.idle();
        let stack = idle.get_mut(target.number)?;
        while let Some(Idle { connection, since, most }) = stack.pop() {
            if !connection.sender.is_closed() && now.since(since) < most {
                return Some(Line::Connection(connection));
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
        for shared in self.shared.lock().unwrap_or_else(PoisonError::into_inner).values() {
            shared.links().retain(|link| link.stays(now));
        }
    }

    /// Makes a connection, or finds room on one that another send has just made. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// The upstream cannot be reached; nothing was sent.
    pub(super) async fn connect(&self, target: &Target) -> io::Result<Line> {
        if !target.may_share() {
            return self.connect_alone(target).await;
        }
        let shared = self.shared(target);
        let _turn = shared.making.lock().await;
        match shared.room(self.now()) {
            Some(room) => Ok(Line::Room(room)),
            None => self.connect_alone(target).await,
        }
    }

    async fn connect_alone(&self, target: &Target) -> io::Result<Line> {
        let known = target.http == Http::Two;
        match (&target.endpoint, &target.tls) {
            (Endpoint::Unix(path), _) => self.shake_hands(target, wire::unix(path).await?, known).await,
            (Endpoint::Tcp(host, port), None) => {
                self.shake_hands(target, wire::tcp(host, *port).await?, known).await
            }
            (Endpoint::Tcp(host, port), Some((tls, name))) => {
                let stream = wire::tcp(host, *port).await?;
                let stream = Box::pin(tls.handshake(name, stream)).await?;
                let agreed = is_http2(&stream);
                target.agreed(agreed);
                self.shake_hands(target, stream, agreed).await
            }
        }
    }

    async fn shake_hands<S: Stream>(&self, target: &Target, stream: S, http2: bool) -> io::Result<Line> {
        if !http2 {
            return Ok(Line::Connection(shake_hands(stream).await?));
        }
        let link = Arc::new(Box::pin(Link::shake_hands(stream)).await?);
        let room = link.take(self.now()).ok_or_else(|| io::Error::other("it takes no requests"))?;
        self.shared(target).links().push(link);
        Ok(Line::Room(room))
    }

    /// What time it is for whoever connects.
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The shared connections to a target.
    fn shared(&self, target: &Target) -> Arc<Shared> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shared.entry(target.number).or_default())
    }
}

async fn shake_hands<S: Stream>(stream: S) -> io::Result<Connection> {
    let (stream, cut) = Cuttable::new(stream);
    let (sender, connection) = http1::Builder::new()
        .writev(false)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let task = tokio::spawn(async move {
        // The exchange learns of a failure through its own answer.
        let _ = connection.await;
    });
    Ok(Connection { sender, task, cut, used: false })
}

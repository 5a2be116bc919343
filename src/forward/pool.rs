//! Connections of one worker to its upstreams, last used first.
//!
//! Keeps and makes connections. It never sends: that is the exchange's part.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::connection::Connection;
use crate::clock::{Clock, Moment};

/// More idle connections to one upstream than this are closed.
const MOST_IDLE: usize = 256;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its number: connections are shared by whoever has the same one.
    pub number: usize,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
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

    /// The connection that was used last, if it is young enough. The sender may have closed it.
    pub(super) fn take(&self, target: &Target) -> Option<Connection> {
        let now = self.clock.now();
        let mut idle = self.idle();
        let stack = idle.get_mut(target.number)?;
        while let Some(Idle { connection, since, most }) = stack.pop() {
            if now.since(since) < most {
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

    /// Closes what was idle for too long or was closed by its sender; to be called about every second.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for stack in self.idle().iter_mut() {
            stack.retain_mut(|idle| now.since(idle.since) < idle.most && idle.connection.look());
        }
    }

    /// Makes a connection. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// The upstream cannot be reached; nothing was sent.
    pub(super) async fn connect(target: &Target) -> io::Result<Connection> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        Connection::over(stream).await
    }
}

//! The data plane: listeners, one thread for each core, and their orderly end.
//!
//! Each worker has its own listener on the same port, its own runtime and its own connections to senders. Nothing is
//! decided here about requests.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::warn;

use super::connection::{self, Open, Stage};
use super::service::{Gateway, LOOK, Worker};
use crate::clock::{Clock, Moment};
use crate::telemetry::ConnectionError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// After accept failed, the next try waits this long: descriptors have to come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers that were cut short may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Binds a listener that nobody shares: a second process fails with "address in use".
///
/// # Errors
/// What the system says.
pub fn bind_alone(address: SocketAddr) -> io::Result<StdListener> {
    bind(address, false)
}

/// Binds `count` listeners on one port, one for each worker. A port that another process shares in the same way is
/// refused like any port in use.
///
/// # Errors
/// What the system says.
pub fn bind_shared(address: SocketAddr, count: usize) -> io::Result<Vec<StdListener>> {
    // The first attempt shares nothing, so it fails where another process already listens.
    let address = bind_alone(address)?.local_addr()?;
    (0..count.max(1)).map(|_| bind(address, true)).collect()
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The running workers.
#[derive(Debug)]
pub struct Workers {
    stage: watch::Sender<Stage>,
    ended: Vec<oneshot::Receiver<()>>,
}

impl Workers {
    /// Starts a thread for each listener. Draining, they take at most `drain` until they end.
    ///
    /// # Errors
    /// A thread or a runtime cannot be made.
    pub fn start(gateway: &Arc<Gateway>, listeners: Vec<StdListener>, drain: Duration) -> io::Result<Self> {
        let (stage, _) = watch::channel(Stage::Serving);
        let mut ended = Vec::new();
        for (number, listener) in listeners.into_iter().enumerate() {
            let gateway = Arc::clone(gateway);
            let stage = stage.subscribe();
            let (end, at_end) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                runtime.block_on(async move {
                    let worker = Arc::new(Worker::new(gateway));
                    match TcpListener::from_std(listener) {
                        Ok(listener) => run(worker, listener, stage, drain).await,
                        Err(error) => warn!("worker {number} cannot listen: {error}"),
                    }
                });
                let _ = end.send(());
            })?;
            ended.push(at_end);
        }
        Ok(Self { stage, ended })
    }

    /// Until one ends that was not told to: the process cannot go on without it.
    pub async fn failed(&mut self) {
        let ends = self.ended.iter_mut().map(|end| Box::pin(async move { drop(end.await) }));
        futures_util::future::select_all(ends).await;
    }

    /// Closes the listeners, serves what was accepted, and ends.
    pub async fn drain(self) {
        self.stage.send_replace(Stage::Draining);
        for end in self.ended {
            // A worker that panicked has ended as well.
            let _ = end.await;
        }
    }
}

async fn run(worker: Arc<Worker>, listener: TcpListener, mut stage: watch::Receiver<Stage>, drain: Duration) {
    let mut connections = JoinSet::new();
    // It ends with the runtime.
    tokio::spawn(look_at_deadlines(Arc::clone(&worker)));
    let mut sweep = tokio::time::interval(Duration::from_secs(1));
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while *stage.borrow() == Stage::Serving {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => admit(&mut connections, &worker, stream, peer, &stage),
                Err(error) => {
                    worker.gateway.registry.telemetry.connection_error(ConnectionError::Accept);
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        warn!("cannot accept connections: {error}; trying again");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            _ = sweep.tick() => worker.pool.sweep(),
            _ = stage.changed() => {}
        }
    }
    admit_waiting(&mut connections, &worker, listener, &stage);
    let clock = worker.gateway.registry.clock.clone();
    let deadline = clock.now().after(drain);
    finish(&worker, &mut connections, &clock, deadline).await;
    worker.cut_all();
    finish(&worker, &mut connections, &clock, clock.now().after(LAST_WORDS)).await;
}

async fn look_at_deadlines(worker: Arc<Worker>) {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        worker.check_deadlines();
    }
}

/// Whoever has connected already is still served; then the listener is closed. The system itself is asked: tokio's
/// budget would pretend after 128 that there are no more.
fn admit_waiting(
    connections: &mut JoinSet<()>,
    worker: &Arc<Worker>,
    listener: TcpListener,
    stage: &watch::Receiver<Stage>,
) {
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..=BACKLOG {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                if let Ok(stream) = stream {
                    admit(connections, worker, stream, peer, stage);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // One that has left again says nothing about the next.
            Err(_) => {}
        }
    }
}

fn admit(
    connections: &mut JoinSet<()>,
    worker: &Arc<Worker>,
    stream: TcpStream,
    peer: SocketAddr,
    stage: &watch::Receiver<Stage>,
) {
    match Open::new(worker) {
        Some(open) => {
            connections.spawn(connection::serve(stream, peer, Arc::clone(worker), open, stage.clone()));
        }
        None => {
            worker.gateway.registry.telemetry.connection_error(ConnectionError::TooMany);
            // A handshake only to refuse would cost more than what is refused.
            if worker.gateway.tls.is_none() {
                connections.spawn(turn_away(stream));
            }
        }
    }
}

/// Tells a caller that there are too many, as far as it listens.
async fn turn_away(mut stream: TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\
        x-fencing-verdict: overloaded\r\nx-fencing-outcome: not_sent\r\n\r\n";
    let tell = async {
        let _ = stream.write_all(ANSWER).await;
        let _ = stream.shutdown().await;
    };
    let _ = tokio::time::timeout(LAST_WORDS, tell).await;
}

/// Waits until nothing is under way and no connection is open, but not beyond the deadline.
async fn finish(worker: &Worker, connections: &mut JoinSet<()>, clock: &Clock, deadline: Moment) {
    loop {
        while connections.try_join_next().is_some() {}
        if connections.is_empty() && worker.under_way() == 0 {
            return;
        }
        let left = deadline.until(clock.now());
        if left.is_zero() {
            return;
        }
        // Sends whose caller left are in no connection; they are looked for from time to time.
        let look = left.min(Duration::from_millis(20));
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = tokio::time::sleep(look) => {}
        }
    }
}

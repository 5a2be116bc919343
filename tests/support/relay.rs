//! A TCP relay on loopback: a line that can be slow, silent or cut.
//!
//! It keeps the order of bytes and loses none, as TCP does; what a silent line holds arrives when it heals, unless it
//! was cut. It never looks into what it carries.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::http1::reset;
use super::place::loopback;
use super::wait::now;

/// Pieces that one direction holds at most before the writer is held up.
const HELD: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Open,
    /// Nothing arrives at the client; the server still gets everything.
    NoReplies,
    Silent,
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

struct State {
    line: Line,
    delay: Duration,
    ended: bool,
    next: usize,
    pairs: HashMap<usize, [TcpStream; 2]>,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    to_server: AtomicUsize,
}

/// A relay to one address. Cut when it is dropped.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    /// A relay to a port on loopback, open and without delay.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind(loopback(0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let state =
            State { line: Line::Open, delay: Duration::ZERO, ended: false, next: 0, pairs: HashMap::new() };
        let shared = Arc::new(Shared {
            target: loopback(port),
            state: Mutex::new(state),
            changed: Condvar::new(),
            to_server: AtomicUsize::new(0),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if accepting.state.lock().unwrap().ended {
                    return;
                }
                let shared = accepting.clone();
                std::thread::spawn(move || shared.carry(client));
            }
        });
        Self { address, shared }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a connect string or the authority of an upstream.
    pub fn connect(&self) -> String {
        self.address.to_string()
    }

    /// From now on, bytes from the server arrive at the client so much later.
    pub fn delay(&self, delay: Duration) {
        self.set(|state| state.delay = delay);
    }

    /// Nothing arrives in either direction; connections stay open.
    pub fn silence(&self) {
        self.set(|state| state.line = Line::Silent);
    }

    /// The server gets everything, the client nothing; connections stay open.
    pub fn silence_replies(&self) {
        self.set(|state| state.line = Line::NoReplies);
    }

    /// Ends all connections, with what they hold, and resets every new one.
    pub fn cut(&self) {
        self.set(|state| {
            state.line = Line::Cut;
            state.end_all();
        });
    }

    /// Ends all connections with what they hold; new ones get what the line is now.
    pub fn cut_once(&self) {
        self.set(State::end_all);
    }

    /// Open again; what was held arrives.
    pub fn heal(&self) {
        self.set(|state| state.line = Line::Open);
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().pairs.len()
    }

    /// How many bytes were handed to the server in all.
    pub fn bytes_to_server(&self) -> usize {
        self.shared.to_server.load(Ordering::SeqCst)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.set(|state| state.ended = true);
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn end_all(&mut self) {
        for stream in self.pairs.drain().flat_map(|(_, pair)| pair) {
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lets_through(&self, direction: Direction) -> bool {
        match self.line {
            Line::Open => true,
            Line::NoReplies => direction == Direction::ToServer,
            Line::Silent | Line::Cut => false,
        }
    }
}

impl Shared {
    fn carry(self: Arc<Self>, client: TcpStream) {
        if self.state.lock().unwrap().line == Line::Cut {
            return reset(client);
        }
        let Ok(server) = TcpStream::connect(self.target) else { return reset(client) };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let Ok(handles) = client.try_clone().and_then(|one| Ok([one, server.try_clone()?])) else { return };
        let number = {
            let mut state = self.state.lock().unwrap();
            if state.line == Line::Cut {
                return reset(client);
            }
            state.next += 1;
            let number = state.next;
            state.pairs.insert(number, handles);
            number
        };
        std::thread::scope(|scope| {
            scope.spawn(|| self.pump(number, &client, &server, Direction::ToServer));
            self.pump(number, &server, &client, Direction::ToClient);
        });
        self.state.lock().unwrap().pairs.remove(&number);
    }

    /// Carries one direction to its end. An end of the stream is passed on like bytes are.
    fn pump(&self, number: usize, mut from: &TcpStream, to: &TcpStream, direction: Direction) {
        let (push, pull) = sync_channel(HELD);
        std::thread::scope(|scope| {
            scope.spawn(|| self.deliver(number, pull, to, direction));
            self.collect(&mut from, &push, direction);
            drop(push);
        });
    }

    fn collect(&self, from: &mut &TcpStream, push: &SyncSender<(Instant, Vec<u8>)>, direction: Direction) {
        let mut piece = [0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let delay = match direction {
                Direction::ToServer => Duration::ZERO,
                Direction::ToClient => self.state.lock().unwrap().delay,
            };
            if push.send((now() + delay, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    }

    fn deliver(
        &self,
        number: usize,
        pull: Receiver<(Instant, Vec<u8>)>,
        mut to: &TcpStream,
        direction: Direction,
    ) {
        for (due, bytes) in pull {
            if !self.wait_for_turn(number, due, direction) || to.write_all(&bytes).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
            if direction == Direction::ToServer {
                self.to_server.fetch_add(bytes.len(), Ordering::SeqCst);
            }
        }
        if self.wait_for_turn(number, now(), direction) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Whether the connection still is, once the piece is due and the line lets it through.
    fn wait_for_turn(&self, number: usize, due: Instant, direction: Direction) -> bool {
        let mut state = self.state.lock().unwrap();
        loop {
            if !state.pairs.contains_key(&number) {
                return false;
            }
            let left = due.saturating_duration_since(now());
            state = match (state.lets_through(direction), left.is_zero()) {
                (true, true) => return true,
                (true, false) => self.changed.wait_timeout(state, left).unwrap().0,
                (false, _) => self.changed.wait(state).unwrap(),
            };
        }
    }
}

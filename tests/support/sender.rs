//! A recording sender: the upstream that talks to the messenger, here only writing down what reaches it.
//!
//! One thread per connection reads raw HTTP/1.1, so that a test sees what the gateway really sent. A closure decides
//! what each request gets; it may block.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::http1::{Framing, Headers, Wire, latin1, reset};
use super::place::loopback;
use super::wait::{now, wait_for};

/// How often a waiting answer looks whether the other side has left.
const LOOK: Duration = Duration::from_millis(5);

/// One request as it reached the sender.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Counted over all connections, from zero.
    pub number: usize,
    /// Counted in the order in which they were accepted, from zero.
    pub connection: usize,
    /// Empty if the head broke off.
    pub method: String,
    /// As it stood in the first line.
    pub target: String,
    /// In order, names as they were spelt.
    pub headers: Headers,
    /// Without its framing; as far as it came.
    pub body: Vec<u8>,
    /// Trailers of a chunked body.
    pub trailers: Headers,
    /// The head as bytes; of one that broke off, what came.
    pub raw_head: Vec<u8>,
    /// The first byte was there.
    pub started: Instant,
    /// The moment before the last byte of the answer was written, or when the end of the connection was seen.
    pub ended: Option<Instant>,
    /// Head and body came whole.
    pub whole: bool,
    /// The connection ended in the middle of the request.
    pub truncated: bool,
    /// The connection ended before the answer was written.
    pub aborted: bool,
}

impl Recorded {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

type Behaviour = Arc<dyn Fn(&Recorded) -> Answer + Send + Sync>;
type Hurry = Arc<dyn Fn(&Recorded) -> Option<Answer> + Send + Sync>;

struct Shared {
    behaviour: Mutex<Behaviour>,
    hurry: Mutex<Hurry>,
    requests: Mutex<Vec<Recorded>>,
    accepted: AtomicUsize,
    open: Mutex<HashMap<usize, TcpStream>>,
    stopped: AtomicBool,
}

/// A sender on a free port. Stops when it is dropped.
pub struct Sender {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Sender {
    /// One that answers 200 at once.
    pub fn new() -> Self {
        Self::start(|_| Answer::ok())
    }

    /// One that answers as `behaviour` says, asked when the whole request is there.
    pub fn start(behaviour: impl Fn(&Recorded) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(loopback(0)).expect("a listener");
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Arc::new(behaviour)),
            hurry: Mutex::new(Arc::new(|_| None)),
            requests: Mutex::default(),
            accepted: AtomicUsize::new(0),
            open: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let address = listener.local_addr().expect("an address");
        let accepting = shared.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Answers as `behaviour` says from the next request on.
    pub fn behave(&self, behaviour: impl Fn(&Recorded) -> Answer + Send + Sync + 'static) {
        *self.shared.behaviour.lock().unwrap() = Arc::new(behaviour);
    }

    /// Asked when only the head is there: an answer is given at once, and only then what comes of the body is read.
    pub fn answer_early(&self, hurry: impl Fn(&Recorded) -> Option<Answer> + Send + Sync + 'static) {
        *self.shared.hurry.lock().unwrap() = Arc::new(hurry);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As an upstream in a configuration.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything so far, in order of arrival; requests that are under way too.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// How many requests began, whole or not.
    pub fn count(&self) -> usize {
        self.shared.requests.lock().unwrap().len()
    }

    /// How many requests are neither answered nor aborted.
    pub fn in_flight(&self) -> usize {
        self.shared.requests.lock().unwrap().iter().filter(|request| request.ended.is_none()).count()
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Whether a connection, as [`Recorded::connection`] counts them, is open.
    pub fn is_open(&self, connection: usize) -> bool {
        self.shared.open.lock().unwrap().contains_key(&connection)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.shared.open.lock().unwrap().len()
    }

    /// Waits until `count` requests or more have come whole, and returns those.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<Recorded> {
        wait_for(&format!("{count} requests at the sender"), || {
            let whole: Vec<_> = self.requests().into_iter().filter(|request| request.whole).collect();
            (whole.len() >= count).then_some(whole)
        })
    }

    /// Waits until nothing is under way, and returns everything.
    #[track_caller]
    pub fn wait_until_idle(&self) -> Vec<Recorded> {
        wait_for("an idle sender", || (self.in_flight() == 0).then(|| self.requests()))
    }

    /// Ends all connections at once; the next ones are accepted.
    pub fn cut_connections(&self) {
        for (_, stream) in self.shared.open.lock().unwrap().drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections and listens no longer: from now on it refuses.
    pub fn stop(&self) {
        if !self.shared.stopped.swap(true, Ordering::SeqCst) {
            let _ = TcpStream::connect(self.address);
            wait_for("the sender refuses", || TcpStream::connect(self.address).is_err().then_some(()));
        }
        self.cut_connections();
    }
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.shared.stopped.swap(true, Ordering::SeqCst) {
            let _ = TcpStream::connect(self.address);
        }
        self.cut_connections();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let connection = self.accepted.fetch_add(1, Ordering::SeqCst);
            let Ok(handle) = stream.try_clone() else { continue };
            self.open.lock().unwrap().insert(connection, handle);
            let shared = self.clone();
            std::thread::spawn(move || {
                let ends_by_reset = shared.serve(connection, stream);
                let handle = shared.open.lock().unwrap().remove(&connection);
                match ends_by_reset {
                    Some(stream) => {
                        drop(handle);
                        reset(stream);
                    }
                    None => drop(handle),
                }
            });
        }
    }

    /// Serves one connection to its end; returns the stream if it is to be reset.
    fn serve(&self, connection: usize, stream: TcpStream) -> Option<TcpStream> {
        let mut wire = Wire::new(stream);
        loop {
            if !wire.has_more() && !matches!(wire.fill(), Ok(count) if count > 0) {
                return None;
            }
            let started = now();
            let head = wire.head();
            let broken = head.is_err();
            let request = self.record(connection, started, head.unwrap_or_else(|_| wire.leftover()), broken);
            if broken {
                return None;
            }
            let hurry = self.hurry.lock().unwrap().clone();
            let early = hurry(&request);
            if let Some(answer) = &early {
                let given = self.give(answer, request.number, &mut wire);
                if given.is_err() || answer.reset {
                    return given.is_ok().then_some(wire.stream);
                }
                if answer.closes() {
                    let _ = wire.stream.shutdown(Shutdown::Write);
                }
            }
            let request = self.read_body(&request, &mut wire);
            if request.truncated || early.as_ref().is_some_and(Answer::closes) {
                return None;
            }
            if early.is_none() {
                let behaviour = self.behaviour.lock().unwrap().clone();
                let answer = behaviour(&request);
                let given = self.give(&answer, request.number, &mut wire);
                if given.is_err() || answer.closes() {
                    return (given.is_ok() && answer.reset).then_some(wire.stream);
                }
            }
        }
    }

    fn read_body(&self, request: &Recorded, wire: &mut Wire) -> Recorded {
        let mut body = Vec::new();
        let trailers = wire.body(Framing::of(&request.headers, Framing::Absent), &mut body);
        self.change(request.number, |request| {
            request.body = body;
            request.whole = trailers.is_ok();
            request.truncated = trailers.is_err();
            if request.truncated && request.ended.is_none() {
                request.aborted = true;
                request.ended = Some(now());
            }
            request.trailers = trailers.unwrap_or_default();
        })
    }

    fn record(&self, connection: usize, started: Instant, raw_head: Vec<u8>, broken: bool) -> Recorded {
        let text = latin1(&raw_head);
        let (first, rest) = text.split_once("\r\n").unwrap_or(("", ""));
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut requests = self.requests.lock().unwrap();
        let request = Recorded {
            number: requests.len(),
            connection,
            method: if broken { String::new() } else { method.to_owned() },
            target: if broken { String::new() } else { target.to_owned() },
            headers: if broken { Headers::none() } else { Headers::parse(rest) },
            body: Vec::new(),
            trailers: Headers::none(),
            raw_head,
            started,
            ended: broken.then(now),
            whole: false,
            truncated: broken,
            aborted: broken,
        };
        requests.push(request.clone());
        request
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Recorded)) -> Recorded {
        let mut requests = self.requests.lock().unwrap();
        change(&mut requests[number]);
        requests[number].clone()
    }

    /// Waits as the answer wants and writes it; on an error the request is marked as aborted.
    fn give(&self, answer: &Answer, number: usize, wire: &mut Wire) -> io::Result<()> {
        let given = self.try_give(answer, number, wire);
        if given.is_err() {
            self.change(number, |request| {
                request.aborted = true;
                request.ended = Some(now());
            });
        }
        given
    }

    fn try_give(&self, answer: &Answer, number: usize, wire: &mut Wire) -> io::Result<()> {
        let due = now() + answer.delay;
        while answer.latch.as_ref().is_some_and(|latch| !latch.is_released()) || now() < due {
            let left = due.saturating_duration_since(now());
            pause(wire, if left.is_zero() { LOOK } else { left.min(LOOK) })?;
        }
        let bytes = if answer.reset || answer.hang_up { Vec::new() } else { answer.to_wire() };
        let (size, rest) = answer.drip.unwrap_or((bytes.len(), Duration::ZERO));
        let mut left = bytes.as_slice();
        loop {
            let (piece, further) = left.split_at(size.max(1).min(left.len()));
            if further.is_empty() {
                self.change(number, |request| request.ended = Some(now()));
            }
            wire.stream.write_all(piece)?;
            if further.is_empty() {
                return Ok(());
            }
            left = further;
            let due = now() + rest;
            while now() < due {
                pause(wire, due.saturating_duration_since(now()))?;
            }
        }
    }
}

/// Lets time pass; an error as soon as the other side has ended the connection.
fn pause(wire: &mut Wire, span: Duration) -> io::Result<()> {
    let span = span.max(Duration::from_millis(1));
    wire.stream.set_read_timeout(Some(span))?;
    match wire.stream.peek(&mut [0]) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(_) => {
            std::thread::sleep(span);
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
        Err(error) => Err(error),
    }
}

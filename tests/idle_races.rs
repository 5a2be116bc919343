//! At most once over connections that the sender closes at any moment: over TCP, over a Unix socket, and over HTTP/2, with and
//! without a farewell.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic in its helpers too"
)]

mod support;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::http2::{self, Frame};
use support::{Connection, Folder, Headers, Setup, Shared, named_route, now};

static SHARED: Shared = Shared::new();

const CALLERS: usize = 4;
/// Connections that are closed before it is enough.
const CLOSED: usize = 10_000;
/// And no more requests of each caller than this.
const MOST_EACH: usize = 12_000;

/// What senders note that answer and close their connections at some moment after it, or before.
#[derive(Default)]
struct Notes {
    /// How often each request came, whole or not, by its id, which is its body too.
    seen: Mutex<HashMap<String, usize>>,
    /// How many heads came over HTTP/2.
    heads: AtomicUsize,
    closed: AtomicUsize,
    over: AtomicBool,
}

impl Notes {
    fn note(&self, id: &str) {
        *self.seen.lock().unwrap().entry(id.to_owned()).or_default() += 1;
    }

    /// From at once to a little later than the next request may come.
    fn pause(&self) -> usize {
        let number = self.closed.fetch_add(1, SeqCst);
        let pause = Duration::from_micros((number as u64 * 37) % 900);
        let begun = now();
        while begun.elapsed() < pause {
            std::hint::spin_loop();
        }
        number
    }

    fn is_enough(&self) -> bool {
        self.closed.load(SeqCst) >= CLOSED
    }

    /// Answers one request, and closes. What has come by then is read and not answered: it was seen, whole or not.
    fn serve<S>(&self, stream: &S, unblock: impl Fn(&S))
    where
        for<'a> &'a S: Read + Write,
    {
        let mut reader = BufReader::new(stream);
        let Some(headers) = read_request(&mut reader) else { return };
        self.note(headers.get("x-request-id").unwrap());
        let mut writer = stream;
        let _ = writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        self.pause();
        unblock(stream);
        let mut left = Vec::from(reader.buffer());
        let mut rest = stream;
        let _ = rest.read_to_end(&mut left);
        let text = String::from_utf8_lossy(&left).to_lowercase();
        if let Some((_, rest)) = text.split_once("x-request-id: ") {
            self.note(rest.split("\r\n").next().unwrap());
        }
    }

    /// The same over HTTP/2: it closes at once, after a farewell, or some time after one.
    fn serve_http2(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        http2::greet(&mut reader, &mut stream, &[])?;
        let mut answered = None;
        while answered.is_none() {
            let frame = http2::read(&mut reader)?;
            if !http2::acknowledge(&frame, &mut stream)? && self.take(&frame) {
                stream.write_all(&http2::answer(frame.stream, "ok"))?;
                answered = Some(frame.stream);
            }
        }
        let number = self.pause();
        if !number.is_multiple_of(3) {
            stream.write_all(&http2::goaway(answered.unwrap(), 0))?;
        }
        if number % 3 == 1 {
            // What comes after a farewell is read, and not answered.
            stream.set_read_timeout(Some(Duration::from_micros(300)))?;
        } else {
            stream.set_nonblocking(true)?;
        }
        let mut left = Vec::from(reader.buffer());
        let mut rest = stream;
        let _ = rest.read_to_end(&mut left);
        let mut left = left.as_slice();
        while left.len() > 3 {
            let kind = left[3];
            match http2::read(&mut left) {
                Ok(frame) => drop(self.take(&frame)),
                Err(_) => {
                    // It broke off in the middle of a frame.
                    self.heads.fetch_add(usize::from(kind == http2::HEADERS), SeqCst);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Notes what a frame says of a request; true at its end.
    fn take(&self, frame: &Frame) -> bool {
        if frame.kind == http2::HEADERS {
            self.heads.fetch_add(1, SeqCst);
        }
        if frame.kind == http2::DATA && !frame.payload.is_empty() {
            self.note(&String::from_utf8_lossy(&frame.payload));
        }
        frame.ends()
    }
}

/// A head and its body; nothing where the other side has ended.
fn read_request(stream: &mut impl BufRead) -> Option<Headers> {
    let mut text = String::new();
    loop {
        let before = text.len();
        if stream.read_line(&mut text).ok()? == 0 {
            return None;
        }
        if text.len() == before + 2 {
            break;
        }
    }
    let headers = Headers::parse(text.split_once("\r\n")?.1);
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    stream.read_exact(&mut vec![0; length]).ok()?;
    Some(headers)
}

/// Accepts until it is over; each connection in a thread of its own.
fn accept<S: Send + 'static>(
    notes: &Arc<Notes>,
    mut next: impl FnMut() -> io::Result<S> + Send + 'static,
    serve: impl Fn(&Notes, S) + Copy + Send + 'static,
) {
    let notes = Arc::clone(notes);
    std::thread::spawn(move || {
        while let Ok(stream) = next() {
            if notes.over.load(SeqCst) {
                return;
            }
            let notes = Arc::clone(&notes);
            std::thread::spawn(move || serve(&notes, stream));
        }
    });
}

fn quick(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends until enough connections were closed, and compares what was answered with what was seen.
fn race(notes: &Notes, upstream: &str, more: &str) {
    let stage = SHARED.stage(|setup, _| setup);
    let gateway = Setup::new(&stage.connect(), "").route(&named_route(upstream, "wx", more)).start();
    let outcomes = Mutex::new(HashMap::new());
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (gateway, outcomes, stage) = (&gateway, &outcomes, &stage);
            scope.spawn(move || {
                let holder = stage.holder();
                gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
                let mut connection = Connection::open(gateway.proxy());
                for number in (0..MOST_EACH).take_while(|_| !notes.is_enough()) {
                    let id = format!("race-{caller}-{number}");
                    let headers = holder.token.clone().with("X-Request-Id", &id);
                    connection.request("POST", &holder.path(), &headers, id.as_bytes()).unwrap();
                    let answer = connection.read();
                    let outcome = answer.header("x-fencing-outcome").unwrap_or("answered").to_owned();
                    outcomes.lock().unwrap().insert(id, (answer.status, outcome));
                }
            });
        }
    });
    notes.over.store(true, SeqCst);
    let closed = notes.closed.load(SeqCst);
    let seen = notes.seen.lock().unwrap();
    let outcomes = outcomes.lock().unwrap();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (id, (status, outcome)) in outcomes.iter() {
        let times = seen.get(id).copied().unwrap_or(0);
        assert!(times <= 1, "{id} came {times} times; it was answered {status} {outcome}");
        match outcome.as_str() {
            "answered" => assert_eq!((*status, times), (200, 1), "{id}"),
            "not_sent" => assert_eq!((*status, times), (503, 0), "{id}"),
            "unknown" => assert_eq!(*status, 502, "{id}"),
            other => panic!("{id}: {other}"),
        }
        *counts.entry(outcome).or_default() += 1;
    }
    println!("{upstream}: {closed} connections were closed: {counts:?}");
    let begun = counts.get("answered").unwrap_or(&0) + counts.get("unknown").unwrap_or(&0);
    let heads = notes.heads.load(SeqCst);
    assert!(heads <= begun, "{heads} heads came of {begun} requests");
    assert!(closed >= CLOSED, "only {closed} connections were closed: {counts:?}");
}

#[test]
fn i6_over_ten_thousand_connections_that_close_while_idle_no_request_comes_twice() {
    let notes = Arc::<Notes>::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    accept(
        &notes,
        move || quick(&listener),
        |notes, stream: TcpStream| {
            notes.serve(&stream, |stream| stream.set_nonblocking(true).unwrap());
        },
    );
    race(&notes, &url, "");
}

#[test]
fn i6_over_ten_thousand_unix_sockets_that_close_while_idle_no_request_comes_twice() {
    let notes = Arc::<Notes>::default();
    let folder = Folder::new("race");
    let path = folder.join("sender.sock");
    let listener = UnixListener::bind(&path).unwrap();
    accept(
        &notes,
        move || Ok(listener.accept()?.0),
        |notes, stream: UnixStream| {
            notes.serve(&stream, |stream| stream.set_nonblocking(true).unwrap());
        },
    );
    race(&notes, &format!("unix:{}", path.display()), "");
}

#[test]
fn i6_over_ten_thousand_connections_of_http_2_that_close_or_say_farewell_no_request_comes_twice() {
    let notes = Arc::<Notes>::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    accept(
        &notes,
        move || quick(&listener),
        |notes, stream: TcpStream| {
            let _ = notes.serve_http2(&stream);
        },
    );
    race(&notes, &url, "upstream_http = \"2\"");
}

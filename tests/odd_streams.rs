//! What a sender may write over HTTP/2: whatever it is, the caller gets exactly one honest answer, the request is begun once, the
//! next request gets its own answer, and never silence.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic in its helpers too"
)]

mod support;

use std::io::{self, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PUSH_PROMISE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, acknowledge, answer, fields, frame, goaway, greet, head, read,
};
use support::{Connection, Holder, Response, Setup, Shared, named_route};

/// Far more than `upstream_timeout`.
const SILENCE: Duration = Duration::from_secs(10);
/// Senders, each with a caller and a route of its own.
const SENDERS: usize = 8;

static SHARED: Shared = Shared::new();

/// What the caller must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The sender's own, with this body.
    Answered(&'static str),
    /// `upstream_failed` or `upstream_timeout`.
    Unknown,
    /// Either, or a connection that is aborted.
    Honest,
}
use Expected::{Answered, Honest, Unknown};

const OK: (&str, &str) = (":status", "200");

/// What may come on stream `s`, its name, and what has to become of it.
fn cases(s: u32) -> Vec<(&'static str, Vec<u8>, Expected)> {
    let data = |flags: u8, text: &str| frame(DATA, flags, s, text);
    let long = |length: &str| head(s, 0, &[OK, ("content-length", length)]);
    let reset = |code: u32| frame(RST_STREAM, 0, s, code.to_be_bytes());
    let good = || answer(s, "ab");
    let many = |piece: Vec<u8>, times: usize| piece.repeat(times);
    let setting =
        |id: u16, value: u32| frame(SETTINGS, 0, 0, [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
    let window = |stream: u32, by: u32| frame(WINDOW_UPDATE, 0, stream, by.to_be_bytes());
    let join = |parts: &[Vec<u8>]| parts.concat();
    let trailers = |all: &[(&str, &str)]| head(s, END_STREAM, all);
    vec![
        ("a good one", good(), Answered("ab")),
        ("no body", head(s, END_STREAM, &[(":status", "204")]), Answered("")),
        ("no length", join(&[head(s, 0, &[OK]), data(END_STREAM, "ab")]), Answered("ab")),
        ("many pieces", join(&[long("2"), data(0, "a"), data(0, ""), data(END_STREAM, "b")]), Answered("ab")),
        ("trailers", join(&[long("2"), data(0, "ab"), trailers(&[("x-late", "1")])]), Answered("ab")),
        (
            "trailers that forge",
            join(&[
                long("2"),
                data(0, "ab"),
                trailers(&[("x-fencing-verdict", "x"), ("content-length", "9")]),
            ]),
            Honest,
        ),
        ("trailers with a status", join(&[long("2"), data(0, "ab"), trailers(&[OK])]), Honest),
        ("hints before it", join(&[head(s, 0, &[(":status", "103")]), good()]), Answered("ab")),
        ("many hints", join(&[many(head(s, 0, &[(":status", "100")]), 1000), good()]), Answered("ab")),
        ("switching protocols", join(&[head(s, 0, &[(":status", "101")]), good()]), Honest),
        ("hints only", head(s, END_STREAM, &[(":status", "103")]), Unknown),
        ("hints for ever", head(s, 0, &[(":status", "103")]), Unknown),
        ("too short", join(&[long("3"), data(END_STREAM, "ab")]), Unknown),
        ("too long", join(&[long("1"), data(END_STREAM, "ab")]), Unknown),
        ("a length and no body", head(s, END_STREAM, &[OK, ("content-length", "2")]), Unknown),
        ("no length at all", join(&[long("+2"), data(END_STREAM, "ab")]), Unknown),
        (
            "two lengths",
            join(&[
                head(s, 0, &[OK, ("content-length", "2"), ("content-length", "3")]),
                data(END_STREAM, "ab"),
            ]),
            Unknown,
        ),
        (
            "a coding",
            join(&[head(s, 0, &[OK, ("transfer-encoding", "chunked")]), data(END_STREAM, "ab")]),
            Unknown,
        ),
        (
            "a connection",
            join(&[head(s, 0, &[OK, ("connection", "close")]), data(END_STREAM, "ab")]),
            Unknown,
        ),
        ("no status", join(&[head(s, 0, &[("x", "1")]), data(END_STREAM, "ab")]), Unknown),
        ("two statuses", join(&[head(s, 0, &[OK, OK]), data(END_STREAM, "ab")]), Unknown),
        ("a status too late", join(&[head(s, 0, &[("x", "1"), OK]), data(END_STREAM, "ab")]), Unknown),
        ("an odd status", join(&[head(s, 0, &[(":status", "2000")]), data(END_STREAM, "ab")]), Unknown),
        ("upper case", join(&[head(s, 0, &[OK, ("X-A", "1")]), data(END_STREAM, "ab")]), Unknown),
        (
            "a line's end in a value",
            join(&[head(s, 0, &[OK, ("x", "a\r\nb: c")]), data(END_STREAM, "ab")]),
            Unknown,
        ),
        (
            "a huge head",
            join(&[
                frame(HEADERS, 0, s, fields(&[OK])),
                many(frame(CONTINUATION, 0, s, fields(&[("x", "0123456789")]).repeat(1000)), 20),
            ]),
            Unknown,
        ),
        (
            "continuations without end",
            join(&[frame(HEADERS, 0, s, fields(&[OK])), many(frame(CONTINUATION, 0, s, []), 5000)]),
            Unknown,
        ),
        ("a continuation of nothing", join(&[frame(CONTINUATION, END_HEADERS, s, fields(&[OK]))]), Unknown),
        ("a head that is broken off", join(&[frame(HEADERS, 0, s, fields(&[OK])), good()]), Unknown),
        ("a head that cannot be read", frame(HEADERS, END_HEADERS | END_STREAM, s, [0xff; 9]), Unknown),
        ("data before the head", join(&[data(0, "ab"), good()]), Unknown),
        ("silence", Vec::new(), Unknown),
        ("a head and silence", long("2"), Unknown),
        ("half a body", join(&[long("2"), data(0, "a")]), Unknown),
        ("reset: no error", reset(0), Unknown),
        ("reset: refused", reset(7), Unknown),
        ("reset: cancel", reset(8), Unknown),
        ("reset: internal", reset(2), Unknown),
        ("reset: http/1.1 required", reset(13), Unknown),
        ("reset after the head", join(&[long("2"), reset(0)]), Unknown),
        ("refused after the head", join(&[long("2"), reset(7)]), Unknown),
        ("reset in the body", join(&[long("2"), data(0, "a"), reset(8)]), Unknown),
        ("reset in a body without length", join(&[head(s, 0, &[OK]), data(0, "a"), reset(0)]), Unknown),
        ("cancelled in a body without length", join(&[head(s, 0, &[OK]), data(0, "a"), reset(8)]), Unknown),
        ("reset after the end", join(&[good(), reset(0)]), Answered("ab")),
        ("farewell and an answer", join(&[goaway(s, 0), good()]), Answered("ab")),
        ("a soft farewell", join(&[goaway(u32::MAX >> 1, 0), good()]), Answered("ab")),
        ("a storm of farewells", join(&[many(goaway(s, 0), 1000), good()]), Answered("ab")),
        ("a farewell that knows nothing of it", goaway(0, 0), Unknown),
        ("the same and an answer", join(&[goaway(0, 0), good()]), Unknown),
        ("farewells that rise", join(&[goaway(s, 0), goaway(s + 2, 0), good()]), Honest),
        ("an angry farewell", join(&[goaway(s, 11), good()]), Honest),
        ("a flood of settings", join(&[many(setting(4, 70_000), 5000), good()]), Answered("ab")),
        ("a flood of pings", join(&[many(frame(PING, 0, 0, [0; 8]), 5000), good()]), Answered("ab")),
        (
            "answers to pings that nobody sent",
            join(&[many(frame(PING, ACK, 0, [0; 8]), 100), good()]),
            Honest,
        ),
        (
            "settings that nobody sent acknowledged",
            join(&[many(frame(SETTINGS, ACK, 0, []), 9), good()]),
            Honest,
        ),
        ("no streams from now on", join(&[setting(3, 0), good()]), Answered("ab")),
        ("a window too large", join(&[setting(4, u32::MAX), good()]), Unknown),
        ("frames too small", join(&[setting(5, 1), good()]), Unknown),
        ("windows that overflow", join(&[many(window(0, (1 << 31) - 1), 2), good()]), Unknown),
        ("a stream's window that overflows", join(&[many(window(s, (1 << 31) - 1), 2), good()]), Honest),
        ("windows of nothing", join(&[window(0, 0), good()]), Unknown),
        (
            "a push",
            join(&[
                frame(
                    PUSH_PROMISE,
                    END_HEADERS,
                    s,
                    [&[0, 0, 0, 2][..], &fields(&[(":method", "GET")])].concat(),
                ),
                good(),
            ]),
            Unknown,
        ),
        ("frames that nobody knows", join(&[many(frame(0x42, 0xff, s, "odd"), 100), good()]), Answered("ab")),
        ("data on no stream", join(&[frame(DATA, 0, 0, "ab"), good()]), Unknown),
        ("an answer to another stream", join(&[answer(s + 2, "xx"), good()]), Unknown),
        ("an answer to an even stream", join(&[answer(2, "xx"), good()]), Honest),
        ("two answers", join(&[good(), answer(s, "xx")]), Answered("ab")),
        ("a frame too large", frame(DATA, 0, s, vec![0; 20_000]), Unknown),
        ("HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab".to_vec(), Unknown),
        ("a frame that breaks off", frame(GOAWAY, 0, 0, [0; 8])[..12].to_vec(), Unknown),
    ]
}

/// What is written for the next request: odd bytes by the stream's number, and whether it closes behind them.
type Odd = Box<dyn Fn(u32) -> Vec<u8> + Send>;

#[derive(Default)]
struct Script {
    odd: Mutex<Option<(Odd, bool)>>,
    own: Mutex<String>,
    /// Requests that began.
    heads: AtomicUsize,
}

impl Script {
    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        greet(&mut reader, &mut stream, &[])?;
        loop {
            let next = read(&mut reader)?;
            if acknowledge(&next, &mut stream)? {
                continue;
            }
            if next.kind == HEADERS {
                self.heads.fetch_add(1, SeqCst);
            }
            if !next.ends() {
                continue;
            }
            let odd = self.odd.lock().unwrap().take();
            match odd {
                Some((odd, closes)) => {
                    stream.write_all(&odd(next.stream))?;
                    if closes {
                        return Ok(());
                    }
                }
                None => {
                    let own = self.own.lock().unwrap().clone();
                    stream.write_all(&answer(next.stream, &own))?;
                }
            }
        }
    }
}

fn sender() -> (String, Arc<Script>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script = Arc::<Script>::default();
    let own = Arc::clone(&script);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let script = Arc::clone(&own);
            std::thread::spawn(move || drop(script.serve(&stream)));
        }
    });
    (url, script)
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.usize(..bytes.len().min(80));
    match rng.u8(..4) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes.truncate(at.max(1)),
        2 => bytes.insert(at, [0, 1, 4, 5, 8, 9, 0x7f, 0xff][rng.usize(..8)]),
        _ => drop(bytes.remove(at)),
    }
}

/// One final answer: whole, in one framing, and either the sender's or an honest failure.
fn assert_honest(what: &str, answer: &Response, begun: usize) {
    let framings = answer.headers.all("content-length").len() + answer.headers.all("transfer-encoding").len();
    assert!(framings <= 1, "{what}: {:?}", answer.headers);
    let verdict = answer.headers.all("x-fencing-verdict");
    match verdict.as_slice() {
        ["admitted"] => assert!(!answer.headers.has("x-fencing-outcome"), "{what}"),
        ["upstream_failed" | "upstream_timeout"] => {
            assert!([502, 504].contains(&answer.status), "{what}: {}", answer.status);
            assert_eq!(answer.header("x-fencing-outcome"), Some("unknown"), "{what}");
        }
        ["upstream_unreachable"] => {
            assert_eq!((answer.status, begun), (503, 0), "{what}: not_sent, and the sender saw it");
        }
        other => panic!("{what}: {other:?} with {}", answer.status),
    }
}

fn ask(caller: &mut Connection, holder: &Holder, route: usize, what: &str) -> Option<Response> {
    caller.request("POST", &format!("/odd{route}/{}/x", holder.account), &holder.token, b"x").unwrap();
    let read = caller.read_within(SILENCE);
    if let Err(error) = &read {
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{what}: silence");
    }
    read.ok()
}

#[test]
fn whatever_a_sender_writes_over_http_2_its_caller_gets_one_honest_answer_and_the_next_one_its_own() {
    const CHANGED: usize = 600;
    let seed = std::env::var("FENCEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("FENCEGATE_SEED={seed}");
    let stage = SHARED.stage(|setup, _| setup);
    let senders: Vec<_> = (0..SENDERS).map(|_| sender()).collect();
    let mut setup = Setup::new(&stage.connect(), "");
    for (number, (url, _)) in senders.iter().enumerate() {
        let more = "upstream_http = \"2\"\nupstream_timeout = \"300ms\"";
        setup = setup.route(&named_route(url, &format!("odd{number}"), more));
    }
    let gateway = setup.start();
    let count = cases(1).len();
    let (next, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (route, (_, script)) in senders.iter().enumerate() {
            let (stage, gateway, next, failures) = (&stage, &gateway, &next, &failures);
            scope.spawn(move || {
                let holder = stage.holder();
                gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
                loop {
                    let number = next.fetch_add(1, SeqCst);
                    let (number, closes) = (number / 2, number % 2 == 0);
                    if number >= count + CHANGED {
                        return;
                    }
                    let own_seed = seed ^ number as u64;
                    let is_changed = number >= count;
                    let which = if is_changed { Rng::with_seed(own_seed).usize(..count) } else { number };
                    let odd = move |stream: u32| {
                        let mut bytes = cases(stream).swap_remove(which).1;
                        if is_changed {
                            let mut rng = Rng::with_seed(own_seed);
                            (0..=rng.usize(..2)).for_each(|_| change(&mut rng, &mut bytes));
                        }
                        bytes
                    };
                    let (name, _, expected) = cases(1).swap_remove(which);
                    let what = format!("FENCEGATE_SEED={seed}, case {number}, {name}, closes: {closes}");
                    *script.odd.lock().unwrap() = Some((Box::new(odd), closes));
                    let before = script.heads.load(SeqCst);
                    let mut caller = Connection::open(gateway.proxy());
                    let answer = ask(&mut caller, &holder, route, &what);
                    let begun = script.heads.load(SeqCst) - before;
                    assert!(begun <= 1, "{what}: begun {begun} times");
                    if let Some(answer) = &answer {
                        assert_honest(&what, answer, begun);
                        failures.fetch_add(usize::from(answer.status >= 502), SeqCst);
                    }
                    // Closed behind it, what comes of it may be less.
                    if !is_changed && begun == 1 && !closes {
                        let got = answer.as_ref().map(|answer| (answer.status, answer.text()));
                        match (expected, got) {
                            (Answered(body), Some((200 | 204, text))) => assert_eq!(text, body, "{what}"),
                            (Unknown, Some((502 | 504, _))) | (Honest, _) => {}
                            (expected, got) => panic!("{what}: {expected:?}, and it got {got:?}"),
                        }
                    }
                    // Only where the request did not come.
                    script.odd.lock().unwrap().take();
                    let own = format!("own-{number}");
                    script.own.lock().unwrap().clone_from(&own);
                    let mut caller = Connection::open(gateway.proxy());
                    // It may meet a connection that is ending: an honest failure, and asked again.
                    for attempt in 0.. {
                        let before = script.heads.load(SeqCst);
                        let answer = ask(&mut caller, &holder, route, &what).expect("an answer");
                        let begun = script.heads.load(SeqCst) - before;
                        assert!(begun <= 1, "{what}: begun {begun} times");
                        if answer.status == 200 {
                            assert_eq!(answer.text(), own, "{what}: its own answer");
                            break;
                        }
                        assert_honest(&what, &answer, begun);
                        assert!(attempt < 20, "{what}: no second answer");
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    println!("{failures} of {} answers were no answers", 2 * (count + CHANGED));
    assert!(failures > 200, "otherwise nothing was tried: {failures}");
}

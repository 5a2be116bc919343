//! What becomes of the sender's answers, good ones and broken ones, and of senders that cannot be reached.
//!
//! Whatever goes wrong, a request is started at most once, and a broken answer never looks like a whole one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use support::{
    Answer, Connection, Ending, Gateway, Headers, Holder, PATIENCE, Response, Setup, Shared, Stage,
    assert_admitted, assert_refused, free_port, loopback, named_route, wait_until,
};

static SHARED: Shared = Shared::new();

/// A listener whose queue is full and never emptied: connections to it are neither accepted nor refused.
static SWALLOWING: LazyLock<(SocketAddr, Vec<Socket>)> = LazyLock::new(|| {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut kept = vec![listener];
    for _ in 0..4 {
        let caller = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        caller.set_nonblocking(true).unwrap();
        let _ = caller.connect(&address.into());
        kept.push(caller);
    }
    (address, kept)
});

/// A sender that answers as soon as a head is there and never reads a body.
static HASTY: LazyLock<(SocketAddr, Arc<AtomicUsize>)> = LazyLock::new(|| {
    let listener = TcpListener::bind(loopback(0)).unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = connections.clone();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::SeqCst);
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.extend(byte);
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhasty");
            kept.push(stream);
        }
    });
    (address, connections)
});

fn routes(setup: Setup, url: &str) -> Setup {
    setup
        .route(&named_route(url, "wx", ""))
        .route(&named_route(url, "small", "answer_buffer = \"1KiB\""))
        .route(&named_route(url, "brief", "upstream_timeout = \"700ms\""))
        .route(&named_route(url, "smallbrief", "answer_buffer = \"1KiB\"\nupstream_timeout = \"700ms\""))
        .route(&named_route(&format!("http://{}", loopback(free_port())), "refused", ""))
        .route(&named_route(&format!("http://{}", SWALLOWING.0), "swallowed", "connect_timeout = \"300ms\""))
        .route(&named_route(&format!("http://{}", HASTY.0), "hasty", "buffer = \"32MiB\""))
}

fn stage() -> Arc<Stage> {
    SHARED.stage(routes)
}

/// A gateway whose connections to the sender no other test uses.
#[track_caller]
fn alone(stage: &Stage) -> Gateway {
    routes(Setup::new(&stage.connect(), &stage.sender.url()), &stage.sender.url()).start()
}

fn path(holder: &Holder, route: &str) -> String {
    format!("/{route}/{}/send", holder.account)
}

fn ask(holder: &Holder, route: &str) -> Response {
    holder.call("POST", &path(holder, route), &Headers::none(), "x")
}

/// The same on an open connection: its worker uses the connections to the sender that it has.
#[track_caller]
fn ask_on(connection: &mut Connection, holder: &Holder, route: &str) -> Response {
    connection.request("POST", &path(holder, route), &holder.token, b"x").unwrap();
    connection.read()
}

/// A failure after bytes may have been written.
#[track_caller]
fn assert_unknown(holder: &Holder, what: &str, response: &Response, status: u16, code: &str) {
    assert_eq!((response.status, response.code().as_deref()), (status, Some(code)), "{what}");
    assert_eq!(response.header("x-fencing-verdict"), Some(code), "{what}");
    assert_eq!(response.header("x-fencing-outcome"), Some("unknown"), "{what}");
    assert!(!response.headers.has("retry-after"), "{what}");
    let problem = response.json();
    assert_eq!(problem["account"], holder.account, "{what}: {problem}");
    assert_eq!(problem["presented"]["seq"], holder.stage.bot.seq(&holder.account), "{what}: {problem}");
    assert_eq!(problem["request_id"].as_str(), response.header("x-request-id"), "{what}");
}

#[test]
fn a_broken_answer_is_a_502_and_its_request_is_never_sent_again() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let raw = |text: String| Answer::raw(text).ending(Ending::CloseSilently);
    let cases = [
        ("hangs up", Answer::hang_up()),
        ("resets", Answer::reset()),
        ("breaks off in the body", Answer::ok().cut_at(4)),
        ("breaks off before the body", Answer::ok().cut_at(0)),
        ("breaks off in the head", raw("HTTP/1.1 200 OK\r\nContent-Le".to_owned())),
        ("breaks off in a chunk", raw(format!("{chunked}5\r\nab"))),
        ("leaves out the last chunk", raw(format!("{chunked}2\r\nab\r\n"))),
        ("leaves out the end of the last chunk", raw(format!("{chunked}2\r\nab\r\n0\r\n"))),
        ("sends no chunk size", raw(format!("{chunked}zz\r\nab\r\n0\r\n\r\n"))),
        ("sends a chunk that is too long", raw(format!("{chunked}1\r\nab\r\n0\r\n\r\n"))),
        (
            "names two lengths",
            raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_owned()),
        ),
        ("names a list of lengths", raw("HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab".to_owned())),
        ("names no length", raw("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nab".to_owned())),
        ("speaks no HTTP", raw("hello\r\n\r\n".to_owned())),
        ("speaks another HTTP", raw("HTTP/3.0 200 OK\r\n\r\n".to_owned())),
        (
            "switches protocols",
            raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned()),
        ),
        ("ends after 100", raw("HTTP/1.1 100 Continue\r\n\r\n".to_owned())),
    ];
    for (what, answer) in cases {
        let holder = stage().holder();
        let mut caller = holder.connect();
        // Once on a connection that was used before, and once more.
        for round in 1..=2 {
            holder.answers(|_| Answer::ok());
            assert_admitted(&ask_on(&mut caller, &holder, "wx"));
            let answer = answer.clone();
            holder.answers(move |_| answer.clone());
            let before = holder.seen().len();
            assert_unknown(&holder, what, &ask_on(&mut caller, &holder, "wx"), 502, "upstream_failed");
            holder.wait_until_idle();
            assert_eq!(holder.seen().len(), before + 1, "{what}, round {round}: started once");
        }
    }
}

#[test]
fn answers_before_the_answer_are_swallowed() {
    let holder = stage().holder();
    holder.answers(|_| {
        Answer::raw(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
        )
    });
    let mut connection = holder.connect();
    for _ in 0..2 {
        connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
        let answer = connection.read();
        assert_admitted(&answer);
        assert_eq!((answer.text().as_str(), answer.header("link")), ("ab", None));
    }
}

#[test]
fn a_second_answer_to_one_request_answers_no_other_request() {
    let stage = stage();
    let gateway = alone(&stage);
    let first = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst";
    let second = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    for (what, pause) in [("at once", None), ("a little later", Some(Duration::from_millis(5)))] {
        let holder = stage.holder();
        let mut caller = Connection::open(gateway.proxy());
        for _ in 0..20 {
            let twice = Answer::raw(format!("{first}{second}"));
            let twice = match pause {
                Some(pause) => twice.dripping(first.len(), pause),
                None => twice,
            };
            holder.answers(move |_| twice.clone());
            assert_eq!(ask_on(&mut caller, &holder, "wx").text(), "first", "{what}");
            let connection = holder.seen().last().unwrap().connection;
            wait_until("the gateway closes", || !holder.stage.sender.is_open(connection));
            holder.answers(|_| Answer::ok().body("own"));
            assert_eq!(ask_on(&mut caller, &holder, "wx").text(), "own", "{what}");
            assert_ne!(holder.seen().last().unwrap().connection, connection, "{what}: used again");
        }
    }
}

#[test]
fn an_answer_with_both_framings_reaches_the_caller_with_one() {
    let stage = stage();
    let gateway = alone(&stage);
    for lines in
        ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 3"]
    {
        let holder = stage.holder();
        holder.answers(move |_| {
            Answer::raw(format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"))
        });
        let mut connection = Connection::open(gateway.proxy());
        for _ in 0..2 {
            let answer = ask_on(&mut connection, &holder, "wx");
            if answer.status == 200 {
                assert_eq!(
                    (answer.text().as_str(), answer.headers.all("content-length")),
                    ("abcde", vec!["5"])
                );
                assert!(!answer.headers.has("transfer-encoding"));
            } else {
                assert_unknown(&holder, lines, &answer, 502, "upstream_failed");
            }
        }
        let seen = holder.seen();
        assert_ne!(seen[0].connection, seen[1].connection, "such a connection is not used again");
    }
}

#[test]
fn an_early_answer_is_passed_on_and_the_rest_of_the_body_withheld() {
    let size = 24 << 20;
    let holder = stage().holder();
    holder.answers_early(|_| Answer::status(413).body("enough"));
    let mut connection = holder.connect();
    let length = format!("Host: h\nContent-Length: {size}");
    connection.write(holder.head(&holder.path(), &length)).unwrap();
    connection.write(vec![b'x'; 2 << 20]).unwrap();
    let answer = connection.read();
    assert_eq!((answer.status, answer.text().as_str()), (413, "enough"));
    assert_eq!(answer.header("x-fencing-verdict"), Some("admitted"));
    let request = holder.wait_for_ended(1).remove(0);
    wait_until("the sender sees the end", || holder.seen()[0].truncated);
    let request = (holder.seen().remove(0), request.connection);
    assert!(!request.0.whole && request.0.body.len() < size);
    holder.wait_until_idle();
    assert_admitted(&ask(&stage().holder(), "wx"));
}

#[test]
fn a_connection_whose_request_was_not_read_is_not_used_again() {
    let holder = stage().holder();
    let before = HASTY.1.load(Ordering::SeqCst);
    let mut caller = holder.connect();
    for round in 1..=3 {
        let body = vec![b'x'; 24 << 20];
        caller.request("POST", &path(&holder, "hasty"), &holder.token, &body).unwrap();
        let answer = caller.read();
        assert_admitted(&answer);
        assert_eq!(answer.text(), "hasty");
        assert_eq!(HASTY.1.load(Ordering::SeqCst), before + round);
    }
    holder.wait_until_idle();
}

#[test]
fn a_sender_that_drips_or_hangs_is_given_up_in_time() {
    let drip = Answer::ok().body("x".repeat(100)).dripping(1, Duration::from_millis(200));
    let slow_body = Answer::ok().body("x".repeat(5000)).dripping(1000, Duration::from_millis(200));
    let hang = Answer::ok().after(PATIENCE);
    for (what, answer) in [("drips the head", drip), ("drips the body", slow_body), ("hangs", hang)] {
        let holder = stage().holder();
        holder.answers(move |_| answer.clone());
        assert_unknown(&holder, what, &ask(&holder, "brief"), 504, "upstream_timeout");
        holder.wait_until_idle();
        let seen = holder.wait_for_ended(1);
        assert!(seen.len() == 1 && seen[0].aborted, "{what}: the sender sees the end");
    }
}

#[test]
fn a_sender_that_cannot_be_reached_is_a_503_that_may_be_tried_again() {
    let holder = stage().holder();
    for route in ["refused", "swallowed"] {
        for _ in 0..2 {
            let answer = ask(&holder, route);
            let problem = assert_refused(&holder, route, &answer, 503, "upstream_unreachable");
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(problem["account"], holder.account);
        }
    }
    holder.wait_until_idle();
}

#[test]
fn an_answer_beyond_the_buffer_arrives_whole() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    let until_close = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &body].concat();
    let old = [b"HTTP/1.0 200 OK\r\n\r\n".as_slice(), &body].concat();
    let cases = [
        ("by length", Answer::ok().body(&body)),
        ("chunked", Answer::ok().body(&body).chunked()),
        ("until the end", Answer::raw(until_close).ending(Ending::CloseSilently)),
        ("in HTTP/1.0", Answer::raw(old).ending(Ending::CloseSilently)),
        ("in pieces", Answer::ok().body(&body).dripping(500_000, Duration::from_millis(20))),
    ];
    for (what, answer) in cases {
        let holder = stage().holder();
        holder.answers(move |_| answer.clone());
        for route in ["wx", "small"] {
            let mut connection = holder.connect();
            connection.request("POST", &path(&holder, route), &holder.token, b"x").unwrap();
            let answer = connection.read();
            assert_admitted(&answer);
            assert!(answer.body == body, "{what} over {route}: {} bytes", answer.body.len());
            // The caller's connection goes on.
            connection.request("GET", "/nowhere", &Headers::none(), b"").unwrap();
            assert_eq!(connection.read().status, 404, "{what}");
        }
        holder.wait_until_idle();
    }
}

#[test]
fn a_long_answer_keeps_its_length() {
    let holder = stage().holder();
    holder.answers(|_| Answer::ok().body("x".repeat(100_000)));
    let answer = ask(&holder, "small");
    assert_eq!((answer.header("content-length"), answer.body.len()), (Some("100000"), 100_000));
}

#[test]
fn an_answer_that_breaks_after_its_head_was_passed_on_never_looks_whole() {
    let stage = stage();
    let long = "x".repeat(2_000_000);
    let until_reset =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}", 2_000_001);
    let cases = [
        ("by length", "small", Answer::ok().body(&long).cut_at(1_500_000)),
        ("chunked", "small", Answer::raw(&until_reset).ending(Ending::CloseSilently)),
        ("too slow", "smallbrief", Answer::ok().body(&long).dripping(200_000, Duration::from_millis(200))),
        (
            "chunked and too slow",
            "smallbrief",
            Answer::ok().chunked().body(&long).dripping(200_000, Duration::from_millis(200)),
        ),
    ];
    for (what, route, answer) in cases {
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let holder = stage.holder();
            let answer = answer.clone();
            holder.answers(move |_| answer.clone());
            let mut connection = holder.connect();
            let head = holder.head(&path(&holder, route), "Host: h\nContent-Length: 1");
            connection.write(head.replacen("HTTP/1.1", version, 1) + "x").unwrap();
            let got = connection.read_within(PATIENCE);
            assert!(got.is_err(), "{what} in {version}: looked whole with {} bytes", got.unwrap().body.len());
            holder.wait_until_idle();
        }
    }
    let metrics = stage.gateway.metrics();
    assert!(metrics.sum("fencegate_sends_total", &[("result", "upstream_failed")]) >= 4.0);
    assert!(metrics.sum("fencegate_sends_total", &[("result", "upstream_timeout")]) >= 4.0);
}

/// A connection whose receive buffer is as small as it can be, after a request on it.
fn lazy_caller(holder: &Holder, route: &str) -> Connection {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&holder.stage.gateway.proxy().into()).unwrap();
    let mut connection = Connection::from(std::net::TcpStream::from(socket));
    connection.request("POST", &path(holder, route), &holder.token, b"x").unwrap();
    connection
}

#[test]
fn a_slow_caller_holds_no_permit_of_an_answer_that_is_in() {
    let holder = stage().holder();
    holder.answers(|_| Answer::ok().body("x".repeat(1_000_000)));
    let mut callers: Vec<_> = (0..4).map(|_| lazy_caller(&holder, "wx")).collect();
    holder.wait_for_ended(4);
    holder.wait_until_idle();
    for caller in &mut callers {
        let answer = caller.read();
        assert_eq!((answer.status, answer.body.len()), (200, 1_000_000));
    }
}

#[test]
fn a_caller_that_takes_nothing_holds_a_long_answer_until_the_timeout_only() {
    let holder = stage().holder();
    holder.answers(|_| Answer::ok().body("x".repeat(30_000_000)));
    let mut caller = lazy_caller(&holder, "smallbrief");
    wait_until("the request is at the sender", || !holder.seen().is_empty());
    holder.wait_until_idle();
    assert!(caller.read_within(PATIENCE).is_err(), "what is missing is visible");
}

#[test]
fn events_are_passed_on_as_they_come() {
    let holder = stage().holder();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    let first = format!("{head}9\r\ndata: 1\n\n\r\n");
    let (size, text) = (first.len(), format!("{first}9\r\ndata: 2\n\n\r\n0\r\n\r\n"));
    let answer = Answer::raw(text).dripping(size, Duration::from_secs(2));
    holder.answers(move |_| answer.clone());
    let mut connection = holder.connect();
    connection.request("GET", &holder.path(), &holder.token, b"").unwrap();
    let early = connection.read_until(b"data: 1\n\n", PATIENCE);
    assert!(early.starts_with("HTTP/1.1 200"), "{early}");
    assert!(holder.seen()[0].ended.is_none(), "the first event came before the last");
    assert!(connection.read_until(b"0\r\n\r\n", PATIENCE).contains("data: 2\n\n"));
    holder.wait_until_idle();
}

#[test]
fn an_answers_head_loses_what_ends_at_this_hop_and_what_is_the_fences() {
    let holder = stage().holder();
    holder.answers(|_| {
        Answer::status(299)
            .header("X-Fencing-Verdict", "forged")
            .header("X-Fencing-Outcome", "not_sent")
            .header("X_Fencing_Anything", "forged")
            .header("Connection", "close, X-Private")
            .header("X-Private", "1")
            .header("Keep-Alive", "timeout=5")
            .header("Proxy-Connection", "close")
            .header("Upgrade", "h2c")
            .header("Trailer", "X-Late")
            .header("X-Request-Id", "theirs")
            .header("Set-Cookie", "a=1")
            .header("Set-Cookie", "b=2")
            .header("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
            .header("Server", "theirs")
            .header("Content-Encoding", "gzip")
            .header("X-Odd", "\u{e4} words")
            .chunked()
            .body("not gzip")
    });
    let answer = holder.call("POST", &holder.path(), &Headers::none().with("X-Request-Id", "mine"), "x");
    assert_eq!((answer.status, answer.text().as_str()), (299, "not gzip"));
    assert_eq!(answer.headers.all("x-fencing-verdict"), ["admitted"]);
    assert_eq!(answer.headers.all("x-request-id"), ["mine"]);
    assert_eq!(answer.headers.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(answer.headers.all("date"), ["Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert_eq!((answer.header("server"), answer.header("content-encoding")), (Some("theirs"), Some("gzip")));
    assert_eq!(answer.header("x-odd"), Some("\u{c3}\u{a4} words"));
    for gone in [
        "x-fencing-outcome",
        "x_fencing_anything",
        "x-private",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "trailer",
    ] {
        assert!(!answer.headers.has(gone), "{gone}");
    }
}

#[test]
fn trailers_of_an_answer_are_dropped() {
    let holder = stage().holder();
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nX-Late: 1\r\nX-Fencing-Verdict: x\r\n\r\n";
    holder.answers(move |_| Answer::raw(text));
    let gateway = alone(&holder.stage);
    let mut connection = Connection::open(gateway.proxy());
    for route in ["wx", "wx", "small", "small"] {
        let answer = ask_on(&mut connection, &holder, route);
        assert_eq!((answer.text().as_str(), answer.trailers.names().len()), ("ab", 0));
    }
    let seen = holder.seen();
    let used: Vec<_> = seen.iter().map(|request| request.connection).collect();
    assert!(used[0] == used[1] && used[2] == used[3], "such a connection is used again: {used:?}");
}

#[test]
fn answers_without_a_body_have_none_and_the_connection_goes_on() {
    let holder = stage().holder();
    holder.answers(|request| match request.method.as_str() {
        "HEAD" => Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nETag: \"a\"\r\n\r\n"),
        "PUT" => Answer::raw("HTTP/1.1 204 No Content\r\nETag: \"a\"\r\n\r\n"),
        "GET" => Answer::raw("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 12345\r\n\r\n"),
        "DELETE" => Answer::raw("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 0\r\n\r\n"),
        _ => Answer::ok(),
    });
    let gateway = alone(&holder.stage);
    let mut connection = Connection::open(gateway.proxy());
    for (method, status, length) in
        [("HEAD", 200, Some("12345")), ("PUT", 204, None), ("GET", 304, None), ("DELETE", 200, Some("0"))]
    {
        connection.request(method, &holder.path(), &holder.token, b"").unwrap();
        let answer = match method {
            "HEAD" => connection.read_to_head_within(PATIENCE).unwrap(),
            _ => connection.read(),
        };
        assert_eq!((answer.status, answer.header("etag")), (status, Some("\"a\"")), "{method}");
        assert_eq!(answer.header("content-length"), length, "{method}");
        assert!(!answer.headers.has("transfer-encoding"), "{method}");
    }
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&connection.read());
    let seen = holder.seen();
    assert!(seen.iter().all(|request| request.connection == seen[0].connection), "one connection is enough");
}

#[test]
fn old_answers_and_answers_until_the_end_are_whole_and_their_connections_not_used_again() {
    for text in [
        "HTTP/1.0 200 OK\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\n\r\nabc",
        "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        let holder = stage().holder();
        holder.answers(move |_| Answer::raw(text).ending(Ending::CloseSilently));
        for _ in 0..3 {
            let answer = ask(&holder, "wx");
            assert_admitted(&answer);
            assert_eq!(
                (answer.text().as_str(), answer.header("content-length")),
                ("abc", Some("3")),
                "{text}"
            );
        }
        assert_eq!(holder.seen().len(), 3);
    }
}

#[test]
fn connections_that_the_sender_closes_at_random_start_each_request_once_and_lose_no_answer() {
    const CALLERS: usize = 8;
    const EACH: usize = 250;
    let stage = stage();
    let holders: Vec<_> = (0..CALLERS).map(|_| stage.holder()).collect();
    let number = Arc::<AtomicUsize>::default();
    for holder in &holders {
        let number = number.clone();
        holder.answers(move |_| {
            // Scattered, and the same in every run.
            let random = number.fetch_add(1, Ordering::SeqCst).wrapping_mul(2_654_435_761) >> 7;
            Answer::ok().ending(if random % 3 == 0 { Ending::CloseSilently } else { Ending::KeepAlive })
        });
    }
    let outcomes = Mutex::new(HashMap::new());
    std::thread::scope(|scope| {
        for (caller, holder) in holders.iter().enumerate() {
            let outcomes = &outcomes;
            scope.spawn(move || {
                let mut connection = holder.connect();
                for request in 0..EACH {
                    let id = format!("race-{caller}-{request}");
                    let headers = holder.token.clone().with("X-Request-Id", &id);
                    connection.request("POST", &holder.path(), &headers, b"x").unwrap();
                    let answer = connection.read();
                    outcomes.lock().unwrap().insert(id, (answer.status, answer.code()));
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes.len(), CALLERS * EACH);
    let mut starts: HashMap<String, (usize, bool)> = HashMap::new();
    for request in stage.sender.requests() {
        let Some(id) = request.header("x-request-id").filter(|id| id.starts_with("race-")) else { continue };
        let start = starts.entry(id.to_owned()).or_default();
        start.0 += 1;
        start.1 |= request.whole && !request.aborted;
    }
    let mut broken = 0;
    for (id, (status, code)) in &outcomes {
        let (count, answered) = starts.get(id).copied().unwrap_or_default();
        assert!(count <= 1, "{id} was started {count} times");
        match *status {
            200 => assert!(answered, "{id}: an answer that nobody gave"),
            502 => {
                assert_eq!(code.as_deref(), Some("upstream_failed"));
                assert!(!answered, "{id}: the sender answered, and the answer was lost");
                broken += 1;
            }
            other => panic!("{id}: {other} {code:?}"),
        }
    }
    assert!(broken < CALLERS * EACH / 20, "{broken} requests met a closing connection");
}

#[test]
fn connections_to_a_sender_that_keeps_them_are_used_again() {
    const CALLERS: usize = 8;
    let stage = stage();
    let gateway = alone(&stage);
    let proxy = gateway.proxy();
    let holders: Vec<_> = (0..CALLERS).map(|_| stage.holder()).collect();
    std::thread::scope(|scope| {
        for holder in &holders {
            scope.spawn(move || {
                let mut caller = Connection::open(proxy);
                for size in [0, 1, 10, 10_000, 1_000_000].into_iter().cycle().take(100) {
                    let body = vec![b'x'; size];
                    caller.request("POST", &holder.path(), &holder.token, &body).unwrap();
                    assert_admitted(&caller.read());
                }
            });
        }
    });
    let used: HashSet<_> = holders.iter().flat_map(Holder::seen).map(|request| request.connection).collect();
    // Each caller's requests follow each other, and each worker has connections of its own.
    assert!(used.len() <= CALLERS, "{} connections", used.len());
}

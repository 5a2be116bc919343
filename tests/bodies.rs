//! Bodies of requests: how much is read before the verdict, what is too large or too slow, and what a sender sees of one
//! that breaks off.
//!
//! A sender never takes a part of a body for the whole.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::sync::Arc;

use support::{
    Answer, Connection, Headers, Holder, Latch, PATIENCE, Recorded, Setup, Shared, Stage, assert_admitted,
    assert_refused, named_route, only, wait_for, wait_until,
};

static SHARED: Shared = Shared::new();

const BUFFER: usize = 1024;
const MOST: usize = 64 * 1024;

fn routes(setup: Setup, url: &str) -> Setup {
    setup
        .section("limits", "body_read_timeout = \"1500ms\"\nmax_buffered = \"32MiB\"")
        .route(&named_route(url, "wx", ""))
        .route(&named_route(url, "tiny", "buffer = \"1KiB\"\nmax_body = \"64KiB\""))
        .route(&named_route(url, "small", "max_body = \"64KiB\""))
        .route(&named_route(url, "large", "buffer = \"16MiB\""))
}

fn stage() -> Arc<Stage> {
    SHARED.stage(routes)
}

fn path(holder: &Holder, route: &str) -> String {
    format!("/{route}/{}/send", holder.account)
}

/// Bytes of which no part is like another.
fn bytes(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// A chunked body in pieces of this size, with its end.
fn chunked(body: &[u8], piece: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    for piece in body.chunks(piece) {
        wire.extend(format!("{:x}\r\n", piece.len()).as_bytes());
        wire.extend(piece);
        wire.extend(b"\r\n");
    }
    wire.extend(b"0\r\n\r\n");
    wire
}

const CHUNKED: &str = "Host: h\nTransfer-Encoding: chunked";

fn length(size: usize) -> String {
    format!("Host: h\nContent-Length: {size}")
}

/// A request whose head is written and whose body has begun.
#[track_caller]
fn begin(holder: &Holder, route: &str, lines: &str, body: impl AsRef<[u8]>) -> Connection {
    let mut connection = holder.connect();
    connection.write(holder.head(&path(holder, route), lines)).unwrap();
    connection.write(body).unwrap();
    connection
}

/// The one request of the account, of which the sender saw only a part, and knows it.
#[track_caller]
fn broken(holder: &Holder, size: usize) -> Recorded {
    let request =
        wait_for("the sender sees it break off", || holder.seen().into_iter().find(|r| r.truncated));
    assert!(!request.whole && request.body.len() < size, "{} of {size} bytes", request.body.len());
    holder.wait_until_idle();
    assert_eq!(holder.seen().len(), 1);
    request
}

fn being_read(stage: &Stage) -> f64 {
    stage.gateway.metrics().sum("fencegate_requests_being_read", &[])
}

#[test]
fn a_body_around_the_buffers_size_arrives_whole_with_a_framing_of_its_own() {
    for size in [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER, MOST] {
        let body = bytes(size);
        for chunks in [false, true] {
            let holder = stage().holder();
            let mut connection = if chunks {
                begin(&holder, "tiny", CHUNKED, chunked(&body, 700))
            } else {
                begin(&holder, "tiny", &length(size), &body)
            };
            assert_admitted(&connection.read());
            let request = only(&holder);
            assert!(request.body == body, "{size} bytes, {} came", request.body.len());
            let framings = (request.headers.all("content-length"), request.headers.has("transfer-encoding"));
            let size = size.to_string();
            let by_length = (vec![size.as_str()], false);
            assert!(framings == by_length || (chunks && framings == (vec![], true)), "{framings:?}");
            if request.body.len() <= BUFFER {
                assert_eq!(framings, by_length, "all of it was in");
            }
        }
    }
}

#[test]
fn five_megabytes_arrive_byte_for_byte() {
    let body = bytes(5_000_000);
    for route in ["wx", "large"] {
        for piece in [None, Some(1), Some(65_537), Some(5_000_000)] {
            // One byte a chunk is slow in the test itself.
            let body = if piece == Some(1) { &body[..50_000] } else { &body[..] };
            let holder = stage().holder();
            let mut connection = match piece {
                Some(piece) => begin(&holder, route, CHUNKED, chunked(body, piece)),
                None => begin(&holder, route, &length(body.len()), body),
            };
            assert_admitted(&connection.read());
            assert!(only(&holder).body == body, "{route} {piece:?}");
        }
    }
}

#[test]
fn a_body_at_the_limit_passes_and_one_byte_more_is_too_large() {
    for (route, chunks) in [("tiny", false), ("small", false), ("small", true)] {
        let holder = stage().holder();
        let body = bytes(MOST + 1);
        let wire = if chunks { chunked(&body, 999) } else { body.clone() };
        let lines = if chunks { CHUNKED.to_owned() } else { length(body.len()) };
        let mut connection = begin(&holder, route, &lines, wire);
        let problem = assert_refused(&holder, route, &connection.read(), 413, "body_too_large");
        assert_eq!(problem["account"], holder.account);
        // What was not read of the body is no request.
        connection.request("POST", &path(&holder, route), &holder.token, &body[..MOST]).unwrap();
        assert_admitted(&connection.read());
        assert_eq!(only(&holder).body.len(), MOST);
    }
}

#[test]
fn an_announced_length_above_the_limit_is_refused_before_any_of_it_comes() {
    let holder = stage().holder();
    let mut connection = begin(&holder, "small", &length(MOST + 1), "");
    assert_refused(&holder, "announced", &connection.read(), 413, "body_too_large");
}

#[test]
fn a_body_that_turns_out_too_large_while_it_is_sent_aborts_the_send() {
    let holder = stage().holder();
    let body = bytes(MOST + 1);
    let mut connection = begin(&holder, "tiny", CHUNKED, chunked(&body, 1000));
    let answer = connection.read();
    assert_eq!((answer.status, answer.code().as_deref()), (502, Some("upstream_failed")));
    assert_eq!(answer.header("x-fencing-outcome"), Some("unknown"));
    assert_eq!(answer.json()["account"], holder.account);
    broken(&holder, body.len());
}

#[test]
fn a_slow_body_reaches_no_sender_and_holds_no_permit() {
    for (lines, part) in [(length(10), "abc"), (length(10), ""), (CHUNKED.to_owned(), "3\r\nabc\r\n")] {
        let holder = stage().holder();
        let mut connection = begin(&holder, "wx", &lines, part);
        wait_until("it is being read", || being_read(&holder.stage) >= 1.0);
        let shown = wait_for("the account", || holder.stage.gateway.account(&holder.account));
        assert_eq!((&shown["in_flight"], &shown["parked"]), (&0.into(), &0.into()));
        let problem = assert_refused(&holder, &lines, &connection.read(), 408, "body_timeout");
        assert_eq!(problem["account"], holder.account);
    }
}

#[test]
fn a_body_that_pauses_while_it_is_sent_aborts_the_send() {
    for (lines, part) in [(length(10 * BUFFER), bytes(2 * BUFFER)), (CHUNKED.to_owned(), b"800\r\n".to_vec())]
    {
        let holder = stage().holder();
        let mut connection = begin(&holder, "tiny", &lines, part);
        if lines == CHUNKED {
            connection.write(bytes(2 * BUFFER)).unwrap();
        }
        let answer = connection.read();
        assert_eq!((answer.status, answer.code().as_deref()), (502, Some("upstream_failed")));
        broken(&holder, 10 * BUFFER);
    }
}

#[test]
fn a_request_is_judged_when_its_body_is_in_and_not_earlier() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    let mut connection = begin(&holder, "wx", &length(4), "ab");
    wait_until("it is being read", || being_read(&holder.stage) >= 1.0);
    bot.delete_candidate(&holder.account);
    bot.drop_active(&holder.account);
    bot.lead(&holder.account);
    connection.write("cd").unwrap();
    assert_refused(&holder, "superseded meanwhile", &connection.read(), 409, "stale_token");
}

#[test]
fn whoever_leaves_while_its_body_is_buffered_leaves_nothing_behind() {
    let stage = stage();
    let ends: [fn(Connection); 3] = [Connection::reset, drop, |connection| {
        connection.half_close();
        let mut connection = connection;
        assert!(connection.closes_within(PATIENCE));
    }];
    for end in ends {
        for (lines, part) in
            [(length(10), "abc"), (CHUNKED.to_owned(), "3\r\nabc\r\n"), (CHUNKED.to_owned(), "3\r\na")]
        {
            let holder = stage.holder();
            let withdrawn =
                || stage.gateway.metrics().sum("fencegate_requests_total", &[("verdict", "withdrawn")]);
            let before = withdrawn();
            let connection = begin(&holder, "wx", &lines, part);
            wait_until("it is being read", || being_read(&stage) >= 1.0);
            end(connection);
            wait_until("it is withdrawn", || withdrawn() > before);
            holder.wait_until_idle();
            assert!(holder.seen().is_empty());
        }
    }
}

#[test]
fn whoever_leaves_while_its_body_is_sent_leaves_a_visibly_broken_request() {
    let ends: [fn(Connection); 2] = [Connection::reset, drop];
    for end in ends {
        for (lines, part) in [
            (length(10 * BUFFER), bytes(3 * BUFFER)),
            (CHUNKED.to_owned(), [b"1000\r\n".to_vec(), bytes(4096), b"\r\n".to_vec()].concat()),
            (CHUNKED.to_owned(), [b"2000\r\n".to_vec(), bytes(4096)].concat()),
            (CHUNKED.to_owned(), [b"1000\r\n".to_vec(), bytes(4096), b"\r\n0\r\n".to_vec()].concat()),
        ] {
            let holder = stage().holder();
            let connection = begin(&holder, "tiny", &lines, part);
            wait_until("the sender has its beginning", || !holder.seen().is_empty());
            end(connection);
            broken(&holder, 10 * BUFFER);
        }
    }
}

#[test]
fn a_refusal_can_be_read_by_a_caller_that_sends_all_of_its_body_first() {
    let holder = stage().holder();
    for size in [2_000_000, 6_000_000] {
        let body = bytes(size);
        for (route, expect, status) in [
            ("wx", "", 409),
            ("nowhere", "", 404),
            ("small", "", 413),
            ("wx", "\nExpect: 100-continue", 409),
            ("small", "\nExpect: 100-continue", 413),
            ("wx", "\nExpect: something", 417),
        ] {
            // What is not announced is refused by the view before its size is known.
            for chunks in [false, true].into_iter().filter(|chunks| !(status == 413 && *chunks)) {
                let lines = if chunks { CHUNKED.to_owned() } else { length(size) } + expect;
                let wire = if chunks { chunked(&body, 100_000) } else { body.clone() };
                let head = holder.head(&path(&holder, route), &lines);
                let head = head.replacen("X-Fencing-Seq: ", "X-Fencing-Seq: 7", 1);
                let mut connection = holder.connect();
                connection.write(head).unwrap();
                let what = format!("{route}{expect} with {size} bytes, chunked: {chunks}");
                connection.write(wire).unwrap_or_else(|error| panic!("{what}: {error}"));
                let answer = connection.read_within(PATIENCE);
                let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(answer.header("connection"), (!expect.is_empty()).then_some("close"), "{what}");
                assert_eq!(answer.status, status, "{what}");
                assert_eq!(answer.header("x-fencing-outcome"), Some("not_sent"), "{what}");
            }
        }
    }
    assert!(holder.seen().is_empty());
}

#[test]
fn bodies_beyond_what_may_be_kept_are_refused_and_the_room_comes_back() {
    let holder = stage().holder();
    let body = bytes(10 << 20);
    for _ in 0..2 {
        let answer = holder.call("POST", &path(&holder, "large"), &Headers::none(), &body);
        let problem = assert_refused(&holder, "over the share", &answer, 503, "overloaded");
        assert_eq!(
            (answer.header("retry-after"), &problem["account"]),
            (Some("1"), &holder.account.as_str().into())
        );
    }
    // Kept until the exchange has ended: two that fit one by one do not fit together.
    let latch = Latch::new();
    let held = latch.clone();
    holder.answers(move |_| Answer::ok().held(&held));
    let half = &body[..5 << 20];
    let mut first = begin(&holder, "large", &length(half.len()), half);
    wait_until("the first is at the sender", || holder.seen().iter().any(|request| request.whole));
    let second = holder.call("POST", &path(&holder, "large"), &Headers::none(), half);
    assert_eq!((second.status, second.code().as_deref()), (503, Some("overloaded")));
    // Another account has a share of its own.
    let other = stage().holder();
    assert_admitted(&other.call("POST", &path(&other, "wx"), &Headers::none(), "x"));
    latch.release();
    assert_admitted(&first.read());
    holder.wait_until_idle();
    assert_admitted(&holder.call("POST", &path(&holder, "large"), &Headers::none(), half));
    wait_until("nothing is kept", || {
        holder.stage.gateway.metrics().sum("fencegate_buffered_bytes", &[]) == 0.0
            || being_read(&holder.stage) > 0.0
    });
}

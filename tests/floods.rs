//! Floods: whatever one connection pours in costs the gateway a bounded share of memory, ends in time, and leaves others
//! served.
//!
//! HTTP/2 frames are written by hand here: no library would write them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use support::{
    Connection, Gateway, Holder, PATIENCE, Relay, Setup, Shared, Stage, assert_admitted, named_route, now,
    wait_until,
};

static SHARED: Shared = Shared::new();

/// What a flood may make the gateway larger by.
const ROOM_MB: f64 = 48.0;

fn stage() -> Arc<Stage> {
    SHARED.stage(|setup, url| {
        setup
            .section(
                "limits",
                "header_read_timeout = \"700ms\"\nidle_timeout = \"1500ms\"\nbody_read_timeout = \"1500ms\"",
            )
            .route(&named_route(url, "wx", ""))
    })
}

fn resident_mb(gateway: &Gateway) -> f64 {
    gateway.metrics().sum("process_resident_memory_bytes", &[]) / 1024.0 / 1024.0
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A head as HPACK literals that are never indexed.
fn head(holder: &Holder, more: &[(&str, &str)]) -> Vec<u8> {
    let path = holder.path();
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", &path), (":authority", "h")];
    let token: Vec<_> = holder.token.iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
    let token = token.iter().map(|(name, value)| (name.as_str(), *value));
    let mut block = Vec::new();
    for (name, value) in pseudo.into_iter().chain(token).chain(more.iter().copied()) {
        block.push(0x10);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

/// A connection that speaks HTTP/2 by hand.
fn open(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // What was written is then what the gateway has read, and little more.
    socket2::SockRef::from(&stream).set_send_buffer_size(64 * 1024).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    stream
}

/// Reads what comes, as long as the connection is open; the last GOAWAY's reason.
fn read_to_end(mut stream: TcpStream) -> Option<u32> {
    let mut reason = None;
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            return reason;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            return reason;
        }
        if head[3] == GOAWAY {
            reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
}

struct Flood {
    /// Why the gateway said that it ends the connection.
    reason: Option<u32>,
    written: usize,
}

/// Writes pieces until the gateway ends the connection, while a healthy client is served and the gateway stays small.
#[track_caller]
fn pour(what: &str, mut piece: impl FnMut(u32) -> Vec<u8>) -> Flood {
    let stage = stage();
    let healthy = stage.holder();
    assert_admitted(&healthy.send("before"));
    let before = resident_mb(&stage.gateway);
    let mut stream = open(stage.gateway.proxy());
    let reading = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || read_to_end(reading));
    let begun = now();
    let (mut written, mut number) = (0, 0);
    let mut next = Duration::ZERO;
    loop {
        let bytes = piece(number);
        number += 1;
        match stream.write_all(&bytes) {
            Ok(()) => written += bytes.len(),
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "{what}: it is neither read nor ended");
                break;
            }
        }
        if begun.elapsed() > next {
            next += Duration::from_millis(200);
            assert!(begun.elapsed() < PATIENCE, "{what}: it may go on for ever, after {written} bytes");
            assert_admitted(&healthy.send("during"));
            let grown = resident_mb(&stage.gateway) - before;
            assert!(grown < ROOM_MB, "{what}: {grown} MB more");
        }
    }
    drop(stream);
    let reason = reading.join().unwrap();
    assert_admitted(&healthy.send("after"));
    let grown = resident_mb(&stage.gateway) - before;
    assert!(grown < ROOM_MB, "{what}: {grown} MB more");
    Flood { reason, written }
}

const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn streams_that_are_reset_as_soon_as_they_begin_end_their_connection() {
    let holder = stage().holder();
    let block = head(&holder, &[]);
    let flood = pour("rapid reset", |number| {
        let mut pieces = Vec::new();
        for stream in number * 200..(number + 1) * 200 {
            let id = 2 * stream + 1;
            pieces.extend(frame(HEADERS, END_HEADERS, id, &block));
            pieces.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
        }
        pieces
    });
    assert_eq!(flood.reason, Some(ENHANCE_YOUR_CALM), "after {} bytes", flood.written);
    assert!(holder.seen().is_empty(), "none of them was whole");
    holder.wait_until_idle();
}

#[test]
fn a_head_that_never_ends_ends_its_connection() {
    let holder = stage().holder();
    let block = head(&holder, &[]);
    let flood = pour("CONTINUATION", |number| match number {
        0 => frame(HEADERS, 0, 1, &block),
        _ => frame(CONTINUATION, 0, 1, &head(&holder, &[("x-more", &"x".repeat(100))])[..]).repeat(50),
    });
    assert!(flood.written < 4_000_000, "{} bytes were read", flood.written);
    let flood = pour("empty CONTINUATION", |number| match number {
        0 => frame(HEADERS, 0, 1, &block),
        _ => frame(CONTINUATION, 0, 1, &[]).repeat(100),
    });
    assert!(flood.written < 4_000_000, "{} bytes were read", flood.written);
    assert!(holder.seen().is_empty());
}

#[test]
fn a_small_head_that_stands_for_a_large_one_is_refused() {
    let holder = stage().holder();
    let large = "x".repeat(3900);
    // Added to the table once, referred to as often as fits.
    let mut block = vec![0x40, 6];
    block.extend(b"x-bomb");
    block.extend([0x7f, 0xbd, 0x1d]);
    block.extend(large.bytes());
    let begin = [head(&holder, &[]), block].concat();
    let flood = pour("HPACK", |number| {
        let id = 2 * number + 1;
        let references = [if number == 0 { begin.clone() } else { head(&holder, &[]) }, vec![0xbe; 10_000]];
        frame(HEADERS, END_HEADERS | END_STREAM, id, &references.concat())
    });
    assert!(flood.written < 20_000_000, "{} bytes were read", flood.written);
    assert!(holder.seen().is_empty());
}

#[test]
fn frames_that_ask_for_nothing_keep_no_connection_open() {
    let overflow = 0x7fff_ffff_u32.to_be_bytes();
    for (what, piece) in [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7])),
        ("unknown frames", frame(0xfa, 0, 0, &[7; 100])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("a window that overflows", frame(WINDOW_UPDATE, 0, 0, &overflow)),
        ("a window that stays", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("DATA of no stream", frame(DATA, 0, 1, &[])),
    ] {
        pour(what, |_| piece.repeat(20));
    }
}

#[test]
fn a_body_of_empty_frames_is_a_slow_body() {
    let holder = stage().holder();
    let block = head(&holder, &[]);
    pour("empty DATA", |number| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &block),
        _ => frame(DATA, 0, 1, &[]).repeat(100),
    });
    assert!(holder.seen().is_empty());
    holder.wait_until_idle();
}

#[test]
fn pings_whose_answers_nobody_reads_do_not_pile_up() {
    let stage = stage();
    let healthy = stage.holder();
    let before = resident_mb(&stage.gateway);
    let mut stream = open(stage.gateway.proxy());
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(1000);
    // Until nothing more is taken: the gateway reads no further than it can answer.
    let begun = now();
    while stream.write_all(&pings).is_ok() && begun.elapsed() < PATIENCE {}
    assert!(begun.elapsed() < PATIENCE, "it is read for ever");
    assert!(resident_mb(&stage.gateway) - before < ROOM_MB);
    assert_admitted(&healthy.send("x"));
}

#[test]
fn bodies_in_many_small_pieces_take_as_much_as_they_are_counted() {
    let stage = stage();
    let holder = stage.holder();
    let gateway = Gateway::start(&stage.connect(), &stage.sender.url());
    let before = resident_mb(&gateway);
    let piece = "1\r\nx\r\n".repeat(50_000);
    let head = holder.head(&holder.path(), "Host: h\nTransfer-Encoding: chunked");
    let mut connections: Vec<_> = (0..8).map(|_| Connection::open(gateway.proxy())).collect();
    for connection in &mut connections {
        connection.write(&head).unwrap();
    }
    for round in 1..=4 {
        for connection in &mut connections {
            connection.write(&piece).unwrap();
        }
        // What is small is not counted.
        let counted = || gateway.metrics().sum("fencegate_buffered_bytes", &[]);
        wait_until("all is read", || counted() >= f64::from(round) * 400_000.0 - 40_000.0);
    }
    let grown = resident_mb(&gateway) - before;
    assert!(grown < ROOM_MB, "{grown} MB for 2 MB of bodies");
}

#[test]
fn out_of_descriptors_it_waits_keeps_its_session_and_serves_again() {
    let stage = stage();
    let gateway = Gateway::start(&stage.connect(), &stage.sender.url());
    let holder = stage.holder();
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let session = || support::get_json(gateway.admin(), "/v1/view")["session"].clone();
    let before = session();
    let mut kept = Connection::open(gateway.proxy());
    kept.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&kept.read());
    let pid = Pid::from_raw(i32::try_from(gateway.pid()).unwrap()).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count() as u64;
    let limits = prlimit(
        Some(pid),
        Resource::Nofile,
        Rlimit { current: Some(open + 8), ..getrlimit(Resource::Nofile) },
    );
    let limits = limits.unwrap();
    let crowd: Vec<_> = (0..40).map(|_| Connection::open(gateway.proxy())).collect();
    gateway.wait_for_line("cannot accept connections: ");
    let begun = now();
    while begun.elapsed() < Duration::from_secs(1) {
        kept.request("POST", &holder.path(), &holder.token, b"x").unwrap();
        assert_admitted(&kept.read());
    }
    let complaints = gateway.log().matches("cannot accept connections: ").count();
    assert!(complaints < 100, "{complaints} complaints: it does not wait between them");
    drop(crowd);
    prlimit(Some(pid), Resource::Nofile, limits).unwrap();
    wait_until("it serves new connections", || {
        let mut fresh = Connection::open(gateway.proxy());
        fresh.request("POST", &holder.path(), &holder.token, b"x").is_ok()
            && fresh.read_within(PATIENCE).is_ok_and(|answer| answer.status == 200)
    });
    assert_eq!(session(), before, "the session did not end");
}

#[test]
fn callers_never_take_the_descriptor_that_the_elections_need() {
    let stage = stage();
    let port = stage.connect().rsplit(':').next().unwrap().parse().unwrap();
    let relay = Relay::to(port);
    let gateway = Setup::new(&relay.connect(), &stage.sender.url()).descriptors(120).start();
    let line =
        gateway.wait_for_line("120 file descriptors are allowed: max_connections = 40 instead of 10000");
    assert!(line.contains("WARN"), "{line}");
    let holder = stage.holder();
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let session = || support::get_json(gateway.admin(), "/v1/view")["session"].clone();
    let before = session();
    let crowd: Vec<_> = (0..80).map(|_| Connection::open(gateway.proxy())).collect();
    let errors = |kind| gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", kind)]);
    wait_until("40 are too many", || errors("too_many") >= 40.0);
    relay.cut_once();
    wait_until("there is a new session", || gateway.is_ready() && session() != before);
    assert_eq!(errors("accept"), 0.0);
    drop(crowd);
    wait_until("it serves", || gateway.send(&holder.account, &holder.token, "x").status == 200);
}

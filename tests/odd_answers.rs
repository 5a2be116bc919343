//! Answers that two programs could read differently: whatever a sender writes, the caller gets exactly one honest answer, the
//! next request gets its own, and never silence.
//!
//! Which answer it is does not matter here; `answers.rs` says that where it is known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic in its helpers too"
)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use support::{Answer, Connection, Ending, Holder, Response, Shared, named_route};

/// Far more than `upstream_timeout`.
const SILENCE: Duration = Duration::from_secs(10);

static SHARED: Shared = Shared::new();

/// Answers that somebody reads otherwise than others. `|` stands for a line's end.
const ANSWERS: [&str; 46] = [
    "HTTP/1.1 200 OK|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Content-Length: 2|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|Content-Length: 2|Content-Length: 3||abc",
    "HTTP/1.1 200 OK|Content-Length: 2, 2||ab",
    "HTTP/1.1 200 OK|Content-Length: +2||ab",
    "HTTP/1.1 200 OK|Content-Length: -2||ab",
    "HTTP/1.1 200 OK|Content-Length: 0x2||ab",
    "HTTP/1.1 200 OK|Content-Length: 2 2||ab",
    "HTTP/1.1 200 OK|Content-Length:||ab",
    "HTTP/1.1 200 OK|Content-Length : 2||ab",
    "HTTP/1.1 200 OK|Content-Length: 18446744073709551617||a",
    "HTTP/1.1 200 OK|Content-Length: 20|Transfer-Encoding: chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked|Content-Length: 1||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: gzip, chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked, gzip||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked|Transfer-Encoding: chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: xchunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: identity|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|Transfer-Encoding : chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer_Encoding: chunked|Content-Length: 2||ab",
    "HTTP/1.0 200 OK|Transfer-Encoding: chunked||2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2 |ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2;x=\"|\"|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||+2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||0x2|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2\nab\n0\n\n",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||fffffffffffffffff|ab|0||",
    "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2|ab|0|Content-Length: 9|X-Fencing-Verdict: x||",
    "HTTP/1.1 204 No Content|Content-Length: 2||ab",
    "HTTP/1.1 204 No Content|Transfer-Encoding: chunked||2|ab|0||",
    "HTTP/1.1 304 Not Modified|Content-Length: 2||ab",
    "HTTP/1.1 100 Continue|Content-Length: 2||abHTTP/1.1 200 OK|Content-Length: 2||ab",
    "HTTP/1.1 103 Early Hints||HTTP/1.1 200 OK|Content-Length: 2||ab",
    "HTTP/1.1 101 Switching Protocols|Upgrade: x|Connection: upgrade||HTTP/1.1 200 OK|Content-Length: 2||ab",
    "HTTP/1.1 199 Odd||HTTP/1.1 200 OK|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|Content-Length: 2||abHTTP/1.1 200 OK|Content-Length: 6||forged",
    "HTTP/1.1 200 OK|Content-Length: 0||HTTP/1.1 200 OK|Content-Length: 6||forged",
    "HTTP/1.1 200 OK|Content-Length: 2||ab||",
    "HTTP/1.1 200 OK|X: a| b|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|X: a\rContent-Length: 9|Content-Length: 2||ab",
    "HTTP/1.1 200 OK|X: a\0b|Content-Length: 2||ab",
    "HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
    "HTTP/1.1 2000 OK|Content-Length: 2||ab",
    "HTTP/1.1 999 Odd|Content-Length: 2||ab",
    "||HTTP/1.1 200 OK|Content-Length: 2||ab",
];

fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.usize(..bytes.len());
    match rng.u8(..4) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes.truncate(at.max(1)),
        2 => bytes.insert(at, [b'\r', b'\n', 0, b' ', b'0', b':', b'9', b','][rng.usize(..8)]),
        _ => drop(bytes.remove(at)),
    }
}

/// One final answer: whole, in one framing, and either the sender's or an honest failure.
fn assert_honest(what: &str, answer: &Response) {
    let framings = answer.headers.all("content-length").len() + answer.headers.all("transfer-encoding").len();
    assert!(framings <= 1, "{what}: {:?}", answer.headers);
    let verdict = answer.headers.all("x-fencing-verdict");
    match verdict.as_slice() {
        ["admitted"] => assert!(!answer.headers.has("x-fencing-outcome"), "{what}"),
        ["upstream_failed" | "upstream_timeout"] => {
            assert!([502, 504].contains(&answer.status), "{what}: {}", answer.status);
            assert_eq!(answer.header("x-fencing-outcome"), Some("unknown"), "{what}");
        }
        other => panic!("{what}: {other:?} with {}", answer.status),
    }
}

/// Asks once and reads what comes: the answer, or none where the connection was aborted in the middle of it.
fn ask(caller: &mut Connection, holder: &Holder, what: &str) -> Option<Response> {
    caller.request("POST", &format!("/brief/{}/x", holder.account), &holder.token, b"x").unwrap();
    let read = caller.read_within(SILENCE);
    if let Err(error) = &read {
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{what}: silence");
    }
    read.ok()
}

#[test]
fn whatever_a_sender_writes_its_caller_gets_one_honest_answer_and_the_next_one_its_own() {
    const CHANGED: usize = 400;
    let seed = std::env::var("FENCEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("FENCEGATE_SEED={seed}");
    let stage =
        SHARED.stage(|setup, url| setup.route(&named_route(url, "brief", "upstream_timeout = \"300ms\"")));
    let mut rng = Rng::with_seed(seed);
    let mut cases: Vec<Vec<u8>> = ANSWERS.iter().map(|text| text.replace('|', "\r\n").into_bytes()).collect();
    while cases.len() < ANSWERS.len() + CHANGED {
        let mut case = cases[rng.usize(..ANSWERS.len())].clone();
        (0..=rng.usize(..2)).for_each(|_| change(&mut rng, &mut case));
        cases.push(case);
    }
    let (next, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let holder = stage.holder();
                loop {
                    let number = next.fetch_add(1, SeqCst);
                    let Some(case) = cases.get(number / 2) else { return };
                    // Once the sender closes behind it, once it stays.
                    let ending = if number % 2 == 0 { Ending::CloseSilently } else { Ending::KeepAlive };
                    let what = format!("FENCEGATE_SEED={seed}, {ending:?}: {}", case.escape_ascii());
                    let odd = Answer::raw(case.clone()).ending(ending);
                    holder.answers(move |_| odd.clone());
                    let mut caller = holder.connect();
                    let before = holder.seen().len();
                    let answer = ask(&mut caller, &holder, &what);
                    // None where it met a connection that was closing.
                    assert!(holder.seen().len() <= before + 1, "{what}: started twice");
                    let closes = match &answer {
                        Some(answer) => {
                            assert_honest(&what, answer);
                            failures.fetch_add(usize::from(answer.status >= 502), SeqCst);
                            answer.header("connection") == Some("close")
                        }
                        None => true,
                    };
                    let own = format!("own-{number}");
                    let plain = Answer::ok().body(own.clone());
                    holder.answers(move |_| plain.clone());
                    if closes {
                        caller = holder.connect();
                    }
                    // It may meet a connection that another case's sender is closing: an honest failure, and asked again.
                    for attempt in 0.. {
                        let answer = ask(&mut caller, &holder, &what).expect("an answer");
                        if answer.status == 200 {
                            assert_eq!(answer.text(), own, "{what}: its own answer");
                            break;
                        }
                        assert_honest(&what, &answer);
                        assert!(attempt < 20, "{what}: no second answer");
                    }
                    caller.stream().set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                    assert!(!matches!(caller.stream().peek(&mut [0]), Ok(1)), "{what}: a third answer");
                }
            });
        }
    });
    let failures = failures.into_inner();
    println!("{failures} of {} answers were no answers", 2 * cases.len());
    assert!(failures > 200, "otherwise nothing was tried: {failures}");
}

//! HTTP/2 in clear text: the same rules as over HTTP/1.1, and what only streams can do.
//!
//! The caller is the h2 crate, frame by frame where that matters.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use rustix::process::Signal;
use serde_json::Value;
use support::{
    Answer, Ending, Gateway, Holder, Latch, PATIENCE, Relay, Setup, Shared, Stage, eventually, named_route,
    route, stays,
};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

static SHARED: Shared = Shared::new();

fn stage() -> Arc<Stage> {
    SHARED.stage(|setup, url| {
        setup
            .section(
                "limits",
                "header_read_timeout = \"700ms\"\nidle_timeout = \"1500ms\"\nbody_read_timeout = \"1500ms\"",
            )
            .route(&named_route(url, "wx", ""))
            .route(&named_route(url, "tiny", "buffer = \"1KiB\"\nmax_body = \"64KiB\""))
            .route(&named_route(url, "small", "answer_buffer = \"1KiB\""))
            .route(&route(url, "/header/{*rest}", "\"header:x-device-id\"", ""))
    })
}

/// One connection.
struct Http2 {
    sender: SendRequest<Bytes>,
    authority: String,
    driving: JoinHandle<Result<(), h2::Error>>,
}

/// One answer.
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    #[track_caller]
    fn problem(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    fn assert_refused(&self, what: &str, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.header("x-fencing-verdict")), (status, Some(code)), "{what}");
        assert_eq!(self.header("x-fencing-outcome"), Some("not_sent"), "{what}");
        let problem = self.problem();
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()), "{what}");
        for gone in ["connection", "transfer-encoding"] {
            assert!(!self.headers.contains_key(gone), "{what}: {gone}");
        }
    }
}

impl Http2 {
    async fn open(address: SocketAddr) -> Self {
        Self::open_with(address, &mut h2::client::Builder::new()).await
    }

    async fn open_with(address: SocketAddr, builder: &mut h2::client::Builder) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        Self { sender, authority: address.to_string(), driving: tokio::spawn(connection) }
    }

    async fn begin(
        &self,
        request: Request<()>,
        end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        self.sender.clone().ready().await?.send_request(request, end)
    }

    async fn ask(&self, request: Request<()>, body: impl Into<Bytes>) -> Result<Reply, h2::Error> {
        let body = body.into();
        let (answer, mut stream) = self.begin(request, body.is_empty()).await?;
        // What is refused may be reset before all of it is sent.
        let _ = if body.is_empty() { Ok(()) } else { send(&mut stream, body).await };
        finish(answer).await
    }

    fn post(&self, holder: &Holder, route: &str) -> http::request::Builder {
        let uri = format!("http://{}/{route}/{}/send", self.authority, holder.account);
        let request = Request::builder().method(Method::POST).uri(uri);
        holder.token.iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    async fn send(&self, holder: &Holder) -> Reply {
        self.ask(self.post(holder, "wx").body(()).unwrap(), "x").await.unwrap()
    }
}

async fn finish(answer: ResponseFuture) -> Result<Reply, h2::Error> {
    let patient = async {
        let (head, mut rest) = answer.await?.into_parts();
        let mut body = Vec::new();
        while let Some(data) = next(&mut rest).await? {
            body.extend(data);
        }
        Ok(Reply { status: head.status, headers: head.headers, body })
    };
    tokio::time::timeout(PATIENCE, patient).await.unwrap()
}

async fn next(stream: &mut RecvStream) -> Result<Option<Bytes>, h2::Error> {
    let Some(data) = stream.data().await.transpose()? else { return Ok(None) };
    stream.flow_control().release_capacity(data.len())?;
    Ok(Some(data))
}

/// Sends a body as its windows allow, and its end.
async fn send(stream: &mut SendStream<Bytes>, body: Bytes) -> Result<(), h2::Error> {
    send_part(stream, body).await?;
    stream.send_data(Bytes::new(), true)
}

async fn send_part(stream: &mut SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(room) = room.transpose()? else { return Err(Reason::STREAM_CLOSED.into()) };
        stream.send_data(body.split_to(room.min(body.len())), false)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_judged_and_forwarded_like_any_other() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    let request = caller
        .post(&holder, "wx")
        .header("x-fencing-instance", "host-a")
        .header("x-fencing-account", "forged")
        .header("x_fencing_seq", "999")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-request-id", "mine")
        .header("te", "trailers")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("accept", "a")
        .header("accept", "b")
        .header("x-odd", " outer ")
        .body(());
    let (answer, mut stream) = caller.begin(request.unwrap(), false).await.unwrap();
    send_part(&mut stream, Bytes::from_static(b"\x00body\xff")).await.unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-late", HeaderValue::from_static("1"));
    stream.send_trailers(trailers).unwrap();
    let reply = finish(answer).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("x-fencing-verdict")), (200, Some("admitted")));
    assert_eq!(
        (reply.header("x-request-id"), reply.body.as_slice()),
        (Some("mine"), &br#"{"sent":true}"#[..])
    );
    let seen = holder.seen();
    let request = &seen[0];
    assert_eq!(
        (seen.len(), request.body.as_slice(), request.trailers.names().len()),
        (1, &b"\x00body\xff"[..], 0)
    );
    let is = |name: &str| request.headers.all(name).join(" | ");
    assert_eq!(is("host"), holder.stage.sender.address().to_string());
    assert_eq!(is("x-forwarded-host"), caller.authority);
    assert_eq!(is("x-forwarded-for"), "127.0.0.1");
    assert_eq!(is("via"), "2 fencegate");
    assert_eq!(is("x-fencing-account"), holder.account);
    assert_eq!(is("x-fencing-seq"), holder.stage.bot.seq(&holder.account).to_string());
    assert_eq!(is("accept"), "a | b");
    assert_eq!(is("cookie"), "a=1; b=2", "one field outside of HTTP/2");
    assert_eq!(is("x-odd"), "outer", "as HTTP/1.1 reads it");
    assert_eq!(is("content-length"), "6");
    for gone in ["te", "x-late", "x_fencing_seq", "transfer-encoding", "connection"] {
        assert!(!request.headers.has(gone), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_read_as_strictly_as_over_http_1() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    let account = &holder.account;
    let url = |path: &str| format!("http://{}{path}", caller.authority);
    let plain = || caller.post(&holder, "wx");
    let other = format!("http://other:80/wx/{account}/send");
    let cases: Vec<(&str, http::request::Builder, u16, &str)> = vec![
        ("another host", plain().header("host", "other"), 400, "malformed_request"),
        (
            "two hosts",
            plain().header("host", &caller.authority).header("host", &caller.authority),
            400,
            "malformed_request",
        ),
        (
            "a host with spaces",
            plain().header("host", format!(" {}", caller.authority)),
            400,
            "malformed_request",
        ),
        (
            "a user",
            plain().uri(format!("http://user@{}/wx/{account}/send", caller.authority)),
            400,
            "malformed_request",
        ),
        (
            "another scheme",
            plain().uri(format!("ftp://{}/wx/{account}/send", caller.authority)),
            400,
            "malformed_request",
        ),
        ("another authority with a host", plain().uri(&other).header("host", "h"), 400, "malformed_request"),
        ("an empty segment", plain().uri(url(&format!("/wx/{account}//send"))), 400, "malformed_path"),
        ("dots", plain().uri(url(&format!("/wx/{account}/../send"))), 400, "malformed_path"),
        ("an encoded slash", plain().uri(url(&format!("/wx/{account}/a%2Fb"))), 400, "malformed_path"),
        ("no route", plain().uri(url("/nowhere")), 404, "no_route"),
        ("a seq twice", plain().header("x-fencing-seq", "0"), 400, "malformed_token"),
        ("an epoch with spaces", plain().header("x-fencing-epoch", " 1"), 400, "malformed_token"),
        ("an instance with spaces", plain().header("x-fencing-instance", "host-a "), 400, "malformed_token"),
        ("an epoch that is none", plain().header("x-fencing-epoch", "x"), 400, "malformed_token"),
        ("another instance", plain().header("x-fencing-instance", "host-b"), 409, "instance_mismatch"),
        ("an expectation with spaces", plain().header("expect", " 100-continue"), 417, "expectation_failed"),
        ("another expectation", plain().header("expect", "200-ok"), 417, "expectation_failed"),
        ("a trace", plain().method("TRACE"), 405, "method_not_allowed"),
        (
            "an account with spaces",
            plain().uri(url("/header/x")).header("x-device-id", format!(" {account}")),
            400,
            "malformed_account",
        ),
        (
            "an account twice",
            plain().uri(url("/header/x")).header("x-device-id", account).header("x-device-id", account),
            400,
            "malformed_account",
        ),
        (
            "an account in another spelling",
            plain().uri(url("/header/x")).header("x-device-id", account).header("x_device_id", "b"),
            400,
            "malformed_account",
        ),
        (
            "a large body",
            caller.post(&holder, "tiny").header("content-length", "65537"),
            413,
            "body_too_large",
        ),
    ];
    for (what, request, status, code) in cases {
        let body = if what == "a large body" { "x".repeat(65_537) } else { String::new() };
        let reply = caller
            .ask(request.body(()).unwrap(), body)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        reply.assert_refused(what, status, code);
    }
    for spaces in [" 0", "0 ", "0\t"] {
        let uri = url(&format!("/wx/{account}/send"));
        let session = holder.token.get("x-fencing-session").unwrap();
        let request = Request::post(uri).header("x-fencing-seq", spaces).header("x-fencing-session", session);
        caller.ask(request.body(()).unwrap(), "x").await.unwrap().assert_refused(
            spaces,
            400,
            "malformed_token",
        );
    }
    assert!(holder.seen().is_empty());
    // The own authority as host is right, and the connection has served all of this.
    let reply = caller.ask(plain().header("host", &caller.authority).body(()).unwrap(), "x").await.unwrap();
    assert_eq!(reply.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_is_refused_and_its_extended_form_not_offered() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    assert_eq!(caller.send(&holder).await.status, StatusCode::OK);
    assert!(!caller.sender.is_extended_connect_protocol_enabled());
    let connect = Request::builder().method(Method::CONNECT).uri("h:80").body(()).unwrap();
    let (answer, _stream) = caller.begin(connect, false).await.unwrap();
    finish(answer).await.unwrap().assert_refused("connect", 405, "method_not_allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_head_is_refused_and_the_connection_goes_on() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    for size in [65 * 1024, 300 * 1024] {
        let request = caller.post(&holder, "wx").header("x-long", "x".repeat(size)).body(()).unwrap();
        // The library may refuse it by a reset or an answer of its own.
        if let Ok(reply) = caller.ask(request, "").await {
            assert_eq!(reply.status.as_u16(), 431, "{size}");
        }
    }
    assert!(holder.seen().is_empty());
    let next = Http2::open(holder.stage.gateway.proxy()).await;
    assert_eq!(next.send(&holder).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_are_judged_one_by_one() {
    let stage = stage();
    let holders: Vec<_> = (0..6).map(|_| stage.holder()).collect();
    let caller = Http2::open(stage.gateway.proxy()).await;
    // From the first answer on the caller knows how many streams there may be; before, some would be refused.
    assert_eq!(caller.send(&stage.holder()).await.status, StatusCode::OK);
    let mut asked = Vec::new();
    for number in 0..300 {
        let holder = &holders[number % holders.len()];
        let mut request =
            caller.post(holder, "wx").header("x-request-id", format!("many-{number}")).body(()).unwrap();
        if number % 5 == 0 {
            request.headers_mut().insert("x-fencing-session", HeaderValue::from_static("1"));
        }
        let (answer, mut stream) = caller.begin(request, false).await.unwrap();
        stream.send_data(Bytes::from(number.to_string()), true).unwrap();
        asked.push((number, tokio::spawn(finish(answer))));
    }
    for (number, answer) in asked {
        let reply = answer.await.unwrap().unwrap();
        let want = if number % 5 == 0 { (409, "session_mismatch") } else { (200, "admitted") };
        assert_eq!((reply.status.as_u16(), reply.header("x-fencing-verdict").unwrap()), want, "{number}");
    }
    let mut bodies: Vec<_> = holders.iter().flat_map(Holder::seen).map(|request| request.text()).collect();
    bodies.sort_by_key(|text| text.parse::<u32>().unwrap());
    let want: Vec<_> =
        (0..300).filter(|number| number % 5 != 0).map(|number: u32| number.to_string()).collect();
    assert_eq!(bodies, want);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_answers_of_megabytes_arrive_byte_for_byte() {
    let holder = stage().holder();
    let body: Vec<u8> = (0..5_000_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    let answer = body.clone();
    holder.answers(move |_| Answer::ok().body(&answer));
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    for route in ["wx", "small"] {
        let reply = caller.ask(caller.post(&holder, route).body(()).unwrap(), body.clone()).await.unwrap();
        assert!(reply.status == 200 && reply.body == body, "{} {}", reply.status, reply.body.len());
    }
    assert!(holder.seen().iter().all(|request| request.whole && request.body == body));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_before_its_body_is_in_leaves_nothing_behind() {
    let stage = stage();
    let holder = stage.holder();
    let caller = Http2::open(stage.gateway.proxy()).await;
    let withdrawn = || stage.gateway.metrics().sum("fencegate_requests_total", &[("verdict", "withdrawn")]);
    let being_read = || stage.gateway.metrics().sum("fencegate_requests_being_read", &[]);
    let before = withdrawn();
    let (_answer, mut stream) =
        caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
    send_part(&mut stream, Bytes::from_static(b"half")).await.unwrap();
    eventually("it is being read", || being_read() >= 1.0).await;
    stream.send_reset(Reason::CANCEL);
    eventually("it is withdrawn", || withdrawn() > before).await;
    assert!(holder.seen().is_empty());
    assert_eq!(caller.send(&holder).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_while_its_body_is_sent_leaves_a_visibly_broken_request() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    for length in [None, Some("10000")] {
        let mut request = caller.post(&holder, "tiny");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let before = holder.seen().len();
        let (_answer, mut stream) = caller.begin(request.body(()).unwrap(), false).await.unwrap();
        send_part(&mut stream, Bytes::from(vec![b'x'; 4096])).await.unwrap();
        eventually("the sender has its beginning", || holder.seen().len() > before).await;
        stream.send_reset(Reason::CANCEL);
        eventually("the sender sees it break off", || holder.seen()[before].truncated).await;
    }
    assert_eq!(caller.send(&holder).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_a_408_and_reaches_no_sender() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    let (answer, mut stream) =
        caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
    send_part(&mut stream, Bytes::from_static(b"half")).await.unwrap();
    finish(answer).await.unwrap().assert_refused("slow", 408, "body_timeout");
    assert!(holder.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_after_its_permit_runs_to_its_end() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    let latch = Latch::new();
    let held = latch.clone();
    holder.answers(move |_| Answer::ok().held(&held));
    let (answer, mut stream) =
        caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
    send(&mut stream, Bytes::from_static(b"x")).await.unwrap();
    eventually("it is at the sender", || holder.seen().len() == 1).await;
    stream.send_reset(Reason::CANCEL);
    drop(answer);
    // Something later on the same connection is served: the reset has been read.
    let other = stage().holder();
    assert_eq!(caller.send(&other).await.status, StatusCode::OK);
    assert_eq!(holder.stage.gateway.account(&holder.account).unwrap()["in_flight"], 1);
    latch.release();
    eventually("it is answered", || holder.seen()[0].ended.is_some()).await;
    assert!(!holder.seen()[0].aborted);
    eventually("the permit ends", || {
        holder.stage.gateway.account(&holder.account).unwrap()["in_flight"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_resets_its_stream_only() {
    let holder = stage().holder();
    let caller = Http2::open(holder.stage.gateway.proxy()).await;
    holder.answers(|_| Answer::ok().body("x".repeat(1_000_000)).cut_at(600_000));
    let reply = caller.send(&holder).await;
    assert_eq!((reply.status.as_u16(), reply.header("x-fencing-outcome")), (502, Some("unknown")));
    assert_eq!(reply.problem()["account"], holder.account);
    let broken = caller.ask(caller.post(&holder, "small").body(()).unwrap(), "x").await;
    assert!(broken.is_err_and(|error| error.is_reset()), "part of an answer looked whole");
    let until_close = Answer::raw("HTTP/1.1 200 OK\r\n\r\nabc").ending(Ending::CloseSilently);
    holder.answers(move |_| until_close.clone());
    assert_eq!(caller.send(&holder).await.body, b"abc");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_asks_nothing_is_closed_in_time() {
    let stage = stage();
    let holder = stage.holder();
    let never = Http2::open(stage.gateway.proxy()).await;
    tokio::time::timeout(PATIENCE, never.driving).await.expect("closed").unwrap().ok();
    let once = Http2::open(stage.gateway.proxy()).await;
    assert_eq!(once.send(&holder).await.status, StatusCode::OK);
    tokio::time::timeout(PATIENCE, once.driving).await.expect("closed").unwrap().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_opens_no_window_for_its_answer_is_closed() {
    let stage = stage();
    let holder = stage.holder();
    holder.answers(|_| Answer::ok().body("x".repeat(3_000_000)));
    for route in ["wx", "small"] {
        let narrow =
            Http2::open_with(stage.gateway.proxy(), h2::client::Builder::new().initial_window_size(1000))
                .await;
        let (answer, mut stream) =
            narrow.begin(narrow.post(&holder, route).body(()).unwrap(), false).await.unwrap();
        send(&mut stream, Bytes::from_static(b"x")).await.unwrap();
        let head = answer.await.unwrap();
        assert_eq!(head.status(), StatusCode::OK);
        tokio::time::timeout(PATIENCE, narrow.driving).await.expect("closed").unwrap().ok();
        drop(head);
    }
    eventually("no permit is left", || stage.gateway.account(&holder.account).unwrap()["in_flight"] == 0)
        .await;
}

/// A gateway of its own, with a line to ZooKeeper that can fall silent.
fn alone(stage: &Stage) -> (Gateway, Relay) {
    alone_with(stage, "")
}

fn alone_with(stage: &Stage, route: &str) -> (Gateway, Relay) {
    let port = stage.connect().rsplit(':').next().unwrap().parse().unwrap();
    let line = Relay::to(port);
    let setup =
        Setup::new(&line.connect(), &stage.sender.url()).section("freshness", "park_timeout = \"20s\"");
    (setup.more_in_route(route).start(), line)
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_nobody_reads_yet_are_small_are_counted_and_arrive_whole() {
    const SIZE: usize = 300_000;
    let stage = stage();
    let holder = stage.holder();
    let (gateway, line) = alone_with(&stage, "buffer = \"1KiB\"");
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let caller = Http2::open(gateway.proxy()).await;
    line.silence();
    let taken = Arc::new(AtomicUsize::new(0));
    let mut sending = Vec::new();
    for _ in 0..8 {
        let (answer, mut stream) =
            caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
        let taken = Arc::clone(&taken);
        let own = tokio::spawn(async move {
            let mut own = 0;
            let mut most = 0;
            while own < SIZE {
                stream.reserve_capacity(SIZE - own);
                let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
                let piece = room.min(SIZE - own);
                most = most.max(piece);
                stream.send_data(Bytes::from(vec![b'x'; piece]), own + piece == SIZE).unwrap();
                own += piece;
                taken.fetch_add(piece, SeqCst);
            }
            most
        });
        sending.push((answer, own));
    }
    let seen = || gateway.account(&holder.account).unwrap()["parked"].as_u64().unwrap();
    let (window, frame) = (256 << 10, 16 << 10);
    eventually("the connection's window is used up", || taken.load(SeqCst) >= window).await;
    eventually("some are parked", || seen() > 0).await;
    stays("nothing more is taken", Duration::from_millis(300), || taken.load(SeqCst) <= window + 8 * frame);
    let parked = seen();
    let counted = gateway.metrics().sum("fencegate_buffered_bytes", &[]);
    assert!(counted >= (parked * 65_536) as f64, "{counted} of {parked}");
    line.heal();
    for (answer, own) in sending {
        assert_eq!(finish(answer).await.unwrap().status, StatusCode::OK);
        assert!(own.await.unwrap() <= 64 << 10, "one stream's window");
    }
    assert!(holder.seen().iter().all(|request| request.body.len() == SIZE));
    eventually("nothing is counted", || gateway.metrics().sum("fencegate_buffered_bytes", &[]) == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_while_it_is_parked_is_withdrawn() {
    let stage = stage();
    let holder = stage.holder();
    let (gateway, line) = alone(&stage);
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let caller = Http2::open(gateway.proxy()).await;
    assert_eq!(caller.send(&holder).await.status, StatusCode::OK);
    line.silence();
    let parked = || gateway.account(&holder.account).unwrap()["parked"].as_u64().unwrap();
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (answer, mut stream) =
            caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
        send(&mut stream, Bytes::from_static(b"x")).await.unwrap();
        streams.push((answer, stream));
    }
    eventually("they are parked", || parked() == 3).await;
    let (last, _) = streams.pop().unwrap();
    for (_, stream) in &mut streams {
        stream.send_reset(Reason::CANCEL);
    }
    eventually("two are withdrawn", || parked() == 1).await;
    line.heal();
    assert_eq!(finish(last).await.unwrap().status, StatusCode::OK);
    assert_eq!(holder.seen().len(), 2);
    assert_eq!(gateway.metrics().sum("fencegate_requests_total", &[("verdict", "withdrawn")]), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_process_is_told_and_what_was_accepted_is_answered() {
    let stage = stage();
    let holder = stage.holder();
    let (gateway, _line) = alone(&stage);
    let caller = Http2::open(gateway.proxy()).await;
    let latch = Latch::new();
    let held = latch.clone();
    holder.answers(move |_| Answer::ok().held(&held));
    let (answer, mut stream) =
        caller.begin(caller.post(&holder, "wx").body(()).unwrap(), false).await.unwrap();
    send(&mut stream, Bytes::from_static(b"x")).await.unwrap();
    eventually("it is at the sender", || holder.seen().len() == 1).await;
    let idle = Http2::open(gateway.proxy()).await;
    gateway.signal(Signal::TERM);
    tokio::time::timeout(PATIENCE, idle.driving).await.expect("the idle one is closed").unwrap().unwrap();
    let mut sender = caller.sender.clone();
    let told = async {
        loop {
            match sender.ready().await {
                Ok(ready) => sender = ready,
                Err(error) => return error,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, told).await.expect("it is told");
    assert!(told.is_go_away() && told.reason() == Some(Reason::NO_ERROR), "{told}");
    latch.release();
    assert_eq!(finish(answer).await.unwrap().status, StatusCode::OK);
    assert_eq!(gateway.wait(PATIENCE), Some(0));
}

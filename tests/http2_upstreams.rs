//! HTTP/2 to the sender: what a stream carries, what is shared, how one is cut, and what a hanging one costs the others.
//!
//! The sender is the h2 crate, or raw frames where it keeps to no rules.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::io::{BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use support::{
    Gateway, Headers, Holder, Instance, PATIENCE, Sender, Setup, Shared, Stage, assert_admitted, eventually,
    http2, named_route, wait_for, wait_until,
};
use tokio::sync::watch;

static SHARED: Shared = Shared::new();

fn stage() -> Arc<Stage> {
    SHARED.stage(|setup, _| setup)
}

fn gateway(stage: &Stage, upstream: &str, more: &str) -> Gateway {
    let more = format!("upstream_http = \"2\"\n{more}");
    Setup::new(&stage.connect(), "").route(&named_route(upstream, "wx", &more)).start()
}

/// A request as it reached the sender.
#[derive(Clone, Debug)]
struct Seen {
    connection: usize,
    head: Arc<Parts>,
    body: Vec<u8>,
    has_trailers: bool,
    /// How its stream was ended by the other side before it was answered.
    reset: Option<Reason>,
}

impl Seen {
    fn account(&self) -> &str {
        self.head.headers["x-fencing-account"].to_str().unwrap()
    }
}

/// A sender over HTTP/2. A body of `hold` waits until it is let go, `large` is answered with 4 MiB, `reset` is refused.
struct Http2Sender {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    go: watch::Sender<bool>,
}

impl Http2Sender {
    async fn start(most_streams: u32) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sender =
            Self { url, seen: Arc::default(), connections: Arc::default(), go: watch::channel(false).0 };
        let (seen, connections, go) =
            (sender.seen.clone(), sender.connections.clone(), sender.go.subscribe());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = connections.fetch_add(1, SeqCst);
                let (seen, go) = (seen.clone(), go.clone());
                tokio::spawn(async move {
                    let mut builder = h2::server::Builder::new();
                    let mut connection =
                        builder.max_concurrent_streams(most_streams).handshake::<_, Bytes>(stream).await?;
                    while let Some(accepted) = connection.accept().await {
                        let (request, answer) = accepted?;
                        tokio::spawn(serve(number, request, answer, seen.clone(), go.clone()));
                    }
                    Ok::<_, h2::Error>(())
                });
            }
        });
        sender
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    async fn wait_for(&self, count: usize) -> Vec<Seen> {
        eventually("requests at the sender", || self.seen.lock().unwrap().len() >= count).await;
        self.seen()
    }
}

async fn serve(
    connection: usize,
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    seen: Arc<Mutex<Vec<Seen>>>,
    mut go: watch::Receiver<bool>,
) -> Result<(), h2::Error> {
    let (head, mut rest) = request.into_parts();
    let mut body = Vec::new();
    while let Some(data) = rest.data().await.transpose()? {
        rest.flow_control().release_capacity(data.len())?;
        body.extend(data);
    }
    let has_trailers = rest.trailers().await?.is_some();
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(Seen { connection, head: Arc::new(head), body: body.clone(), has_trailers, reset: None });
        seen.len() - 1
    };
    if body == b"reset" {
        answer.send_reset(Reason::REFUSED_STREAM);
        return Ok(());
    }
    if body == b"hold" {
        let reset = std::future::poll_fn(|cx| answer.poll_reset(cx));
        tokio::select! {
            reset = reset => {
                seen.lock().unwrap()[number].reset = reset.ok();
                return Ok(());
            }
            _ = go.wait_for(|go| *go) => {}
        }
    }
    let head = Response::builder().header("x-odd", "kept").header("x-fencing-seq", "9").body(()).unwrap();
    let mut stream = answer.send_response(head, false)?;
    let size = if body == b"large" { 4 << 20 } else { 2 };
    send_part(&mut stream, Bytes::from(vec![b'o'; size])).await?;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-late", HeaderValue::from_static("1"));
    stream.send_trailers(trailers)
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

/// A caller over one connection: one worker of the gateway serves all it sends.
struct Caller(SendRequest<Bytes>, String);

impl Caller {
    async fn open(gateway: &Gateway) -> Self {
        let stream = tokio::net::TcpStream::connect(gateway.proxy()).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(16 << 20);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self(sender, gateway.proxy().to_string())
    }

    async fn begin(&self, account: &str, token: &Headers, body: &'static str) -> ResponseFuture {
        let uri = format!("http://{}/wx/{account}/send?a=%20b", self.1);
        let request = Request::post(uri);
        let request = token.iter().fold(request, |request, (name, value)| request.header(name, value));
        let request = request.header("te", "trailers").header("x-mine", "1").body(()).unwrap();
        let (answer, mut stream) =
            self.0.clone().ready().await.unwrap().send_request(request, false).unwrap();
        stream.send_data(Bytes::from_static(body.as_bytes()), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-late", HeaderValue::from_static("1"));
        stream.send_trailers(trailers).unwrap();
        answer
    }

    async fn hold(&self, holder: &Holder) -> ResponseFuture {
        self.begin(&holder.account, &holder.token, "hold").await
    }
}

async fn finish(answer: ResponseFuture) -> Response<Vec<u8>> {
    let patient = async {
        let (head, mut rest) = answer.await.unwrap().into_parts();
        let mut body = Vec::new();
        while let Some(data) = rest.data().await {
            let data = data.unwrap();
            rest.flow_control().release_capacity(data.len()).unwrap();
            body.extend(data);
        }
        assert!(rest.trailers().await.unwrap().is_none(), "trailers end at the gateway");
        Response::from_parts(head, body)
    };
    tokio::time::timeout(PATIENCE, patient).await.unwrap()
}

fn known(gateway: &Gateway, stage: &Stage, holders: &[&Holder]) {
    for holder in holders {
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_the_same_as_over_http_1() {
    let stage = stage();
    let sender = Http2Sender::start(100).await;
    let holder = stage.holder();
    for (more, authority) in [("", None), ("preserve_host = true", Some(()))] {
        let gateway = gateway(&stage, &sender.url, more);
        known(&gateway, &stage, &[&holder]);
        let caller = Caller::open(&gateway).await;
        let answer = finish(caller.begin(&holder.account, &holder.token, "body").await).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_slice()), (200, &b"oo"[..]));
        assert_eq!(answer.headers()["x-odd"], "kept");
        assert_eq!(answer.headers()["x-fencing-verdict"], "admitted");
        assert!(!answer.headers().contains_key("x-fencing-seq"));
        let seen = sender.seen().pop().unwrap();
        assert_eq!((seen.body.as_slice(), seen.has_trailers), (&b"body"[..], false));
        assert_eq!(seen.head.method, "POST");
        let expected = match authority {
            None => sender.url.trim_start_matches("http://").to_owned(),
            Some(()) => gateway.proxy().to_string(),
        };
        let uri = &seen.head.uri;
        assert_eq!((uri.scheme_str(), uri.authority().unwrap().as_str()), (Some("http"), expected.as_str()));
        assert_eq!(uri.path_and_query().unwrap().as_str(), format!("/wx/{}/send?a=%20b", holder.account));
        let headers = &seen.head.headers;
        assert_eq!(headers["x-fencing-account"], holder.account.as_str());
        assert_eq!(headers["x-fencing-seq"], stage.bot.seq(&holder.account).to_string().as_str());
        assert_eq!(headers["content-length"], "4");
        assert_eq!(headers["x-mine"], "1");
        for name in ["x-fencing-session", "x-fencing-instance", "x-fencing-epoch", "x-request-id", "via"] {
            assert_eq!(headers.get_all(name).iter().count(), 1, "{name}");
        }
        for gone in ["host", "te", "connection", "transfer-encoding", "trailer"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_share_a_connection_as_far_as_their_sender_allows() {
    let stage = stage();
    for (most, connections) in [(100, 1), (2, 3)] {
        let sender = Http2Sender::start(most).await;
        let gateway = gateway(&stage, &sender.url, "");
        let holders: Vec<_> = (0..6).map(|_| stage.holder()).collect();
        known(&gateway, &stage, &holders.iter().collect::<Vec<_>>());
        let caller = Caller::open(&gateway).await;
        let mut answers = Vec::new();
        for holder in &holders {
            answers.push(caller.hold(holder).await);
        }
        let seen = sender.wait_for(6).await;
        assert_eq!(sender.connections.load(SeqCst), connections, "{most}");
        for connection in 0..connections {
            let streams = seen.iter().filter(|request| request.connection == connection).count();
            assert!(streams <= most as usize, "{streams} at once");
        }
        sender.go.send(true).unwrap();
        for answer in answers {
            assert_eq!(finish(answer).await.status(), 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_resets_its_stream_and_no_other_one_g2() {
    let stage = stage();
    let sender = Http2Sender::start(100).await;
    let gateway = gateway(&stage, &sender.url, "drain_timeout = \"300ms\"");
    let other = stage.holder();
    let open = |name: &'static str| {
        let connect = stage.connect();
        tokio::task::spawn_blocking(move || Instance::open(&connect, name))
    };
    let (a, b) = (open("host-c").await.unwrap(), open("host-d").await.unwrap());
    a.lead("wxid_cut");
    gateway.wait_for_holder("wxid_cut", a.seq("wxid_cut"));
    known(&gateway, &stage, &[&other]);
    let caller = Caller::open(&gateway).await;
    let stays = caller.hold(&other).await;
    let old = caller.begin("wxid_cut", &a.token("wxid_cut"), "hold").await;
    sender.wait_for(2).await;
    a.expire();
    b.lead("wxid_cut");
    let new = caller.begin("wxid_cut", &b.token("wxid_cut"), "x").await;
    let old = finish(old).await;
    assert_eq!(
        (old.status().as_u16(), &old.headers()["x-fencing-verdict"]),
        (504, &HeaderValue::from_static("handover_cut"))
    );
    assert_eq!(old.headers()["x-fencing-outcome"], "unknown");
    assert_eq!(finish(new).await.status(), 200);
    let seen = sender.wait_for(3).await;
    let cut = seen.iter().find(|request| request.account() == "wxid_cut" && request.body == b"hold").unwrap();
    assert_eq!(cut.reset, Some(Reason::CANCEL), "before the new holder's send");
    sender.go.send(true).unwrap();
    assert_eq!(finish(stays).await.status(), 200);
    assert_eq!(sender.connections.load(SeqCst), 1);
    let metrics = gateway.metrics();
    assert_eq!(metrics.sum("fencegate_handover_cuts_total", &[]), 1.0);
    wait_until("nothing is in flight", || gateway.metrics().sum("fencegate_in_flight", &[]) == 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sender_says_it_has_not_looked_at_is_unknown_and_the_others_go_on_g5() {
    let stage = stage();
    let sender = Http2Sender::start(100).await;
    let gateway = gateway(&stage, &sender.url, "");
    let (one, other) = (stage.holder(), stage.holder());
    known(&gateway, &stage, &[&one, &other]);
    let caller = Caller::open(&gateway).await;
    let stays = caller.hold(&other).await;
    for _ in 0..5 {
        let refused = finish(caller.begin(&one.account, &one.token, "reset").await).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["x-fencing-outcome"]),
            (502, &HeaderValue::from_static("unknown"))
        );
    }
    sender.go.send(true).unwrap();
    assert_eq!(finish(stays).await.status(), 200);
    assert_eq!(
        (sender.seen().len(), sender.connections.load(SeqCst)),
        (6, 1),
        "each once, on one connection"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_taken_holds_up_no_other_one_g7() {
    let stage = stage();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let taken = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&taken);
    // It reads everything and makes no room for more: 65,535 bytes are all that one connection carries.
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || answer_without_room(&stream, &count));
        }
    });
    let gateway = gateway(&stage, &url, "");
    let (large, small) = (stage.holder(), stage.holder());
    known(&gateway, &stage, &[&large, &small]);
    let caller = Caller::open(&gateway).await;
    let body = String::leak("x".repeat(200_000));
    let waiting = caller.begin(&large.account, &large.token, body).await;
    eventually("its window is used up", || taken.load(SeqCst) == 65_535).await;
    let body = String::leak("x".repeat(20_000));
    for _ in 0..3 {
        let answer = finish(caller.begin(&small.account, &small.token, body).await).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_slice()), (200, &b"ok"[..]));
    }
    drop(waiting);
}

fn answer_without_room(mut stream: &TcpStream, taken: &AtomicUsize) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    http2::greet(&mut reader, &mut stream, &[])?;
    loop {
        let frame = http2::read(&mut reader)?;
        if frame.kind == http2::DATA {
            taken.fetch_add(frame.payload.len(), SeqCst);
        }
        if !http2::acknowledge(&frame, &mut stream)? && frame.ends() {
            std::io::Write::write_all(&mut stream, &http2::answer(frame.stream, "ok"))?;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_holds_up_no_other_one_g7() {
    let stage = stage();
    let sender = Http2Sender::start(100).await;
    let gateway = gateway(&stage, &sender.url, "answer_buffer = \"1KiB\"");
    let holders: Vec<_> = (0..9).map(|_| stage.holder()).collect();
    known(&gateway, &stage, &holders.iter().collect::<Vec<_>>());
    let caller = Caller::open(&gateway).await;
    let mut unread = Vec::new();
    for holder in &holders[1..] {
        let answer = caller.begin(&holder.account, &holder.token, "large").await;
        unread.push(tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap());
    }
    for _ in 0..3 {
        let answer = finish(caller.begin(&holders[0].account, &holders[0].token, "x").await).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_slice()), (200, &b"oo"[..]));
    }
    assert_eq!(sender.connections.load(SeqCst), 1, "on the same connection");
    for answer in unread {
        let (mut body, mut size) = (answer.into_body(), 0);
        while let Some(data) = tokio::time::timeout(PATIENCE, body.data()).await.unwrap() {
            let data = data.unwrap();
            size += data.len();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(size, 4 << 20, "and all of it comes");
    }
}

#[test]
fn a_sender_that_speaks_http_1_only_sees_nothing_of_a_request_g4() {
    let stage = stage();
    let sender = Sender::new();
    let holder = stage.holder();
    let gateway = gateway(&stage, &sender.url(), "connect_timeout = \"500ms\"");
    known(&gateway, &stage, &[&holder]);
    let refused = gateway.send(&holder.account, &holder.token, "secret");
    assert_eq!((refused.status, refused.code().as_deref()), (503, Some("upstream_unreachable")));
    assert_eq!(refused.header("x-fencing-outcome"), Some("not_sent"));
    for request in sender.requests() {
        let all = String::from_utf8_lossy(&[request.raw_head, request.body].concat()).into_owned();
        assert!(!all.contains("x-fencing") && !all.contains("secret"), "{all}");
    }
}

/// Speaks HTTP/2 until `count` requests have begun, and then reads nothing any more.
fn deaf(count: usize) -> (String, std::thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let deaf = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::with_capacity(1, &stream);
        // A window without end, so that only the system's buffers bound what is written.
        let settings = [&[0, 4][..], &(1_u32 << 30).to_be_bytes()].concat();
        http2::greet(&mut reader, &mut &stream, &settings).unwrap();
        let wide = http2::frame(http2::WINDOW_UPDATE, 0, 0, (1_u32 << 30).to_be_bytes());
        std::io::Write::write_all(&mut &stream, &wide).unwrap();
        let mut begun = 0;
        while begun < count {
            let frame = http2::read(&mut reader).unwrap();
            http2::acknowledge(&frame, &mut &stream).unwrap();
            begun += usize::from(frame.kind == http2::HEADERS);
        }
        drop(reader);
        stream
    });
    (url, deaf)
}

#[test]
fn a_sender_that_takes_not_even_a_reset_loses_its_connection() {
    let stage = stage();
    let (url, deaf) = deaf(1);
    let holder = stage.holder();
    let gateway = gateway(&stage, &url, "upstream_timeout = \"500ms\"\nbuffer = \"64MiB\"");
    known(&gateway, &stage, &[&holder]);
    let refused = gateway.send(&holder.account, &holder.token, vec![b'x'; 16 << 20]);
    assert_eq!((refused.status, refused.code().as_deref()), (504, Some("upstream_timeout")));
    let mut stream = deaf.join().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut left = Vec::new();
    let end = stream.read_to_end(&mut left);
    assert!(
        end.is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset),
        "it is reset, not ended"
    );
    assert!(left.len() < 16 << 20, "what was not delivered never is");
}

#[test]
fn a_connection_that_hangs_gets_no_new_sends_g7() {
    let stage = stage();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The first connection answers nothing after its settings, the others everything.
    std::thread::spawn(move || {
        let mut number = 0;
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            let hangs = number == 0;
            number += 1;
            kept.push(stream.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                http2::greet(&mut reader, &mut &stream, &[])?;
                loop {
                    let frame = http2::read(&mut reader)?;
                    if !hangs && !http2::acknowledge(&frame, &mut &stream)? && frame.ends() {
                        std::io::Write::write_all(&mut &stream, &http2::answer(frame.stream, "ok"))?;
                    }
                }
                #[allow(unreachable_code, reason = "it names the type of the errors")]
                Ok::<(), std::io::Error>(())
            });
        }
    });
    let gateway = gateway(&stage, &url, "");
    let (hung, well) = (stage.holder(), stage.holder());
    known(&gateway, &stage, &[&hung, &well]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gateway.send(&hung.account, &hung.token, "x"));
        wait_for("one that hangs", || {
            (gateway.metrics().sum("fencegate_in_flight", &[]) == 1.0).then_some(())
        });
        // Once it is silent for a while, sends go past it; those before share its fate.
        let begun = support::now();
        wait_until("it is silent", || begun.elapsed() > Duration::from_millis(1100));
        for _ in 0..20 {
            assert_admitted(&gateway.send(&well.account, &well.token, "x"));
        }
        // No sign of life: it is closed long before upstream_timeout.
        let lost = waiting.join().unwrap();
        assert_eq!((lost.status, lost.code().as_deref()), (502, Some("upstream_failed")));
    });
}

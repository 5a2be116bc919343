//! Limits of time and number: connections that do nothing or little, and more at once than there may be.
//!
//! Whoever is within the limits is not hurt by those who are not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use support::{
    Answer, Connection, Gateway, Headers, Holder, Latch, PATIENCE, Setup, Shared, Stage, assert_admitted,
    named_route, now, stays, wait_for, wait_until,
};

/// Short deadlines.
static IMPATIENT: Shared = Shared::new();
/// Few at once.
static NARROW: Shared = Shared::new();

const HEAD: Duration = Duration::from_millis(700);
const IDLE: Duration = Duration::from_millis(1500);

fn impatient() -> Arc<Stage> {
    IMPATIENT.stage(|setup, _| {
        setup.section("limits", "header_read_timeout = \"700ms\"\nidle_timeout = \"1500ms\"")
    })
}

/// 16 sends at once, a quarter of them for a route unless it says otherwise, 3 for an account.
fn narrow() -> Arc<Stage> {
    NARROW.stage(|setup, url| {
        setup
            .section("limits", "max_in_flight = 16\nmax_in_flight_per_account = 3")
            .route(&named_route(url, "wx", ""))
            .route(&named_route(url, "other", ""))
            .route(&named_route(url, "wide", "max_in_flight = 16"))
            .route(&named_route(url, "shadow", "mode = \"shadow\"\nmax_in_flight = 2"))
    })
}

fn errors(gateway: &Gateway, kind: &str) -> f64 {
    gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", kind)])
}

/// Closed by the other side, not before `span` was over.
#[track_caller]
fn assert_closed_after(connection: &mut Connection, span: Duration, what: &str) {
    let begun = now();
    assert!(connection.closes_within(PATIENCE), "{what}: still open");
    // The clocks of two processes, and the moment between the deed and the first look at the clock.
    assert!(
        begun.elapsed() + Duration::from_millis(250) >= span,
        "{what}: closed after {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_connection_without_a_whole_head_is_closed_and_counted() {
    let stage = impatient();
    for part in ["", "P", "PRI * HTTP/2.0\r\n", "POST /wx/a/send HTTP/1.1\r\nHost: h\r\nX-Half: "] {
        let before = errors(&stage.gateway, "header_timeout");
        let mut connection = Connection::open(stage.gateway.proxy());
        connection.write(part).unwrap();
        assert_closed_after(&mut connection, HEAD, part);
        wait_until("it is counted", || errors(&stage.gateway, "header_timeout") > before);
    }
}

/// Writes a byte every now and then until the other side has closed; whether it has before everything was written.
fn drip(connection: &mut Connection, text: &str) -> bool {
    text.bytes().any(|byte| {
        let gone = connection.write([byte]).is_err();
        gone || connection.closes_within(Duration::from_millis(40))
    })
}

#[test]
fn a_dripped_head_is_timed_as_a_whole() {
    let stage = impatient();
    let holder = stage.holder();
    let head =
        holder.head(&holder.path(), &format!("Host: h\nContent-Length: 0\nX-Slow: {}", "x".repeat(100)));
    let before = errors(&stage.gateway, "header_timeout");
    let mut first = Connection::open(stage.gateway.proxy());
    assert!(drip(&mut first, &head), "a dripped first head got through");
    let mut second = holder.connect();
    second.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&second.read());
    assert!(drip(&mut second, &head), "a dripped second head got through");
    wait_until("both are counted", || errors(&stage.gateway, "header_timeout") >= before + 2.0);
    assert_eq!(holder.seen().len(), 1);
}

#[test]
fn a_connection_between_requests_may_be_idle_for_its_time_and_is_then_closed() {
    let holder = impatient().holder();
    let mut connection = holder.connect();
    for _ in 0..2 {
        connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
        assert_admitted(&connection.read());
        // Longer than a head may take.
        let begun = now();
        stays("idle", HEAD + Duration::from_millis(200), || begun.elapsed() < PATIENCE);
    }
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&connection.read());
    assert_closed_after(&mut connection, IDLE, "idle");
}

#[test]
fn what_is_dropped_of_a_refused_body_is_not_taken_for_a_slow_head() {
    let holder = impatient().holder();
    let mut connection = holder.connect();
    connection.write("POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n").unwrap();
    assert_eq!(connection.read().status, 404);
    connection.write(vec![b'x'; 2_000_000]).unwrap();
    let begun = now();
    wait_until("a head would be overdue", || begun.elapsed() > HEAD + Duration::from_millis(300));
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&connection.read());
}

#[test]
fn a_connection_whose_sender_is_slow_is_not_idle() {
    let holder = impatient().holder();
    let latch = Latch::new();
    let held = latch.clone();
    holder.answers(move |_| Answer::ok().held(&held));
    let mut connection = holder.connect();
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    wait_until("it is at the sender", || holder.seen().len() == 1);
    let begun = now();
    wait_until("more than the idle timeout is over", || begun.elapsed() > IDLE + HEAD);
    latch.release();
    assert_admitted(&connection.read());
}

#[test]
fn a_caller_that_takes_nothing_of_its_answer_is_closed() {
    let stage = impatient();
    let holder = stage.holder();
    holder.answers(|_| Answer::ok().body("x".repeat(40_000_000)));
    let before = errors(&stage.gateway, "broken");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&stage.gateway.proxy().into()).unwrap();
    let mut lazy = Connection::from(std::net::TcpStream::from(socket));
    lazy.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    wait_until("it is given up", || errors(&stage.gateway, "broken") > before);
    assert!(lazy.read_within(PATIENCE).is_err(), "what is missing is visible");
    holder.wait_until_idle();
}

#[test]
fn connections_that_do_nothing_do_not_hurt_others() {
    let stage = impatient();
    let holder = stage.holder();
    let open = || stage.gateway.metrics().sum("fencegate_connections", &[("listener", "proxy")]);
    let mut silent: Vec<_> = (0..150).map(|_| Connection::open(stage.gateway.proxy())).collect();
    silent.iter_mut().step_by(2).for_each(|connection| connection.write("POST / HT").unwrap());
    for _ in 0..20 {
        let begun = now();
        assert_admitted(&holder.send("x"));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    for connection in &mut silent {
        assert!(connection.closes_within(PATIENCE));
    }
    drop(silent);
    wait_until("they are gone from the gauge", || open() < 100.0);
}

#[test]
fn connections_beyond_the_limit_get_an_answer_that_can_be_read() {
    let stage = narrow();
    let gateway =
        Setup::new(&stage.connect(), &stage.sender.url()).section("limits", "max_connections = 3").start();
    let holder = stage.holder();
    let open = || gateway.metrics().sum("fencegate_connections", &[("listener", "proxy")]);
    let mut kept: Vec<_> = (0..3).map(|_| Connection::open(gateway.proxy())).collect();
    wait_until("they are open", || open() >= 3.0);
    for round in 0..30 {
        // One that has sent its request before anybody looked, one that sends nothing, and one with a body as well.
        let early = round == 0;
        if early {
            gateway.freeze();
        }
        let mut connection = Connection::open(gateway.proxy());
        match round % 3 {
            0 => connection.request("POST", &holder.path(), &holder.token, b"x").unwrap(),
            1 => {}
            _ => connection.request("POST", &holder.path(), &holder.token, &[b'x'; 100_000]).unwrap(),
        }
        if early {
            gateway.thaw();
        }
        let answer =
            connection.read_within(PATIENCE).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!((answer.status, answer.header("x-fencing-verdict")), (503, Some("overloaded")));
        assert_eq!(answer.header("x-fencing-outcome"), Some("not_sent"));
        assert_eq!((answer.header("retry-after"), answer.header("connection")), (Some("1"), Some("close")));
        let end = connection.read_within(PATIENCE).unwrap_err().kind();
        assert_eq!(end, ErrorKind::UnexpectedEof, "round {round}: a reset could take the answer along");
    }
    assert_eq!(errors(&gateway, "too_many"), 30.0);
    kept[0].request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&kept[0].read());
    drop(kept);
    wait_until("there is room again", || open() == 0.0);
    let mut connection = Connection::open(gateway.proxy());
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&connection.read());
    assert_eq!(holder.seen().len(), 2);
}

/// Requests that wait at the sender until the latch is released.
struct Waiting {
    latch: Latch,
    connections: Vec<Connection>,
}

impl Waiting {
    fn new() -> Self {
        Self { latch: Latch::new(), connections: Vec::new() }
    }

    /// One more, which has to get to the sender.
    #[track_caller]
    fn add(&mut self, holder: &Holder, route: &str) {
        let held = self.latch.clone();
        holder.answers(move |_| Answer::ok().held(&held));
        let before = holder.seen().len();
        let mut connection = holder.connect();
        let target = format!("/{route}/{}/send", holder.account);
        connection.request("POST", &target, &holder.token, b"x").unwrap();
        wait_for("one more at the sender", || (holder.seen().len() > before).then_some(()));
        self.connections.push(connection);
    }

    #[track_caller]
    fn finish(mut self) {
        self.latch.release();
        for connection in &mut self.connections {
            assert_eq!(connection.read().status, 200);
        }
    }
}

#[track_caller]
fn assert_overloaded(holder: &Holder, route: &str) {
    let before = holder.seen().len();
    let target = format!("/{route}/{}/send", holder.account);
    let answer = holder.call("POST", &target, &Headers::none(), "x");
    assert_eq!((answer.status, answer.code().as_deref()), (503, Some("overloaded")), "{}", answer.text());
    assert_eq!(
        (answer.header("retry-after"), answer.header("x-fencing-outcome")),
        (Some("1"), Some("not_sent"))
    );
    assert_eq!(answer.json()["account"], holder.account);
    assert_eq!(holder.seen().len(), before);
}

#[test]
fn sends_in_flight_are_limited_by_account_route_and_in_all() {
    let stage = narrow();
    let holders: Vec<_> = (0..8).map(|_| stage.holder()).collect();
    let mut waiting = Waiting::new();
    // Three of one account.
    for _ in 0..3 {
        waiting.add(&holders[0], "wx");
    }
    assert_overloaded(&holders[0], "wx");
    assert_overloaded(&holders[0], "other");
    // A quarter of all for one route; another route is not hurt.
    waiting.add(&holders[1], "wx");
    assert_overloaded(&holders[1], "wx");
    assert_overloaded(&holders[2], "wx");
    waiting.add(&holders[1], "other");
    // A route that may use more is bounded by what there is in all.
    for holder in &holders[2..7] {
        waiting.add(holder, "wide");
        waiting.add(holder, "wide");
    }
    waiting.add(&holders[7], "wide");
    assert_eq!(stage.gateway.metrics().sum("fencegate_in_flight", &[]), 16.0);
    assert_overloaded(&holders[7], "wide");
    assert_overloaded(&holders[7], "other");
    assert_overloaded(&holders[7], "shadow");
    waiting.finish();
    for holder in &holders {
        holder.wait_until_idle();
    }
    wait_until("nothing is in flight", || stage.gateway.metrics().sum("fencegate_in_flight", &[]) == 0.0);
    let mut waiting = Waiting::new();
    waiting.add(&holders[0], "shadow");
    waiting.add(&holders[1], "shadow");
    assert_overloaded(&holders[2], "shadow");
    waiting.finish();
    assert_admitted(&holders[0].send("x"));
}

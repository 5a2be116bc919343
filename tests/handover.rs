//! Ordered handover (G2), with the built binary, a real ZooKeeper and a sender that holds its answers back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use support::{
    Answer, Connection, Ensemble, Gateway, Headers, Instance, Latch, Recorded, Response, Sender, Setup, call,
    stays, wait_until,
};

const ACCOUNT: &str = "wxid_1";
/// Long enough to see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// Everything a handover needs. A request whose body is `slow` is answered when the latch is released.
struct Stage {
    gateway: Gateway,
    sender: Sender,
    slow: Latch,
    ensemble: Ensemble,
}

impl Stage {
    fn start() -> Self {
        Self::with(|setup| setup)
    }

    fn with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let ensemble = Ensemble::start(1);
        let slow = Latch::new();
        let held = slow.clone();
        let sender = Sender::start(move |request| match request.body.as_slice() {
            b"slow" => Answer::ok().held(&held),
            _ => Answer::ok(),
        });
        let gateway = change(Setup::new(&ensemble.connect(), &sender.url())).start();
        Self { gateway, sender, slow, ensemble }
    }

    fn instance(&self, name: &str) -> Instance {
        Instance::open(&self.ensemble.connect(), name)
    }

    /// A send in a thread of its own, on a connection of its own.
    fn post(&self, token: Headers, body: &'static str) -> JoinHandle<Response> {
        let address = self.gateway.proxy();
        let target = format!("/wx/{ACCOUNT}/send");
        std::thread::spawn(move || call(address, "POST", &target, &token, body))
    }

    fn posts(&self, count: usize, token: &Headers, body: &'static str) -> Vec<JoinHandle<Response>> {
        (0..count).map(|_| self.post(token.clone(), body)).collect()
    }

    /// A send that is under way at the sender; the connection it came over.
    fn begin_slow(&self, token: &Headers) -> Connection {
        let before = self.sender.count();
        let mut connection = Connection::open(self.gateway.proxy());
        connection.request("POST", &format!("/wx/{ACCOUNT}/send"), token, b"slow").expect("written");
        self.sender.wait_for(before + 1);
        connection
    }

    fn gauge(&self, name: &str) -> f64 {
        self.gateway.metrics().sum(name, &[])
    }

    fn wait_until_parked(&self, count: u32) {
        wait_until(&format!("{count} sends are parked"), || {
            self.gauge("fencegate_parked") == f64::from(count)
        });
    }

    /// At rest nothing is under way, and every request received has one verdict (I5, I7).
    fn wait_until_books_balance(&self) {
        let zero = ["fencegate_in_flight", "fencegate_parked", "fencegate_requests_being_read"];
        wait_until("the books balance", || {
            let metrics = self.gateway.metrics();
            let sum = |name| metrics.sum(name, &[]);
            zero.iter().all(|name| sum(name) == 0.0)
                && sum("fencegate_requests_received_total") == sum("fencegate_requests_total")
                && metrics.sum("fencegate_requests_total", &[("verdict", "admitted")])
                    == sum("fencegate_sends_total")
        });
        let account = self.gateway.account(ACCOUNT).expect("the account");
        assert_eq!((&account["in_flight"], &account["parked"]), (&0.into(), &0.into()));
    }
}

#[track_caller]
fn statuses(sends: Vec<JoinHandle<Response>>) -> Vec<u16> {
    sends.into_iter().map(|send| send.join().expect("an answer").status).collect()
}

#[track_caller]
fn refusal(response: &Response) -> (u16, &str, &str) {
    let header = |name| response.header(name).unwrap_or_default();
    (response.status, header("x-fencing-verdict"), header("x-fencing-outcome"))
}

/// Judged anew while nobody or already the next one holds.
#[track_caller]
fn assert_deposed(response: &Response) {
    let (status, code, outcome) = refusal(response);
    assert_eq!((status, outcome), (409, "not_sent"));
    assert!(["no_holder", "stale_token"].contains(&code), "{code}");
}

fn of<'a>(requests: &'a [Recorded], instance: &Instance) -> Vec<&'a Recorded> {
    let mine = |request: &&Recorded| request.header("x-fencing-instance") == Some(instance.name());
    requests.iter().filter(mine).collect()
}

#[test]
fn a_new_holders_sends_wait_until_all_of_the_old_ones_have_ended_g2() {
    let stage = Stage::start();
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    // Eight connections: every worker gets some.
    let old = stage.posts(8, &a.token(ACCOUNT), "slow");
    stage.sender.wait_for(8);
    a.expire();
    b.lead(ACCOUNT);
    let new = stage.posts(6, &b.full_token(ACCOUNT), "quick");
    stage.wait_until_parked(6);
    stays("the new holder waits", A_WHILE, || stage.sender.count() == 8);
    assert_eq!(stage.gateway.account(ACCOUNT).unwrap()["in_flight"], 8);
    stage.slow.release();
    assert_eq!((statuses(old), statuses(new)), (vec![200; 8], vec![200; 6]));
    let requests = stage.sender.wait_until_idle();
    let last_end = of(&requests, &a).iter().map(|request| request.ended.unwrap()).max().unwrap();
    assert!(of(&requests, &b).iter().all(|request| request.started >= last_end));
    let account = stage.gateway.account(ACCOUNT).unwrap();
    assert!(account["last_handover"]["drain_ms"].as_u64().unwrap() >= 300, "{account}");
    assert_eq!(stage.gauge("fencegate_drain_seconds_count"), 1.0);
    assert_eq!(stage.gauge("fencegate_handover_cuts_total"), 0.0);
    stage.wait_until_books_balance();
}

#[test]
fn sends_that_outlast_the_drain_are_cut_before_the_new_holders_begin() {
    let stage = Stage::with(|setup| setup.section("handover", "drain_timeout = \"1s\""));
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    let old = stage.post(a.token(ACCOUNT).with("X-Request-Id", "the-one-that-is-cut"), "slow");
    stage.sender.wait_for(1);
    a.expire();
    b.lead(ACCOUNT);
    let new = stage.post(b.token(ACCOUNT), "quick").join().unwrap();
    let old = old.join().unwrap();
    assert_eq!(refusal(&old), (504, "handover_cut", "unknown"));
    assert_eq!(
        (old.code().as_deref(), old.json()["outcome"].as_str()),
        (Some("handover_cut"), Some("unknown"))
    );
    assert_eq!((new.status, new.header("x-fencing-verdict")), (200, Some("admitted")));
    let requests = stage.sender.wait_until_idle();
    assert!(requests[0].aborted, "the sender sees the end of the connection");
    assert!(requests[1].started >= requests[0].started + Duration::from_millis(900), "not before its time");
    let metrics = stage.gateway.metrics();
    assert_eq!(metrics.sum("fencegate_handover_cuts_total", &[]), 1.0);
    assert_eq!(metrics.sum("fencegate_sends_total", &[("result", "handover_cut")]), 1.0);
    let line = stage.gateway.wait_for_line("send cut");
    assert!(line.contains("the-one-that-is-cut") && line.contains(ACCOUNT), "{line}");
    stage.wait_until_books_balance();
}

#[test]
fn what_a_cut_send_has_not_delivered_is_never_delivered() {
    let ensemble = Ensemble::start(1);
    // A sender that accepts and does not read, so that the system keeps much of the body.
    let deaf = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", deaf.local_addr().unwrap());
    let setup = Setup::new(&ensemble.connect(), &url).section("handover", "drain_timeout = \"1s\"");
    let gateway = setup.start();
    let open = |name: &str| Instance::open(&ensemble.connect(), name);
    let (a, b) = (open("host-a"), open("host-b"));
    a.lead(ACCOUNT);
    let (address, token) = (gateway.proxy(), a.token(ACCOUNT));
    let target = format!("/wx/{ACCOUNT}/send");
    let old = std::thread::spawn(move || call(address, "POST", &target, &token, vec![b'x'; 900_000]));
    let (mut seen, _) = deaf.accept().unwrap();
    seen.set_read_timeout(Some(support::PATIENCE)).unwrap();
    wait_until("the send has begun", || {
        let mut start = [0; 4];
        seen.peek(&mut start).is_ok_and(|size| size > 0)
    });
    a.expire();
    b.lead(ACCOUNT);
    assert_eq!(refusal(&old.join().unwrap()), (504, "handover_cut", "unknown"));
    let mut read = Vec::new();
    let end = seen.read_to_end(&mut read);
    assert!(end.is_err(), "{} bytes, and then an orderly end", read.len());
    assert!(read.len() < 900_000);
}

#[test]
fn a_third_holder_waits_once_and_the_seconds_parked_sends_are_refused() {
    let stage = Stage::start();
    let (a, b, c) = (stage.instance("host-a"), stage.instance("host-b"), stage.instance("host-c"));
    a.lead(ACCOUNT);
    let old = stage.post(a.token(ACCOUNT), "slow");
    stage.sender.wait_for(1);
    a.expire();
    b.lead(ACCOUNT);
    let second = stage.posts(3, &b.token(ACCOUNT), "quick");
    stage.wait_until_parked(3);
    b.expire();
    c.lead(ACCOUNT);
    for send in second {
        assert_deposed(&send.join().unwrap());
    }
    let third = stage.posts(3, &c.token(ACCOUNT), "quick");
    stage.wait_until_parked(3);
    stage.slow.release();
    assert_eq!((old.join().unwrap().status, statuses(third)), (200, vec![200; 3]));
    let requests = stage.sender.wait_until_idle();
    assert_eq!(of(&requests, &b).len(), 0);
    assert!(of(&requests, &c).iter().all(|request| request.started >= requests[0].ended.unwrap()));
    assert_eq!(stage.gauge("fencegate_drain_seconds_count"), 1.0, "one drain, however many wait for it");
    stage.wait_until_books_balance();
}

#[test]
fn an_old_holder_that_comes_back_with_a_higher_seq_waits_for_its_own_drain() {
    let stage = Stage::start();
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    let before = a.token(ACCOUNT);
    let old = stage.post(before.clone(), "slow");
    stage.sender.wait_for(1);
    a.resign(ACCOUNT);
    b.lead(ACCOUNT);
    let between = stage.post(b.token(ACCOUNT), "quick");
    stage.wait_until_parked(1);
    b.resign(ACCOUNT);
    a.lead(ACCOUNT);
    assert_deposed(&between.join().unwrap());
    let new = stage.post(a.token(ACCOUNT), "quick");
    stage.wait_until_parked(1);
    assert_eq!(refusal(&stage.post(before, "quick").join().unwrap()), (409, "stale_token", "not_sent"));
    stage.slow.release();
    assert_eq!((old.join().unwrap().status, new.join().unwrap().status), (200, 200));
    let requests = stage.sender.wait_until_idle();
    assert!(requests[1].started >= requests[0].ended.unwrap());
    stage.wait_until_books_balance();
}

#[test]
fn a_term_that_comes_back_under_the_same_seq_and_session_waits_for_the_one_before() {
    let stage = Stage::start();
    let a = stage.instance("host-a");
    a.lead(ACCOUNT);
    let first = a.full_token(ACCOUNT);
    let old = stage.post(first.clone(), "slow");
    stage.sender.wait_for(1);
    a.drop_active(ACCOUNT);
    a.take(ACCOUNT);
    let new = stage.post(a.token(ACCOUNT), "quick");
    stage.wait_until_parked(1);
    assert_eq!(refusal(&stage.post(first, "quick").join().unwrap()), (409, "epoch_mismatch", "not_sent"));
    stage.slow.release();
    assert_eq!((old.join().unwrap().status, new.join().unwrap().status), (200, 200));
    let requests = stage.sender.wait_until_idle();
    assert!(requests[1].started >= requests[0].ended.unwrap());
    stage.wait_until_books_balance();
}

/// A listener that lets no connection come about: its queue is full and nobody takes from it.
struct Swallowing {
    address: SocketAddr,
    _listener: Socket,
    _queue: Vec<TcpStream>,
}

impl Swallowing {
    fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("an address");
        listener.listen(0).expect("a listener");
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, A_WHILE) {
            queue.push(stream);
            assert!(queue.len() < 100, "the queue never fills");
        }
        Self { address, _listener: listener, _queue: queue }
    }
}

#[test]
fn a_send_that_has_not_begun_is_withdrawn_and_nobody_waits_for_it_g4() {
    let swallowing = Swallowing::new();
    let stage = Stage::with(|setup| {
        let text = setup.text();
        let upstream = text.lines().find(|line| line.starts_with("upstream")).unwrap();
        let route =
            |path: &str| format!("path = \"/{path}/{{account}}/{{*rest}}\"\naccount = \"path:account\"");
        let stuck = format!("upstream = \"http://{}\"\nconnect_timeout = \"25s\"", swallowing.address);
        setup.route(&format!("{}\n{upstream}", route("wx"))).route(&format!("{}\n{stuck}", route("stuck")))
    });
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    let (address, token) = (stage.gateway.proxy(), a.token(ACCOUNT));
    let target = format!("/stuck/{ACCOUNT}/send");
    let old = std::thread::spawn(move || call(address, "POST", &target, &token, "x"));
    wait_until("the send connects", || stage.gauge("fencegate_in_flight") == 1.0);
    b.join(ACCOUNT);
    a.drop_active(ACCOUNT);
    b.take(ACCOUNT);
    assert_eq!(refusal(&old.join().unwrap()), (409, "superseded", "not_sent"));
    assert_eq!(stage.post(b.token(ACCOUNT), "quick").join().unwrap().status, 200);
    let metrics = stage.gateway.metrics();
    assert_eq!(metrics.sum("fencegate_sends_total", &[("result", "superseded")]), 1.0);
    stage.wait_until_books_balance();
}

#[test]
fn a_send_whose_client_left_runs_to_its_end_and_is_waited_for() {
    let stage = Stage::start();
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    drop(stage.begin_slow(&a.token(ACCOUNT)));
    stage.begin_slow(&a.token(ACCOUNT)).reset();
    wait_until("both have left", || {
        stage.gateway.metrics().sum("fencegate_connections", &[("listener", "proxy")]) == 0.0
    });
    assert_eq!(stage.gauge("fencegate_in_flight"), 2.0);
    a.expire();
    b.lead(ACCOUNT);
    let new = stage.post(b.token(ACCOUNT), "quick");
    stage.wait_until_parked(1);
    stays("the new holder waits", A_WHILE, || stage.sender.count() == 2);
    stage.slow.release();
    assert_eq!(new.join().unwrap().status, 200);
    let requests = stage.sender.wait_until_idle();
    assert!(requests.iter().all(|request| request.whole && !request.aborted));
    assert!(requests[..2].iter().all(|request| request.ended.unwrap() <= requests[2].started));
    assert_eq!(stage.gateway.metrics().sum("fencegate_sends_total", &[("result", "answered")]), 3.0);
    stage.wait_until_books_balance();
}

#[test]
fn a_client_that_leaves_while_parked_leaves_nothing_behind() {
    let stage = Stage::start();
    let (a, b) = (stage.instance("host-a"), stage.instance("host-b"));
    a.lead(ACCOUNT);
    let old = stage.post(a.token(ACCOUNT), "slow");
    stage.sender.wait_for(1);
    a.expire();
    b.lead(ACCOUNT);
    let mut parked = Vec::new();
    for _ in 0..4 {
        let mut connection = Connection::open(stage.gateway.proxy());
        let target = format!("/wx/{ACCOUNT}/send");
        connection.request("POST", &target, &b.token(ACCOUNT), b"never").unwrap();
        parked.push(connection);
    }
    stage.wait_until_parked(4);
    for connection in parked.drain(..2) {
        connection.reset();
    }
    drop(parked);
    stage.wait_until_parked(0);
    stage.slow.release();
    assert_eq!(old.join().unwrap().status, 200);
    assert_eq!(stage.post(b.token(ACCOUNT), "quick").join().unwrap().status, 200);
    assert_eq!(stage.sender.wait_until_idle().len(), 2, "the sender never hears of those who left");
    let metrics = stage.gateway.metrics();
    assert_eq!(metrics.sum("fencegate_requests_total", &[("verdict", "withdrawn")]), 4.0);
    stage.wait_until_books_balance();
}

#[test]
fn sends_of_two_holders_never_overlap_while_the_account_changes_hands_all_the_time_g2_i1_i2() {
    let stage = Stage::start();
    stage.sender.behave(|request| Answer::ok().after(Duration::from_millis(request.number as u64 * 7 % 23)));
    let bots = Arc::new([stage.instance("host-a"), stage.instance("host-b")]);
    bots[0].lead(ACCOUNT);
    bots[1].join(ACCOUNT);
    let over = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..8)
        .map(|number| {
            let (over, bots, address) = (Arc::clone(&over), Arc::clone(&bots), stage.gateway.proxy());
            std::thread::spawn(move || {
                let token = bots[number % 2].token(ACCOUNT);
                let mut answers = Vec::new();
                while !over.load(SeqCst) {
                    let answer = call(address, "POST", &format!("/wx/{ACCOUNT}/send"), &token, "x");
                    answers.push(answer.header("x-fencing-verdict").unwrap_or_default().to_owned());
                }
                answers
            })
        })
        .collect();
    for turn in 0..40 {
        let before = stage.sender.count();
        wait_until("the holder sends", || stage.sender.count() > before);
        bots[turn % 2].drop_active(ACCOUNT);
        bots[1 - turn % 2].take(ACCOUNT);
    }
    over.store(true, SeqCst);
    let answers: Vec<_> = senders.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let allowed = ["admitted", "stale_token", "not_holder", "no_holder", "superseded"];
    assert!(answers.iter().all(|answer| allowed.contains(&answer.as_str())), "{answers:?}");

    let mut requests = stage.sender.wait_until_idle();
    let epoch = |request: &Recorded| request.header("x-fencing-epoch").unwrap().parse::<i64>().unwrap();
    assert_eq!(answers.iter().filter(|answer| *answer == "admitted").count(), requests.len());
    requests.sort_by_key(|request| request.started);
    let mut last_end_of_older = None;
    for pair in requests.windows(2) {
        assert!(epoch(&pair[0]) <= epoch(&pair[1]), "an older holder's send after a newer one's (I2)");
        if epoch(&pair[0]) != epoch(&pair[1]) {
            let older = requests.iter().filter(|request| epoch(request) <= epoch(&pair[0]));
            last_end_of_older = older.map(|request| request.ended.unwrap()).max();
        }
        assert!(last_end_of_older.is_none_or(|end| end <= pair[1].started), "two holders at once (I1)");
    }
    assert!(last_end_of_older.is_some(), "there was a change");
    stage.wait_until_books_balance();
}

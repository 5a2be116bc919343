//! The test kit itself: each part does what tests of the gateway will rely on.

mod support;

use std::time::Duration;

use support::{
    Answer, Connection, Ending, Ensemble, Folder, Headers, Instance, Latch, Metrics, Relay, Sender, Setup,
    call, free_port, loopback, now, stays, try_call, wait_for, wait_until,
};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn three_servers_choose_one_that_leads_and_keep_their_data_over_its_death() {
    let ensemble = Ensemble::start(3);
    let first = ensemble.leading().expect("one that leads");
    let modes = ensemble.servers().iter().filter_map(|server| server.mode());
    assert_eq!(modes.filter(|mode| mode == "follower").count(), 2);
    let bot = Instance::open(&ensemble.connect(), "host-a");
    let seq = bot.lead("wxid_1");
    ensemble.server(first).stop();
    assert_eq!(ensemble.server(first).mode(), None);
    let second = wait_for("another one leads", || ensemble.leading());
    assert_ne!(second, first);
    let later = Instance::open(&ensemble.server(second).connect(), "host-b");
    assert!(later.read("/wx-accounts/wxid_1/active").is_some());
    assert!(later.join("wxid_1") > seq);
    ensemble.server(first).restart();
    ensemble.wait_until_serving();
    assert_eq!(ensemble.server(first).mode().as_deref(), Some("follower"));
}

#[test]
fn a_frozen_server_answers_nothing_until_it_is_thawed() {
    let ensemble = Ensemble::start(1);
    let server = ensemble.server(0);
    assert_eq!(server.mode().as_deref(), Some("standalone"));
    assert!(server.monitor("zk_znode_count").is_some());
    server.freeze();
    assert!(server.four_letter("srvr").is_err());
    server.thaw();
    server.wait_until_serving();
}

#[test]
fn a_server_can_lose_its_data_and_get_an_older_copy_back() {
    let ensemble = Ensemble::start(1);
    let server = ensemble.server(0);
    let write = |path: &str| {
        let bot = Instance::open(&ensemble.connect(), "writer");
        bot.make_path(path);
        bot.leave();
    };
    let has = |path: &str| Instance::open(&ensemble.connect(), "reader").read(path).is_some();
    write("/old");
    let backup = server.back_up();
    server.start();
    server.wait_until_serving();
    write("/new");
    server.put_back(&backup);
    server.start();
    server.wait_until_serving();
    assert_eq!((has("/old"), has("/new")), (true, false));
    server.wipe();
    server.start();
    server.wait_until_serving();
    assert!(!has("/old"));
}

#[test]
fn an_instance_joins_takes_and_leaves() {
    let ensemble = Ensemble::start(1);
    let (a, b) =
        (Instance::open(&ensemble.connect(), "host-a"), Instance::open(&ensemble.connect(), "host-b"));
    assert_eq!((a.join("wxid_1"), b.join("wxid_1")), (0, 1));
    let epoch = a.take("wxid_1");
    assert!(b.try_take("wxid_1").is_err());
    let (data, stat) = b.read("/wx-accounts/wxid_1/active").expect("/active");
    assert_eq!((stat.ephemeral_owner, stat.czxid), (a.session_id(), epoch));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&data).unwrap(), a.active_data("wxid_1"));
    assert_eq!(a.token("wxid_1").get("x-fencing-session"), Some(a.session_id().to_string().as_str()));
    assert_eq!(a.full_token("wxid_1").names().len(), 4);
    a.leave();
    assert!(b.read("/wx-accounts/wxid_1/active").is_none());
    assert!(b.take("wxid_1") > epoch);
    b.drop_active("wxid_1");
    b.take_with("wxid_1", b"{}");
    b.resign("wxid_1");
    assert!(b.read(&b.candidate("wxid_1")).is_none());
    b.lead("wxid_1");
    b.delete_candidate("wxid_1");
    b.delete_tree("/wx-accounts");
    assert!(b.read("/wx-accounts").is_none());
}

#[test]
fn an_expired_session_takes_its_nodes_along_in_one_transaction() {
    let ensemble = Ensemble::start(1);
    let (a, b) =
        (Instance::open(&ensemble.connect(), "host-a"), Instance::open(&ensemble.connect(), "host-b"));
    a.lead("wxid_1");
    a.expire();
    assert!(b.read("/wx-accounts/wxid_1/active").is_none());
    let account = b.read("/wx-accounts/wxid_1").expect("the account").1;
    let members = b.read("/wx-accounts/wxid_1/members").expect("the members").1;
    assert_eq!(account.pzxid, members.pzxid);
    wait_until("it learns of it", || a.state().is_some_and(|state| state.is_terminated()));
}

#[test]
fn a_frozen_instance_loses_its_nodes_and_learns_of_it_when_it_is_thawed() {
    let ensemble = Ensemble::start(1);
    let zombie = Instance::open_for(&ensemble.connect(), "host-a", Duration::from_secs(1));
    let watcher = Instance::open(&ensemble.connect(), "host-b");
    zombie.lead("wxid_1");
    zombie.freeze();
    wait_until("the session expires", || watcher.read("/wx-accounts/wxid_1/active").is_none());
    assert_eq!(zombie.token("wxid_1").names(), ["X-Fencing-Seq", "X-Fencing-Session"]);
    zombie.thaw();
    wait_until("it learns of it", || zombie.state().is_some_and(|state| state.is_terminated()));
}

#[test]
fn an_instance_may_live_below_a_chroot_and_another_root() {
    let ensemble = Ensemble::start(1);
    let admin = Instance::open(&ensemble.connect(), "admin");
    admin.make_path("/fleet");
    let bot = Instance::open(&format!("{}/fleet", ensemble.connect()), "host-a").below("/bots");
    bot.lead("wxid_1");
    assert!(admin.read("/fleet/bots/wxid_1/active").is_some());
}

#[test]
fn a_sender_records_what_reaches_it_byte_by_byte() {
    let sender = Sender::start(|request| match request.target.as_str() {
        "/teapot" => Answer::status(418).body("short").header("X-Mood", "calm"),
        _ => Answer::ok().chunked(),
    });
    let mut connection = Connection::open(sender.address());
    let head = "POST /a?b=%20 HTTP/1.1\r\nHost: x\r\nX-OdD:  two \r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write(format!("{head}3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nLater: yes\r\n\r\n")).unwrap();
    assert_eq!(connection.read().text(), r#"{"sent":true}"#);
    connection.request("GET", "/teapot", &Headers::none(), b"").unwrap();
    let second = connection.read();
    assert_eq!(
        (second.status, second.text().as_str(), second.header("x-mood")),
        (418, "short", Some("calm"))
    );
    let requests = sender.wait_until_idle();
    let first = &requests[0];
    assert_eq!(
        (first.method.as_str(), first.target.as_str(), first.text().as_str()),
        ("POST", "/a?b=%20", "abcd")
    );
    assert_eq!(first.headers.names(), ["Host", "X-OdD", "Transfer-Encoding"]);
    assert_eq!((first.header("x-odd"), first.trailers.get("later")), (Some("two"), Some("yes")));
    assert_eq!(first.raw_head, head.as_bytes());
    assert_eq!((requests[1].number, requests[1].connection, sender.connections()), (1, 0, 1));
    assert!(first.whole && !first.aborted && first.ended.unwrap() <= requests[1].started);
}

#[test]
fn a_sender_tells_broken_requests_from_whole_ones() {
    let latch = Latch::new();
    let held = latch.clone();
    let sender = Sender::start(move |_| Answer::ok().held(&held));
    for (text, whole) in [
        ("GET / HT", false),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", false),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", true),
    ] {
        let before = sender.count();
        let mut connection = Connection::open(sender.address());
        connection.write(text).unwrap();
        if whole {
            wait_until("the request is under way", || sender.in_flight() == 1);
        }
        connection.reset();
        let request = wait_for("the end is seen", || {
            sender.requests().get(before).filter(|request| request.ended.is_some()).cloned()
        });
        assert_eq!((request.whole, request.truncated, request.aborted), (whole, !whole, true), "{text:?}");
    }
    latch.release();
    assert_eq!(call(sender.address(), "GET", "/", &Headers::none(), b"").status, 200);
}

#[test]
fn a_sender_fails_in_every_way_it_is_told_to() {
    let sender = Sender::new();
    let attempt = || try_call(sender.address(), "POST", "/", &Headers::none(), b"x");
    sender.behave(|_| Answer::reset());
    assert!(attempt().is_err());
    sender.behave(|_| Answer::hang_up());
    assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    sender.behave(|_| Answer::ok().cut_at(4));
    assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    sender.behave(|_| Answer::raw("HTTP/1.1 204 None\r\n\r\n"));
    assert_eq!(attempt().unwrap().status, 204);
    let begun = now();
    sender.behave(|_| Answer::ok().after(SHORT));
    assert_eq!(attempt().unwrap().status, 200);
    assert!(begun.elapsed() >= SHORT);
    let begun = now();
    sender.behave(|_| Answer::raw("HTTP/1.1 204 None\r\n\r\n").dripping(7, SHORT));
    assert_eq!(attempt().unwrap().status, 204);
    assert!(begun.elapsed() >= 2 * SHORT);
    sender.behave(|_| Answer::ok().ending(Ending::CloseSilently));
    let mut connection = Connection::open(sender.address());
    connection.request("GET", "/", &Headers::none(), b"").unwrap();
    assert_eq!(connection.read().header("connection"), None);
    assert!(connection.closes_within(support::PATIENCE));
    assert_eq!(sender.count(), 7);
    sender.stop();
    assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_sender_may_answer_before_the_body_has_come() {
    let sender = Sender::new();
    sender.answer_early(|head| (head.target == "/early").then(|| Answer::status(413).ending(Ending::Close)));
    let mut connection = Connection::open(sender.address());
    connection.write("POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n").unwrap();
    assert_eq!(connection.read().status, 413);
    drop(connection);
    let request = wait_for("the end is seen", || {
        sender.requests().first().filter(|request| request.truncated).cloned()
    });
    assert!(!request.whole && !request.aborted);
    assert_eq!(call(sender.address(), "POST", "/late", &Headers::none(), b"0123456789").status, 200);
}

#[test]
fn a_relay_delays_silences_cuts_and_heals() {
    let sender = Sender::new();
    let relay = Relay::to(sender.address().port());
    let mut connection = Connection::open(relay.address());
    let mut ask = |limit| {
        connection.request("GET", "/", &Headers::none(), b"").unwrap();
        connection.read_within(limit)
    };
    assert_eq!(ask(support::PATIENCE).unwrap().status, 200);
    relay.delay(SHORT);
    let begun = now();
    assert_eq!(ask(support::PATIENCE).unwrap().status, 200);
    assert!(begun.elapsed() >= SHORT);
    relay.delay(Duration::ZERO);
    relay.silence_replies();
    assert!(ask(SHORT).is_err());
    assert_eq!(sender.wait_for(3).len(), 3);
    relay.silence();
    assert!(ask(SHORT).is_err());
    stays("the sender hears nothing", SHORT, || sender.count() == 3);
    relay.heal();
    assert_eq!(sender.wait_for(4).len(), 4);
    assert_eq!([connection.read().status, connection.read().status], [200, 200], "what was held arrives");
    relay.cut();
    assert!(connection.closes_within(support::PATIENCE));
    assert!(try_call(relay.address(), "GET", "/", &Headers::none(), b"").is_err());
    relay.heal();
    assert_eq!(call(relay.address(), "GET", "/", &Headers::none(), b"").status, 200);
}

#[test]
fn a_relay_passes_the_end_of_a_stream_on() {
    let sender = Sender::start(|_| Answer::ok().ending(Ending::CloseSilently));
    let relay = Relay::to(sender.address().port());
    let mut connection = Connection::open(relay.address());
    connection.request("POST", "/", &Headers::none(), b"x").unwrap();
    assert_eq!(connection.read().status, 200);
    assert!(connection.closes_within(support::PATIENCE));
    drop(connection);
    wait_until("the relay lets go", || relay.connections() == 0 && sender.open_connections() == 0);
}

#[test]
fn a_scrape_is_read_back_with_its_labels() {
    let metrics = Metrics::parse(concat!(
        "# HELP a_total Words.\n# TYPE a_total counter\n",
        "a_total{x=\"1\",y=\"q\\\"{},\\\\\\n\"} 2\na_total{x=\"2\"} 3.5\nb 1e3\n"
    ));
    assert_eq!(metrics.sum("a_total", &[]), 5.5);
    assert_eq!(metrics.sum("a_total", &[("y", "q\"{},\\\n")]), 2.0);
    assert_eq!(metrics.sum("a_total", &[("x", "3")]), 0.0);
    assert_eq!(metrics.sum("b", &[]), 1000.0);
    assert!(std::panic::catch_unwind(|| Metrics::parse("nonsense")).is_err());
}

#[test]
fn a_setup_writes_the_file_it_was_told_to() {
    let text = Setup::new("127.0.0.1:1", "http://127.0.0.1:2")
        .more("zookeeper", "auth = []")
        .section("freshness", "park_timeout = \"1s\"")
        .more_in_route("mode = \"shadow\"")
        .text();
    let file: toml::Table = text.parse().expect("TOML");
    assert_eq!(file["zookeeper"]["connect"].as_str(), Some("127.0.0.1:1"));
    assert_eq!(file["freshness"]["park_timeout"].as_str(), Some("1s"));
    assert_eq!(file["route"][0]["mode"].as_str(), Some("shadow"));
    let routes = Setup::new("", "").route("path = \"/a\"").route("path = \"/b\"").text();
    assert_eq!(routes.parse::<toml::Table>().unwrap()["route"].as_array().map(Vec::len), Some(2));
}

#[test]
fn ports_and_folders_are_nobody_elses() {
    let (one, other) = (free_port(), free_port());
    assert_ne!(one, other);
    drop(std::net::TcpListener::bind(loopback(one)).expect("a free port"));
    let folder = Folder::new("kit");
    let path = folder.write("file", "text");
    assert!(path.exists());
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn waiting_has_an_end_that_says_for_what() {
    let late = std::panic::catch_unwind(|| support::wait_for_within("a miracle", SHORT, || None::<()>));
    let message = *late.unwrap_err().downcast::<String>().expect("text");
    assert!(message.contains("a miracle"), "{message}");
    assert!(std::panic::catch_unwind(|| stays("calm", SHORT, || false)).is_err());
}

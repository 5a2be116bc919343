//! Elections that a gateway keeps, with agents that take part: the gateway is killed, stands still, asks for keys and speaks TLS, and
//! answers come from something that is no gateway.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "helpers of tests may panic"
)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fencegate::election::gateway::GatewaySessions;
use fencegate::election::session::{Notice, Session, Sessions};
use fencegate::elector::{Accounts, Elector, Settings, Token};
use fencegate::fence::name::AccountName;
use fencegate::key::KeyHash;
use support::elections::{elections_of, sessions_at};
use support::{
    AgentSetup, Answer, Authority, Elections, Headers, InGateway, Recorded, Sender, Setup, eventually,
    free_port, loopback, stays, try_call, wait_until,
};

fn start(port: u16, instance: &str, accounts: &[String], ttl: Duration) -> Elector {
    let names = accounts.iter().map(|account| AccountName::new(account).unwrap()).collect();
    Elector::start(sessions_at(port, instance, ttl), Settings::new(instance, Accounts::These(names)))
}

fn headers(token: &Token) -> Headers {
    let headers = Headers::none().with("X-Fencing-Seq", token.seq).with("X-Fencing-Session", token.session);
    headers.with("X-Fencing-Epoch", token.epoch)
}

/// The token of each account, if all are led by exactly one each and all others stand by.
fn held(electors: &[Elector]) -> Option<HashMap<String, Token>> {
    let mut tokens = HashMap::new();
    for elector in electors {
        for (account, standing) in elector.standings() {
            match standing.role.as_str() {
                "LEADER" => {
                    let token = elector.token(account.as_str()).ok()?;
                    assert!(tokens.insert(account.to_string(), token).is_none(), "{account} is led twice");
                }
                "WAITING" => {}
                _ => return None,
            }
        }
    }
    let accounts: std::collections::HashSet<_> =
        electors.iter().flat_map(Elector::standings).map(|(account, _)| account.to_string()).collect();
    (tokens.len() == accounts.len()).then_some(tokens)
}

async fn settled(what: &str, electors: &[Elector]) -> HashMap<String, Token> {
    let mut tokens = None;
    eventually(what, || {
        tokens = held(electors);
        tokens.is_some()
    })
    .await;
    tokens.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_under_a_hundred_agents_brings_all_back_and_no_token_of_before() {
    const AGENTS: usize = 100;
    let port = free_port();
    let sender = Sender::new();
    let gateway = Arc::new(Setup::embedded(port, &sender.url()).start());
    // Two for each account, and one account that all stand for.
    let electors: Vec<_> = (0..AGENTS)
        .map(|number| {
            let accounts = [format!("wxid_{}", number / 2), "wxid_all".to_owned()];
            start(port, &format!("host-{number}"), &accounts, Duration::from_secs(60))
        })
        .collect();
    let before = settled("all are led", &electors).await;
    assert_eq!(before.len(), AGENTS / 2 + 1);
    let sessions = || -> Vec<_> { electors.iter().flat_map(Elector::sessions).collect() };
    let old_sessions = sessions();
    assert_eq!(old_sessions.len(), AGENTS);
    for (account, token) in &before {
        assert_eq!(gateway.send(account, &headers(token), "{}").status, 200, "{account}");
    }

    gateway.kill();
    // From here on nothing with a token of before may arrive, whoever sends it.
    let sent = sender.count();
    let stop = Arc::new(AtomicBool::new(false));
    let zombie = std::thread::spawn({
        let (stop, gateway, before) = (Arc::clone(&stop), Arc::clone(&gateway), before.clone());
        move || {
            let mut refused = 0;
            while !stop.load(SeqCst) {
                for (account, token) in &before {
                    let path = format!("/wx/{account}/send");
                    let answer = try_call(gateway.proxy(), "POST", &path, &headers(token), b"zombie");
                    refused += usize::from(answer.is_ok_and(|answer| answer.status == 409));
                }
            }
            refused
        }
    });
    gateway.restart();
    gateway.wait_until_ready();
    eventually("all have new sessions", || {
        let now = sessions();
        now.len() == AGENTS && now.iter().all(|session| !old_sessions.contains(session))
    })
    .await;
    let after = settled("all are led again", &electors).await;
    assert_eq!(after.len(), before.len());
    let newest = before.values().map(|token| token.seq.0).max().unwrap();
    for (account, token) in &after {
        assert!(token.seq.0 > newest && token.epoch > before[account].epoch, "{account}");
        assert_eq!(gateway.send(account, &headers(token), "new").status, 200, "{account}");
    }
    let shown = support::get_json(loopback(port), "/v1/elections/wxid_all");
    assert_eq!(shown["candidates"].as_array().unwrap().len(), AGENTS, "one candidate each");
    stop.store(true, SeqCst);
    assert!(zombie.join().unwrap() > 0, "the old tokens were tried");
    let arrived = sender.requests().split_off(sent);
    assert!(arrived.iter().all(|request| request.body == b"new"), "{arrived:?}");
    assert_eq!(arrived.len(), after.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stood_still_hears_the_renewals_first_and_nobody_loses_anything() {
    const TTL: Duration = Duration::from_secs(4);
    let elections = InGateway::start();
    let electors: Vec<_> = (0..20)
        .map(|number| {
            let accounts = [format!("wxid_{}", number / 2)];
            start(elections.port(), &format!("host-{number}"), &accounts, TTL)
        })
        .collect();
    let before = settled("all are led", &electors).await;
    elections.gateway.freeze();
    let suspended = |elector: &Elector| {
        elector.standings().iter().all(|(_, standing)| standing.role.as_str() == "SUSPEND")
    };
    eventually("all are suspended", || electors.iter().all(suspended)).await;
    assert!(electors.iter().all(|elector| elector.token("wxid_0").is_err()));
    // Well past the end of all leases.
    stays("nobody leads whom nobody hears", 2 * TTL, || electors.iter().all(suspended));
    elections.gateway.thaw();
    let after = settled("all are led again", &electors).await;
    assert_eq!(after, before, "the same sessions and the same terms");
    let log = elections.gateway.log();
    assert!(log.contains("renewals are heard first") && !log.contains("is over"), "{log}");
}

#[test]
fn a_gateway_that_wants_keys_is_shown_the_agents_key() {
    let port = free_port();
    let sender = Sender::new();
    let key = |key: &str| {
        format!("{{ name = \"bots\", sha256 = \"{}\", accounts = [\"*\"] }}", KeyHash::of(key.as_bytes()))
    };
    let gateway =
        Setup::embedded(port, &sender.url()).section("auth", &format!("keys = [{}]", key("the key"))).start();
    let setup = |name: &str| {
        AgentSetup::new("unused", gateway.proxy(), name, "[\"wxid_1\"]").with_elections_at(loopback(port))
    };
    let agent = setup("host-a").more("[agent]", "gateway_key = \"the key\"").start();
    agent.wait_for_role("wxid_1", "LEADER");
    assert_eq!(agent.send("wxid_1", &Headers::none(), "{}").status, 200);
    let other = setup("host-b").more("[agent]", "gateway_key = \"another\"").start();
    let line = other.wait_for_line("no session yet");
    assert!(line.contains("401") && line.contains("[agent] gateway_key"), "{line}");
    assert!(!other.log().contains("another"), "{}", other.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn over_https_both_sides_show_their_certificates() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = ours.sign("server", "IP:127.0.0.1");
    let client = ours.sign("client", "DNS:host-a");
    let (port, sender) = (free_port(), Sender::new());
    let tls = format!(
        "cert = {:?}\nkey = {:?}\nclient_ca = {:?}\nelections_names = [\"host-a\"]\nlisteners = [\"elections\"]",
        server.cert,
        server.key,
        ours.cert()
    );
    let gateway = Setup::embedded(port, &sender.url()).section("listen.tls", &tls).start();
    let sessions = |trusted: &Authority, shown: &str| {
        let ca = trusted.cert();
        let keys = format!(
            "elections = \"https://127.0.0.1:{port}\"\nelections_ca = {ca:?}\nsession_timeout = \"6s\"\n{shown}"
        );
        GatewaySessions::new(&elections_of(&keys), None, "host-a").unwrap()
    };
    let identity = format!("elections_cert = {:?}\nelections_cert_key = {:?}", client.cert, client.key);
    let names = vec![AccountName::new("wxid_1").unwrap()];
    let elector = Elector::start(sessions(&ours, &identity), Settings::new("host-a", Accounts::These(names)));
    eventually("it leads", || elector.token("wxid_1").is_ok()).await;
    elector.stop().await;
    wait_until("nobody stands", || {
        gateway.account("wxid_1").is_some_and(|account| account["candidates"] == 0)
    });
    for (mut refused, what) in
        [(sessions(&others, &identity), "certificate"), (sessions(&ours, ""), "does not answer")]
    {
        let why = refused.open().await.unwrap_err().to_string();
        assert!(why.contains(&format!("https://127.0.0.1:{port}")) && why.contains(what), "{why}");
    }
}

/// What answers as a gateway's elections would; streams tell `events`.
fn pretend(events: &'static str) -> impl Fn(&Recorded) -> Answer + Send + Sync + 'static {
    move |request| {
        match (request.method.as_str(), request.target.as_str()) {
        ("POST", "/v1/sessions") => Answer::status(201).body(
            r#"{"session":"0x00000000000000ab","secret":"00000000000000ab-a-secret-that-nobody-sees","ttl_ms":6000}"#,
        ),
        ("GET", "/v1/events") => Answer::raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n",
            events.len()
        )),
        _ => Answer::ok().body("{}"),
    }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_too_far_behind_is_opened_again_after_a_renewal() {
    let sender = Sender::start(pretend("event: open\ndata: {}\n\nevent: lagged\ndata: {}\n\n"));
    let mut session =
        sessions_at(sender.address().port(), "host-a", Duration::from_secs(6)).open().await.unwrap();
    let Notice::Disconnected(why) = session.next().await else { panic!("nothing was lost") };
    assert!(why.contains("more has happened"), "{why}");
    assert_eq!(session.next().await, Notice::Connected);
    let asked: Vec<_> =
        sender.requests().iter().map(|asked| format!("{} {}", asked.method, asked.target)).collect();
    let renewal = "PUT /v1/sessions/0xab";
    assert_eq!(asked, ["POST /v1/sessions", "GET /v1/events", renewal, "GET /v1/events"]);
    // A session that is not known any more is over, whoever is told so.
    sender.behave(|_| Answer::status(404).body(r#"{"detail":"there is no such session"}"#));
    let mut renewed = session.renew();
    let ended =
        async { while !matches!(session.next().await, Notice::Ended(why) if why.contains("no such")) {} };
    tokio::time::timeout(support::PATIENCE, ended).await.unwrap();
    assert!((&mut renewed).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_stream_is_ended_again_and_what_is_no_gateway_is_told_apart() {
    let whole = pretend("");
    let sender = Sender::start(move |request| match request.target.as_str() {
        "/v1/events" => Answer::status(503).body(r#"{"detail":"1024 event streams are open already"}"#),
        _ => whole(request),
    });
    let mut sessions = sessions_at(sender.address().port(), "host-a", Duration::from_secs(6));
    let why = sessions.open().await.unwrap_err().to_string();
    assert!(why.contains("503 1024 event streams are open already"), "{why}");
    let ends =
        |asked: &Recorded| (asked.method.as_str(), asked.target.as_str()) == ("DELETE", "/v1/sessions/0xab");
    eventually("it is ended", || sender.requests().iter().any(ends)).await;
    for answer in [Answer::ok().body("<html>"), Answer::status(404), Answer::status(201).body("[]")] {
        sender.behave(move |_| answer.clone());
        let why = sessions.open().await.unwrap_err().to_string();
        assert!(why.contains("[coordination] elections must lead to"), "{why}");
    }
    let endless = vec![b' '; (16 << 20) + 1];
    sender.behave(move |_| Answer::status(201).body(&endless));
    assert!(sessions.open().await.unwrap_err().to_string().contains("length limit"));
    sender.behave(|_| Answer::hang_up());
    assert!(sessions.open().await.unwrap_err().to_string().contains("is the gateway running"));
}

#[test]
fn the_secret_of_a_session_is_in_no_line_of_an_agents_log() {
    let sender = Sender::start(pretend("event: open\ndata: {}\n\n"));
    let agent = AgentSetup::new("unused", loopback(1), "host-a", "[\"wxid_1\"]")
        .with_elections_at(sender.address())
        .section("[log]", "level = \"trace\"")
        .start();
    // Renewed, looked at, and told that there is no such session.
    let asked = |method: &str| sender.requests().iter().any(|request| request.method == method);
    wait_until("it is renewed", || asked("PUT"));
    wait_until("it has looked", || agent.log().contains("[listen] elections"));
    sender.behave(|_| Answer::status(404).body(r#"{"detail":"there is no such session"}"#));
    agent.wait_for_line("is over");
    assert!(!agent.log().contains("a-secret"), "{}", agent.log());
    let with_secret =
        |request: &Recorded| request.header("authorization").is_some_and(|it| it.contains("a-secret"));
    assert!(sender.requests().iter().any(with_secret), "it was shown to whom it concerns");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_dropped_is_ended_long_before_it_would_be_over() {
    let elections = InGateway::start();
    let name = AccountName::new("wxid_1").unwrap();
    let mut session = sessions_at(elections.port(), "host-a", Duration::from_secs(300)).open().await.unwrap();
    session.register(&name).await.unwrap();
    assert_eq!(elections.standing("wxid_1").1, 1);
    drop(session);
    eventually("nobody stands", || elections.standing("wxid_1") == (None, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_accounts_on_one_session_are_led_and_change_hands() {
    let elections = InGateway::start();
    let accounts: Vec<_> = (0..3000).map(|number| format!("wxid+{number}@x")).collect();
    let first = start(elections.port(), "host-a", &accounts, Duration::from_secs(60));
    let leads = |elector: &Elector| accounts.iter().filter(|account| elector.token(account).is_ok()).count();
    eventually("all are led", || leads(&first) == accounts.len()).await;
    assert_eq!(first.sessions().len(), 1);
    let second = start(elections.port(), "host-b", &accounts, Duration::from_secs(60));
    let waits = |elector: &Elector| elector.standings().iter().all(|(_, it)| it.role.as_str() == "WAITING");
    eventually("the other stands by", || second.is_ready() && waits(&second)).await;
    first.stop().await;
    eventually("the other leads", || leads(&second) == accounts.len()).await;
}

//! TLS on the listeners beside the gateway's proxy: embedded elections, and the agent's two. Spoken to by curl and openssl.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use support::certificates::text;
use support::place::{free_port, loopback};
use support::tls::{ask, curl, s_client, said};
use support::{
    AgentSetup, Authority, Certificate, Connection, Ensemble, Gateway, Headers, Instance, Metrics, Relay,
    Sender, Setup, wait_until,
};

const LIST: &str = "client_names = [\"agent-1.internal\"]\nadmin_names = [\"ops.internal\"]";

/// The lines of a section about TLS.
fn section(authority: &Authority, server: &Certificate, more: &str) -> String {
    format!("cert = {:?}\nkey = {:?}\nclient_ca = {:?}\n{more}", server.cert, server.key, authority.cert())
}

/// Asks with a certificate; what is printed is the answer and its status.
fn ask_with(
    authority: &Authority,
    certificate: &Certificate,
    address: SocketAddr,
    path: &str,
    more: &[&str],
) -> Result<String, String> {
    let mut command = curl(authority, address, path);
    command.args(["--cert", text(&certificate.cert), "--key", text(&certificate.key)]);
    said(&command.args(["-w", " %{http_code}"]).args(more).output().unwrap())
}

fn reloads(metrics: &Metrics, result: &str) -> f64 {
    metrics.sum("fencegate_certificate_reloads_total", &[("result", result)])
}

#[test]
fn elections_are_held_over_tls_with_those_whose_certificates_are_for_their_names() {
    let (authority, strangers, sender) = (Authority::new("ours"), Authority::new("theirs"), Sender::new());
    let server = authority.sign("server", "DNS:localhost,IP:127.0.0.1");
    let port = free_port();
    let names = "client_names = [\"bot.internal\"]\nelections_names = [\"agent-1.internal\"]\nlisteners = [\"elections\"]";
    let gateway = Setup::embedded(port, &sender.url())
        .section("listen.tls", &section(&authority, &server, names))
        .start();
    let elections = loopback(port);
    let agent = authority.sign("agent", "DNS:agent-1.internal");
    let wish = ["-d", "{\"instance_id\":\"host-a\",\"ttl\":\"1m\"}"];
    let begin =
        |certificate: &Certificate| ask_with(&authority, certificate, elections, "/v1/sessions", &wish);
    let errors = || gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", "tls")]);
    for (what, certificate) in [
        ("the proxy's name", authority.sign("bot", "DNS:bot.internal")),
        ("a wildcard", authority.sign("wild", "DNS:*.internal")),
        ("another authority", strangers.sign("agent", "DNS:agent-1.internal")),
        ("the gateway's own", server.clone()),
    ] {
        let before = errors();
        assert!(begin(&certificate).is_err(), "{what}");
        wait_until("it is counted", || errors() > before);
    }
    let without = curl(&authority, elections, "/v1/elections").output().unwrap();
    assert!(said(&without).is_err(), "no certificate");
    let begun = begin(&agent).unwrap();
    assert!(begun.ends_with(" 201"), "{begun}");
    let begun: serde_json::Value = serde_json::from_str(begun.trim_end_matches(" 201")).unwrap();
    let bearer = format!("Authorization: Bearer {}", begun["secret"].as_str().unwrap());
    let path = "/v1/elections/wxid_1/candidates";
    let stood = ask_with(&authority, &agent, elections, path, &["-X", "POST", "-H", &bearer]).unwrap();
    let stood: serde_json::Value = serde_json::from_str(stood.trim_end_matches(" 200")).unwrap();
    let token = Headers::none()
        .with("X-Fencing-Seq", &stood["seq"])
        .with("X-Fencing-Session", begun["session"].as_str().unwrap());
    assert_eq!(gateway.send("wxid_1", &token, "x").status, 200, "the proxy speaks without TLS");

    let shown = s_client(&authority, elections)
        .args(["-alpn", "h2,http/1.1", "-cert", text(&agent.cert), "-key", text(&agent.key)])
        .stdin(Stdio::null())
        .output();
    assert!(said(&shown.unwrap()).unwrap().contains("ALPN protocol: http/1.1"));
    authority.sign("second", "DNS:localhost").replace(&server);
    gateway.signal(Signal::HUP);
    wait_until("they are read again", || reloads(&gateway.metrics(), "read") == 1.0);
    let looked = ask_with(&authority, &agent, elections, "/v1/elections/wxid_1", &["-v"]);
    assert!(looked.unwrap().contains("\"holder\":{"));
}

/// A gateway and an agent of it that speaks TLS to its bots.
struct World {
    authority: Authority,
    server: Certificate,
    bot: Certificate,
    agent: support::Agent,
    sender: Sender,
    _gateway: Gateway,
    _other: Instance,
    _ensemble: Ensemble,
}

impl World {
    #[track_caller]
    fn new() -> Self {
        let (ensemble, sender) = (Ensemble::start(1), Sender::new());
        let authority = Authority::new("ours");
        let server = authority.sign("server", "DNS:localhost,IP:127.0.0.1");
        let bot = authority.sign("bot", "DNS:agent-1.internal");
        let other = Instance::open(&ensemble.connect(), "elsewhere");
        let gateway = Gateway::start(&ensemble.connect(), &sender.url());
        let agent = AgentSetup::new(&ensemble.connect(), gateway.proxy(), "host-a", "[\"wxid_1\"]")
            .section("[agent.tls]", &section(&authority, &server, LIST))
            .start();
        let world = Self {
            authority,
            server,
            bot,
            agent,
            sender,
            _gateway: gateway,
            _other: other,
            _ensemble: ensemble,
        };
        wait_until("it leads", || world.look("/v1/roles").is_ok_and(|said| said.contains("LEADER")));
        world
    }

    /// What an operator sees.
    fn look(&self, path: &str) -> Result<String, String> {
        let operator = self.authority.sign("operator", "DNS:ops.internal");
        let said = ask_with(&self.authority, &operator, self.agent.admin(), path, &[])?;
        said.strip_suffix(" 200").map(str::to_owned).ok_or(said)
    }

    fn metrics(&self) -> Metrics {
        Metrics::parse(&self.look("/metrics").unwrap())
    }
}

#[test]
fn an_agent_speaks_tls_to_bots_and_operators_whose_certificates_are_for_their_names() {
    let world = World::new();
    let (bots, path) = (world.agent.bots(), "/wx/wxid_1/send");
    let send = |certificate: &Certificate| ask_with(&world.authority, certificate, bots, path, &["-d", "x"]);
    assert!(send(&world.bot).unwrap().ends_with(" 200"));
    assert_eq!(world.sender.count(), 1);
    let operator = world.authority.sign("operator", "DNS:ops.internal");
    let before = world.metrics().sum("fencegate_connection_errors_total", &[("kind", "tls")]);
    assert!(send(&operator).is_err(), "an operator is no bot");
    assert!(send(&Authority::new("theirs").sign("bot", "DNS:agent-1.internal")).is_err());
    assert!(ask_with(&world.authority, &world.bot, world.agent.admin(), "/v1/roles", &[]).is_err());
    let plain = support::try_call(bots, "POST", path, &Headers::none(), "x");
    assert!(plain.is_err(), "without TLS");
    assert_eq!(world.sender.count(), 1);
    let counted = || world.metrics().sum("fencegate_connection_errors_total", &[("kind", "tls")]);
    wait_until("they are counted", || counted() >= before + 4.0);
}

#[test]
fn an_agent_reads_its_certificates_again_on_sighup_and_open_connections_go_on() {
    let world = World::new();
    let open = |authority: &Authority| {
        let mut client = s_client(authority, world.agent.bots());
        client.args(["-cert", text(&world.bot.cert), "-key", text(&world.bot.key)]);
        client
    };
    let shown = || said(&open(&world.authority).stdin(Stdio::null()).output().unwrap()).unwrap();
    let mut client: Command = open(&world.authority);
    client.args(["-quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = client.spawn().unwrap();
    let request = "POST /wx/wxid_1/send HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    assert!(ask(&mut client, request).starts_with("HTTP/1.1 200 "));
    world.authority.sign("second", "DNS:localhost").replace(&world.server);
    world.agent.signal(Signal::HUP);
    wait_until("they are read again", || reloads(&world.metrics(), "read") == 1.0);
    assert!(shown().contains("CN = second"));
    assert!(ask(&mut client, request).starts_with("HTTP/1.1 200 "));
    std::fs::write(&world.server.key, "half a ke").unwrap();
    world.agent.signal(Signal::HUP);
    wait_until("they are not", || reloads(&world.metrics(), "failed") == 1.0);
    world.agent.wait_for_line("the certificates stay as they were: [agent.tls] key");
    assert!(shown().contains("CN = second"));
    assert!(ask(&mut client, request).starts_with("HTTP/1.1 200 "));
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(world.agent.terminate(), Some(0), "SIGHUP did not end it");
}

#[test]
fn a_page_of_another_site_sends_nothing_through_an_agent() {
    let world = World::new();
    let send = |header: &str| {
        let more = ["-d", "x", "-H", header];
        ask_with(&world.authority, &world.bot, world.agent.bots(), "/wx/wxid_1/send", &more).unwrap()
    };
    for header in ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"] {
        let said = send(header);
        assert!(said.contains("\"code\":\"denied\"") && said.ends_with(" 403"), "{header}: {said}");
    }
    assert_eq!(world.sender.count(), 0);
    assert!(send("Sec-Fetch-Mode: cors").ends_with(" 200"), "what Node sends as well");
}

#[test]
fn bots_never_take_the_descriptors_that_an_agents_sessions_need() {
    let (ensemble, sender) = (Ensemble::start(1), Sender::new());
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    let line = Relay::to(ensemble.server(0).port());
    let agent =
        AgentSetup::new(&line.connect(), gateway.proxy(), "host-a", "[\"wxid_1\"]").descriptors(120).start();
    agent.wait_for_line("120 file descriptors are allowed: max_connections = 40 instead of 10000");
    agent.wait_for_role("wxid_1", "LEADER");
    let crowd: Vec<_> = (0..150).map(|_| Connection::open(agent.bots())).collect();
    let bots = || agent.metrics().sum("fencegate_connections", &[("listener", "proxy")]);
    wait_until("as many as there may be", || bots() == 40.0);
    let changes = || agent.metrics().sum("fencegate_agent_role_changes_total", &[]);
    let before = changes();
    line.cut_once();
    wait_until("it is suspended and leads again", || changes() >= before + 2.0);
    agent.wait_for_role("wxid_1", "LEADER");
    assert_eq!(agent.metrics().sum("fencegate_connection_errors_total", &[("kind", "accept")]), 0.0);
    drop(crowd);
    wait_until("it sends", || agent.send("wxid_1", &Headers::none(), "x").status == 200);
}

//! TLS on the listeners, spoken to by curl and by openssl: versions, HTTP/2, client certificates, certificates that change.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};
use support::certificates::text;
use support::tls::{ask, curl, s_client, said};
use support::{
    AgentSetup, Answer, Authority, Certificate, Connection, Gateway, Headers, PATIENCE, Setup, Shared, Stage,
    call, only, wait_until,
};

/// Its gateway speaks without TLS: each test starts one of its own beside it.
static SHARED: Shared = Shared::new();

fn stage() -> Arc<Stage> {
    SHARED.stage(|setup, _| setup)
}

struct World {
    stage: Arc<Stage>,
    authority: Authority,
    server: Certificate,
    gateway: Gateway,
}

impl World {
    #[track_caller]
    fn new(more: impl FnOnce(&Authority) -> String) -> Self {
        let stage = stage();
        let authority = Authority::new("the authority");
        let server = authority.sign("server", "DNS:localhost,IP:127.0.0.1");
        let files = format!("cert = {:?}\nkey = {:?}\n", server.cert, server.key);
        let gateway = Setup::new(&stage.connect(), &stage.sender.url())
            .section("limits", "header_read_timeout = \"700ms\"\nidle_timeout = \"1500ms\"")
            .section("listen.tls", &format!("{files}{}", more(&authority)))
            .start();
        Self { stage, authority, server, gateway }
    }

    fn plain_admin() -> Self {
        Self::new(|_| "listeners = [\"proxy\"]".to_owned())
    }

    fn errors(&self, kind: &str) -> f64 {
        self.gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", kind)])
    }

    /// A send with curl; what it prints is `VERSION STATUS`.
    fn curl(&self, account: &str, token: &Headers, arguments: &[&str]) -> Result<String, String> {
        let mut command = curl(&self.authority, self.gateway.proxy(), &format!("/wx/{account}/send"));
        command.args(["-o", "/dev/null", "-w", "%{http_version} %{http_code}", "-d", "x"]).args(arguments);
        token.iter().for_each(|(name, value)| {
            command.args(["-H", &format!("{name}: {value}")]);
        });
        said(&command.output().unwrap())
    }

    fn openssl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.s_client();
        said(&command.args(arguments).stdin(Stdio::null()).output().unwrap())
    }

    fn s_client(&self) -> Command {
        s_client(&self.authority, self.gateway.proxy())
    }
}

#[test]
fn curl_sends_over_http_1_and_http_2_and_the_sender_is_told_of_https() {
    let world = World::plain_admin();
    for (option, expected) in [("--http1.1", "1.1 200"), ("--http2", "2 200")] {
        let holder = world.stage.holder();
        world.gateway.wait_for_holder(&holder.account, world.stage.bot.seq(&holder.account));
        let said = world.curl(&holder.account, &holder.token, &[option]);
        assert_eq!(said.as_deref(), Ok(expected), "{option}");
        let seen = only(&holder);
        assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
        assert_eq!(seen.body, b"x");
    }
}

#[test]
fn openssl_agrees_on_tls_1_2_and_1_3_and_on_nothing_older() {
    let world = World::plain_admin();
    for (version, shown) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        for (offered, agreed) in [
            (&["-alpn", "h2,http/1.1"][..], "ALPN protocol: h2"),
            (&["-alpn", "http/1.1"], "ALPN protocol: http/1.1"),
            (&[], "No ALPN negotiated"),
        ] {
            let said = world.openssl(&[&[version], offered].concat()).unwrap();
            assert!(said.contains(shown) && said.contains(agreed), "{version} {offered:?}\n{said}");
            assert!(said.contains("Verification: OK"), "{said}");
        }
    }
    for version in ["-tls1_1", "-tls1"] {
        assert!(world.openssl(&[version, "-cipher", "ALL:@SECLEVEL=0"]).is_err(), "{version}");
    }
    assert!(world.openssl(&["-alpn", "spdy/3"]).is_err(), "a protocol that nobody speaks");
}

#[test]
fn only_certificates_of_the_authority_for_an_allowed_name_may_send() {
    let world = World::new(|authority| {
        let ca = authority.cert();
        format!(
            "client_ca = {ca:?}\nclient_names = [\"bot-1.internal\", \"10.0.0.1\"]\nlisteners = [\"proxy\"]"
        )
    });
    let strangers = Authority::new("another authority");
    let holder = world.stage.holder();
    world.gateway.wait_for_holder(&holder.account, world.stage.bot.seq(&holder.account));
    let send = |certificate: &Certificate| {
        let files = ["--cert", text(&certificate.cert), "--key", text(&certificate.key)];
        world.curl(&holder.account, &holder.token, &files)
    };
    let before = world.errors("tls");
    assert!(world.curl(&holder.account, &holder.token, &[]).is_err(), "no certificate");
    for (what, certificate) in [
        ("another name", world.authority.sign("other", "DNS:bot-2.internal")),
        (
            "the name without what makes it one",
            world.authority.sign("bot-1.internal", "DNS:x.bot-1.internal"),
        ),
        ("a wildcard", world.authority.sign("wildcard", "DNS:*.internal")),
        ("another authority", strangers.sign("stranger", "DNS:bot-1.internal")),
        ("the gateway's own", world.server.clone()),
    ] {
        assert!(send(&certificate).is_err(), "{what}");
    }
    assert!(holder.seen().is_empty());
    wait_until("they are counted", || world.errors("tls") >= before + 6.0);
    for names in ["DNS:bot-1.internal", "DNS:x.internal,DNS:BOT-1.internal", "DNS:x,IP:10.0.0.1"] {
        assert_eq!(send(&world.authority.sign("bot", names)).as_deref(), Ok("2 200"), "{names}");
    }
}

#[test]
fn certificates_are_read_again_on_sighup_and_open_connections_go_on() {
    let world = World::plain_admin();
    let reloads =
        |result| world.gateway.metrics().sum("fencegate_certificate_reloads_total", &[("result", result)]);
    let holder = world.stage.holder();
    world.gateway.wait_for_holder(&holder.account, world.stage.bot.seq(&holder.account));
    let request = holder.head(&holder.path(), "Host: localhost\nContent-Length: 0");
    let mut open = world.s_client();
    open.args(["-quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut open = open.spawn().unwrap();
    assert!(ask(&mut open, &request).starts_with("HTTP/1.1 200 "));

    world.authority.sign("second", "DNS:localhost").replace(&world.server);
    world.gateway.signal(Signal::HUP);
    wait_until("they are read", || reloads("read") == 1.0);
    let said = ask(&mut open, &request);
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert!(world.openssl(&[]).unwrap().contains("CN = second"));

    for (what, bad) in [("no certificate", "x"), ("nothing", "")] {
        std::fs::write(&world.server.cert, bad).unwrap();
        let before = reloads("failed");
        world.gateway.signal(Signal::HUP);
        wait_until(what, || reloads("failed") > before);
    }
    world.gateway.wait_for_line("the certificates stay as they were");
    let other = world.authority.sign("third", "DNS:localhost");
    std::fs::copy(&other.cert, &world.server.cert).unwrap();
    world.gateway.signal(Signal::HUP);
    wait_until("a key of another certificate", || reloads("failed") == 3.0);
    assert!(world.openssl(&[]).unwrap().contains("CN = second"));
    assert!(ask(&mut open, &request).starts_with("HTTP/1.1 200 "));
    open.kill().unwrap();
    open.wait().unwrap();
}

#[test]
fn sighup_without_certificates_ends_nothing() {
    let stage = stage();
    let gateway = Gateway::start(&stage.connect(), &stage.sender.url());
    gateway.signal(Signal::HUP);
    gateway.wait_for_line("there are no certificates to read again");
    assert!(gateway.is_ready());
}

#[test]
fn files_that_are_no_certificates_are_refused_at_the_start_by_name() {
    let authority = Authority::new("the authority");
    let server = authority.sign("server", "DNS:localhost");
    let other = authority.sign("other", "DNS:localhost");
    let missing = authority.cert().with_file_name("missing.pem");
    for (cert, key, named) in [
        (&missing, &server.key, "missing.pem"),
        (&server.key, &server.key, "server.key"),
        (&server.cert, &server.cert, "server.pem"),
        (&server.cert, &other.key, "[listen.tls]"),
    ] {
        let gateway = Setup::new("127.0.0.1:1", "http://127.0.0.1:1")
            .section("listen.tls", &format!("cert = {cert:?}\nkey = {key:?}"))
            .start_unready();
        assert_eq!(gateway.wait(PATIENCE), Some(1));
        assert!(gateway.log().contains(named), "{named}: {}", gateway.log());
    }
}

#[test]
fn whoever_does_not_finish_its_handshake_is_closed_and_counted() {
    let world = World::plain_admin();
    let hello = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    for part in [&b""[..], &hello[..5], &hello] {
        let before = world.errors("header_timeout");
        let mut silent = Connection::open(world.gateway.proxy());
        silent.write(part).unwrap();
        assert!(silent.closes_within(PATIENCE), "{part:?}");
        wait_until("it is counted", || world.errors("header_timeout") > before);
    }
    let before = world.errors("tls");
    let mut plain = Connection::open(world.gateway.proxy());
    plain.write("POST /wx/a/send HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let _ = plain.read_to_end_within(PATIENCE);
    wait_until("no TLS is counted", || world.errors("tls") > before);
}

fn connect(
    address: SocketAddr,
    authority: &Authority,
    stream: TcpStream,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.cert()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::from(address.ip());
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

#[test]
fn a_caller_that_takes_nothing_of_its_answer_is_closed() {
    let world = World::plain_admin();
    let holder = world.stage.holder();
    world.gateway.wait_for_holder(&holder.account, world.stage.bot.seq(&holder.account));
    holder.answers(|_| Answer::ok().body("x".repeat(40_000_000)));
    let before = world.errors("broken");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&world.gateway.proxy().into()).unwrap();
    let mut lazy = connect(world.gateway.proxy(), &world.authority, socket.into());
    lazy.write_all(holder.head(&holder.path(), "Host: h\nContent-Length: 0").as_bytes()).unwrap();
    lazy.flush().unwrap();
    wait_until("it is at the sender", || holder.seen().len() == 1);
    wait_until("it is given up", || world.errors("broken") > before);
}

#[test]
fn an_answer_that_breaks_off_does_not_end_as_a_whole_one() {
    let world = World::plain_admin();
    let holder = world.stage.holder();
    world.gateway.wait_for_holder(&holder.account, world.stage.bot.seq(&holder.account));
    holder.answers(|_| Answer::ok().body("x".repeat(3_000_000)).cut_at(2_000_000));
    let stream = TcpStream::connect(world.gateway.proxy()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = connect(world.gateway.proxy(), &world.authority, stream);
    client.write_all(holder.head(&holder.path(), "Host: h\nContent-Length: 0").as_bytes()).unwrap();
    let mut rest = Vec::new();
    let end = client.read_to_end(&mut rest).map_err(|error| error.kind());
    assert!(
        matches!(end, Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)),
        "{end:?} after {}",
        rest.len()
    );
}

#[test]
fn the_admin_listener_speaks_it_too_and_our_own_commands_with_it() {
    let stage = stage();
    let authority = Authority::new("the authority");
    let server = authority.sign("server", "DNS:localhost");
    let ca = authority.cert();
    let gateway = Setup::new(&stage.connect(), &stage.sender.url())
        .section(
            "listen.tls",
            &format!(
                "cert = {:?}\nkey = {:?}\nclient_ca = {ca:?}\nadmin_names = [\"operator.internal\"]",
                server.cert, server.key
            ),
        )
        .start_unready();
    let ask = |certificate: &Certificate| {
        let mut command = curl(&authority, gateway.admin(), "/readyz");
        command.args(["--cert", text(&certificate.cert), "--key", text(&certificate.key)]);
        said(&command.output().unwrap())
    };
    let operator = authority.sign("operator", "DNS:operator.internal");
    wait_until("ready", || ask(&operator).is_ok_and(|said| said.contains("\"ready\":true")));
    assert!(ask(&authority.sign("bot", "DNS:bot-1.internal")).is_err());
    let accept = support::gateway::fencegate(&["accept-history", "--config", text(gateway.config())]);
    let said = String::from_utf8(accept.stderr).unwrap();
    assert!(said.contains("nothing to accept"), "{said}");
    let impostor = Authority::new("an impostor");
    impostor.sign("server", "DNS:localhost").replace(&server);
    let refused = support::gateway::fencegate(&["accept-history", "--config", text(gateway.config())]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("invalid peer certificate"));
}

#[test]
fn an_agent_speaks_it_to_the_gateway_that_it_trusts_and_to_no_other() {
    let world = World::plain_admin();
    let agent = |name: &str, account: &str, ca: &Authority| {
        let accounts = format!("[\"{account}\"]");
        let setup = AgentSetup::new(&world.stage.connect(), world.gateway.proxy(), name, &accounts);
        let agent = setup.over_tls(&ca.cert()).start();
        agent.wait_for_role(account, "LEADER");
        agent
    };
    let trusting = agent("host-t", "wxid_tls", &world.authority);
    assert_eq!(trusting.send("wxid_tls", &Headers::none(), "x").status, 200, "{}", trusting.log());
    let seen = world.stage.sender.requests();
    let sent = seen.iter().find(|request| request.header("x-fencing-account") == Some("wxid_tls")).unwrap();
    assert_eq!(sent.header("x-forwarded-proto"), Some("https"));
    let wary = agent("host-w", "wxid_wary", &Authority::new("another authority"));
    let refused = wary.send("wxid_wary", &Headers::none(), "x");
    assert_eq!((refused.status, refused.code().as_deref()), (503, Some("upstream_unreachable")));
}

#[test]
fn an_agent_shows_its_gateway_a_certificate_where_it_asks_for_one() {
    let world = World::new(|authority| {
        format!(
            "client_ca = {:?}\nclient_names = [\"agent-1.internal\"]\nlisteners = [\"proxy\"]",
            authority.cert()
        )
    });
    let own = world.authority.sign("agent", "DNS:agent-1.internal");
    let agent = |name: &str, account: &str, http: &str, certificate: Option<&Certificate>| {
        let accounts = format!("[\"{account}\"]");
        let setup = AgentSetup::new(&world.stage.connect(), world.gateway.proxy(), name, &accounts);
        let setup = setup.over_tls(&world.authority.cert());
        let lines = certificate.map_or(String::new(), |Certificate { cert, key }| {
            format!("gateway_cert = {cert:?}\ngateway_cert_key = {key:?}\n")
        });
        let agent = setup.more("[agent]", &format!("{lines}gateway_http = {http:?}")).start();
        agent.wait_for_role(account, "LEADER");
        agent
    };
    for (http, version) in [("1", "1.1"), ("auto", "2"), ("2", "2")] {
        let account = format!("wxid_shown_{http}");
        let known = agent(&format!("host-{http}"), &account, http, Some(&own));
        assert_eq!(known.send(&account, &Headers::none(), "x").status, 200, "{}", known.log());
        let seen = world.stage.sender.requests();
        let sent = seen.iter().find(|request| request.header("x-fencing-account") == Some(&account)).unwrap();
        let via = format!("1.1 fencegate-agent, {version} fencegate");
        assert_eq!(sent.headers.all("via").join(", "), via, "{http}");
        known.signal(Signal::HUP);
        known.wait_for_line("the certificates are read again");
        assert_eq!(known.send(&account, &Headers::none(), "x").status, 200, "{}", known.log());
    }
    let other = world.authority.sign("other", "DNS:agent-2.internal");
    for (number, certificate) in [None, Some(&other)].into_iter().enumerate() {
        let account = format!("wxid_unknown_{number}");
        let unknown = agent(&format!("host-u{number}"), &account, "2", certificate);
        let refused = unknown.send(&account, &Headers::none(), "x");
        // Its settings never came, so nothing was sent.
        assert_eq!((refused.status, refused.code().as_deref()), (503, Some("upstream_unreachable")));
    }
}

#[test]
fn a_listener_without_tls_is_as_before() {
    let stage = stage();
    let holder = stage.holder();
    assert_eq!(holder.send("x").status, 200);
    assert_eq!(only(&holder).header("x-forwarded-proto"), Some("http"));
    let view = call(stage.gateway.admin(), "GET", "/v1/view", &Headers::none(), "");
    assert_eq!(view.status, 200);
}

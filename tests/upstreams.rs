//! Where sends go: over TLS, to several addresses of one sender, to Unix sockets, and with a certificate of our own.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use support::{
    Answer, Authority, Certificate, Connection, Folder, Gateway, Headers, Instance, PATIENCE, Sender, Setup,
    Shared, Stage, assert_admitted, named_route, now, wait_until,
};

static SHARED: Shared = Shared::new();

fn stage() -> Arc<Stage> {
    SHARED.stage(|setup, _| setup)
}

/// A gateway beside the stage's whose sender is elsewhere.
fn gateway(stage: &Stage, upstream: &str, more: &str) -> Gateway {
    let route = format!(
        "path = \"/wx/{{account}}/{{*rest}}\"\naccount = \"path:account\"\nupstream = {upstream}\n{more}"
    );
    Setup::new(&stage.connect(), "").route(&route).start()
}

/// A head and its body; nothing where the other side has ended.
fn read_request(stream: &mut impl BufRead) -> Option<Headers> {
    let mut text = String::new();
    loop {
        let before = text.len();
        if stream.read_line(&mut text).ok()? == 0 {
            return None;
        }
        if text.len() == before + 2 {
            break;
        }
    }
    let headers = Headers::parse(text.split_once("\r\n")?.1);
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    stream.read_exact(&mut vec![0; length]).ok()?;
    Some(headers)
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A sender that speaks TLS and notes the Hosts it was asked for.
fn tls_sender(certificate: &Certificate) -> (u16, Arc<Mutex<Vec<String>>>) {
    let chain = vec![CertificateDer::from_pem_file(&certificate.cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&hosts);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (config, noted) = (Arc::clone(&config), Arc::clone(&noted));
            std::thread::spawn(move || {
                let stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                let mut stream = BufReader::new(stream);
                while let Some(headers) = read_request(&mut stream) {
                    noted.lock().unwrap().push(headers.get("host").unwrap_or_default().to_owned());
                    stream.get_mut().write_all(ANSWER).unwrap();
                }
            });
        }
    });
    (port, hosts)
}

#[test]
fn a_sender_is_spoken_to_over_tls_if_its_certificate_is_trusted_and_for_its_name() {
    let stage = stage();
    let authority = Authority::new("the authority");
    let (port, hosts) = tls_sender(&authority.sign("sender", "DNS:localhost"));
    let ca = format!("upstream_ca = {:?}", authority.cert());
    let holder = stage.holder();
    let good = gateway(&stage, &format!("\"https://localhost:{port}\""), &ca);
    good.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    for _ in 0..3 {
        assert_admitted(&good.send(&holder.account, &holder.token, "x"));
    }
    assert_eq!(*hosts.lock().unwrap(), vec![format!("localhost:{port}"); 3]);
    let stranger = Authority::new("another authority");
    for (what, upstream, ca) in [
        (
            "another authority",
            format!("\"https://localhost:{port}\""),
            format!("upstream_ca = {:?}", stranger.cert()),
        ),
        ("another name", format!("\"https://127.0.0.1:{port}\""), ca),
        ("the system's", format!("\"https://localhost:{port}\""), String::new()),
    ] {
        let gateway = gateway(&stage, &upstream, &ca);
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        let refused = gateway.send(&holder.account, &holder.token, "x");
        assert_eq!(
            (refused.status, refused.code().as_deref()),
            (503, Some("upstream_unreachable")),
            "{what}"
        );
        assert!(
            refused.json()["detail"].as_str().unwrap().contains("certificate"),
            "{what}: {}",
            refused.text()
        );
    }
    assert_eq!(hosts.lock().unwrap().len(), 3, "no byte of them was sent");
}

#[test]
fn an_account_goes_to_one_address_and_to_another_only_while_that_one_is_down() {
    let stage = stage();
    let senders: Vec<_> = (0..3).map(|_| Sender::new()).collect();
    let urls: Vec<_> = senders.iter().map(Sender::url).collect();
    let gateway = gateway(&stage, &format!("{urls:?}"), "");
    let holders: Vec<_> = (0..24).map(|_| stage.holder()).collect();
    for holder in &holders {
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    }
    let round = || {
        let before: Vec<_> = senders.iter().map(Sender::count).collect();
        for holder in &holders {
            assert_admitted(&gateway.send(&holder.account, &holder.token, "x"));
        }
        let mut at = HashMap::new();
        for (number, sender) in senders.iter().enumerate() {
            for request in &sender.requests()[before[number]..] {
                assert_eq!(request.header("host"), Some(sender.address().to_string().as_str()));
                at.insert(request.header("x-fencing-account").unwrap().to_owned(), number);
            }
        }
        assert_eq!(at.len(), holders.len(), "each once");
        at
    };
    let first = round();
    assert_eq!(first, round());
    assert_eq!(first.values().collect::<HashSet<_>>().len(), 3, "all are used");
    senders[1].stop();
    let without = round();
    for (account, place) in &without {
        assert_ne!(*place, 1);
        assert!(first[account] == 1 || first[account] == *place, "{account} has moved without need");
    }
    senders[0].stop();
    senders[2].stop();
    let refused = gateway.send(&holders[0].account, &holders[0].token, "x");
    assert_eq!(refused.code().as_deref(), Some("upstream_unreachable"));
}

#[test]
fn a_connection_is_not_used_longer_than_its_sender_says_it_keeps_it() {
    for (said, uses) in [("timeout=1, max=100", 2), ("timeout=100", 1)] {
        let stage = stage();
        let sender = Sender::start(move |_| Answer::ok().header("Keep-Alive", said));
        let gateway = gateway(&stage, &format!("{:?}", sender.url()), "");
        let holder = stage.holder();
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        let mut connection = Connection::open(gateway.proxy());
        for _ in 0..2 {
            connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
            assert_admitted(&connection.read());
            let begun = now();
            wait_until("half a second is over", || begun.elapsed() > Duration::from_millis(600));
        }
        assert_eq!(sender.connections(), uses, "{said}");
    }
}

/// A sender on a Unix socket that notes what it was asked, and answers nothing to a body of `hold`.
fn unix_sender(path: &Path) -> Arc<Mutex<Vec<Headers>>> {
    let listener = UnixListener::bind(path).unwrap();
    let seen = Arc::<Mutex<Vec<Headers>>>::default();
    let noted = Arc::clone(&seen);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let noted = Arc::clone(&noted);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                while let Some(headers) = read_request(&mut reader) {
                    let holds = headers.has("x-hold");
                    noted.lock().unwrap().push(headers);
                    if !holds {
                        (&stream).write_all(ANSWER).unwrap();
                    }
                }
                noted.lock().unwrap().push(Headers::none().with("x-ended", "1"));
            });
        }
    });
    seen
}

#[test]
fn a_sender_on_a_unix_socket_gets_what_one_over_tcp_gets() {
    let stage = stage();
    let folder = Folder::new("sender");
    let path = folder.join("sender.sock");
    let seen = unix_sender(&path);
    let holder = stage.holder();
    let tcp = Sender::new();
    let unix = format!("\"unix:{}\"", path.display());
    for (more, preserves) in [("", false), ("preserve_host = true", true)] {
        let gateway = gateway(&stage, &unix, more);
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        let mut connection = Connection::open(gateway.proxy());
        for _ in 0..2 {
            connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
            assert_admitted(&connection.read());
        }
        let all = std::mem::take(&mut *seen.lock().unwrap());
        assert!(all.len() == 2 && !all.iter().any(|seen| seen.has("x-ended")), "one connection: {all:?}");
        let host = if preserves { gateway.proxy().to_string() } else { "localhost".to_owned() };
        assert_eq!(all[1].get("host"), Some(host.as_str()));
        assert_eq!(all[1].get("x-fencing-account"), Some(holder.account.as_str()));
        drop(gateway);
        wait_until("it has ended", || !std::mem::take(&mut *seen.lock().unwrap()).is_empty());
    }
    // With the socket gone it goes on to the address that is left, under its own Host, and is refused where there is none.
    std::fs::remove_file(&path).unwrap();
    let only = gateway(&stage, &unix, "");
    only.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let refused = only.send(&holder.account, &holder.token, "x");
    assert_eq!((refused.status, refused.code().as_deref()), (503, Some("upstream_unreachable")));
    let mixed = gateway(&stage, &format!("[{unix}, {:?}]", tcp.url()), "");
    mixed.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    assert_admitted(&mixed.send(&holder.account, &holder.token, "x"));
    assert_eq!(tcp.requests()[0].header("host"), Some(tcp.address().to_string().as_str()));
}

#[test]
fn a_preserved_host_stays_on_another_address() {
    let stage = stage();
    let (tcp, folder) = (Sender::new(), Folder::new("gone"));
    let unix = format!("unix:{}", folder.join("gone.sock").display());
    let gateway = gateway(&stage, &format!("[{unix:?}, {:?}]", tcp.url()), "preserve_host = true");
    for _ in 0..8 {
        let holder = stage.holder();
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        let mut connection = Connection::open(gateway.proxy());
        let head = holder.head(&holder.path(), "Host: localhost\nContent-Length: 1");
        connection.write(format!("{head}x")).unwrap();
        assert_admitted(&connection.read());
    }
    assert!(tcp.requests().iter().all(|request| request.header("host") == Some("localhost")));
}

#[test]
fn a_send_that_is_cut_is_closed_at_a_unix_socket() {
    let stage = stage();
    let folder = Folder::new("sender");
    let path = folder.join("sender.sock");
    let seen = unix_sender(&path);
    let gateway = gateway(&stage, &format!("\"unix:{}\"", path.display()), "drain_timeout = \"300ms\"");
    let (a, b) = (Instance::open(&stage.connect(), "host-c"), Instance::open(&stage.connect(), "host-d"));
    a.lead("wxid_unix");
    gateway.wait_for_holder("wxid_unix", a.seq("wxid_unix"));
    let token = a.token("wxid_unix").with("x-hold", "1");
    std::thread::scope(|scope| {
        let old = scope.spawn(|| gateway.send("wxid_unix", &token, "x"));
        wait_until("the send is there", || seen.lock().unwrap().len() == 1);
        a.expire();
        b.lead("wxid_unix");
        assert_admitted(&gateway.send("wxid_unix", &b.token("wxid_unix"), "x"));
        let old = old.join().unwrap();
        assert_eq!((old.status, old.code().as_deref()), (504, Some("handover_cut")));
    });
    wait_until("its end is seen", || seen.lock().unwrap().iter().any(|seen| seen.has("x-ended")));
}

/// A sender over TLS that wants certificates of an authority, and notes which it was shown, by connection.
fn asking_sender(own: &Certificate, clients: &Authority) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let chain = vec![CertificateDer::from_pem_file(&own.cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(clients.cert()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(verifier.build().unwrap()).with_single_cert(chain, key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let shown = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let noted = Arc::clone(&shown);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (config, noted) = (Arc::clone(&config), Arc::clone(&noted));
            std::thread::spawn(move || {
                let stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                let (mut stream, mut is_noted) = (BufReader::new(stream), false);
                while read_request(&mut stream).is_some() {
                    if !std::mem::replace(&mut is_noted, true) {
                        let chain = stream.get_ref().conn.peer_certificates().unwrap();
                        noted.lock().unwrap().push(chain[0].to_vec());
                    }
                    stream.get_mut().write_all(ANSWER).unwrap();
                }
            });
        }
    });
    (port, shown)
}

#[test]
fn the_gateway_shows_its_certificate_and_reads_it_again_on_sighup() {
    let stage = stage();
    let authority = Authority::new("the authority");
    let (port, shown) = asking_sender(&authority.sign("sender", "DNS:sender.internal"), &authority);
    let (own, newer) = (authority.sign("own", "DNS:gateway"), authority.sign("newer", "DNS:gateway"));
    let ca = format!("upstream_ca = {:?}\nupstream_name = \"sender.internal\"", authority.cert());
    let upstream = format!("\"https://127.0.0.1:{port}\"");
    let holder = stage.holder();
    let without = gateway(&stage, &upstream, &ca);
    without.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let refused = without.send(&holder.account, &holder.token, "x");
    assert!([502, 503].contains(&refused.status), "{}", refused.text());
    assert!(shown.lock().unwrap().is_empty());

    let files = format!(
        "{ca}\nupstream_cert = {:?}\nupstream_cert_key = {:?}\nupstream_idle_timeout = \"1s\"",
        own.cert, own.key
    );
    let gateway = gateway(&stage, &upstream, &files);
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    let der = |certificate: &Certificate| CertificateDer::from_pem_file(&certificate.cert).unwrap().to_vec();
    let (first, second) = (der(&own), der(&newer));
    let mut connection = Connection::open(gateway.proxy());
    let mut send = |idle: bool| {
        let begun = now();
        wait_until("it was idle", || !idle || begun.elapsed() > Duration::from_millis(1200));
        connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
        assert_admitted(&connection.read());
        shown.lock().unwrap().clone()
    };
    let reloads =
        |result| gateway.metrics().sum("fencegate_certificate_reloads_total", &[("result", result)]);
    assert_eq!(send(false), std::slice::from_ref(&first));
    newer.replace(&own);
    gateway.signal(Signal::HUP);
    wait_until("they are read", || reloads("read") == 1.0);
    assert!(send(false).starts_with(std::slice::from_ref(&first)), "what is open goes on");
    assert_eq!(send(true).last(), Some(&second));
    std::fs::write(&own.key, "no key").unwrap();
    gateway.signal(Signal::HUP);
    wait_until("they are refused", || reloads("failed") == 1.0);
    let line = gateway.wait_for_line("stay as they were");
    assert!(line.contains("upstream_cert_key"), "{line}");
    assert_eq!(send(true).last(), Some(&second));
}

#[test]
fn a_certificate_that_does_not_fit_its_key_is_told_at_the_start() {
    let stage = stage();
    let authority = Authority::new("the authority");
    let (one, other) = (authority.sign("one", "DNS:a"), authority.sign("other", "DNS:a"));
    for (cert, key, named) in [
        (&one.cert, &other.key, "upstream_cert_key"),
        (&one.key, &one.key, "upstream_cert"),
        (&one.cert, &one.cert, "upstream_cert_key"),
    ] {
        let lines = format!(
            "upstream_ca = {:?}\nupstream_cert = {cert:?}\nupstream_cert_key = {key:?}",
            authority.cert()
        );
        let route = named_route("https://127.0.0.1:1", "wx", &lines);
        let gateway = Setup::new(&stage.connect(), "").route(&route).start_unready();
        assert_eq!(gateway.wait(PATIENCE), Some(1), "{named}\n{}", gateway.log());
        assert!(gateway.log().contains(&format!("{named} = ")), "{}", gateway.log());
    }
}

#[test]
fn an_https_sender_agrees_on_http_2_or_on_http_1_1() {
    let stage = stage();
    let authority = Authority::new("the authority");
    let certificate = authority.sign("sender", "DNS:localhost");
    let (port, hosts) = tls_sender(&certificate);
    let holder = stage.holder();
    for (http, status) in [("1", 200), ("auto", 200), ("2", 503)] {
        let more = format!("upstream_ca = {:?}\nupstream_http = {http:?}", authority.cert());
        let gateway = gateway(&stage, &format!("\"https://localhost:{port}\""), &more);
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        for _ in 0..2 {
            assert_eq!(gateway.send(&holder.account, &holder.token, "x").status, status, "{http}");
        }
    }
    assert_eq!(hosts.lock().unwrap().len(), 4, "over HTTP/1.1 where it speaks nothing else");
    // A gateway as the sender: it speaks both.
    let tls = format!("cert = {:?}\nkey = {:?}\nlisteners = [\"proxy\"]", certificate.cert, certificate.key);
    let second = Setup::new(&stage.connect(), &stage.sender.url()).more_in_route("mode = \"pass\"");
    let second = second.section("listen.tls", &tls).start();
    for (http, via) in [("1", "1.1"), ("auto", "2"), ("2", "2")] {
        let more = format!("upstream_ca = {:?}\nupstream_http = {http:?}", authority.cert());
        let url = format!("\"https://localhost:{}\"", second.proxy().port());
        let gateway = gateway(&stage, &url, &more);
        gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
        let before = stage.sender.count();
        assert_eq!(gateway.send(&holder.account, &holder.token, "x").status, 200, "{http}");
        let vias = stage.sender.requests()[before].headers.all("via").join(", ");
        assert_eq!(vias, format!("1.1 fencegate, {via} fencegate"), "{http}");
    }
}

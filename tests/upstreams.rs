//! Where sends go: over TLS, to several addresses of one sender, to Unix sockets, and with a certificate of our own.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::{
    Answer, Authority, Certificate, Connection, Gateway, Headers, Sender, Setup, Shared, Stage,
    assert_admitted, now, wait_until,
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

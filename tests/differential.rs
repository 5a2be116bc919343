//! What HAProxy and nginx refuse as malformed is refused here, or forwarded so that it can be read in one way only.
//!
//! The same bytes go to all three, each in front of a sender. Ours parses for itself and notes whatever it could read in two
//! ways; that it sees nothing at all is the other good end.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    reason = "a test may panic in its helpers too"
)]

#[path = "parsing/readers.rs"]
mod readers;
#[path = "parsing/sender.rs"]
mod sender;
mod support;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;
use sender::Strict;
use support::{
    Connection, Ensemble, Folder, Instance, Process, Sender, Setup, free_port, loopback, named_route,
    wait_for,
};

const ACCOUNT: &str = "wxid_a";

/// A proxy that others trust, in front of a sender that only counts.
struct Peer {
    name: &'static str,
    address: SocketAddr,
    sender: Sender,
    _process: Process,
    _folder: Folder,
}

impl Peer {
    fn haproxy() -> Self {
        let (folder, sender, port) = (Folder::new("haproxy"), Sender::new(), free_port());
        let text = format!(
            "defaults\n mode http\n timeout client 500ms\n timeout server 2s\n timeout connect 2s\n timeout http-request 500ms\n\
             frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n server s {}\n",
            sender.address()
        );
        let file = folder.write("haproxy.cfg", text);
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(file);
        Self::wait("haproxy", command, folder, sender, port)
    }

    fn nginx() -> Self {
        let (folder, sender, port) = (Folder::new("nginx"), Sender::new(), free_port());
        let place = folder.path().display().to_string();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {place}/{kind};"))
            .concat();
        let text = format!(
            "daemon off; master_process off; pid {place}/pid; error_log {place}/error.log; events {{}}\n\
             http {{ access_log off; {temporary} client_header_timeout 500ms; client_body_timeout 500ms;\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{}; }} }} }}",
            sender.address()
        );
        let file = folder.write("nginx.conf", text);
        let mut command = Command::new("nginx");
        command.arg("-e").arg(folder.join("start.log")).arg("-c").arg(file);
        Self::wait("nginx", command, folder, sender, port)
    }

    fn wait(name: &'static str, command: Command, folder: Folder, sender: Sender, port: u16) -> Self {
        assert!(
            Command::new(name).arg("-v").output().is_ok(),
            "there is no {name}: install it (Debian: apt-get install {name})"
        );
        let process = Process::spawn(name, command, &folder.join("output.log"));
        let address = loopback(port);
        wait_for(&format!("{name} answers"), || Connection::try_open(address).ok());
        Self { name, address, sender, _process: process, _folder: folder }
    }

    /// Whether it refuses the bytes: an error of its own, or none, and nothing at its sender.
    fn refuses(&self, bytes: &[u8]) -> bool {
        let before = self.sender.count();
        let status = status(self.address, bytes);
        status.is_none_or(|status| status >= 400) && self.sender.count() == before
    }
}

/// The status of the first final answer, if there is one.
fn status(address: SocketAddr, bytes: &[u8]) -> Option<u16> {
    let mut connection = Connection::open(address);
    let _ = connection.write(bytes);
    loop {
        let answer = connection.read_to_head_within(Duration::from_secs(1)).ok()?;
        if answer.status >= 200 {
            connection.reset();
            return Some(answer.status);
        }
    }
}

/// Heads that somebody refuses somewhere. `|` stands for a line's end; `@` for the token's lines and an id.
const HEADS: [&str; 74] = [
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1|Content-Length: 2||xx",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1, 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: +1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: -1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 0x1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length:||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length : 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length\t: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 99999999999999999999||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1|Transfer-Encoding: chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked|Content-Length: 1||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: gzip, chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked, chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked|Transfer-Encoding: chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: identity||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: xchunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding : chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding:\u{b}chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: \"chunked\"||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@ Transfer-Encoding: chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@X: y| Transfer-Encoding: chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.0|Host: h|@Transfer-Encoding: chunked||1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||g|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||0x1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||+1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||-1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1 |x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1;\n|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1\nx|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1|xy|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||ffffffffffffffff1|x|0||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1|x|0|X y||",
    "POST /wx/A/x HTTP/1.1|Host: h|@Transfer-Encoding: chunked||1|x|00|Content-Length: 9||",
    "POST /wx/A/x HTTP/1.1|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|Host: other|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h other|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h, other|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host:|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h/../x|@Content-Length: 1||x",
    "POST http://other/wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST http://h/wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST ftp://h/wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST * HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x#y HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x y HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST  /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x  HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST\t/wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    " POST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1 |Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.2|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/2.0|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/11|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x http/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x|Host: h|@Content-Length: 1||x",
    "P(ST /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "post /wx/A/x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/%00 HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/%zz HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/../../../x HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/\u{e4} HTTP/1.1|Host: h|@Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@X y: z|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@X|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@: y|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@X: y\rZ: z|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@X: y\0z|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1|Host: h|@X: y\u{7f}z|Content-Length: 1||x",
    "POST /wx/A/x HTTP/1.1\nHost: h\n@Content-Length: 1\n\nx",
    "CONNECT h:80 HTTP/1.1|Host: h|@Content-Length: 1||x",
];

fn bytes(head: &str, token: &str, id: usize) -> Vec<u8> {
    let own = format!("X-Case: d{id}\r\n{token}");
    head.replace('|', "\r\n").replace("/A/", &format!("/{ACCOUNT}/")).replace('@', &own).into_bytes()
}

/// The same bytes with one of them changed, taken away or put in.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.usize(..bytes.len());
    match rng.u8(..4) {
        0 => bytes[at] = rng.u8(..),
        1 => drop(bytes.remove(at)),
        2 => bytes.insert(at, [b'\r', b'\n', 0, b' ', b'\t', b':', b';', b','][rng.usize(..8)]),
        _ => {
            let twice = bytes[at];
            bytes.insert(at, twice);
        }
    }
}

#[test]
fn what_others_refuse_as_malformed_is_refused_or_can_be_read_in_one_way_only() {
    const CHANGED: usize = 1000;
    let seed = std::env::var("FENCEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("FENCEGATE_SEED={seed}");
    let ensemble = Ensemble::start(1);
    let bot = Instance::open(&ensemble.connect(), "host-a");
    let strict = Strict::start();
    let url = format!("http://{}", strict.address);
    let gateway = Setup::new(&ensemble.connect(), &url)
        .section("limits", "header_read_timeout = \"300ms\"\nbody_read_timeout = \"300ms\"")
        .section("freshness", "max_staleness = \"1s\"")
        .route(&named_route(&url, "wx", ""))
        .start();
    bot.lead(ACCOUNT);
    gateway.wait_for_holder(ACCOUNT, bot.seq(ACCOUNT));
    let token = bot.token(ACCOUNT).to_wire();
    let mut rng = Rng::with_seed(seed);
    let mut cases: Vec<Vec<u8>> =
        HEADS.iter().enumerate().map(|(id, head)| bytes(head, &token, id)).collect();
    while cases.len() < HEADS.len() + CHANGED {
        let mut case = bytes(HEADS[rng.usize(..HEADS.len())], &token, cases.len());
        change(&mut rng, &mut case);
        cases.push(case);
    }
    let peers = [Peer::haproxy(), Peer::nginx()];
    let mut refused = [0; 2];
    let mut forwarded = 0;
    for (id, case) in cases.iter().enumerate() {
        let whole = || strict.notes.lock().unwrap().whole;
        let before = whole();
        let own = status(gateway.proxy(), case);
        let after = whole();
        // Bytes that follow a whole request are another one, and are judged on their own.
        assert!(own != Some(200) || after > before, "a 200 of nobody's: {}", case.escape_ascii());
        for (peer, count) in peers.iter().zip(&mut refused) {
            if peer.refuses(case) {
                *count += 1;
                if after > before {
                    forwarded += 1;
                    println!(
                        "{} refuses case {id}, here it is made unambiguous: {}",
                        peer.name,
                        case.escape_ascii()
                    );
                }
            }
        }
    }
    let wrong = std::mem::take(&mut strict.notes.lock().unwrap().wrong);
    println!(
        "refused by HAProxy {}, by nginx {}; of these made unambiguous here {forwarded}",
        refused[0], refused[1]
    );
    assert!(wrong.is_empty(), "FENCEGATE_SEED={seed}:\n{}", wrong.join("\n"));
    assert!(refused.iter().all(|count| *count > 100), "otherwise nothing was compared: {refused:?}");
}

//! Clients that speak TLS and are not ours: curl and openssl.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Output};

use super::certificates::{Authority, text};

/// curl for a path of whoever calls itself localhost at this address.
pub fn curl(authority: &Authority, address: SocketAddr, path: &str) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "--cacert", text(&authority.cert())]);
    command.args(["--resolve", &format!("localhost:{}:127.0.0.1", address.port())]);
    command.arg(format!("https://localhost:{}{path}", address.port()));
    command
}

/// openssl's client, which ends where it does not trust the certificate.
pub fn s_client(authority: &Authority, address: SocketAddr) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-verify_return_error"]);
    command.args(["-CAfile", text(&authority.cert())]);
    command
}

/// What a program printed; where it failed, what it complained of.
pub fn said(output: &Output) -> Result<String, String> {
    let (said, complained) = (&output.stdout, &output.stderr);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(said)) } else { Err(text(complained)) }
}

/// A request on a connection of openssl's that stays open.
#[track_caller]
pub fn ask(client: &mut Child, request: &str) -> String {
    client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let output = client.stdout.as_mut().unwrap();
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(b"{\"sent\":true}") {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "it ended: {}", String::from_utf8_lossy(&seen));
        seen.extend(byte);
    }
    String::from_utf8(seen).unwrap()
}

//! Elections that the gateway keeps itself: plain HTTP clients take part, and nothing of before a restart counts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod support;

use std::net::SocketAddr;

use serde_json::{Value, json};
use support::gateway::{Setup, fencegate};
use support::http1::{Headers, call, get_json};
use support::place::{free_port, loopback};
use support::sender::Sender;
use support::wait::wait_until;

/// A bot that takes part over HTTP.
struct Bot {
    elections: SocketAddr,
    session: String,
    secret: Headers,
}

impl Bot {
    fn begin(elections: SocketAddr, instance: &str, ttl: &str) -> Self {
        let wish = json!({ "instance_id": instance, "ttl": ttl }).to_string();
        let begun = call(elections, "POST", "/v1/sessions", &Headers::none(), wish).json();
        let secret = format!("Bearer {}", begun["secret"].as_str().unwrap());
        let session = begun["session"].as_str().unwrap().to_owned();
        Self { elections, session, secret: Headers::none().with("Authorization", secret) }
    }

    fn stand(&self, account: &str) -> Value {
        let path = format!("/v1/elections/{account}/candidates");
        call(self.elections, "POST", &path, &self.secret, b"").json()
    }

    fn renew(&self) -> u16 {
        call(self.elections, "PUT", &format!("/v1/sessions/{}", self.session), &self.secret, b"").status
    }

    /// What it presents as a candidate with this number.
    fn token(&self, seq: &Value) -> Headers {
        Headers::none().with("X-Fencing-Seq", seq).with("X-Fencing-Session", &self.session)
    }
}

#[test]
fn the_first_holds_the_next_follows_and_the_old_token_is_refused() {
    let sender = Sender::new();
    let port = free_port();
    let gateway = Setup::embedded(port, &sender.url()).start();
    let (a, b) = (Bot::begin(loopback(port), "host-a", "15s"), Bot::begin(loopback(port), "host-b", "15s"));
    let (first, second) = (a.stand("wxid_1"), b.stand("wxid_1"));
    assert_eq!((&first["holder"], &second["holder"]), (&json!(true), &json!(false)));
    assert_eq!(gateway.send("wxid_1", &a.token(&first["seq"]), "{}").status, 200);
    assert_eq!(gateway.send("wxid_1", &b.token(&second["seq"]), "{}").status, 409);
    let ended = call(loopback(port), "DELETE", &format!("/v1/sessions/{}", a.session), &a.secret, b"");
    assert_eq!(ended.status, 204);
    let late = gateway.send("wxid_1", &a.token(&first["seq"]), "{}");
    assert_eq!((late.status, late.code().as_deref()), (409, Some("stale_token")));
    assert_eq!(gateway.send("wxid_1", &b.token(&second["seq"]), "{}").status, 200);
    assert_eq!(sender.count(), 2);
    assert_eq!(get_json(gateway.admin(), "/v1/view")["backend"], "embedded");
}

#[test]
fn a_session_that_nobody_renews_is_over_and_the_next_one_holds() {
    let sender = Sender::new();
    let port = free_port();
    let gateway = Setup::embedded(port, &sender.url()).start();
    let (a, b) = (Bot::begin(loopback(port), "host-a", "2s"), Bot::begin(loopback(port), "host-b", "60s"));
    let (first, second) = (a.stand("wxid_1"), b.stand("wxid_1"));
    wait_until("the next one holds", || b.stand("wxid_1")["holder"] == true);
    assert_eq!(a.renew(), 404);
    assert_eq!(gateway.send("wxid_1", &a.token(&first["seq"]), "{}").status, 409);
    assert_eq!(gateway.send("wxid_1", &b.token(&second["seq"]), "{}").status, 200);
}

#[test]
fn after_kill_9_under_many_clients_no_token_of_before_is_admitted() {
    const BOTS: usize = 50;
    let sender = Sender::new();
    let port = free_port();
    let gateway = Setup::embedded(port, &sender.url()).start();
    let account = |number: usize| format!("wxid_{number}");
    let stand = |number: usize| {
        let bot = Bot::begin(loopback(port), &format!("host-{number}"), "300s");
        let seq = bot.stand(&account(number))["seq"].clone();
        let token = bot.token(&seq);
        (bot, seq.as_u64().unwrap(), token)
    };
    let before: Vec<_> = (0..BOTS).map(stand).collect();
    for (number, (_, _, token)) in before.iter().enumerate() {
        assert_eq!(gateway.send(&account(number), token, "{}").status, 200);
    }
    gateway.restart();
    gateway.wait_until_ready();
    let newest = before.iter().map(|(_, seq, _)| *seq).max().unwrap();
    for (number, (bot, _, old)) in before.iter().enumerate() {
        assert_ne!(gateway.send(&account(number), old, "{}").status, 200, "nobody holds");
        assert_eq!(bot.renew(), 404);
        let (_, seq, token) = stand(number);
        assert!(seq > newest, "{seq} after {newest}");
        assert_ne!(gateway.send(&account(number), old, "{}").status, 200, "another one holds");
        assert_eq!(gateway.send(&account(number), &token, "{}").status, 200);
    }
    assert_eq!(sender.count(), 2 * BOTS);
}

#[test]
fn a_second_gateway_with_the_same_state_file_does_not_start() {
    let sender = Sender::new();
    let gateway = Setup::embedded(free_port(), &sender.url()).start();
    let other = Setup::embedded(free_port(), &sender.url()).text();
    let file = gateway.config().with_file_name("other.toml");
    std::fs::write(&file, other).unwrap();
    let ended = fencegate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("is in use by another process"), "{said}");
}

//! Identities that are secrets: they stand for accounts, and nothing that the gateway emits shows one.
//!
//! Everything is collected and searched: log, answers, metrics, the admin API, what the sender is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic in its helpers too")]

mod support;

use std::fmt::Write as _;
use std::time::Duration;

use support::{
    Connection, Ensemble, Folder, Headers, Instance, Response, Sender, Setup, call, gateway, route,
};

const TELEGRAM: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
const KEY: &str = "s3cret-key-of-wxid_1";
const LOST: &str = "s3cret-key-of-nobody";

#[test]
fn a_secret_stands_for_its_account_and_is_shown_nowhere() {
    let folder = Folder::new("secrets");
    let table = folder.write("accounts.toml", format!("\"{KEY}\" = \"wxid_1\"\n"));
    let ensemble = Ensemble::start(1);
    let (sender, bot) = (Sender::new(), Instance::open(&ensemble.connect(), "host-a"));
    let url = sender.url();
    let hashed = "identity = \"sha256\"";
    let mapped = format!("identity = \"map:{}\"", table.display());
    let broken = format!("{mapped}\nbuffer = \"1KiB\"");
    let gateway = Setup::new(&ensemble.connect(), &url)
        .section("log", "level = \"trace\"")
        .route(&route(&url, "/bot{token}/{*rest}", "\"path:token\"", hashed))
        .route(&route(&url, "/query", "\"query:key\"", &mapped))
        .route(&route(&url, "/bearer", "\"bearer\"", &mapped))
        .route(&route(&url, "/header", "\"header:token\"", &mapped))
        .route(&route(&url, "/json", "[\"json:/token\", \"query:key\"]", &mapped))
        .route(&route(&url, "/form", "\"form:token\"", &broken))
        .route(&route(&url, "/parts", "\"multipart:token\"", &broken))
        .route(&route(&url, "/shadow/{token}", "\"path:token\"", &format!("mode = \"shadow\"\n{mapped}")))
        .route(&route(&url, "/pass/{token}", "\"path:token\"", &format!("mode = \"pass\"\n{hashed}")))
        .route(&route("http://127.0.0.1:1", "/refused/{token}", "\"path:token\"", &mapped))
        .start();
    let telegram = sha256(TELEGRAM);
    for account in [telegram.as_str(), "wxid_1"] {
        bot.lead(account);
    }
    let mut events = Connection::open(gateway.admin());
    events.request("GET", "/v1/events", &Headers::none(), b"").unwrap();
    let mut emitted = String::new();
    let mut ask = |what: &str, target: &str, headers: Headers, body: String, code: &str| {
        let answer = call(gateway.proxy(), "POST", target, &headers, body);
        assert_eq!(answer.header("x-fencing-verdict"), Some(code), "{what}: {}", answer.text());
        emitted += &show(&answer);
    };
    let json = |headers: Headers| headers.with("Content-Type", "application/json");
    let (own, other) = (bot.token("wxid_1"), bot.token(&telegram));
    let stale = Headers::none().with("X-Fencing-Seq", "0").with("X-Fencing-Session", "1");
    for (token, code) in
        [(&own, "admitted"), (&stale, "session_mismatch"), (&Headers::none(), "missing_token")]
    {
        let token = || token.clone();
        ask("query", &format!("/query?key={KEY}"), token(), String::new(), code);
        ask("bearer", "/bearer", token().with("Authorization", format!("Bearer {KEY}")), String::new(), code);
        ask("header", "/header", token().with("Token", KEY), String::new(), code);
        ask("json", "/json", json(token()), format!("{{\"token\":\"{KEY}\"}}"), code);
        let form = token().with("Content-Type", "application/x-www-form-urlencoded");
        ask("form", "/form", form, format!("token={KEY}"), code);
        let kind = token().with("Content-Type", "multipart/form-data; boundary=b");
        let part = format!("--b\r\nContent-Disposition: form-data; name=token\r\n\r\n{KEY}\r\n--b--");
        ask("parts", "/parts", kind, part, code);
    }
    for (token, code) in [(&other, "admitted"), (&stale, "session_mismatch")] {
        ask("path", &format!("/bot{TELEGRAM}/sendMessage"), token.clone(), "x".to_owned(), code);
        let escaped = format!("/bot{}/sendMessage", TELEGRAM.replace(':', "%3A"));
        ask("path, escaped", &escaped, token.clone(), "x".to_owned(), code);
    }
    ask("another hash", &format!("/bot{LOST}/x"), other.clone(), "x".to_owned(), "unknown_account");
    ask("not in the table", &format!("/query?key={LOST}"), own.clone(), String::new(), "unknown_account");
    ask("twice", &format!("/query?key={KEY}&key={LOST}"), own.clone(), String::new(), "malformed_account");
    ask("no text", &format!("/query?key={KEY}%f"), own.clone(), String::new(), "malformed_account");
    let disagree = format!("{{\"token\":\"{LOST}\"}}");
    ask("two", &format!("/json?key={KEY}"), json(own.clone()), disagree, "malformed_account");
    ask("no JSON", "/json", json(own.clone()), format!("{{\"token\":\"{KEY}\""), "malformed_account");
    let twice = own.clone().with("Authorization", format!("Bearer {KEY}")).with("Authorization", LOST);
    ask("two bearers", "/bearer", twice, String::new(), "malformed_account");
    ask("no route", &format!("/{KEY}"), own.clone(), String::new(), "no_route");
    ask("a bad path", &format!("/{KEY}/../x"), own.clone(), String::new(), "malformed_path");
    ask("shadow", &format!("/shadow/{KEY}"), Headers::none(), String::new(), "shadow; would=missing_token");
    ask("pass", &format!("/pass/{KEY}"), Headers::none(), String::new(), "passed");
    ask("unreachable", &format!("/refused/{KEY}"), own.clone(), String::new(), "upstream_unreachable");
    assert!(emitted.contains(&telegram) && emitted.contains("wxid_1"), "accounts have their names");

    for target in ["/metrics", "/v1/accounts", "/v1/view", "/readyz", "/v1/accounts/wxid_1"] {
        emitted += &show(&call(gateway.admin(), "GET", target, &Headers::none(), ""));
    }
    emitted += &String::from_utf8_lossy(&events.read_to_end_within(Duration::from_millis(300)));
    assert!(emitted.contains("upstream_unreachable"), "the events are there");
    emitted += &gateway.log();
    let config = gateway.config().display().to_string();
    let checked = gateway::fencegate(&["check", "--config", &config]);
    write!(emitted, "{checked:?}").unwrap();
    for request in sender.wait_until_idle() {
        let own = ["x-fencing-account", "x-forwarded-for", "x-forwarded-host", "via", "x-request-id"];
        own.iter().for_each(|name| emitted += request.header(name).unwrap_or_default());
        let name = request.header("x-fencing-account").unwrap();
        assert!(["wxid_1".to_owned(), telegram.clone(), sha256(KEY)].contains(&name.to_owned()), "{name}");
    }
    for secret in [TELEGRAM, KEY, LOST, "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", "s3cret"] {
        assert!(!emitted.contains(secret), "{secret} in:\n{emitted}");
    }
    let znodes = gateway.account(&telegram).unwrap();
    assert_eq!(znodes["account"], telegram.as_str());
}

fn show(answer: &Response) -> String {
    String::from_utf8_lossy(&answer.raw_head).into_owned() + &answer.text() + "\n"
}

/// By a program that has nothing to do with the gateway.
fn sha256(text: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut program = Command::new("sha256sum");
    let mut child =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sha256sum (coreutils)");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_owned()
}

//! Keys: who may send, for which accounts, and what becomes of the key itself.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::sync::Arc;

use fencegate::key::KeyHash;
use support::gateway::fencegate;
use support::{
    Connection, Folder, Headers, Holder, Setup, Shared, Stage, assert_admitted, assert_refused, call,
    named_route, only, route, wait_until,
};

static GUARDED: Shared = Shared::new();

const KEY: &str = "fgk_the-bots-own-key";
const OTHERS: &str = "fgk_a-key-for-other-accounts";
const OPERATOR: &str = "fgk_an-operators-key";

fn key(name: &str, key: &str, more: &str) -> String {
    format!("{{ name = \"{name}\", sha256 = \"{}\"{more} }}", KeyHash::of(key.as_bytes()))
}

fn auth() -> String {
    let bots = key("bots", KEY, ", accounts = [\"nobody\", \"wxid_*\"]");
    let others = key("others", OTHERS, ", accounts = [\"team-*\", \"wxid_\"]");
    format!("keys = [{bots}, {others}]\nadmin_keys = [{}]", key("operator", OPERATOR, ""))
}

/// Everything is logged that can be.
fn guarded() -> Arc<Stage> {
    GUARDED.stage(|setup, url| {
        setup
            .section("auth", &auth())
            .section("log", "level = \"trace\"")
            .route(&named_route(url, "wx", ""))
            .route(&named_route(url, "pass", "mode = \"pass\""))
            .route(&named_route(url, "shadow", "mode = \"shadow\""))
            .route(&named_route(url, "deny", "mode = \"deny\""))
            .route(&route(url, "/body/{*rest}", "\"json:/account\"", ""))
    })
}

fn with_key(holder: &Holder, route: &str, key: &str) -> support::Response {
    let target = format!("/{route}/{}/send", holder.account);
    holder.call("POST", &target, &Headers::none().with("X-Fencing-Key", key), "x")
}

#[test]
fn a_send_without_a_known_key_is_refused_in_every_mode_and_says_how_to_authenticate() {
    let stage = guarded();
    let holder = stage.holder();
    for route in ["wx", "pass", "shadow"] {
        let target = format!("/{route}/{}/send", holder.account);
        let none = holder.call("POST", &target, &Headers::none(), "x");
        assert_refused(&holder, route, &none, 401, "unauthenticated");
        assert_eq!(none.header("www-authenticate"), Some("X-Fencing-Key realm=\"fencegate\""));
        for wrong in
            ["", "x", OPERATOR, &KEY[1..], &format!("{KEY}x"), &KeyHash::of(KEY.as_bytes()).to_string()]
        {
            let refused = with_key(&holder, route, wrong);
            assert_refused(&holder, wrong, &refused, 401, "unauthenticated");
            assert!(wrong.is_empty() || wrong == "x" || !refused.text().contains(wrong), "it is repeated");
        }
        let twice = Headers::none().with("X-Fencing-Key", KEY).with("x-fencing-key", KEY);
        let twice = holder.call("POST", &target, &twice, "x");
        assert_refused(&holder, "two keys", &twice, 401, "unauthenticated");
        let alike = holder.call("POST", &target, &Headers::none().with("X_Fencing_Key", KEY), "x");
        assert_refused(&holder, "another spelling", &alike, 401, "unauthenticated");
    }
    assert_refused(&holder, "deny", &with_key(&holder, "deny", "x"), 403, "denied");
    assert_refused(&holder, "deny", &with_key(&holder, "deny", KEY), 403, "denied");
    let before_the_account = call(stage.gateway.proxy(), "POST", "/wx/a%20b/send", &Headers::none(), "");
    assert_refused(&holder, "order", &before_the_account, 401, "unauthenticated");
}

#[test]
fn a_key_is_for_its_accounts_only() {
    let holder = guarded().holder();
    for route in ["wx", "pass", "shadow"] {
        let problem =
            assert_refused(&holder, route, &with_key(&holder, route, OTHERS), 403, "account_forbidden");
        assert_eq!(problem["account"], holder.account);
    }
    assert_admitted(&with_key(&holder, "wx", KEY));
    // The same where the account is in the body.
    let holder = guarded().holder();
    let body = format!("{{\"account\":\"{}\"}}", holder.account);
    let send = |key: &str| {
        let more = Headers::none().with("X-Fencing-Key", key).with("Content-Type", "application/json");
        holder.call("POST", "/body/send", &more, &body)
    };
    assert_refused(&holder, "in the body", &send(OTHERS), 403, "account_forbidden");
    assert_refused(&holder, "in the body", &send("x"), 401, "unauthenticated");
    assert_admitted(&send(KEY));
}

#[test]
fn the_key_reaches_neither_the_sender_nor_the_log() {
    let stage = guarded();
    let holder = stage.holder();
    let more =
        Headers::none().with("X-Fencing-Key", KEY).with("X_Fencing_Key", KEY).with("X-fencing_Key", KEY);
    assert_admitted(&holder.call("POST", &holder.path(), &more, "x"));
    let seen = only(&holder);
    assert!(!String::from_utf8_lossy(&seen.raw_head).contains(KEY));
    assert_refused(&stage.holder(), "", &with_key(&stage.holder(), "pass", OTHERS), 403, "account_forbidden");
    let passed = stage.holder();
    assert_eq!(with_key(&passed, "pass", KEY).status, 200);
    assert!(!String::from_utf8_lossy(&only(&passed).raw_head).to_lowercase().contains("fencing-key"));
    for key in [KEY, OTHERS, OPERATOR] {
        assert!(!stage.gateway.log().contains(key));
    }
}

#[test]
fn over_http_2_a_key_is_asked_for_and_kept_in_the_same_way() {
    let stage = guarded();
    let holder = stage.holder();
    let send = |keys: &[(&str, &str)]| {
        let mut command = std::process::Command::new("curl");
        command.args(["-sS", "--http2-prior-knowledge", "-d", "x", "-o", "/dev/null", "-w", "%{http_code}"]);
        let token = holder.token.iter().chain(keys.iter().copied());
        token.for_each(|(name, value)| {
            command.args(["-H", &format!("{name}: {value}")]);
        });
        let output = command.arg(format!("http://{}{}", stage.gateway.proxy(), holder.path())).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let name = "X-Fencing-Key";
    for wrong in
        [&[][..], &[(name, OTHERS), (name, KEY)], &[(name, KEY), (name, KEY)], &[("X_Fencing_Key", KEY)]]
    {
        assert_eq!(send(wrong), "401", "{wrong:?}");
    }
    assert_eq!(send(&[(name, OTHERS)]), "403");
    assert!(holder.seen().is_empty());
    assert_eq!(send(&[(name, KEY), ("X_Fencing_Key", KEY)]), "200");
    assert!(!String::from_utf8_lossy(&only(&holder).raw_head).contains(KEY));
    assert!(!stage.gateway.log().contains(KEY));
}

#[test]
fn a_key_in_the_query_is_none_and_is_not_told_to_anybody() {
    let stage = guarded();
    let holder = stage.holder();
    let target = format!("{}?X-Fencing-Key={KEY}&x-fencing-key={KEY}", holder.path());
    let refused = holder.call("POST", &target, &Headers::none(), "x");
    assert_refused(&holder, "in the query", &refused, 401, "unauthenticated");
    assert!(!refused.text().contains(KEY) && !stage.gateway.log().contains(KEY));
    let hop = Headers::none().with("X-Fencing-Key", KEY).with("Connection", "X-Fencing-Key");
    let refused = holder.call("POST", &holder.path(), &hop, "x");
    assert_refused(&holder, "named hop-by-hop", &refused, 400, "malformed_request");
    let metrics =
        call(stage.gateway.admin(), "GET", "/metrics", &Headers::none().with("X-Fencing-Key", OPERATOR), "");
    assert!(!metrics.text().contains(KEY) && !metrics.text().contains(OPERATOR));
}

#[test]
fn a_refusal_for_its_key_comes_before_the_body_and_before_100_continue() {
    let holder = guarded().holder();
    let mut connection = holder.connect();
    let head = holder.head(&holder.path(), "Host: h\r\nExpect: 100-continue\r\nContent-Length: 1000000");
    connection.write(head).unwrap();
    let refused = connection.read();
    assert_refused(&holder, "Expect", &refused, 401, "unauthenticated");
}

#[test]
fn the_admin_listener_has_keys_of_its_own() {
    let stage = guarded();
    let ask = |path: &str, key: &str| {
        call(stage.gateway.admin(), "GET", path, &Headers::none().with("X-Fencing-Key", key), "").status
    };
    assert_eq!((ask("/v1/view", OPERATOR), ask("/v1/view", KEY), ask("/metrics", "")), (200, 401, 401));
    assert_eq!((ask("/healthz", ""), ask("/readyz", "")), (200, 200));
    let config = stage.gateway.config().to_str().unwrap();
    let accept = |key: Option<&str>| {
        let mut command = std::process::Command::new(support::gateway::BINARY);
        command.args(["accept-history", "--config", config]);
        command.env_remove("FENCEGATE_KEY").envs(key.map(|key| ("FENCEGATE_KEY", key)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = accept(None);
    assert!(code == Some(1) && said.contains("admin_keys"), "{said}");
    let (code, said) = accept(Some(OPERATOR));
    assert!(code == Some(1) && said.contains("nothing to accept"), "{said}");
}

#[test]
fn a_new_key_opens_what_its_line_says() {
    let output = fencegate(&["key", "new", "--name", "team-a"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let key = text.lines().next().unwrap();
    let line = text.lines().last().unwrap().trim_start_matches("# ");
    let stage = guarded();
    let gateway = Setup::new(&stage.connect(), &stage.sender.url())
        .section("auth", &format!("keys = [\n{line}]"))
        .start();
    let holder = stage.holder();
    gateway.wait_for_holder(&holder.account, stage.bot.seq(&holder.account));
    assert_eq!(gateway.send(&holder.account, &holder.token, "x").status, 401);
    assert_admitted(&gateway.send(&holder.account, &holder.token.clone().with("X-Fencing-Key", key), "x"));
    assert_ne!(fencegate(&["key", "new"]).stdout, fencegate(&["key", "new"]).stdout);
}

#[test]
fn an_open_door_to_other_machines_is_refused_until_the_file_says_so() {
    let folder = Folder::new("exposed");
    let setup = |listen: &str| {
        let text = Setup::new("127.0.0.1:1", "http://127.0.0.1:1").section("listen", listen).text();
        folder.write("gateway.toml", text)
    };
    for (listen, good) in [
        ("proxy = \"0.0.0.0:8080\"", false),
        ("admin = \"0.0.0.0:9090\"", false),
        ("proxy = \"0.0.0.0:8080\"\nadmin = \"0.0.0.0:9090\"\ninsecure = true", true),
    ] {
        let file = setup(listen);
        let output = fencegate(&["check", "--config", file.to_str().unwrap()]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(if good { 0 } else { 2 }), "{said}");
        assert!(good || said.contains("insecure = true"), "{said}");
        if !good {
            let served = fencegate(&["serve", "--config", file.to_str().unwrap()]);
            assert_eq!(served.status.code(), Some(2));
        }
    }
}

#[test]
fn keys_cost_no_connection_of_an_honest_caller() {
    let stage = guarded();
    let holder = stage.holder();
    let mut connection = Connection::open(stage.gateway.proxy());
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_eq!(connection.read().status, 401);
    let token = holder.token.clone().with("X-Fencing-Key", KEY);
    connection.request("POST", &holder.path(), &token, b"x").unwrap();
    assert_admitted(&connection.read());
    wait_until("it is at the sender", || holder.seen().len() == 1);
}

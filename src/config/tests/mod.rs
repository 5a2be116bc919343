//! What a whole file means, and what the shipped file says.

mod agent;
mod environment;
mod hostile;
mod refused;

use std::time::Duration;

use super::*;
use crate::key::KeyHash;

const SHIPPED: &str = include_str!("../../../gateway.toml");

const ROUTE: &str = "[[route]]\npath = \"/wx/{account}/{*rest}\"\naccount = \"path:account\"\nupstream = \"http://127.0.0.1:9000\"\n";

const ZOOKEEPER: &str = "[zookeeper]\nconnect = \"127.0.0.1:2181\"\n";

fn with(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A whole file around some keys.
fn around(text: &str) -> String {
    format!("{ZOOKEEPER}{ROUTE}{text}")
}

fn good(text: &str, env: &[(&str, &str)]) -> Config {
    parse("gateway.toml", text, with(env)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn bad(text: &str, env: &[(&str, &str)]) -> String {
    match parse("gateway.toml", text, with(env)) {
        Ok(config) => panic!("accepted: {text}\n{config:?}"),
        Err(error) => error.to_string(),
    }
}

fn shipped_with_defaults() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    SHIPPED.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_parses_and_its_commented_defaults_are_the_codes() {
    let plain = good(SHIPPED, &[]);
    let uncommented = shipped_with_defaults();
    assert!(uncommented.lines().filter(|line| line.starts_with("park_timeout = ")).count() == 1);
    assert_eq!(plain, good(&uncommented, &[]));
    assert_eq!(plain, good(&around(""), &[]), "what it sets is the default too");
}

#[test]
fn the_shipped_files_examples_parse() {
    let text = SHIPPED.replace("#~ ", "").replace("http://127.0.0.1", "https://127.0.0.1");
    // Some of them are for elections that the gateway keeps itself, and the rest of their section is for ZooKeeper.
    let (before, rest) = text.split_once("[zookeeper]\n").unwrap();
    let (zookeeper, after) = rest.split_once("\n[election]\n").unwrap();
    let config = good(&format!("{before}[election]\n{after}"), &[]);
    assert!(matches!(config.coordination, Coordination::Embedded(_)));
    let embedded = ["elections", "state = ", "listeners = "];
    let without = |line: &&str| !embedded.iter().any(|start| line.starts_with(start));
    let before = before.lines().filter(without).collect::<Vec<_>>().join("\n");
    let text = format!("{before}\n[zookeeper]\n{zookeeper}\n[election]\n{after}");
    let config = good(&text, &[("ZK_DIGEST", "u:p")]);
    assert_eq!(ensemble(&config).auth.len(), 1);
    assert_eq!((config.auth.keys.len(), config.auth.admin_keys.len()), (1, 1));
    assert_eq!(config.routes[0].max_in_flight, Some(1000));
}

#[test]
fn every_key_that_is_read_is_in_the_shipped_file() {
    let mut keys = 0;
    let sections =
        "auth coordination listen zookeeper election freshness handover limits metrics log shutdown";
    let sections = format!("{sections} listen.tls");
    let headers = sections.split(' ').map(|name| format!("[{name}]")).chain(["[[route]]".to_owned()]);
    for header in headers {
        let error = bad(&format!("{header}\nzzzzzz = 1"), &[]);
        let line = error.lines().find(|line| line.contains("zzzzzz")).unwrap().to_owned();
        let (_, allowed) = line.split_once("allowed: ").unwrap();
        let begins = |mark: &str| SHIPPED.split_once(&format!("\n{mark}{header}"));
        let (_, body) = begins("").or_else(|| begins("#~ ")).unwrap();
        let body = body.split_once("\n[").map_or(body, |(body, _)| body);
        for key in allowed.split(", ") {
            let found = ["\n", "\n#", "\n#~ "].iter().any(|start| body.contains(&format!("{start}{key} = ")));
            let section = format!("\n#~ [{}.{key}]\n", header.trim_matches(['[', ']']));
            assert!(found || SHIPPED.contains(&section), "{header} {key}");
            keys += 1;
        }
    }
    assert!(keys > 45, "{keys}");
}

#[test]
fn the_defaults_are_the_contracts() {
    let config = good(&around(""), &[]);
    let seconds = Duration::from_secs;
    assert_eq!(config.listen.proxy.to_string(), "127.0.0.1:8080");
    assert_eq!(config.listen.admin.to_string(), "127.0.0.1:9090");
    assert!(config.auth.keys.is_empty() && config.auth.admin_keys.is_empty() && !config.listen.insecure);
    assert_eq!(ensemble(&config).session_timeout, seconds(15));
    assert_eq!(config.election.layout, Layout::ActiveNode);
    assert_eq!(config.election.root, "/wx-accounts");
    assert!(config.election.require_candidate);
    assert_eq!(config.election.on_history_reset, OnHistoryReset::Refuse);
    let freshness = &config.freshness;
    assert_eq!((freshness.max_staleness, freshness.park_timeout), (Duration::ZERO, seconds(3)));
    assert_eq!((freshness.max_parked, freshness.max_parked_per_account), (10_000, 2500));
    assert_eq!((freshness.barrier, freshness.min_barrier_interval), (Barrier::Quorum, Duration::ZERO));
    assert_eq!(config.handover.drain_timeout, seconds(10));
    let route = &config.routes[0];
    assert_eq!(route.mode, Mode::Enforce);
    assert_eq!(route.account, [Source::Path("account".to_owned())]);
    assert_eq!(route.upstreams[0].authority, "127.0.0.1:9000");
    assert_eq!((&route.methods, &route.rewrite, route.preserve_host), (&None, &None, false));
    assert_eq!((route.connect_timeout, route.upstream_timeout), (seconds(3), seconds(60)));
    assert_eq!((route.upstream_idle_timeout, route.drain_timeout), (seconds(4), seconds(10)));
    assert_eq!((route.buffer, route.max_body, route.answer_buffer), (1 << 20, 64 << 20, 1 << 20));
    assert_eq!(route.max_in_flight, None);
    assert_eq!((route.json_integer, &route.identity, &route.refusal), (false, &Identity::Plain, &None));
    assert!(route.query.is_empty() && route.json.is_empty());
    let limits = &config.limits;
    assert_eq!((limits.header_read_timeout, limits.body_read_timeout), (seconds(10), seconds(30)));
    assert_eq!((limits.idle_timeout, limits.max_connections), (seconds(75), 10_000));
    assert_eq!((limits.max_in_flight, limits.max_in_flight_per_account), (10_000, 64));
    assert_eq!((limits.max_buffered, limits.max_header_bytes), (256 << 20, 64 << 10));
    assert_eq!((config.metrics.per_account, config.metrics.max_accounts), (true, 10_000));
    assert_eq!((config.log.format, config.log.level), (LogFormat::Text, Level::Info));
    assert_eq!((config.shutdown.delay, config.shutdown.drain), (Duration::ZERO, seconds(65)));
}

#[test]
fn what_a_file_says_is_in_the_model() {
    let text = r#"
        [listen]
        proxy = "0.0.0.0:0"
        admin = "[::1]:0"
        [auth]
        keys = [{ name = "bots", sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", accounts = ["wxid_1", "team-*"] }]
        [listen.tls]
        cert = "a.pem"
        key = "b/c.key"
        client_ca = "ca.pem"
        client_names = ["bot-1.internal", "::1"]
        listeners = ["proxy"]
        [coordination]
        backend = "zookeeper"
        [zookeeper]
        connect = "a:1,b:2/chroot"
        session_timeout = "1s"
        auth = [{ scheme = "digest", credential = "env:ZK" }, { scheme = "x509", credential = "literal" }]
        [election]
        root = "/a/b"
        require_candidate = false
        on_history_reset = "accept"
        [freshness]
        max_staleness = "250ms"
        barrier = "sync"
        park_timeout = "5m"
        max_parked = 8
        min_barrier_interval = "2ms"
        [handover]
        drain_timeout = "2s"
        scope = "replica"
        [[route]]
        path = "/first/{a}"
        account = ["path:a", "query:wxid", "header:X-Account", "bearer", "json:/a/b", "form:c", "multipart:d"]
        query = { type = "2" }
        json = { "/path" = "/msg/send_text", "/n" = 7 }
        json_integer = true
        identity = "sha256"
        refusal = { status = 200, body = '{"ret":500,"msg":"{code}: {detail}"}' }
        upstream = "http://sender"
        mode = "shadow"
        methods = ["POST", "PUT"]
        rewrite = "/v2/{a}"
        preserve_host = true
        buffer = 1024
        max_body = "0B"
        answer_buffer = "512B"
        upstream_timeout = "1h"
        max_in_flight = 3
        [[route]]
        path = "/"
        account = "static:wxid_1"
        upstream = ["https://[::1]", "https://sender-2:8443", "unix:/run/sender.sock"]
        upstream_ca = "senders.pem"
        upstream_cert = "own.pem"
        upstream_cert_key = "own.key"
        upstream_name = "sender.internal"
        upstream_http = "auto"
        drain_timeout = "1ms"
        [[route]]
        path = "/{*all}"
        upstream = "http://sender"
        mode = "deny"
        [limits]
        max_in_flight = 20
        max_header_bytes = "8KiB"
        [metrics]
        per_account = false
        [log]
        format = "json"
        level = "trace"
        [shutdown]
        delay = "5s"
    "#;
    let config = good(text, &[("ZK", "user:password")]);
    assert_eq!(config.listen.proxy.to_string(), "0.0.0.0:0");
    assert!(!config.listen.insecure);
    let tls = config.listen.tls.clone().unwrap();
    assert_eq!((tls.cert.to_str(), tls.key.to_str()), (Some("a.pem"), Some("b/c.key")));
    let [(TlsListener::Proxy, names)] = tls.listeners.as_slice() else { panic!("{:?}", tls.listeners) };
    assert_eq!(names.len(), 2);
    let [key] = config.auth.keys.as_slice() else { panic!("one key") };
    assert_eq!((key.name.as_str(), key.hash), ("bots", KeyHash::of(b"abc")));
    assert!(key.allows("wxid_1") && key.allows("team-1") && !key.allows("wxid_2"));
    assert!(config.auth.admin_keys.is_empty());
    assert_eq!(ensemble(&config).connect, "a:1,b:2/chroot");
    assert_eq!(ensemble(&config).auth[0].credential.expose(), "user:password");
    assert_eq!(ensemble(&config).auth[1].credential.expose(), "literal");
    assert!(!config.election.require_candidate);
    assert_eq!(config.election.on_history_reset, OnHistoryReset::Accept);
    assert_eq!(config.freshness.barrier, Barrier::Sync);
    assert_eq!(config.freshness.max_parked_per_account, 2, "a quarter of the lowered limit");
    assert_eq!(config.limits.max_in_flight_per_account, 5);
    let [first, second, third] = config.routes.as_slice() else { panic!("three routes") };
    let sources: Vec<_> = first.account.iter().map(ToString::to_string).collect();
    let written = "path:a query:wxid header:x-account bearer json:/a/b form:c multipart:d";
    assert_eq!(sources.join(" "), written);
    assert_eq!(first.query, [("type".to_owned(), "2".to_owned())]);
    let pointer = |text| Pointer::parse(text).unwrap();
    let text = JsonValue::Text("/msg/send_text".to_owned());
    assert_eq!(first.json.iter().find(|(place, _)| *place == pointer("/path")).unwrap().1, text);
    assert_eq!(
        first.json.iter().find(|(place, _)| *place == pointer("/n")).unwrap().1,
        JsonValue::Integer(7)
    );
    assert_eq!((first.json_integer, &first.identity), (true, &Identity::Sha256));
    assert_eq!(first.refusal.as_ref().unwrap().status, Some(200));
    assert_eq!(first.methods, Some(vec!["POST".to_owned(), "PUT".to_owned()]));
    assert_eq!((first.buffer, first.max_body, first.answer_buffer), (1024, 0, 512));
    assert_eq!(first.drain_timeout, Duration::from_secs(2), "the section's");
    assert_eq!(second.drain_timeout, Duration::from_millis(1));
    let authorities: Vec<_> = second.upstreams.iter().map(|upstream| upstream.authority.as_str()).collect();
    assert_eq!(authorities, ["[::1]", "sender-2:8443", "localhost"]);
    assert_eq!(second.upstreams.iter().filter(|upstream| upstream.tls).count(), 2);
    let Protocol { ca, identity, name, http, .. } = second.protocol.clone();
    assert_eq!((ca, identity), (Some("senders.pem".into()), Some(("own.pem".into(), "own.key".into()))));
    assert_eq!((name, http), (Some("sender.internal".try_into().unwrap()), Http::Agreed));
    assert_eq!((first.protocol.http, &first.protocol.ca), (Http::One, &None));
    assert_eq!((third.mode, third.account.len()), (Mode::Deny, 0));
    assert_eq!(config.shutdown.drain, Duration::from_secs(3605));
    assert!(!format!("{config:?}").contains("password"));
}

/// The ensemble that a configuration asks for.
fn ensemble(config: &Config) -> &ZooKeeper {
    match &config.coordination {
        Coordination::ZooKeeper(zookeeper) => zookeeper,
        Coordination::Embedded(state) => panic!("embedded, in {state:?}"),
    }
}

#[test]
fn what_only_embedded_elections_have_is_refused_beside_zookeeper_and_takes_no_port_there() {
    let zookeeper = "[zookeeper]\nconnect = \"127.0.0.1:2181\"\n";
    let error = bad(&format!("{zookeeper}[listen]\nelections = \"127.0.0.1:9191\"\n{ROUTE}"), &[]);
    assert!(error.contains("4:13: `elections`: ZooKeeper holds them; allowed: "), "{error}");
    let error = bad(&format!("{zookeeper}[coordination]\nstate = \"here\"\n{ROUTE}"), &[]);
    assert!(error.contains("4:9: `state`: ZooKeeper holds the elections; allowed: "), "{error}");
    good(&format!("{zookeeper}[listen]\nproxy = \"127.0.0.1:9091\"\n{ROUTE}"), &[]);
}

#[test]
fn the_gateway_keeps_elections_itself_where_the_file_speaks_of_no_zookeeper() {
    let state = |text: &str| match parse("there/gateway.toml", text, with(&[])).unwrap().coordination {
        Coordination::Embedded(state) => state.display().to_string(),
        Coordination::ZooKeeper(_) => panic!("ZooKeeper: {text}"),
    };
    assert_eq!(state(ROUTE), "there/fencegate.state");
    let embedded = "[coordination]\nbackend = \"embedded\"\n";
    assert_eq!(state(&format!("{embedded}{ROUTE}")), "there/fencegate.state");
    assert_eq!(state(&format!("{embedded}state = \"/var/lib/f.state\"\n{ROUTE}")), "/var/lib/f.state");
    let config = good(ROUTE, &[]);
    assert_eq!(config.listen.elections.to_string(), "127.0.0.1:9091");
    assert_eq!(ensemble(&good(ROUTE, &[("FENCEGATE__ZOOKEEPER__CONNECT", "a:1")])).connect, "a:1");
    let error = bad(&format!("{embedded}{ZOOKEEPER}{ROUTE}"), &[]);
    assert!(error.contains("is not used by `backend = \"embedded\"`"), "{error}");
    let error = bad(&format!("[coordination]\nbackend = \"zookeeper\"\n{ROUTE}"), &[]);
    assert!(error.contains("1:1: there is no [zookeeper] section; allowed: add [zookeeper]"), "{error}");
    let error = bad(&format!("[listen]\nelections = \"0.0.0.0:9091\"\n{ROUTE}"), &[]);
    assert!(error.contains("can be reached from other machines"), "{error}");
    let error = bad(&format!("[listen]\nelections = \"127.0.0.1:9090\"\n{ROUTE}"), &[]);
    assert!(error.contains("`elections`: 127.0.0.1:9090 is the admin listener's"), "{error}");
}

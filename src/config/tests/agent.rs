//! What an agent's file means, and what the shipped one says.

use super::*;

const SHIPPED: &str = include_str!("../../../agent.toml");

const LEAST: &str = "[agent]\ngateway = \"http://127.0.0.1:8080\"\naccounts = \"all\"\n[zookeeper]\n\
                     connect = \"127.0.0.1:2181\"\n[[route]]\npath = \"/wx/{account}/{*rest}\"\naccount = \"path:account\"\n";

fn agent(text: &str, env: &[(&str, &str)]) -> AgentConfig {
    parse_agent("agent.toml", text, with(env), "host-1").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    match parse_agent("agent.toml", text, with(&[]), "host-1") {
        Ok(config) => panic!("accepted: {text}\n{config:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_shipped_agent_file_parses_and_its_commented_defaults_are_the_codes() {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    let uncommented: String = SHIPPED.lines().map(line).collect::<Vec<_>>().join("\n");
    let plain = agent(SHIPPED, &[]);
    assert_ne!(uncommented, SHIPPED);
    assert_eq!(plain, agent(&uncommented, &[]));
    assert_eq!(plain, agent(LEAST, &[]), "what it sets is the default too");
}

#[test]
fn the_shipped_agent_files_examples_parse() {
    let env = [("ZK_DIGEST", "u:p"), ("FENCEGATE_KEY", "secret")];
    let text = SHIPPED.replace("#~ ", "").replace("http://", "https://");
    // Some of them are for elections that a gateway keeps, and two sections are for ZooKeeper.
    let (before, rest) = text.split_once("#backend = ").unwrap();
    let (gateways, rest) = rest.split_once("\n\n[zookeeper]").unwrap();
    let (_, routes) = rest.split_once("\n# Routes").unwrap();
    let config = agent(&format!("{before}backend = \"gateway\" #{gateways}\n#{routes}"), &env);
    let AgentCoordination::Gateway(elections) = &config.coordination else { panic!("{config:?}") };
    assert_eq!(elections.elections.endpoint, Endpoint::Tcp("127.0.0.1".to_owned(), 9091));
    assert!(elections.elections.tls);
    assert_eq!(elections.protocol.ca, Some("gateway-ca.pem".into()));
    assert_eq!(elections.protocol.identity, Some(("agent.pem".into(), "agent.key".into())));
    let without = format!("{before}backend = \"gateway\"\nelections = \"http://g:1\"\n#{routes}");
    let AgentCoordination::Gateway(plain) = agent(&without, &env).coordination else { panic!() };
    assert_eq!(elections.session_timeout, plain.session_timeout, "what it says of it is the default");
    let config = agent(&format!("{before}[zookeeper]{rest}"), &env);
    assert_eq!(config.agent.instance_id, "host-a-001");
    assert_eq!(config.agent.gateway_key.as_ref().map(Secret::expose), Some("secret"));
    assert_eq!(config.hooks.on_leader, Some(vec!["./on-leader.sh".to_owned()]));
    assert!(!format!("{config:?}").contains("secret\""));
}

#[test]
fn every_key_that_an_agent_reads_is_in_the_shipped_file() {
    let mut keys = 0;
    let sections = "agent agent.tls coordination zookeeper election hooks limits log";
    let headers = sections.split(' ').map(|name| format!("[{name}]")).chain(["[[route]]".to_owned()]);
    for header in headers {
        let error = refused(&format!("{header}\nzzzzzz = 1"));
        let line = error.lines().find(|line| line.contains("zzzzzz")).unwrap().to_owned();
        let (_, allowed) = line.split_once("allowed: ").unwrap();
        let begins = |mark: &str| SHIPPED.split_once(&format!("\n{mark}{header}"));
        let (_, body) = begins("").or_else(|| begins("#~ ")).unwrap();
        let body = body.split_once("\n[").map_or(body, |(body, _)| body);
        for key in allowed.split(", ").filter(|key| !crate::config::agent::GATEWAYS.contains(key)) {
            let found = ["\n", "\n#", "\n#~ "].iter().any(|start| body.contains(&format!("{start}{key} = ")));
            let section = format!("\n#~ [{}.{key}]\n", header.trim_matches(['[', ']']));
            assert!(found || SHIPPED.contains(&section), "{header} {key}");
            keys += 1;
        }
    }
    assert!(keys > 30, "{keys}");
}

#[test]
fn an_agents_defaults_are_the_contracts() {
    let config = agent(LEAST, &[("FENCEGATE__AGENT__GATEWAY", "http://gateway:81")]);
    assert_eq!(config.agent.instance_id, "host-1");
    assert_eq!(config.agent.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(config.agent.admin.to_string(), "127.0.0.1:7071");
    assert_eq!(config.agent.gateway.authority, "gateway:81");
    assert_eq!(config.agent.accounts, AgentAccounts::All);
    let AgentCoordination::ZooKeeper { service, election } = &config.coordination else { panic!() };
    assert_eq!(service.session_timeout, Duration::from_secs(20));
    assert_eq!((election.root.as_str(), config.routes.len()), ("/wx-accounts", 1));
    assert_eq!(config.routes[0].upstreams[0].authority, "gateway:81");
    assert_eq!(config.routes[0].upstream_timeout, config.agent.gateway_timeout);
}

#[test]
fn an_agent_that_others_can_reach_is_refused_until_the_file_says_so() {
    for (listener, port) in [("listen", 7070), ("admin", 7071)] {
        for address in ["0.0.0.0", "[::]", "10.1.2.3"] {
            let open = LEAST.replace("[agent]", &format!("[agent]\n{listener} = \"{address}:{port}\""));
            let error = refused(&open);
            assert!(error.starts_with(&format!(
                "agent.toml:2:{}: `{listener}`: {address}:{port}",
                listener.len() + 4
            )));
            assert!(error.contains("`insecure = true` in [agent]"), "{error}");
            agent(&open.replace("[agent]", "[agent]\ninsecure = true"), &[]);
            let tls = |more: &str| format!("{open}[agent.tls]\ncert = \"c\"\nkey = \"k\"\n{more}");
            agent(&tls("client_ca = \"a\""), &[]);
            assert!(refused(&tls("")).contains("client certificates ([agent.tls] client_ca)"));
            let other = if listener == "listen" { "admin" } else { "listen" };
            refused(&tls(&format!("client_ca = \"a\"\nlisteners = [\"{other}\"]")));
        }
        agent(&LEAST.replace("[agent]", &format!("[agent]\n{listener} = \"[::1]:{port}\"")), &[]);
    }
}

/// A file with a gateway's elections, and these lines in their section.
fn gateways(lines: &str) -> String {
    let zookeeper = "[zookeeper]\nconnect = \"127.0.0.1:2181\"\n";
    LEAST.replace(zookeeper, &format!("[coordination]\nbackend = \"gateway\"\n{lines}"))
}

#[test]
fn an_agent_takes_part_in_elections_that_its_gateway_keeps() {
    let env = [
        ("FENCEGATE__COORDINATION__ELECTIONS", "http://gateway:9091"),
        ("FENCEGATE__COORDINATION__SESSION_TIMEOUT", "5m"),
    ];
    let config = agent(&gateways("elections = \"https://x\"\n"), &env);
    let AgentCoordination::Gateway(elections) = config.coordination else { panic!() };
    assert_eq!(elections.elections.authority, "gateway:9091");
    assert_eq!((elections.session_timeout, elections.protocol.identity), (Duration::from_secs(300), None));
}

#[test]
fn an_agents_tls_is_on_its_own_listeners_and_names_are_for_each() {
    let tls = |more: &str| format!("{LEAST}[agent.tls]\ncert = \"c\"\nkey = \"k\"\n{more}");
    let said =
        agent(&tls("client_ca = \"a\"\nclient_names = [\"bot\"]\nadmin_names = [\"ops\", \"::1\"]"), &[]);
    let said = said.agent.tls.unwrap();
    let names: Vec<_> = said.listeners.iter().map(|(listener, names)| (*listener, names.len())).collect();
    assert_eq!((said.section, names), ("[agent.tls]", vec![(TlsListener::Bots, 1), (TlsListener::Admin, 2)]));
    for (more, part) in [
        ("listeners = [\"proxy\"]", "unknown; allowed: \"listen\", \"admin\""),
        ("elections_names = [\"a\"]", "unknown key \"elections_names\""),
        ("client_names = [\"a\"]", "nothing asks for certificates"),
        (
            "client_ca = \"a\"\nadmin_names = [\"a\"]\nlisteners = [\"listen\"]",
            "`admin_names`: `listeners` is without \"admin\"",
        ),
    ] {
        let error = refused(&tls(more));
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
}

#[test]
fn what_an_agent_cannot_do_is_refused_by_name() {
    for (text, part) in [
        (LEAST.replace("\"all\"", "\"some\""), "accounts"),
        (LEAST.replace("\"all\"", "[\"a\", \"a\"]"), "twice"),
        (LEAST.replace("\"all\"", "[]"), "empty"),
        (LEAST.replace("accounts = \"all\"", ""), "`accounts` is missing"),
        (LEAST.replace("gateway = \"http://127.0.0.1:8080\"", ""), "`gateway` is missing"),
        (LEAST.replace("[agent]", "[agent]\nlisten = \"0.0.0.0:7070\""), "agent.toml:2:10: `listen`"),
        (format!("{LEAST}mode = \"pass\"\n"), "the gateway's part"),
        (format!("{LEAST}[hooks]\non_leader = []\n"), "a program and its arguments"),
        (format!("{LEAST}[coordination]\nbackend = \"etcd\"\n"), "not built yet"),
        (
            format!("{LEAST}[coordination]\nbackend = \"gateway\"\n"),
            "`zookeeper`: the gateway holds the elections",
        ),
        (
            format!("{LEAST}[coordination]\nbackend = \"gateway\"\n"),
            "`elections` is missing in [coordination]",
        ),
        (format!("{LEAST}[coordination]\nelections = \"http://g:1\"\n"), "with backend = \"gateway\""),
        (format!("{LEAST}[coordination]\nsession_timeout = \"5s\"\n"), "`session_timeout`: ZooKeeper holds"),
        (gateways("[election]\nroot = \"/x\"\n"), "without [election]"),
        (
            gateways("elections = \"https://g:1\"\nelections_cert = \"a.pem\"\n"),
            "`elections_cert_key` is missing",
        ),
        (gateways("elections = \"http://g:1\"\nelections_ca = \"a.pem\"\n"), "the elections are not https"),
        (gateways("elections = \"http://g:1/v1\"\n"), "has a path"),
        (gateways("elections = \"unix:/run/g.sock\"\n"), "a socket; allowed: http://host:port"),
        (gateways("elections = \"http://g:1\"\nsession_timeout = \"1s\"\n"), "session_timeout"),
        (gateways("elections = \"http://g:1\"\nstate = \"x\"\n"), "unknown key"),
        (format!("{LEAST}[handover]\nscope = \"replica\"\n"), "unknown key"),
    ] {
        let error = refused(&text);
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
}

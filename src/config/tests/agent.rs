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
    let text = SHIPPED.replace("#~ ", "").replace("http://", "https://");
    let config = agent(&text, &[("ZK_DIGEST", "u:p"), ("FENCEGATE_KEY", "secret")]);
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
    assert_eq!(config.zookeeper.session_timeout, Duration::from_secs(20));
    assert_eq!((config.election.root.as_str(), config.routes.len()), ("/wx-accounts", 1));
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
        (format!("{LEAST}[handover]\nscope = \"replica\"\n"), "unknown key"),
    ] {
        let error = refused(&text);
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
}

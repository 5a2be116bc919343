//! What is shipped for containers fits together: every path, port, command and host in it. No image is built here.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic in its helpers too"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::gateway::{BINARY, fencegate};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines of each service, with those of the anchors it takes in.
fn services() -> BTreeMap<String, Vec<String>> {
    let text = read("docker/compose.yml");
    let (before, after) = text.split_once("\nservices:\n").unwrap();
    let blocks = |text: &str, indent: &str| -> Vec<(String, Vec<String>)> {
        let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            match line.strip_prefix(indent).filter(|rest| !rest.starts_with(' ') && rest.contains(':')) {
                Some(name) => blocks.push((name.to_owned(), Vec::new())),
                None => {
                    if let Some((_, lines)) = blocks.last_mut() {
                        lines.push(line.trim().to_owned());
                    }
                }
            }
        }
        blocks
    };
    let anchors: BTreeMap<_, _> = blocks(before, "")
        .into_iter()
        .filter_map(|(name, lines)| Some((name.split_once('&')?.1.trim().to_owned(), lines)))
        .collect();
    blocks(after, "  ")
        .into_iter()
        .map(|(name, lines)| {
            let taken = |line: &String| match line.strip_prefix("<<: *") {
                Some(anchor) => anchors[anchor].clone(),
                None => vec![line.clone()],
            };
            (name.trim_end_matches(':').to_owned(), lines.iter().flat_map(taken).collect())
        })
        .collect()
}

/// The words of a list such as `["a", "b"]`.
fn words(list: &str) -> Vec<String> {
    let list = &list[list.find('[').unwrap()..];
    serde_json::from_str(list).unwrap_or_else(|error| panic!("{list}: {error}"))
}

fn published(service: &[String]) -> Vec<(String, u16)> {
    let port = |line: &String| {
        let port = line.strip_prefix("- \"127.0.0.1:")?.strip_suffix('"')?;
        let (host, container) = port.split_once(':')?;
        Some((host.to_owned(), container.parse().unwrap()))
    };
    service.iter().filter_map(port).collect()
}

fn table(path: &str) -> toml::Table {
    read(path).parse().unwrap()
}

fn port_of(address: &toml::Value) -> u16 {
    address.as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn every_file_and_every_service_that_compose_names_is_there() {
    let services = services();
    for name in
        ["zookeeper-1", "zookeeper-2", "zookeeper-3", "gateway", "agent-a", "agent-b", "sender", "prometheus"]
    {
        assert!(services.contains_key(name), "{name}");
    }
    let mut files = 0;
    for (name, lines) in &services {
        for line in lines {
            if let Some(volume) = line.strip_prefix("- .") {
                let (source, rest) = volume.split_once(':').unwrap();
                assert!(root().join("docker").join(format!(".{source}")).is_file(), "{name}: {line}");
                assert!(rest.ends_with(":ro"), "{name}: {line}");
                files += 1;
            }
            if let Some(list) = line.strip_prefix("depends_on: [") {
                for other in list.trim_end_matches(']').split(", ") {
                    assert!(services.contains_key(other), "{name} depends on {other}");
                }
            }
        }
    }
    assert_eq!(files, 5);
    assert!(services["gateway"].contains(&"dockerfile: docker/Dockerfile".to_owned()));
}

#[test]
fn every_port_is_one_that_somebody_listens_on_and_published_once_on_loopback() {
    let services = services();
    let (gateway, agent) = (table("docker/gateway.toml"), table("docker/agent.toml"));
    let listen = |value: &toml::Value| [port_of(&value["proxy"]), port_of(&value["admin"])];
    let gateway_ports = listen(&gateway["listen"]).to_vec();
    let agent_ports = vec![port_of(&agent["agent"]["listen"]), port_of(&agent["agent"]["admin"])];
    let mut seen = BTreeSet::new();
    for (name, ports) in [
        ("gateway", gateway_ports.clone()),
        ("agent-a", agent_ports.clone()),
        ("agent-b", agent_ports.clone()),
        ("sender", vec![9000]),
        ("prometheus", vec![9090]),
    ] {
        let published = published(&services[name]);
        assert_eq!(published.iter().map(|(_, port)| *port).collect::<Vec<_>>(), ports, "{name}");
        for (host, _) in published {
            assert!(seen.insert(host.clone()), "{host} twice");
        }
    }
    let all =
        read("docker/compose.yml").lines().filter(|line| line.trim().starts_with("- \"127.0.0.1:")).count();
    assert_eq!(all, seen.len(), "nothing else is published");
    let exposed = format!("EXPOSE {} {}", gateway_ports[0], gateway_ports[1]);
    assert!(read("docker/Dockerfile").lines().any(|line| line == exposed), "{exposed}");
    let scraped = read("docker/prometheus.yml");
    for target in [
        format!("\"gateway:{}\"", gateway_ports[1]),
        format!("\"agent-a:{}\"", agent_ports[1]),
        format!("\"agent-b:{}\"", agent_ports[1]),
    ] {
        assert!(scraped.contains(&target), "{target}");
    }
    let sender = services["sender"].iter().find(|line| line.starts_with("command:")).unwrap();
    assert!(sender.contains("\"--port\", \"9000\""), "{sender}");
    let health = services["agent-a"].iter().find(|line| line.starts_with("test:")).unwrap();
    assert!(health.contains(&format!("http://127.0.0.1:{}\"", agent_ports[1])), "{health}");
}

#[test]
fn every_host_that_a_configuration_names_is_a_service() {
    let services = services();
    for path in ["docker/gateway.toml", "docker/agent.toml"] {
        let config = table(path);
        let connect = config["zookeeper"]["connect"].as_str().unwrap();
        for server in connect.split(',') {
            let (host, port) = server.split_once(':').unwrap();
            let known = format!("={host}:2888:3888;{port}");
            assert!(services[host].iter().any(|line| line.starts_with("ZOO_MY_ID")), "{host}");
            assert!(services["zookeeper-1"].iter().any(|line| line.contains(&known)), "{known}");
        }
    }
    let upstream = table("docker/gateway.toml")["route"][0]["upstream"].as_str().unwrap().to_owned();
    assert_eq!(upstream, "http://sender:9000");
    let gateway = table("docker/agent.toml")["agent"]["gateway"].as_str().unwrap().to_owned();
    assert_eq!(
        gateway,
        format!("http://gateway:{}", port_of(&table("docker/gateway.toml")["listen"]["proxy"]))
    );
}

#[test]
fn the_configurations_are_good() {
    let path = root().join("docker/gateway.toml");
    let checked = fencegate(&["check", "--config", path.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // A wrong variable is the only thing that is wrong.
    let mut agent = Command::new(BINARY);
    agent.args(["agent", "--config"]).arg(root().join("docker/agent.toml"));
    let agent = agent.env("FENCEGATE__AGENT__NOTHING", "1").output().unwrap();
    let said = String::from_utf8(agent.stderr).unwrap();
    assert_eq!(agent.status.code(), Some(2), "{said}");
    assert!(said.starts_with("FENCEGATE__AGENT__NOTHING: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn the_image_runs_commands_that_exist_from_files_that_are_copied_and_not_as_root() {
    let text = read("docker/Dockerfile").replace("\\\n", " ");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let of = |word: &str| lines.iter().filter(|line| line.starts_with(word)).copied().collect::<Vec<_>>();
    let toolchain = table("rust-toolchain.toml")["toolchain"]["channel"].as_str().unwrap().to_owned();
    let rust = format!("FROM rust:{}-", toolchain.trim_end_matches(".0"));
    assert!(of("FROM")[0].starts_with(&rust), "{rust} is the toolchain");
    let sent = read(".dockerignore");
    for copy in of("COPY") {
        let parts: Vec<_> = copy.split_whitespace().skip(1).collect();
        if let Some(["--from=build", from, to]) = parts.get(..3) {
            let built = ["/src/target/release/fencegate", "/etc/ssl/certs/ca-certificates.crt"];
            assert!(built.contains(from) && (to == from || *to == "/usr/local/bin/fencegate"), "{copy}");
            continue;
        }
        for source in &parts[..parts.len() - 1] {
            assert!(root().join(source).exists(), "{source}");
            assert!(
                sent.lines().any(|line| line == format!("!{source}")),
                ".dockerignore keeps {source} out"
            );
        }
    }
    // What the code takes in from beside src/.
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let code = if path.is_file() { std::fs::read_to_string(path).unwrap() } else { String::new() };
        for line in code.lines().filter(|line| line.contains("include_str!") && line.contains("\"../")) {
            let taken = line.split("\"../").nth(1).unwrap().split('/').next().unwrap();
            assert!(
                of("COPY").iter().any(|copy| copy.split(' ').any(|word| word == taken)),
                "{taken} is not copied"
            );
        }
    }
    assert_eq!(of("USER"), ["USER 65532:65532"]);
    assert_eq!(words(of("ENTRYPOINT")[0]), ["/usr/local/bin/fencegate"]);
    let mut commands = vec![words(of("CMD")[0])];
    let health = of("HEALTHCHECK")[0];
    commands.push(words(health.split_once("CMD").unwrap().1));
    for lines in services().values().filter(|lines| lines.contains(&"image: fencegate".to_owned())) {
        commands.extend(lines.iter().filter(|line| line.starts_with("command:")).map(|line| words(line)));
        assert!(
            lines.contains(&"read_only: true".to_owned())
                && lines.contains(&"cap_drop: [\"ALL\"]".to_owned())
        );
    }
    let health = services()["agent-a"].iter().find(|line| line.starts_with("test:")).map(|line| words(line));
    commands.push(health.unwrap()[1..].to_vec());
    for mut command in commands {
        command.retain(|word| word != "/usr/local/bin/fencegate");
        // Written wrong, it would be refused before the help is shown.
        let mut asked: Vec<_> = command.iter().map(String::as_str).collect();
        asked.push("--help");
        assert!(fencegate(&asked).status.success(), "{command:?}");
        if let Some(at) = command.iter().position(|word| word == "--config") {
            let file = Path::new(&command[at + 1]).file_name().unwrap().to_str().unwrap();
            let mounted = format!("- ./{file}:/etc/fencegate/{file}:ro");
            assert!(read("docker/compose.yml").contains(&mounted), "{mounted}");
        }
    }
}

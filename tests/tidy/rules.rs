//! The rules. Each takes a file and gives findings, one line each: where, and what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use crate::reading::{Source, Token};

/// Who may name whom: a module names its own line and those above it. What stands nowhere is a helper.
const LINES: &[&[&str]] = &[
    &["clock", "code", "mutant", "sync"],
    &["fence"],
    HELPERS,
    &["claim", "election", "forward", "web"],
    &["ballot", "gateway", "agent", "elector"],
    &["admin"],
    &["main", "lib", "cli", "command", "commands", "serve", "demo", "quick", "init", "explain", "status"],
];
const HELPERS: &[&str] = &["config", "telemetry", "metrics", "shutdown"];

/// Never, although their lines would allow it.
const STRANGERS: &[(&str, &str)] = &[
    ("gateway", "agent"),
    ("agent", "gateway"),
    ("forward", "election"),
    ("election", "forward"),
    ("forward", "claim"),
    ("claim", "forward"),
];

/// What a pure core does without.
const IMPURE: &[&str] =
    &["async", "await", "tokio", "tracing", "metrics", "hyper", "http", "axum", "futures_util"];
const IMPURE_STD: &[&str] = &["env", "fs", "future", "io", "net", "process", "thread"];

const MOST_LINES: usize = 500;

/// Imports run one way, and no two modules know each other.
pub(crate) fn layers(files: &[Source]) -> Vec<String> {
    let modules: BTreeSet<String> = files.iter().map(top).collect();
    let mut findings = Vec::new();
    let mut edges: BTreeMap<(String, String), String> = BTreeMap::new();
    for file in files {
        let from = top(file);
        for (line, path) in file.paths() {
            let Some(to) = target(&path).filter(|to| *to != from && modules.contains(*to)) else { continue };
            let place = format!("{}:{line}", file.name);
            if STRANGERS.contains(&(from.as_str(), to)) {
                findings.push(format!("{place}: `{from}` does not know `{to}`"));
            } else if rank(to) > rank(&from) {
                findings
                    .push(format!("{place}: `{from}` stands below `{to}` (LINES in tests/tidy/rules.rs)"));
            }
            edges.entry((from.clone(), to.to_owned())).or_insert(place);
        }
    }
    findings.extend(circles(&edges));
    findings
}

/// Ways from a module back to itself, each told once.
fn circles(edges: &BTreeMap<(String, String), String>) -> Vec<String> {
    let mut findings = Vec::new();
    for ((from, to), place) in edges {
        let mut reached = BTreeSet::from([to.as_str()]);
        let mut open = vec![to.as_str()];
        while let Some(module) = open.pop() {
            let further =
                edges.keys().filter(|(source, _)| source == module).map(|(_, target)| target.as_str());
            open.extend(further.filter(|next| reached.insert(next)));
        }
        if reached.contains(from.as_str()) {
            findings.push(format!("{place}: `{from}` names `{to}`, which leads back to `{from}`"));
        }
    }
    findings
}

/// The top-level module a file belongs to.
fn top(file: &Source) -> String {
    let root = if file.name == "src/main.rs" { "main" } else { "lib" };
    file.module().into_iter().next().unwrap_or_else(|| root.to_owned())
}

/// The top-level module a path leads to, if it leads into this crate.
fn target(path: &[String]) -> Option<&str> {
    match path {
        [first, second, ..] if first == "crate" || first == "fencegate" => Some(second),
        _ => None,
    }
}

fn rank(module: &str) -> usize {
    let helpers = LINES.iter().position(|line| *line == HELPERS);
    LINES.iter().position(|line| line.contains(&module)).or(helpers).unwrap_or_default()
}

/// `fence/` knows the clock's moments, the codes and itself, and does nothing but decide.
pub(crate) fn pure_fence(file: &Source) -> Vec<String> {
    if top(file) != "fence" {
        return Vec::new();
    }
    let foreign = file.paths().into_iter().filter_map(|(line, path)| {
        let names = path.join("::");
        let outside = target(&path).is_some_and(|to| !["fence", "clock", "code", "mutant"].contains(&to));
        let does =
            matches!(&path[..], [std, part, ..] if std == "std" && IMPURE_STD.contains(&part.as_str()));
        (outside || does)
            .then(|| format!("{}:{line}: the fence is pure and does not name `{names}`", file.name))
    });
    let words = file.tokens.iter().filter_map(|(line, token)| match token {
        Token::Word(word) if IMPURE.contains(&word.as_str()) => {
            Some(format!("{}:{line}: the fence is pure and does without `{word}`", file.name))
        }
        Token::Word(_) | Token::Text(_) | Token::Path | Token::Mark(_) => None,
    });
    foreign.chain(words).collect()
}

/// Only `election/zookeeper/` names the crate that talks to ZooKeeper.
pub(crate) fn one_zookeeper_client(file: &Source) -> Vec<String> {
    if file.name.starts_with("src/election/zookeeper/") || file.name == "src/election/zookeeper.rs" {
        return Vec::new();
    }
    words(file, "zookeeper_client")
        .map(|place| format!("{place}: only election/zookeeper/ names zookeeper_client"))
        .collect()
}

/// Whether a file of `src/` holds tests only: they may measure, and look for names.
fn is_of_tests(file: &Source) -> bool {
    file.name.contains("/tests/") || file.name.ends_with("tests.rs")
}

/// Only `clock.rs` asks what time it is.
pub(crate) fn one_clock(file: &Source) -> Vec<String> {
    if file.name == "src/clock.rs" || is_of_tests(file) {
        return Vec::new();
    }
    let asks = |path: &[String]| match path {
        [.., what, how] => {
            ["Instant", "SystemTime"].contains(&what.as_str()) && ["now", "elapsed"].contains(&how.as_str())
        }
        _ => false,
    };
    let paths = file
        .paths()
        .into_iter()
        .filter(|(_, path)| asks(path))
        .map(|(line, _)| format!("{}:{line}", file.name));
    let methods = file.tokens.windows(2).filter_map(|pair| match pair {
        [(_, Token::Mark('.')), (line, Token::Word(word))] if word == "elapsed" => {
            Some(format!("{}:{line}", file.name))
        }
        _ => None,
    });
    paths
        .chain(methods)
        .chain(words(file, "clock_gettime"))
        .map(|place| format!("{place}: only clock.rs reads a clock"))
        .collect()
}

/// Metric names are constants of one file.
pub(crate) fn one_file_of_metrics(file: &Source) -> Vec<String> {
    if ["src/telemetry.rs", "src/metrics.rs"].contains(&file.name.as_str()) || is_of_tests(file) {
        return Vec::new();
    }
    let names = file.tokens.iter().filter_map(|(line, token)| match token {
        // two underscores begin the name of an environment variable
        Token::Text(text) if text.starts_with("fencegate_") && !text.starts_with("fencegate__") => {
            Some((line, text))
        }
        Token::Word(_) | Token::Text(_) | Token::Path | Token::Mark(_) => None,
    });
    names
        .map(|(line, text)| format!("{}:{line}: the metric name {text:?} belongs in telemetry.rs", file.name))
        .collect()
}

/// A file says first what it is.
pub(crate) fn opening(file: &Source) -> Vec<String> {
    let opens = file.text.starts_with("//! ");
    (!opens).then(|| format!("{}:1: opens without `//!` and what it is", file.name)).into_iter().collect()
}

/// Past so many lines a file is more than one room.
pub(crate) fn length(file: &Source) -> Vec<String> {
    let lines = file.text.lines().count();
    (lines > MOST_LINES)
        .then(|| format!("{}: {lines} lines, more than {MOST_LINES}", file.name))
        .into_iter()
        .collect()
}

/// No word about the places where it was written.
pub(crate) fn product_only(file: &Source) -> Vec<String> {
    // taken apart, so that this file does not find itself
    let places = [
        ["/wor", "k/"],
        ["/far", "m/"],
        [".librar", "y/"],
        ["/tmp/", "w/"],
        ["farm-", "bench"],
        ["sub", "agent"],
    ];
    let places = places.map(|parts| parts.concat());
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let named = places.iter().find(|place| line.contains(place.as_str())).map(String::as_str);
        if let Some(word) = named.or_else(|| ticket(line)) {
            findings.push(format!("{}:{}: {word:?} is not about the product", file.name, index + 1));
        }
    }
    findings
}

/// A numbered piece of work that only its writers know.
fn ticket(line: &str) -> Option<&str> {
    ["issue", "task"].iter().find_map(|word| {
        line.match_indices(word).find_map(|(at, _)| {
            let rest = line[at..].strip_prefix(word)?.strip_prefix(' ')?;
            let digits = rest.strip_prefix('#').unwrap_or(rest);
            digits.starts_with(|letter: char| letter.is_ascii_digit()).then(|| &line[at..])
        })
    })
}

/// Where a word stands in code.
fn words<'a>(file: &'a Source, word: &'a str) -> impl Iterator<Item = String> + 'a {
    let found =
        file.tokens.iter().filter(move |(_, token)| matches!(token, Token::Word(have) if have == word));
    found.map(move |(line, _)| format!("{}:{line}", file.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Source {
        Source::new(name, text)
    }

    /// A crate in which every top-level module exists, plus one file.
    fn world(name: &str, text: &str) -> Vec<Source> {
        let names = LINES.iter().copied().flatten().chain(&["helper"]);
        let mut files: Vec<_> = names.map(|name| file(&format!("src/{name}/part.rs"), "")).collect();
        files.push(file(name, text));
        files
    }

    #[test]
    fn a_name_of_a_line_below_is_found() {
        for (name, text) in [
            ("src/fence/gate.rs", "use crate::config::Config;"),
            ("src/fence/mod.rs", "use super::telemetry;"),
            ("src/clock.rs", "use crate::fence::view;"),
            ("src/config/mod.rs", "use crate::gateway::route::Route;"),
            ("src/helper.rs", "fn f() { crate::admin::api::serve() }"),
            ("src/forward/mod.rs", "use crate::{clock, gateway::reply};"),
            ("src/forward/mod.rs", "use crate::election::Source;"),
            ("src/election/mod.rs", "use super::forward::pool;"),
            ("src/gateway/mod.rs", "use crate::agent::hooks;"),
            ("src/agent/mod.rs", "use crate::gateway::registry;"),
            ("src/gateway/mod.rs", "use crate::admin;"),
            ("src/admin/mod.rs", "use fencegate::main;"),
        ] {
            assert_eq!(layers(&world(name, text)).len(), 1, "{name}: {text}");
        }
    }

    #[test]
    fn a_name_of_the_own_line_or_one_above_is_fine() {
        for (name, text) in [
            ("src/fence/gate.rs", "use crate::clock::Moment; use super::view::View; use crate::code::Code;"),
            ("src/gateway/ingress.rs", "use crate::{config, election, fence::gate, forward, telemetry};"),
            ("src/admin/api.rs", "use crate::gateway::registry;"),
            ("src/demo/mod.rs", "use crate::admin::page; // crate::main"),
            ("src/main.rs", "use fencegate::{admin, agent, demo, gateway};"),
            ("src/forward/mod.rs", "use other::gateway::x; use crate::helper;"),
        ] {
            assert_eq!(layers(&world(name, text)), Vec::<String>::new(), "{name}: {text}");
        }
    }

    #[test]
    fn two_modules_that_know_each_other_are_found() {
        let circle = [
            file("src/config.rs", "use crate::telemetry;"),
            file("src/telemetry.rs", "use crate::shutdown;"),
        ];
        assert_eq!(layers(&circle), Vec::<String>::new());
        let closed = [&circle[..], &[file("src/shutdown.rs", "use crate::config;")]].concat();
        assert_eq!(layers(&closed).len(), 3, "{:?}", layers(&closed));
    }

    #[test]
    fn an_impure_fence_is_found() {
        for text in [
            "use crate::config::Config;",
            "use crate::{clock, telemetry};",
            "use std::io::Read;",
            "use std::{sync::Arc, thread};",
            "async fn f() {}",
            "fn f() { tracing::info!(\"x\") }",
            "use tokio::sync::Notify;",
        ] {
            assert!(!pure_fence(&file("src/fence/gate.rs", text)).is_empty(), "{text}");
            assert!(pure_fence(&file("src/gateway/mod.rs", text)).is_empty(), "{text}");
        }
        let pure = "use std::{sync::Arc, time::Duration}; use crate::clock::Moment; // async";
        assert!(pure_fence(&file("src/fence/gate.rs", pure)).is_empty());
    }

    #[test]
    fn a_second_user_of_the_zookeeper_client_is_found() {
        for text in [
            "use zookeeper_client::Client;",
            "fn f(x: ::zookeeper_client::Stat) {}",
            "use zookeeper_client as z;",
        ] {
            assert_eq!(one_zookeeper_client(&file("src/election/mod.rs", text)).len(), 1, "{text}");
            assert!(one_zookeeper_client(&file("src/election/zookeeper/session.rs", text)).is_empty());
        }
        assert!(
            one_zookeeper_client(&file("src/x.rs", "// zookeeper_client\nlet x = \"zookeeper_client\";"))
                .is_empty()
        );
    }

    #[test]
    fn a_second_clock_is_found() {
        for text in [
            "let x = std::time::Instant::now();",
            "let x = Instant::now();",
            "let x = tokio::time::Instant::now;",
            "let x = SystemTime::now();",
            "let x = rustix::time::clock_gettime(id);",
            "let x = begun.elapsed();",
        ] {
            assert_eq!(one_clock(&file("src/gateway/server.rs", text)).len(), 1, "{text}");
            assert!(one_clock(&file("src/clock.rs", text)).is_empty());
        }
        assert!(
            one_clock(&file("src/x.rs", "let x = clock.now(); fn f(x: Instant) {} // Instant::now()"))
                .is_empty()
        );
    }

    #[test]
    fn a_metric_name_elsewhere_is_found() {
        let text = "const X: &str = \"fencegate_parked\";";
        assert_eq!(one_file_of_metrics(&file("src/gateway/server.rs", text)).len(), 1);
        assert!(one_file_of_metrics(&file("src/telemetry.rs", text)).is_empty());
        assert!(
            one_file_of_metrics(&file(
                "src/x.rs",
                "// \"fencegate_x\"\nlet x = [\"fencegate=info\", \"fencegate__x\"];"
            ))
            .is_empty()
        );
    }

    #[test]
    fn a_file_without_an_opening_or_with_too_many_lines_is_found() {
        assert_eq!(opening(&file("src/x.rs", "use std::fmt;\n")).len(), 1);
        assert_eq!(opening(&file("src/x.rs", "//!\n")).len(), 1);
        assert!(opening(&file("src/x.rs", "//! What it is.\n")).is_empty());
        assert!(length(&file("src/x.rs", &"\n".repeat(MOST_LINES))).is_empty());
        assert_eq!(length(&file("src/x.rs", &"\n".repeat(MOST_LINES + 1))).len(), 1);
    }

    #[test]
    fn a_word_about_a_workplace_is_found() {
        for parts in
            [["see /wor", "k/notes"], ["as in tas", "k 12"], ["fixes issu", "e #7"], ["cd /tmp/", "w/x"]]
        {
            let text = parts.concat();
            assert_eq!(product_only(&file("README.md", &text)).len(), 1, "{text}");
        }
        assert!(
            product_only(&file("README.md", "its work/ and a task of its own; an issue of curator"))
                .is_empty()
        );
    }
}

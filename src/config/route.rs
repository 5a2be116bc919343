//! The keys of one `[[route]]`.
//!
//! It never compares routes with each other: the first that matches wins, and that is the operator's order.

use std::time::Duration;

use super::address;
use super::error::{Problem, Read, quote};
use super::model::{Handover, Limits, Mode, Route, Source, Upstream};
use super::rewrite::Rewrite;
use super::section::Section;
use super::template::Template;
use super::tree::{Node, Value};
use super::value::{choice, count, flag, list, one_or_list, parsed, parsed_url, size, timeout};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Reads one route, to the given upstream where it names none itself. `None` only with problems.
pub(super) fn read(
    mut section: Section<'_>,
    handover: &Handover,
    limits: &Limits,
    given: Option<&Upstream>,
    problems: &mut Vec<Problem>,
) -> Option<Route> {
    let seconds = Duration::from_secs;
    let path = section.need("path", PATH, parsed(PATH, Template::parse));
    let mode = section.take(
        "mode",
        choice(
            &[
                ("enforce", Mode::Enforce),
                ("shadow", Mode::Shadow),
                ("pass", Mode::Pass),
                ("deny", Mode::Deny),
            ],
            &[],
        ),
        Mode::Enforce,
    );
    let account = account(&mut section, mode, path.as_ref());
    let upstream = match given {
        Some(given) => Some(given.clone()),
        None => section.need("upstream", "\"http://host:port\"", upstream),
    };
    // Without a path there is nothing to check it against, and the path's own problem is told.
    let rewrite = section
        .optional("rewrite", |node| match &path {
            Some(path) => {
                let rewrite = parsed("a path such as \"/{*rest}\"", |text| Rewrite::parse(text, path));
                rewrite(node).map(Some)
            }
            None => Ok(None),
        })
        .flatten();
    let methods =
        section.optional("methods", list("a list such as [\"POST\"]", parsed("strings", address::method)));
    let preserve_host = section.take("preserve_host", flag, false);
    let connect_timeout = section.take("connect_timeout", timeout, seconds(3));
    let upstream_timeout = section.take("upstream_timeout", timeout, seconds(60));
    let upstream_idle_timeout = section.take("upstream_idle_timeout", timeout, seconds(4));
    let buffer = section.take("buffer", size(1, GIB), MIB);
    let max_body = section.take("max_body", size(0, 1 << 40), 64 * MIB);
    let answer_buffer = section.take("answer_buffer", size(1, GIB), MIB);
    let drain_timeout = section.take("drain_timeout", timeout, handover.drain_timeout);
    let max_in_flight = section.optional("max_in_flight", count);
    if max_in_flight.is_some_and(|most| most > limits.max_in_flight) {
        let place = section.place_of("max_in_flight");
        let most = limits.max_in_flight;
        section.problem(&place, format!("`max_in_flight`: above that of [limits]; allowed: 1 to {most}"));
    }
    section.optional("identity", identity);
    section.not_built(&["query", "json", "json_integer", "refusal"]);
    section.finish(problems);
    Some(Route {
        path: path?,
        account: account?,
        upstream: upstream?,
        mode,
        methods,
        rewrite,
        preserve_host,
        connect_timeout,
        upstream_timeout,
        upstream_idle_timeout,
        buffer,
        max_body,
        answer_buffer,
        drain_timeout,
        max_in_flight,
    })
}

const PATH: &str = "a path such as \"/wx/{account}/{*rest}\"";

fn account(section: &mut Section<'_>, mode: Mode, path: Option<&Template>) -> Option<Vec<Source>> {
    let read = one_or_list(address::SOURCES, |node| {
        let source = parsed(address::SOURCES, address::source)(node)?;
        match (&source, path) {
            (Source::Path(name), Some(path)) if !path.segment_names().any(|known| known == name) => {
                let names: Vec<_> = path.segment_names().map(|name| format!("path:{name}")).collect();
                let allowed =
                    if names.is_empty() { "a {name} in `path`".to_owned() } else { names.join(", ") };
                node.refuse(format!(
                    "`path` has no {} to take it from; allowed: {allowed}",
                    quote(&format!("{{{name}}}"))
                ))
            }
            _ => Ok(source),
        }
    });
    // Whoever is refused in any case needs no account.
    if mode == Mode::Deny {
        return Some(section.take("account", read, Vec::new()));
    }
    section.need("account", address::SOURCES, read)
}

fn upstream(node: &Node) -> Read<Upstream> {
    if matches!(node.value, Value::List(_)) {
        return node.refuse("several upstreams are not built yet; allowed: one, \"http://host:port\"");
    }
    parsed_url("\"http://host:port\"", address::upstream)(node)
}

/// How a value becomes an account's name. Only as it is, so far.
fn identity(node: &Node) -> Read<()> {
    match node.text() {
        Some("plain") => Ok(()),
        Some(text) if text == "sha256" || text.starts_with("map:") => {
            node.refuse(format!("{} is not built yet; allowed: \"plain\"", node.show()))
        }
        Some(_) => node.refuse(format!("{} is unknown; allowed: \"plain\"", node.show())),
        None => node.refuse_type("\"plain\""),
    }
}

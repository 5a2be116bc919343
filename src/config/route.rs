//! The keys of one `[[route]]`.
//!
//! It never compares routes with each other: the first that matches wins, and that is the operator's order.

use std::path::Path;
use std::time::Duration;

use super::address;
use super::error::{Problem, Read, quote};
use super::identity::{self, Identity};
use super::model::{Handover, JsonValue, Limits, Mode, Route, Source};
use super::pointer::Pointer;
use super::refusal;
use super::rewrite::Rewrite;
use super::section::Section;
use super::template::Template;
use super::tree::{Node, Value};
use super::upstream::{self, Protocol, UPSTREAM, Upstream};
use super::value::{choice, count, flag, list, one_or_list, parsed, parsed_url, size, timeout};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How many digits a seq of ZooKeeper's has.
pub(super) const SEQ_DIGITS: usize = 10;

/// What a route takes its bounds from, and where files that it names are.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub(super) handover: &'a Handover,
    pub(super) limits: &'a Limits,
    pub(super) folder: &'a Path,
    /// Where all lead to, if they name no upstream of their own.
    pub(super) upstream: Option<&'a Upstream>,
    /// How many digits a seq may have.
    pub(super) seq_digits: usize,
}

/// Reads one route. `None` only with problems.
pub(super) fn read(
    mut section: Section<'_>,
    shared: &Shared<'_>,
    problems: &mut Vec<Problem>,
) -> Option<Route> {
    let Shared { handover, limits, folder, upstream: given, seq_digits } = *shared;
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
    let upstreams = match given {
        Some(given) => Some(vec![given.clone()]),
        None => section.need("upstream", UPSTREAM, upstreams),
    };
    let protocol = match given {
        Some(_) => Protocol::plain(&upstream::ROUTES),
        None => upstream::protocol(&mut section, &upstream::ROUTES, upstreams.as_deref()),
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
    let query = section.take("query", query, Vec::new());
    let json = section.take("json", json, Vec::new());
    let json_integer = section.take("json_integer", flag, false);
    let identity = section.take("identity", |node| identity::read(node, folder), Identity::Plain);
    let fixed = account.iter().flatten().any(|source| matches!(source, Source::Static(_)));
    if fixed && identity.is_secret() {
        let place = section.place_of("identity");
        section.problem(&place, "`identity`: static:NAME names an account already; allowed: \"plain\"");
    }
    let refusal =
        section.is_there("refusal").then(|| refusal::read(section.table("refusal"), problems)).flatten();
    section.finish(problems);
    Some(Route {
        seq_digits,
        path: path?,
        query,
        json,
        account: account?,
        json_integer,
        identity,
        refusal,
        upstreams: upstreams?,
        protocol,
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

/// So many that the bits of a word tell which were asked.
const MOST_UPSTREAMS: usize = 64;

fn upstreams(node: &Node) -> Read<Vec<Upstream>> {
    let upstreams = one_or_list(UPSTREAM, parsed_url(UPSTREAM, upstream::upstream))(node)?;
    if upstreams.len() > MOST_UPSTREAMS {
        return node.refuse(format!("{} are too many; allowed: {MOST_UPSTREAMS}", upstreams.len()));
    }
    Ok(upstreams)
}

/// Keys of a query and their values.
fn query(node: &Node) -> Read<Vec<(String, String)>> {
    const ALLOWED: &str = "a table such as { type = \"2\" }";
    pairs(node, ALLOWED, |name, value| match value.text() {
        Some(text) => address::key(name).map(|key| (key, text.to_owned())).or_else(|why| value.refuse(why)),
        None => value.refuse_type("a string, as it stands in the query"),
    })
}

/// Places of a JSON body and their values.
fn json(node: &Node) -> Read<Vec<(Pointer, JsonValue)>> {
    const ALLOWED: &str = "a table such as { \"/path\" = \"/msg/send_text\" }";
    pairs(node, ALLOWED, |name, value| {
        let pointer = Pointer::parse(name).or_else(|why| value.refuse(format!("{}: {why}", quote(name))))?;
        match (&value.value, value.text()) {
            (Value::Integer(number), None) => match i64::try_from(*number) {
                Ok(number) => Ok((pointer, JsonValue::Integer(number))),
                Err(_) => value.refuse("out of bounds; allowed: a string or a whole number of 64 bits"),
            },
            (_, Some(text)) => Ok((pointer, JsonValue::Text(text.to_owned()))),
            (_, None) => value.refuse_type("a string or a whole number"),
        }
    })
}

fn pairs<T>(node: &Node, allowed: &str, read: impl Fn(&str, &Node) -> Read<T>) -> Read<Vec<T>> {
    let Value::Table(entries) = &node.value else { return node.refuse_type(allowed) };
    if entries.is_empty() {
        return node.refuse(format!("the table is empty; allowed: {allowed}"));
    }
    let (mut values, mut problems) = (Vec::new(), Vec::new());
    for entry in entries {
        match read(&entry.key, &entry.node) {
            Ok(value) => values.push(value),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(values) } else { Err(problems) }
}

//! Readers of single values: durations, sizes, counts, flags, choices.
//!
//! A value outside its bounds is refused with the bounds; none is ever clamped.

use std::net::SocketAddr;
use std::time::Duration;

use super::error::{Problem, Read, quote};
use super::tree::{Node, Value};

/// No timeout of a gateway is longer.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const MILLI: Duration = Duration::from_millis(1);

/// A whole number above this is a mistake, whatever it counts.
const COUNT_MAX: usize = 1_000_000_000;

/// A duration between two bounds, both allowed.
pub(super) fn duration(least: Duration, most: Duration) -> impl Fn(&Node) -> Read<Duration> {
    move |node| {
        let allowed = || {
            format!(
                "{} to {} as a string such as \"250ms\", \"10s\", \"5m\" or \"1h\"",
                show_duration(least),
                show_duration(most)
            )
        };
        match node.text().map(|text| parse_duration(text.trim())) {
            Some(Some(duration)) if (least..=most).contains(&duration) => Ok(duration),
            Some(Some(_)) => node.refuse(format!("{} is out of bounds; allowed: {}", node.show(), allowed())),
            Some(None) => node.refuse(format!("{} is no duration; allowed: {}", node.show(), allowed())),
            None => node.refuse_type(&allowed()),
        }
    }
}

/// A timeout: anything but zero, up to a day.
pub(super) fn timeout(node: &Node) -> Read<Duration> {
    duration(MILLI, DAY)(node)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_number(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    // What overflows is beyond every bound, and is told so.
    Some(Duration::from_millis(number.saturating_mul(millis)))
}

fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let unit = units.iter().find(|(_, size)| millis > 0 && millis.is_multiple_of(*size));
    let (unit, size) = unit.copied().unwrap_or(("ms", 1));
    format!("{}{unit}", millis / size)
}

/// A number of bytes between two bounds, both allowed.
pub(super) fn size(least: u64, most: u64) -> impl Fn(&Node) -> Read<u64> {
    move |node| {
        let allowed = || {
            format!(
                "{} to {} as a string such as \"512B\", \"64KiB\", \"1MiB\" or \"1GiB\", or a number of bytes",
                show_size(least),
                show_size(most)
            )
        };
        let bytes = match node.integer() {
            Some(number) => u64::try_from(number).ok(),
            None => match node.text() {
                Some(text) => match parse_size(text.trim()) {
                    Some(bytes) => Some(bytes),
                    None => {
                        return node.refuse(format!("{} is no size; allowed: {}", node.show(), allowed()));
                    }
                },
                None => return node.refuse_type(&allowed()),
            },
        };
        match bytes {
            Some(bytes) if (least..=most).contains(&bytes) => Ok(bytes),
            _ => node.refuse(format!("{} is out of bounds; allowed: {}", node.show(), allowed())),
        }
    }
}

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number.saturating_mul(*size))
}

fn show_size(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size));
    let (unit, size) = unit.copied().unwrap_or(("B", 1));
    format!("{}{unit}", bytes / size)
}

/// Digits and what follows them. A number too large for 64 bits is the largest.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    if digits.is_empty() {
        return None;
    }
    Some((digits.parse().unwrap_or(u64::MAX), unit))
}

/// A whole number of at least one.
pub(super) fn count(node: &Node) -> Read<usize> {
    let allowed = format!("a whole number from 1 to {COUNT_MAX}");
    match node.integer() {
        Some(number) => match usize::try_from(number) {
            Ok(number) if (1..=COUNT_MAX).contains(&number) => Ok(number),
            _ => node.refuse(format!("{} is out of bounds; allowed: {allowed}", node.show())),
        },
        None => node.refuse_type(&allowed),
    }
}

/// `true` or `false`.
pub(super) fn flag(node: &Node) -> Read<bool> {
    node.flag().map_or_else(|| node.refuse_type("true or false"), Ok)
}

/// One of a few words. `unbuilt` are words that will mean something.
pub(super) fn choice<T: Copy>(words: &[(&str, T)], unbuilt: &[&str]) -> impl Fn(&Node) -> Read<T> {
    move |node| {
        let allowed = || words.iter().map(|(word, _)| quote(word)).collect::<Vec<_>>().join(", ");
        let Some(text) = node.text() else { return node.refuse_type(&allowed()) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None if unbuilt.contains(&text) => {
                node.refuse(format!("{} is not built yet; allowed: {}", node.show(), allowed()))
            }
            None => node.refuse(format!("{} is unknown; allowed: {}", node.show(), allowed())),
        }
    }
}

/// A string with a grammar of its own. The parser's error says what is wrong and what is allowed.
pub(super) fn parsed<T, E: std::fmt::Display>(
    allowed: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> impl Fn(&Node) -> Read<T> {
    move |node| match node.text() {
        Some(text) => parse(text).or_else(|error| node.refuse(format!("{}: {error}", node.show()))),
        None => node.refuse_type(allowed),
    }
}

/// The same, for what may hold a user and a password by mistake: then it is not shown.
pub(super) fn parsed_url<T>(
    allowed: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> impl Fn(&Node) -> Read<T> {
    move |node| match node.text() {
        Some(text) => parse(text).or_else(|error| {
            let shown = if text.contains('@') { "the value".to_owned() } else { node.show() };
            node.refuse(format!("{shown}: {error}"))
        }),
        None => node.refuse(format!("{} is not allowed; allowed: {allowed}", node.kind())),
    }
}

/// An address to listen on; port 0 lets the system choose.
pub(super) fn address(node: &Node) -> Read<SocketAddr> {
    let allowed = "an IP address and a port such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    parsed(allowed, |text| text.parse().map_err(|_| format!("no address; allowed: {allowed}")))(node)
}

/// A list of one or more, none of them twice. Every bad one is reported.
pub(super) fn list<T: PartialEq>(
    allowed: &str,
    item: impl Fn(&Node) -> Read<T>,
) -> impl Fn(&Node) -> Read<Vec<T>> {
    move |node| match &node.value {
        Value::List(nodes) => items(node, nodes, allowed, &item),
        Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::Other(_) | Value::Table(_) => {
            node.refuse_type(allowed)
        }
    }
}

/// The same, or one item without a list around it.
pub(super) fn one_or_list<T: PartialEq>(
    allowed: &str,
    item: impl Fn(&Node) -> Read<T>,
) -> impl Fn(&Node) -> Read<Vec<T>> {
    move |node| match &node.value {
        Value::List(nodes) => items(node, nodes, allowed, &item),
        Value::Text(_) => item(node).map(|one| vec![one]),
        Value::Integer(_) | Value::Flag(_) | Value::Other(_) | Value::Table(_) => node.refuse_type(allowed),
    }
}

fn items<T: PartialEq>(
    node: &Node,
    nodes: &[Node],
    allowed: &str,
    item: &impl Fn(&Node) -> Read<T>,
) -> Read<Vec<T>> {
    if nodes.is_empty() {
        return node.refuse(format!("the list is empty; allowed: {allowed}"));
    }
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    for node in nodes {
        match item(node) {
            Ok(value) if read.contains(&value) => problems.push(Problem::new(
                &node.place,
                format!("{} is there twice; allowed: each once", node.show()),
            )),
            Ok(value) => read.push(value),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(read) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit_and_nothing_else() {
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
        for bad in ["", "s", "10", "1.5s", "-1s", "+1s", "10 s", "10S", "1d", "1m30s", "١s", "0x1s", "10sec"]
        {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
        assert!(parse_duration("99999999999999999999999h") > Some(DAY));
    }

    #[test]
    fn sizes_have_a_number_and_a_binary_unit() {
        assert_eq!(parse_size("512B"), Some(512));
        assert_eq!(parse_size("64KiB"), Some(65_536));
        assert_eq!(parse_size("1MiB"), Some(1 << 20));
        assert_eq!(parse_size("1GiB"), Some(1 << 30));
        for bad in ["", "KiB", "64", "64K", "64KB", "64kib", "1.5MiB", "-1B", "1 MiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
        assert_eq!(parse_size("99999999999999999999999TiB"), Some(u64::MAX));
    }

    #[test]
    fn bounds_are_shown_the_way_they_are_written() {
        assert_eq!(show_duration(DAY), "24h");
        assert_eq!(show_duration(Duration::from_secs(90)), "90s");
        assert_eq!(show_duration(Duration::ZERO), "0ms");
        assert_eq!(show_size(1 << 20), "1MiB");
        assert_eq!(show_size(1000), "1000B");
        assert_eq!(show_size(0), "0B");
    }
}

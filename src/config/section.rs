//! A reader over one table: keys are taken, and what is left when it is finished was never a key.
//!
//! It never stops at the first problem.

use super::error::{Place, Problem, Read, quote};
use super::tree::{Entry, Node, Value};

/// One table while it is read.
#[must_use = "finish() reports the unknown keys"]
pub(super) struct Section<'n> {
    /// As a message names it: `[listen]`.
    name: String,
    place: Place,
    entries: &'n [Entry],
    /// False if it was no table at all: then nothing in it is missing.
    readable: bool,
    /// The keys that exist, in the order they were asked for.
    known: Vec<&'static str>,
    /// The keys that are planned and refused by name.
    unbuilt: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl<'n> Section<'n> {
    /// Reads `node`; a table that is absent reads as an empty one.
    pub(super) fn new(name: impl Into<String>, node: Option<&'n Node>) -> Self {
        let mut section = Self {
            name: name.into(),
            place: node.map_or(Place::Whole, |node| node.place.clone()),
            entries: &[],
            readable: true,
            known: Vec::new(),
            unbuilt: Vec::new(),
            problems: Vec::new(),
        };
        match node.map(|node| (node, &node.value)) {
            None => {}
            Some((_, Value::Table(entries))) => section.entries = entries,
            Some((
                node,
                Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::Other(_) | Value::List(_),
            )) => {
                section.readable = false;
                let text = format!("{} is not allowed; allowed: the table {}", node.kind(), section.name);
                section.problem(&node.place, text);
            }
        }
        section
    }

    pub(super) fn problem(&mut self, place: &Place, text: impl Into<String>) {
        self.problems.push(Problem::new(place, text));
    }

    /// The value of `key`, without reading it.
    pub(super) fn node(&mut self, key: &'static str) -> Option<&'n Node> {
        self.known.push(key);
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Whether `key` is there.
    pub(super) fn is_there(&mut self, key: &'static str) -> bool {
        self.node(key).is_some()
    }

    /// Where the value of `key` stands; where it is absent, where the table does.
    pub(super) fn place_of(&self, key: &str) -> Place {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        entry.map_or_else(|| self.place.clone(), |entry| entry.node.place.clone())
    }

    /// The value of `key`, if it is there and can be read.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Node) -> Read<T>,
    ) -> Option<T> {
        match read(self.node(key)?) {
            Ok(value) => Some(value),
            Err(problems) => {
                self.problems.extend(problems.into_iter().map(|problem| Problem {
                    text: format!("`{key}`: {}", problem.text),
                    place: problem.place,
                }));
                None
            }
        }
    }

    /// The value of `key`, or its default.
    pub(super) fn take<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Node) -> Read<T>,
        default: T,
    ) -> T {
        self.optional(key, read).unwrap_or(default)
    }

    /// The value of `key`, which must be there; `allowed` says what it would be.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&Node) -> Read<T>,
    ) -> Option<T> {
        if self.readable && !self.entries.iter().any(|entry| entry.key == key) {
            let (place, text) =
                (self.place.clone(), format!("`{key}` is missing in {}; allowed: {allowed}", self.name));
            self.problem(&place, text);
        }
        self.optional(key, read)
    }

    /// A table in this one.
    pub(super) fn table(&mut self, key: &'static str) -> Section<'n> {
        Section::new(format!("[{key}]"), self.node(key))
    }

    /// The tables of an array of tables, `[[key]]`.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Section<'n>> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let Value::List(items) = &node.value else {
            let text = format!("`{key}`: {} is not allowed; allowed: a list of tables", node.kind());
            self.problem(&node.place, text);
            return Vec::new();
        };
        items.iter().map(|item| Section::new(format!("[[{key}]]"), Some(item))).collect()
    }

    /// Keys that are planned: refused with their name, never ignored.
    pub(super) fn not_built(&mut self, keys: &[&'static str]) {
        self.unbuilt.extend(keys);
    }

    /// Reports everything found, and every key that nobody asked for.
    pub(super) fn finish(mut self, into: &mut Vec<Problem>) {
        let mut known = self.known.clone();
        known.dedup();
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let (key, name) = (quote(&entry.key), &self.name);
            let what = if self.unbuilt.contains(&entry.key.as_str()) {
                format!("{key} in {name} is not built yet")
            } else if let Some(near) = nearest(&entry.key, &known) {
                format!("unknown key {key} in {name} (did you mean \"{near}\"?)")
            } else {
                format!("unknown key {key} in {name}")
            };
            let text = format!("{what}; allowed: {}", known.join(", "));
            let mut places = Vec::new();
            origins(&entry.node, &mut places);
            if !matches!(entry.place, Place::Variable(_)) || places.is_empty() {
                places = vec![entry.place.clone()];
            }
            self.problems.extend(places.iter().map(|place| Problem::new(place, text.as_str())));
        }
        into.append(&mut self.problems);
    }
}

/// Every variable that a value made of variables came from, so that each is named.
fn origins(node: &Node, places: &mut Vec<Place>) {
    match (&node.written, &node.value) {
        (None, Value::List(items)) => items.iter().for_each(|item| origins(item, places)),
        (None, Value::Table(entries)) => entries.iter().for_each(|entry| origins(&entry.node, places)),
        (Some(_), _) | (None, Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::Other(_)) => {
            places.push(node.place.clone());
        }
    }
}

/// The key that was probably meant.
fn nearest<'k>(typed: &str, keys: &[&'k str]) -> Option<&'k str> {
    // Longer than every key; comparing it would only cost.
    if typed.len() > 64 {
        return None;
    }
    let allowed = (typed.chars().count() / 2).min(2);
    keys.iter()
        .map(|key| (distance(&typed.to_lowercase().replace('-', "_"), key), *key))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, key)| key)
}

/// Levenshtein's distance; two swapped letters are two edits.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut next = vec![left];
        for (pair, cb) in row.windows(2).zip(b.chars()) {
            let &[diagonal, above] = pair else { continue };
            left = (above + 1).min(left + 1).min(diagonal + usize::from(ca != cb));
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        assert_eq!(distance("admni", "admin"), 2);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn near_misses_are_named_and_far_ones_are_not() {
        assert_eq!(nearest("admni", &["proxy", "admin"]), Some("admin"));
        assert_eq!(nearest("park-timeout", &["park_timeout"]), Some("park_timeout"));
        assert_eq!(nearest("Root", &["root"]), Some("root"));
        assert_eq!(nearest("elsewhere", &["proxy", "admin"]), None);
        assert_eq!(nearest("x", &["a", "b"]), None);
    }
}

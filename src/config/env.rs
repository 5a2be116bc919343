//! `FENCEGATE__SECTION__KEY` variables, laid over the tree of the file.
//!
//! It only places values; whether a key exists, and what it takes, is decided where the file's own keys are. A
//! variable with any other prefix is not ours and is never looked at.

use std::collections::BTreeMap;

use super::error::{Place, Problem, quote};
use super::tree::{Entry, Node, Value, from_variable};

const PREFIX: &str = "FENCEGATE__";

/// One step on the way to a key. Numbers order by value, so that route 2 is appended before route 10.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Index(usize),
    Key(String),
}

impl Step {
    fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(index) if text.bytes().all(|b| b.is_ascii_digit()) => Self::Index(index),
            _ => Self::Key(text.to_ascii_lowercase()),
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Index(index) => index.to_string(),
            Self::Key(key) => key.clone(),
        }
    }
}

/// Lays every variable of ours over `root`. What cannot be placed is reported, and what can is placed all the same.
pub(super) fn apply(root: &mut Node, env: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    let mut overrides = Vec::new();
    for (name, value) in env {
        let Some(path) = name.strip_prefix(PREFIX) else { continue };
        if path.split("__").any(str::is_empty) {
            let place = Place::Variable(name.clone());
            problems.push(Problem::new(&place, "names no key; allowed: FENCEGATE__SECTION__KEY"));
            continue;
        }
        overrides.push((path.split("__").map(Step::parse).collect::<Vec<_>>(), name, value));
    }
    overrides.sort();
    for (path, name, value) in overrides {
        if let Err(text) = place(root, &path, name, value) {
            problems.push(Problem::new(&Place::Variable(name.clone()), text));
        }
    }
}

fn place(node: &mut Node, path: &[Step], name: &str, value: &str) -> Result<(), String> {
    let Some((step, rest)) = path.split_first() else {
        if let (Some(_), Place::Variable(other)) = (&node.written, &node.place) {
            return Err(format!("says the same as {other}; allowed is one of them"));
        }
        *node = from_variable(name, value);
        return Ok(());
    };
    if let (Some(_), Place::Variable(other)) = (&node.written, &node.place) {
        return Err(format!("lies inside {other}, which sets all of it; allowed is one of them"));
    }
    match (&mut node.value, step) {
        (Value::Table(entries), _) => {
            let key = step.key();
            if let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) {
                return place(&mut entry.node, rest, name, value);
            }
            let mut node = empty(name, rest);
            place(&mut node, rest, name, value)?;
            entries.push(Entry { key, place: Place::Variable(name.to_owned()), node });
            Ok(())
        }
        (Value::List(items), Step::Index(index)) => {
            let count = items.len();
            if let Some(item) = items.get_mut(*index) {
                return place(item, rest, name, value);
            }
            if *index > count {
                return Err(format!("there is no number {index}; allowed: 0 to {count}, which adds one"));
            }
            let mut node = empty(name, rest);
            place(&mut node, rest, name, value)?;
            items.push(node);
            Ok(())
        }
        (Value::List(items), Step::Key(key)) => {
            let count = items.len();
            Err(format!("{} stands where a number must; allowed: 0 to {count}, which adds one", quote(key)))
        }
        (Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::Other(_), _) => {
            Err(format!("{} lies inside a single value, which has no keys", quote(&step.key())))
        }
    }
}

/// What the rest of a path goes into.
fn empty(name: &str, rest: &[Step]) -> Node {
    let value = match rest.first() {
        Some(Step::Index(_)) => Value::List(Vec::new()),
        Some(Step::Key(_)) | None => Value::Table(Vec::new()),
    };
    Node { place: Place::Variable(name.to_owned()), written: None, value }
}

//! The file as a tree of values that remember where they were written.
//!
//! Only TOML's syntax is known here; it never knows a key's meaning.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem, Read, quote};

/// Deeper than any key of ours; keeps recursion over hostile text short.
const DEPTH_MAX: usize = 16;

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    /// The text of an environment variable, which is read by the type of its key.
    pub(super) written: Option<String>,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// Saturated: a number that does not fit is beyond every bound.
    Integer(i128),
    Flag(bool),
    /// What no key of ours takes: the name of its type.
    Other(&'static str),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key of a table, where it was written, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn text(&self) -> Option<&str> {
        match (&self.written, &self.value) {
            (Some(written), _) => Some(written),
            (None, Value::Text(text)) => Some(text),
            (
                None,
                Value::Integer(_) | Value::Flag(_) | Value::Other(_) | Value::List(_) | Value::Table(_),
            ) => None,
        }
    }

    pub(super) fn integer(&self) -> Option<i128> {
        match (&self.written, &self.value) {
            (Some(written), _) => written.trim().parse().ok(),
            (None, Value::Integer(number)) => Some(*number),
            (None, Value::Text(_) | Value::Flag(_) | Value::Other(_) | Value::List(_) | Value::Table(_)) => {
                None
            }
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match (&self.written, &self.value) {
            (Some(written), _) => written.trim().to_ascii_lowercase().parse().ok(),
            (None, Value::Flag(flag)) => Some(*flag),
            (
                None,
                Value::Text(_) | Value::Integer(_) | Value::Other(_) | Value::List(_) | Value::Table(_),
            ) => None,
        }
    }

    /// Its type as a message names it, where the value may hold a secret.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Text(_) => "a string",
            Value::Integer(_) => "a number",
            Value::Flag(_) => "a boolean",
            Value::Other(kind) => kind,
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The value as a message shows it. Not for secrets.
    pub(super) fn show(&self) -> String {
        if let Some(text) = self.text() {
            return quote(text);
        }
        match &self.value {
            Value::Text(text) => quote(text),
            Value::Integer(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Other(_) | Value::List(_) | Value::Table(_) => self.kind().to_owned(),
        }
    }

    /// This value is refused; `text` says why and what is allowed.
    pub(super) fn refuse<T>(&self, text: impl Into<String>) -> Read<T> {
        Err(vec![Problem::new(&self.place, text)])
    }

    /// This value is of the wrong type.
    pub(super) fn refuse_type<T>(&self, allowed: &str) -> Read<T> {
        self.refuse(format!("{} is not allowed; allowed: {allowed}", self.show()))
    }
}

/// Parses a file. Of several errors of syntax the first is reported: what follows one is guesswork.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let table = DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(Place::Whole, |span| Place::At(span.start));
        Problem::new(&place, format!("not TOML: {}", error.message().escape_debug()))
    })?;
    let entries = entries(table.get_ref(), None, 0)?;
    Ok(Node { place: Place::Whole, written: None, value: Value::Table(entries) })
}

/// A value from the environment. Lists and tables may be given the way TOML writes them, everything else is text.
pub(super) fn from_variable(name: &str, text: &str) -> Node {
    let place = Place::Variable(name.to_owned());
    let structured = if text.trim_start().starts_with(['[', '{']) {
        // An address such as [::1]:8080 begins like a list and is none.
        DeValue::parse(text.trim()).ok().and_then(|parsed| node(&parsed, Some(&place), 0).ok())
    } else {
        None
    };
    let value = structured.map_or_else(|| Value::Text(text.to_owned()), |node| node.value);
    Node { place, written: Some(text.to_owned()), value }
}

fn entries(table: &DeTable<'_>, place: Option<&Place>, depth: usize) -> Result<Vec<Entry>, Problem> {
    table
        .iter()
        .map(|(key, value)| {
            let at = place.cloned().unwrap_or_else(|| Place::At(key.span().start));
            Ok(Entry { key: key.get_ref().to_string(), place: at, node: node(value, place, depth + 1)? })
        })
        .collect()
}

/// `place` where it is not the file that is read.
fn node(spanned: &Spanned<DeValue<'_>>, place: Option<&Place>, depth: usize) -> Result<Node, Problem> {
    let at = place.cloned().unwrap_or_else(|| Place::At(spanned.span().start));
    if depth > DEPTH_MAX {
        return Err(Problem::new(&at, format!("nested too deeply; allowed are {DEPTH_MAX} levels")));
    }
    let value = match spanned.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i128::from_str_radix(number.as_str(), number.radix())
                .unwrap_or(if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX }),
        ),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Float(_) => Value::Other("a float"),
        DeValue::Datetime(_) => Value::Other("a date or time"),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| node(item, place, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => Value::Table(entries(table, place, depth)?),
    };
    Ok(Node { place: at, written: None, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_refused_and_never_overflows_the_stack() {
        let dotted = |depth: usize| format!("{}a = 1", "a.".repeat(depth));
        assert!(parse(&dotted(10)).is_ok());
        assert!(parse(&dotted(70)).is_err());
        assert!(parse(&dotted(100_000)).is_err());
        assert!(parse(&format!("a = {}", "[".repeat(100_000))).is_err());
        // The worst that the TOML crate lets through, on the stack of a main thread.
        let mixed = format!("{}x = 1{}", format!("{}a = {{ ", "a.".repeat(76)).repeat(76), "}".repeat(76));
        let main = std::thread::Builder::new().stack_size(8 << 20);
        let refused = main.spawn(move || parse(&mixed).is_err()).unwrap().join().unwrap();
        assert!(refused);
    }

    #[test]
    fn a_variable_is_a_list_only_if_all_of_it_is() {
        assert!(matches!(from_variable("V", r#"["a"]"#).value, Value::List(_)));
        assert!(matches!(from_variable("V", "[::1]:80").value, Value::Text(_)));
        assert_eq!(from_variable("V", "[1]").text(), Some("[1]"), "a key that takes text gets the text");
    }

    #[test]
    fn numbers_that_do_not_fit_are_kept_large() {
        let tree = parse("a = 99999999999999999999999999999999999999999999").unwrap();
        let Value::Table(entries) = tree.value else { panic!("a table") };
        assert_eq!(entries[0].node.integer(), Some(i128::MAX));
    }
}

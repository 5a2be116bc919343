//! What is wrong with a configuration, and where: all of it, not only the first.
//!
//! It never prints a secret: whoever reports a problem with one leaves its value out.

use std::fmt;

/// Where a key or a value was written. The order is the order of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// At this byte of the file.
    At(usize),
    /// Nowhere: it is the file as a whole that lacks something.
    Whole,
    /// In this environment variable.
    Variable(String),
}

/// One thing that is wrong: what it is, and what is allowed instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) place: Place,
    pub(super) text: String,
}

impl Problem {
    pub(super) fn new(place: &Place, text: impl Into<String>) -> Self {
        Self { place: place.clone(), text: text.into() }
    }
}

/// What reading one value gives: the value, or everything that is wrong with it.
pub(super) type Read<T> = Result<T, Vec<Problem>>;

/// Everything that is wrong with a configuration.
///
/// Displays one problem a line: `FILE:LINE:COLUMN: what is wrong; what is allowed`, or `FENCEGATE__A__B: …` for one
/// that came with the environment. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    lines: Vec<String>,
}

impl ConfigError {
    /// `text` is what was read of the file; places are looked up in it.
    pub(super) fn new(file_name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        let lines = problems
            .into_iter()
            .map(|Problem { place, text: what }| match place {
                Place::At(offset) => {
                    let (line, column) = line_and_column(text, offset);
                    format!("{file_name}:{line}:{column}: {what}")
                }
                Place::Whole => format!("{file_name}:1:1: {what}"),
                Place::Variable(name) => format!("{}: {what}", name.escape_debug()),
            })
            .collect();
        Self { lines }
    }

    /// The problems, one a line, each with its place.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.lines
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Counted from 1. An offset inside a character counts as that character, one past the end as the end.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut line = 1;
    let mut column = 1;
    for (at, c) in text.char_indices() {
        if at + c.len_utf8() > offset {
            break;
        }
        if c == '\n' {
            line += 1;
            column = 1;
        } else {
            column += 1;
        }
    }
    (line, column)
}

/// Text from outside as a message shows it: quoted, escaped, and cut if it is long.
pub(super) fn quote(text: &str) -> String {
    const MOST: usize = 80;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    format!("\"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        let text = "a\nßb = 1\r\nc";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 1), (1, 2));
        assert_eq!(line_and_column(text, 2), (2, 1));
        assert_eq!(line_and_column(text, 3), (2, 1), "inside the character");
        assert_eq!(line_and_column(text, 4), (2, 2));
        assert_eq!(line_and_column(text, 11), (3, 1));
        assert_eq!(line_and_column(text, 1000), (3, 2));
    }

    #[test]
    fn the_file_comes_first_and_in_its_order() {
        let problems = vec![
            Problem::new(&Place::Variable("FENCEGATE__A".into()), "v"),
            Problem::new(&Place::Whole, "w"),
            Problem::new(&Place::At(2), "two"),
            Problem::new(&Place::At(0), "one"),
            Problem::new(&Place::At(0), "one"),
        ];
        let error = ConfigError::new("f.toml", "a\nb", problems);
        assert_eq!(error.to_string(), "f.toml:1:1: one\nf.toml:2:1: two\nf.toml:1:1: w\nFENCEGATE__A: v");
    }

    #[test]
    fn quoted_text_is_escaped_and_cut() {
        assert_eq!(quote("a\n\"b"), r#""a\n\"b""#);
        assert!(quote(&"x".repeat(500)).len() < 100);
    }
}

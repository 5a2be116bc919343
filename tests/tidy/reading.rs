//! Rust source as words: enough of a reader to see which paths a file names and which strings it holds.
//!
//! It never fails: what it cannot read it passes over.

use std::iter::Peekable;
use std::str::Chars;

/// A piece of source that matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// An identifier or keyword; of a raw one, what follows `r#`.
    Word(String),
    /// A string literal's content, escapes as written.
    Text(String),
    /// `::`.
    Path,
    /// Any other character.
    Mark(char),
}

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// From the repository's root, as in `src/fence/gate.rs`.
    pub(crate) name: String,
    /// As it stands.
    pub(crate) text: String,
    /// With the line each begins at, counted from one.
    pub(crate) tokens: Vec<(usize, Token)>,
}

impl Source {
    /// A file of this name and text.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let tokens = if name.ends_with(".rs") { tokenize(text) } else { Vec::new() };
        Self { name: name.to_owned(), text: text.to_owned(), tokens }
    }

    /// Its module path: `src/fence/gate.rs` is `[fence, gate]`, `src/fence/mod.rs` is `[fence]`, the roots are `[]`.
    pub(crate) fn module(&self) -> Vec<String> {
        let path = self.name.strip_prefix("src/").unwrap_or(&self.name).trim_end_matches(".rs");
        let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        if parts.last().is_some_and(|last| last == "mod") || matches!(path, "lib" | "main") {
            parts.pop();
        }
        parts
    }

    /// Every path that code here names, from the crate's root where it begins with `crate`, `self` or `super`, and
    /// with all branches of a group: `use crate::{a::B, c}` gives `crate::a::B` and `crate::c`.
    pub(crate) fn paths(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        let mut modules = self.module();
        let mut inner: Vec<usize> = Vec::new();
        let mut depth: usize = 0;
        let mut at = 0;
        while let Some((line, token)) = self.tokens.get(at) {
            match (token, self.token(at + 1)) {
                (Token::Mark('{'), _) => depth += 1,
                (Token::Mark('}'), _) => {
                    if inner.last() == Some(&depth) {
                        inner.pop();
                        modules.pop();
                    }
                    depth = depth.saturating_sub(1);
                }
                (Token::Word(word), Some(Token::Word(name)))
                    if word == "mod" && self.token(at + 2) == Some(&Token::Mark('{')) =>
                {
                    modules.push(name.clone());
                    depth += 1;
                    inner.push(depth);
                    at += 2;
                }
                (Token::Word(_), Some(Token::Path)) => {
                    let mut branches = Vec::new();
                    at = self.branch(at, &[], &mut branches);
                    found.extend(branches.into_iter().map(|path| (*line, from_root(path, &modules))));
                    continue;
                }
                (Token::Word(_) | Token::Text(_) | Token::Path | Token::Mark(_), _) => {}
            }
            at += 1;
        }
        found
    }

    fn token(&self, at: usize) -> Option<&Token> {
        self.tokens.get(at).map(|(_, token)| token)
    }

    /// Reads one path, or one branch of a group, from `at`; returns where it ends.
    fn branch(&self, mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
        let mut path = before.to_vec();
        loop {
            match self.token(at) {
                Some(Token::Word(word)) => path.push(word.clone()),
                Some(Token::Mark('*')) => path.push("*".to_owned()),
                Some(Token::Mark('{')) => return self.group(at + 1, &path, found),
                _ => break,
            }
            at += 1;
            if self.token(at) != Some(&Token::Path) {
                break;
            }
            at += 1;
        }
        found.push(path);
        at
    }

    fn group(&self, mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
        let mut begins = true;
        while let Some(token) = self.token(at) {
            match token {
                Token::Mark('}') => return at + 1,
                Token::Mark(',') => begins = true,
                Token::Word(_) | Token::Mark('*' | '{') if begins => {
                    begins = false;
                    at = self.branch(at, before, found);
                    continue;
                }
                Token::Word(_) | Token::Text(_) | Token::Path | Token::Mark(_) => {}
            }
            at += 1;
        }
        at
    }
}

/// A path with its leading `self` and `super` resolved.
fn from_root(path: Vec<String>, modules: &[String]) -> Vec<String> {
    let mut base = modules.to_vec();
    let mut relative = false;
    let mut rest = path.as_slice();
    while let Some((first, further)) = rest.split_first() {
        match first.as_str() {
            "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        relative = true;
        rest = further;
    }
    if relative { [&["crate".to_owned()], base.as_slice(), rest].concat() } else { path }
}

fn tokenize(text: &str) -> Vec<(usize, Token)> {
    let mut reader = Reader { letters: text.chars().peekable(), line: 1 };
    let mut tokens = Vec::new();
    loop {
        let line = reader.line;
        match reader.token() {
            None => return tokens,
            Some(Some(token)) => tokens.push((line, token)),
            Some(None) => {}
        }
    }
}

struct Reader<'a> {
    letters: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let letter = self.letters.next();
        self.line += usize::from(letter == Some('\n'));
        letter
    }

    fn follows(&mut self, letter: char) -> bool {
        let follows = self.letters.peek() == Some(&letter);
        if follows {
            self.next();
        }
        follows
    }

    /// The next token; `Some(None)` for a comment, a space or a character literal.
    fn token(&mut self) -> Option<Option<Token>> {
        Some(match self.next()? {
            '/' if self.follows('/') => {
                while self.letters.peek().is_some_and(|&letter| letter != '\n') {
                    self.next();
                }
                None
            }
            '/' if self.follows('*') => {
                self.block_comment();
                None
            }
            '"' => Some(Token::Text(self.string())),
            '\'' => {
                self.quote();
                None
            }
            ':' if self.follows(':') => Some(Token::Path),
            letter if letter == '_' || letter.is_alphanumeric() => Some(self.word(letter)),
            letter if letter.is_whitespace() => None,
            letter => Some(Token::Mark(letter)),
        })
    }

    fn block_comment(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                None => return,
                Some('*') if self.follows('/') => depth -= 1,
                Some('/') if self.follows('*') => depth += 1,
                Some(_) => {}
            }
        }
    }

    fn string(&mut self) -> String {
        let mut content = String::new();
        while let Some(letter) = self.next() {
            match letter {
                '"' => break,
                '\\' => {
                    content.push(letter);
                    content.extend(self.next());
                }
                _ => content.push(letter),
            }
        }
        content
    }

    /// What follows a single quote: a character literal is passed over, a lifetime leaves its name behind.
    fn quote(&mut self) {
        if self.follows('\\') {
            self.next();
            while self.next().is_some_and(|letter| letter != '\'') {}
            return;
        }
        let mut ahead = self.letters.clone();
        if ahead.next().is_some() && ahead.next() == Some('\'') {
            self.next();
            self.next();
        }
    }

    fn word(&mut self, first: char) -> Token {
        let mut word = String::from(first);
        while let Some(&letter) = self.letters.peek() {
            if letter != '_' && !letter.is_alphanumeric() {
                break;
            }
            word.push(letter);
            self.next();
        }
        match (word.as_str(), self.letters.peek()) {
            ("b" | "c", Some('"')) => {
                self.next();
                Token::Text(self.string())
            }
            ("r" | "br" | "cr", Some('"' | '#')) => self.raw(),
            _ => Token::Word(word),
        }
    }

    /// A raw string, or a raw identifier.
    fn raw(&mut self) -> Token {
        let mut hashes = 0;
        while self.follows('#') {
            hashes += 1;
        }
        if !self.follows('"') {
            return match self.next() {
                Some(letter) => self.word(letter),
                None => Token::Mark('#'),
            };
        }
        let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
        let mut content = String::new();
        while let Some(letter) = self.next() {
            content.push(letter);
            if content.ends_with(&end) {
                content.truncate(content.len() - end.len());
                break;
            }
        }
        Token::Text(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(name: &str, text: &str) -> Vec<String> {
        Source::new(name, text).paths().into_iter().map(|(_, path)| path.join("::")).collect()
    }

    #[test]
    fn comments_strings_and_characters_are_no_code() {
        let text = r##"// crate::a
            /* crate::b /* crate::c */ crate::d */
            let x = "crate::e \" crate::f"; let y = r#"crate::g " crate::h"#; let z = b"crate::i";
            let q = '"'; let r = '\''; fn f<'a>(x: &'a str) { crate::seen::it() }"##;
        assert_eq!(paths("src/x.rs", text), ["crate::seen::it"]);
        let texts: Vec<_> = Source::new("src/x.rs", text)
            .tokens
            .into_iter()
            .filter_map(|(_, token)| if let Token::Text(text) = token { Some(text) } else { None })
            .collect();
        assert_eq!(texts, [r#"crate::e \" crate::f"#, r#"crate::g " crate::h"#, "crate::i"]);
    }

    #[test]
    fn groups_are_read_branch_by_branch() {
        let text = "use crate::{a::{B, c::*}, d as e, r#f::g};";
        assert_eq!(paths("src/x.rs", text), ["crate::a::B", "crate::a::c::*", "crate::d", "crate::f::g"]);
    }

    #[test]
    fn relative_paths_are_resolved_from_where_they_stand() {
        assert_eq!(paths("src/fence/gate.rs", "use super::token::Seq;"), ["crate::fence::token::Seq"]);
        assert_eq!(paths("src/fence/mod.rs", "use super::clock::Moment;"), ["crate::clock::Moment"]);
        let text = "mod tests { use super::*; fn f() { super::super::admin::x(); } } use super::view::View;";
        assert_eq!(
            paths("src/fence/gate.rs", text),
            ["crate::fence::gate::*", "crate::fence::admin::x", "crate::fence::view::View"]
        );
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let source = Source::new("src/x.rs", "/*\n*/\n\"\n\"\ncrate::a();");
        assert_eq!(source.paths()[0].0, 5);
    }
}

//! Path templates and what they capture.
//!
//! They see a path's raw bytes and never decode: whoever calls has refused what could be read in two ways. Matching
//! never allocates.

use thiserror::Error;

/// How many captures a template may have; they are kept in a fixed array.
const CAPTURES_MAX: usize = 8;

/// Why a template or a rewrite is refused. The text says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each is described by its text")]
pub enum TemplateError {
    #[error("does not begin with a slash; allowed: a path such as /wx/{{account}}/{{*rest}}")]
    NoSlash,
    #[error("has an empty segment; allowed: segments of at least one character")]
    EmptySegment,
    #[error("has a . or .. segment, which no request may have; allowed: other segments")]
    DotSegment,
    #[error(
        "has {0:?}; allowed: letters, digits, - . _ ~ ! $ & ' ( ) * + , ; = : @ and escapes such as %20, \
         but not those of a slash, a backslash, a dot or NUL"
    )]
    Character(char),
    #[error("has a brace without its partner; allowed: {{name}}, or {{*name}} at the end")]
    Brace,
    #[error(
        "has a capture whose name is not 1 to 64 of A-Z a-z 0-9 _; allowed: {{name}}, or {{*name}} at the end"
    )]
    Name,
    #[error("has two captures in one segment; allowed: one")]
    TwoInSegment,
    #[error("captures {0} twice; allowed: each name once")]
    Twice(String),
    #[error("has {{*{0}}} before its end; allowed: one such capture, as the whole last segment")]
    TailNotLast(String),
    #[error("has more than {CAPTURES_MAX} captures; allowed: at most {CAPTURES_MAX}")]
    TooMany,
    #[error("uses {0}, which the route's path does not capture; allowed: {1}")]
    NotCaptured(String, String),
}

/// A path template: `/wx/{account}/{*rest}`.
///
/// A segment is literal, or has one capture, with literal text before and after it or without. `{*name}` as the last
/// segment takes the one or more segments that are left. A slash at the end is part of the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
    tail: Option<String>,
    /// Whether the path ends with a slash.
    slash: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Capture { prefix: String, name: String, suffix: String },
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError`] if it is none, or if no request that the gateway accepts could match it.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let inner = text.strip_prefix('/').ok_or(TemplateError::NoSlash)?;
        let mut template =
            Self { text: text.to_owned(), segments: Vec::new(), tail: None, slash: inner.is_empty() };
        if inner.is_empty() {
            return Ok(template);
        }
        let (inner, slash) = inner.strip_suffix('/').map_or((inner, false), |inner| (inner, true));
        template.slash = slash;
        for text in inner.split('/') {
            if let Some(tail) = &template.tail {
                return Err(TemplateError::TailNotLast(tail.clone()));
            }
            match text.strip_prefix("{*").map(|rest| rest.strip_suffix('}')) {
                Some(Some(name)) => template.tail = Some(parse_name(name)?),
                _ => template.segments.push(Segment::parse(text)?),
            }
        }
        match &template.tail {
            Some(tail) if slash => return Err(TemplateError::TailNotLast(tail.clone())),
            _ => {}
        }
        let names: Vec<_> = template.names().collect();
        if names.len() > CAPTURES_MAX {
            return Err(TemplateError::TooMany);
        }
        let twice =
            names.iter().enumerate().find(|(index, name)| names.iter().skip(index + 1).any(|n| n == *name));
        match twice {
            Some((_, name)) => Err(TemplateError::Twice((*name).to_owned())),
            None => Ok(template),
        }
    }

    /// Matches a whole path, without its query. A capture is never empty, `.`, `..` or half of a percent escape, and a
    /// tail has no such segments either, except that it may end with a slash.
    #[must_use]
    pub fn matches<'a>(&'a self, path: &'a str) -> Option<Captures<'a>> {
        let mut captures = Captures { template: self, values: [""; CAPTURES_MAX] };
        let mut slots = captures.values.iter_mut();
        // What is left after a slash, or None at the end of the path.
        let mut rest = Some(path.strip_prefix('/')?);
        for segment in &self.segments {
            let (text, after) = match rest?.split_once('/') {
                Some((text, after)) => (text, Some(after)),
                None => (rest?, None),
            };
            match segment {
                Segment::Literal(literal) if literal == text => {}
                Segment::Literal(_) => return None,
                Segment::Capture { prefix, suffix, .. } => {
                    let value = text.strip_prefix(prefix.as_str())?.strip_suffix(suffix.as_str())?;
                    *slots.next()? = whole_segment(value).then_some(value)?;
                }
            }
            rest = after;
        }
        if self.tail.is_some() {
            let tail = rest?;
            let mut segments = tail.strip_suffix('/').unwrap_or(tail).split('/');
            *slots.next()? = segments.all(whole_segment).then_some(tail)?;
        } else if rest != self.slash.then_some("") {
            return None;
        }
        Some(captures)
    }

    /// Whether some servers take a path for one of these: they decode it first, and do not tell case, a slash at the end, or
    /// what follows a semicolon.
    #[must_use]
    pub fn is_alike(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut rest = (!path.is_empty()).then_some(path);
        for segment in &self.segments {
            let Some(text) = rest else { return false };
            let (text, after) =
                text.split_once('/').map_or((text, None), |(text, after)| (text, Some(after)));
            let same = match segment {
                Segment::Literal(literal) => loosely(literal).eq(loosely(text)),
                Segment::Capture { prefix, suffix, .. } if prefix.is_empty() && suffix.is_empty() => {
                    loosely(text).next().is_some()
                }
                Segment::Capture { prefix, suffix, .. } => {
                    let text: Vec<u8> = loosely(text).collect();
                    let (prefix, suffix): (Vec<u8>, Vec<u8>) =
                        (loosely(prefix).collect(), loosely(suffix).collect());
                    let inner = text.strip_prefix(prefix.as_slice());
                    inner
                        .and_then(|inner| inner.strip_suffix(suffix.as_slice()))
                        .is_some_and(|inner| !inner.is_empty())
                }
            };
            if !same {
                return false;
            }
            rest = after;
        }
        rest.is_some() == self.tail.is_some()
    }

    /// The names it captures, in order; a tail is the last.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.segment_names().chain(self.tail())
    }

    /// The names that capture within one segment.
    pub(super) fn segment_names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture { name, .. } => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// The name of the tail.
    pub(super) fn tail(&self) -> Option<&str> {
        self.tail.as_deref()
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// A segment decoded, in lower case, up to a semicolon.
fn loosely(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (byte, after) = rest.split_first()?;
        rest = after;
        if *byte != b'%' {
            return Some(*byte);
        }
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let ([high, low], after) = after.split_first_chunk::<2>()?;
        rest = after;
        Some(digit(high)? << 4 | digit(low)?)
    })
    .take_while(|byte| *byte != b';')
    .map(|byte| byte.to_ascii_lowercase())
}

/// Whether captured text can stand anywhere in a path without changing what the rest of it means.
fn whole_segment(text: &str) -> bool {
    // A capture next to literal digits may end in the middle of an escape: `/{x}5` on `/a%25`.
    let split = text.ends_with('%') || text.as_bytes().iter().nth_back(1) == Some(&b'%');
    // Some servers drop what follows a semicolon before they look for dots.
    let bare = text.split(';').next().unwrap_or_default();
    !(matches!(bare, "" | "." | "..") || split)
}

impl Segment {
    fn parse(text: &str) -> Result<Self, TemplateError> {
        match text {
            "" => return Err(TemplateError::EmptySegment),
            "." | ".." => return Err(TemplateError::DotSegment),
            _ => {}
        }
        let Some((prefix, rest)) = text.split_once('{') else {
            return check_literal(text).map(|()| Self::Literal(text.to_owned()));
        };
        let (name, suffix) = rest.split_once('}').ok_or(TemplateError::Brace)?;
        if let Some(tail) = name.strip_prefix('*') {
            return Err(TemplateError::TailNotLast(parse_name(tail)?));
        }
        let name = parse_name(name)?;
        if suffix.contains('{') {
            return Err(TemplateError::TwoInSegment);
        }
        check_literal(prefix)?;
        check_literal(suffix)?;
        Ok(Self::Capture { prefix: prefix.to_owned(), name, suffix: suffix.to_owned() })
    }
}

fn parse_name(name: &str) -> Result<String, TemplateError> {
    let good = (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    good.then(|| name.to_owned()).ok_or(TemplateError::Name)
}

/// Literal text must be able to occur in a path that the gateway accepts.
pub(super) fn check_literal(text: &str) -> Result<(), TemplateError> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' => return Err(TemplateError::Brace),
            '%' => {
                let escaped: Option<(u32, u32)> = chars
                    .next()
                    .and_then(|high| high.to_digit(16))
                    .and_then(|high| Some((high, chars.next()?.to_digit(16)?)));
                let byte = escaped.map(|(high, low)| high * 16 + low).and_then(char::from_u32);
                if !byte.is_some_and(|byte| !matches!(byte, '/' | '\\' | '.' | '\0')) {
                    return Err(TemplateError::Character('%'));
                }
            }
            c if c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@".contains(c) => {}
            c => return Err(TemplateError::Character(c)),
        }
    }
    Ok(())
}

/// What a template captured of one path.
#[derive(Clone, Copy, Debug)]
pub struct Captures<'a> {
    template: &'a Template,
    values: [&'a str; CAPTURES_MAX],
}

impl<'a> Captures<'a> {
    /// The raw text captured as `name`; for a tail everything from its first segment on, without the slash before it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let mut captured = self.template.names().zip(self.values.iter());
        captured.find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_template_captures_segments_and_a_tail() {
        let template = template("/wx/{account}/{*rest}");
        assert_eq!(template.names().collect::<Vec<_>>(), ["account", "rest"]);
        let captures = template.matches("/wx/wxid_1/msg/send").unwrap();
        assert_eq!(captures.get("account"), Some("wxid_1"));
        assert_eq!(captures.get("rest"), Some("msg/send"));
        assert_eq!(captures.get("other"), None);
        assert_eq!(
            template.matches("/wx/a/b/").unwrap().get("rest"),
            Some("b/"),
            "a slash at the end is kept"
        );
        assert_eq!(template.matches("/wx/a%20b/%41").unwrap().get("account"), Some("a%20b"), "raw");
        for not in [
            "",
            "/",
            "wx/a/b",
            "/wx",
            "/wx/",
            "/wx/a",
            "/wx/a/",
            "/wx//b",
            "/WX/a/b",
            "/wx/a//b",
            "/wx/a/b//",
            "//wx/a/b",
            "/wx/../b",
            "/wx/a/../b",
            "/wx/a/./b",
            "/wx/a/..",
            "/wx/..;x/b",
            "/wx/a/;x",
        ] {
            assert!(template.matches(not).is_none(), "{not}");
        }
    }

    #[test]
    fn a_segment_may_have_text_around_its_capture() {
        let template = template("/bot{token}x/{id}@chat");
        let captures = template.matches("/bot12x/me@chat").unwrap();
        assert_eq!((captures.get("token"), captures.get("id")), (Some("12"), Some("me")));
        for not in
            ["/botx/me@chat", "/bot12/me@chat", "/bot12x/@chat", "/bot12x/me@chat/", "/xbot12x/me@chat"]
        {
            assert!(template.matches(not).is_none(), "{not}");
        }
        let overlap = Template::parse("/ab{x}ba").unwrap();
        assert!(overlap.matches("/aba").is_none());
        assert_eq!(overlap.matches("/ab1ba").unwrap().get("x"), Some("1"));
    }

    #[test]
    fn a_slash_at_the_end_is_part_of_the_template() {
        assert!(template("/").matches("/").is_some());
        assert!(template("/").matches("/a").is_none());
        assert!(template("/a/").matches("/a/").is_some());
        assert!(template("/a/").matches("/a").is_none());
        assert!(template("/a").matches("/a/").is_none());
        assert!(template("/{a}/").matches("/x/").is_some());
        assert!(template("/{*a}").matches("/").is_none());
    }

    #[test]
    fn a_path_is_alike_where_some_server_takes_it_for_the_template() {
        let template = template("/api/sendText/bot{id}");
        for alike in [
            "/api/sendText/bot1",
            "/API/sendtext/Bot1",
            "/api/send%54ext/bot1/",
            "/api;x/sendText;y=z/b%6ft1",
        ] {
            assert!(template.is_alike(alike), "{alike}");
        }
        for other in ["/api/sendText", "/api/sendText/bot", "/api/sendText/bot1/x", "/api/send/bot1", "/", ""]
        {
            assert!(!template.is_alike(other), "{other}");
        }
        let tail = self::template("/wx/{account}/{*rest}");
        assert!(tail.is_alike("/WX/a/b/c") && !tail.is_alike("/WX/a/") && !tail.is_alike("/WX/a"));
        assert!(self::template("/").is_alike("/") && !self::template("/").is_alike("/a"));
    }

    #[test]
    fn a_capture_never_splits_an_escape() {
        let template = template("/{x}5");
        assert!(template.matches("/a%25").is_none());
        assert!(template.matches("/a%5").is_none());
        assert_eq!(template.matches("/a%205").unwrap().get("x"), Some("a%20"));
    }

    #[test]
    fn what_no_request_could_match_is_no_template() {
        use TemplateError as E;
        let cases = [
            ("", E::NoSlash),
            ("wx", E::NoSlash),
            ("//", E::EmptySegment),
            ("/a//b", E::EmptySegment),
            ("/a/../b", E::DotSegment),
            ("/a?b", E::Character('?')),
            ("/a b", E::Character(' ')),
            ("/ä", E::Character('ä')),
            ("/a%2fb", E::Character('%')),
            ("/a%2", E::Character('%')),
            ("/a%2{x}", E::Character('%')),
            ("/{a", E::Brace),
            ("/a}", E::Brace),
            ("/{a}}", E::Brace),
            ("/{}", E::Name),
            ("/{a-b}", E::Name),
            ("/{*}", E::Name),
            ("/{{a}}", E::Name),
            ("/{a}{b}", E::TwoInSegment),
            ("/{a}/{a}", E::Twice("a".into())),
            ("/{a}/{*a}", E::Twice("a".into())),
            ("/{*a}/b", E::TailNotLast("a".into())),
            ("/{*a}/", E::TailNotLast("a".into())),
            ("/x{*a}", E::TailNotLast("a".into())),
            ("/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{*i}", E::TooMany),
        ];
        for (text, error) in cases {
            assert_eq!(Template::parse(text), Err(error), "{text}");
        }
        assert!(template("/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{*h}").matches("/1/2/3/4/5/6/7/8/9").is_some());
        assert_eq!(TemplateError::Brace.to_string().matches('{').count(), 2);
    }

    #[test]
    fn every_short_template_and_path_is_parsed_and_matched_without_panic() {
        let alphabet = ['/', '{', '}', '*', '.', '%', '2', 'a', 'ß'];
        let mut texts = vec![String::new()];
        let mut all = Vec::new();
        for _ in 0..5 {
            texts =
                texts.iter().flat_map(|text| alphabet.iter().map(move |c| format!("{text}{c}"))).collect();
            all.extend(texts.iter().cloned());
        }
        let known = template("/{a}2/{*rest}");
        let templates: Vec<_> =
            all.iter().filter_map(|text| Template::parse(&format!("/{text}")).ok()).collect();
        assert!(templates.len() > 100);
        for text in &all {
            let _ = known.matches(text);
            let _ = crate::config::Rewrite::parse(text, &known);
        }
        for template in templates.iter().step_by(97) {
            for path in &all {
                if let Some(captures) = template.matches(path) {
                    assert!(
                        template
                            .names()
                            .all(|name| captures.get(name).is_some_and(|value| !value.is_empty()))
                    );
                }
            }
        }
    }
}

//! The path that a sender sees instead of the request's, made of what the route's template captured.
//!
//! It inserts what was captured as it came and never encodes or decodes.

use super::template::{Captures, Template, TemplateError, check_literal};

/// The path that the sender sees instead: literal text and captures of the route's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Capture(String),
}

impl Rewrite {
    /// Parses a rewrite such as `/{*rest}` of what `template` captures. A tail is written as such, and comes last.
    ///
    /// # Errors
    /// [`TemplateError`] if it is none, uses a name that is not captured, or could make a path that the gateway itself
    /// would refuse.
    pub fn parse(text: &str, template: &Template) -> Result<Self, TemplateError> {
        if !text.starts_with('/') {
            return Err(TemplateError::NoSlash);
        }
        let mut parts = Vec::new();
        // The path with a letter for each capture: what is wrong with its segments is wrong for every path.
        let mut shape = String::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            push_literal(&mut parts, &mut shape, literal)?;
            let (name, after) = after.split_once('}').ok_or(TemplateError::Brace)?;
            match name.strip_prefix('*') {
                Some(tail) if template.tail() != Some(tail) => return Err(not_captured(name, template)),
                Some(tail) if !after.is_empty() => return Err(TemplateError::TailNotLast(tail.to_owned())),
                Some(tail) => parts.push(Part::Capture(tail.to_owned())),
                None if template.segment_names().any(|known| known == name) => {
                    parts.push(Part::Capture(name.to_owned()));
                }
                None => return Err(not_captured(name, template)),
            }
            shape.push('x');
            rest = after;
        }
        push_literal(&mut parts, &mut shape, rest)?;
        if shape.contains("//") {
            return Err(TemplateError::EmptySegment);
        }
        if shape.split('/').any(|segment| segment == "." || segment == "..") {
            return Err(TemplateError::DotSegment);
        }
        Ok(Self { parts })
    }

    /// The new path. Captured text is inserted as it came.
    #[must_use]
    pub fn apply(&self, captures: &Captures<'_>) -> String {
        let mut path = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => path.push_str(text),
                Part::Capture(name) => path.push_str(captures.get(name).unwrap_or_default()),
            }
        }
        path
    }
}

fn push_literal(parts: &mut Vec<Part>, shape: &mut String, literal: &str) -> Result<(), TemplateError> {
    literal.split('/').try_for_each(check_literal)?;
    shape.push_str(literal);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.to_owned()));
    }
    Ok(())
}

fn not_captured(name: &str, template: &Template) -> TemplateError {
    let mut allowed: Vec<_> = template.segment_names().map(|name| format!("{{{name}}}")).collect();
    allowed.extend(template.tail().map(|name| format!("{{*{name}}}")));
    let allowed = if allowed.is_empty() { "no captures".to_owned() } else { allowed.join(", ") };
    TemplateError::NotCaptured(format!("{{{}}}", name.escape_debug()), allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_rewrite_is_built_of_what_was_captured() {
        let template = template("/wx/{account}/{*rest}");
        let captures = template.matches("/wx/a%20b/msg/send").unwrap();
        for (text, path) in [
            ("/{*rest}", "/msg/send"),
            ("/v1/{account}/{*rest}", "/v1/a%20b/msg/send"),
            ("/x-{account}-{account}/", "/x-a%20b-a%20b/"),
            ("/fixed", "/fixed"),
            ("/", "/"),
        ] {
            assert_eq!(Rewrite::parse(text, &template).unwrap().apply(&captures), path, "{text}");
        }
    }

    #[test]
    fn a_rewrite_cannot_make_a_path_that_would_be_refused() {
        let template = template("/wx/{account}/{*rest}");
        for bad in [
            "",
            "{*rest}",
            "x",
            "/{rest}",
            "/{*account}",
            "/{other}",
            "/{*rest}/x",
            "/{*rest}{account}",
            "//{*rest}",
            "/../{*rest}",
            "/.",
            "/a?b",
            "/%2{account}",
            "/{account",
            "/account}",
            "/{}",
            "/{*}",
            "/%2e/x",
        ] {
            assert!(Rewrite::parse(bad, &template).is_err(), "{bad}");
        }
        // Text before a capture must not turn what is captured into a segment that climbs.
        let odd = Template::parse("/a{x}").unwrap();
        assert!(odd.matches("/a..").is_none());
        assert!(odd.matches("/a.").is_none());
        assert!(odd.matches("/a...").is_some());
        assert!(odd.matches("/a..;x").is_none() && odd.matches("/a;x").is_none());
    }
}

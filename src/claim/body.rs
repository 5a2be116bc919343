//! A body that is read for its account or its route: which kind it is, what it says, and how its rest is looked through.
//!
//! It never changes a body, and keeps nothing of the rest.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, header};

use super::account::{Found, malformed};
use super::alike::is_same_value;
use super::head::Refusal;
use super::json::{self, JsonError, Value};
use super::{form, multipart};
use crate::code::Code;
use crate::config::{JsonValue, Pointer, Route, Source};

/// The kind of a body that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One JSON document.
    Json,
    /// Fields, percent-encoded.
    Form,
    /// Parts, with this boundary between them.
    Multipart(String),
}

/// Whether a route reads bodies.
#[must_use]
pub fn is_read_by(route: &Route) -> bool {
    !route.json.is_empty() || route.account.iter().any(Source::is_in_body)
}

/// The kind of a body that a route reads, by its head alone.
///
/// # Errors
/// `unsupported_body` for one that it cannot read, or that some would read as another kind.
pub fn kind(route: &Route, headers: &HeaderMap) -> Result<Kind, Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(unsupported("a body that is read for its account must not have a Content-Encoding"));
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = match (types.next(), types.next()) {
        // Some read a form where no type is given.
        (None, _) if route.account.iter().any(|source| matches!(source, Source::Form(_))) => {
            return Err(unsupported("there must be a Content-Type"));
        }
        // Whoever reads one at all reads JSON.
        (None, _) => Kind::Json,
        (Some(kind), None) => kind.to_str().ok().and_then(parse_kind).ok_or_else(|| {
            unsupported("the Content-Type must be JSON, application/x-www-form-urlencoded or multipart/form-data, in UTF-8")
        })?,
        (Some(_), Some(_)) => return Err(unsupported("there must be one Content-Type")),
    };
    let reads = |source: &Source| {
        matches!(
            (source, &kind),
            (Source::Json(_), Kind::Json)
                | (Source::Form(_), Kind::Form)
                | (Source::Multipart(_), Kind::Multipart(_))
        )
    };
    let for_account = route.account.iter().any(Source::is_in_body);
    if for_account && !route.account.iter().any(reads) {
        return Err(unsupported("this route does not look for its account in a body of this Content-Type"));
    }
    if !route.json.is_empty() && kind != Kind::Json {
        return Err(unsupported("this route takes JSON bodies only"));
    }
    Ok(kind)
}

fn unsupported(detail: &'static str) -> Refusal {
    Refusal::new(Code::UnsupportedBody, detail)
}

fn parse_kind(text: &str) -> Option<Kind> {
    let mut pieces = multipart::parameters(text)?.into_iter();
    let (essence, None) = pieces.next()? else { return None };
    let mut boundary = None;
    for (name, value) in pieces {
        let value = value?;
        // Whatever has this in it, also in a value, is a boundary to somebody.
        let bad = if name == "boundary" {
            boundary.replace(value).is_some()
        } else if name.contains("boundary") || value.to_ascii_lowercase().contains("boundary") {
            true
        } else {
            name == "charset" && !["utf-8", "utf8", "us-ascii"].contains(&value.to_ascii_lowercase().as_str())
        };
        if bad {
            return None;
        }
    }
    match essence.as_str() {
        "multipart/form-data" => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&b);
            let boundary =
                boundary.filter(|text| (1..=70).contains(&text.len()) && text.bytes().all(plain))?;
            Some(Kind::Multipart(boundary))
        }
        "application/x-www-form-urlencoded" => Some(Kind::Form),
        "application/json" | "text/json" | "text/plain" => Some(Kind::Json),
        other if other.starts_with("application/") && other.ends_with("+json") => Some(Kind::Json),
        _ => None,
    }
}

/// What looks through the rest of a body that was not all in when its account was read.
#[derive(Debug)]
pub enum Rest {
    /// Of a form.
    Form(form::Scanner),
    /// Of a multipart body.
    Multipart(multipart::Scanner),
}

impl Rest {
    /// Looks at the next piece. False if the account is named again, or some would read it otherwise.
    pub fn look(&mut self, data: &[u8]) -> bool {
        match self {
            Self::Form(scanner) => scanner.feed(data).is_ok(),
            Self::Multipart(scanner) => scanner.feed(data).is_ok(),
        }
    }

    /// The same for the end.
    pub fn end(&mut self) -> bool {
        match self {
            Self::Form(scanner) => scanner.end().is_ok(),
            Self::Multipart(scanner) => scanner.end().is_ok(),
        }
    }
}

/// The beginning of a body.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    /// What is in.
    pub frames: &'a VecDeque<Bytes>,
    /// It is all.
    pub complete: bool,
}

impl Beginning<'_> {
    fn is_empty(&self) -> bool {
        self.complete && self.frames.iter().all(Bytes::is_empty)
    }

    /// All of it in one piece.
    fn whole(&self) -> Result<Cow<'_, [u8]>, Refusal> {
        if !self.complete {
            let detail = "a JSON body that is read for its account must fit into the route's buffer";
            return Err(Refusal::new(Code::BodyTooLarge, detail));
        }
        let mut frames = self.frames.iter();
        Ok(match (frames.next(), frames.next()) {
            (None, _) => Cow::Borrowed(&[]),
            (Some(one), None) => Cow::Borrowed(one),
            (Some(_), Some(_)) => self.frames.iter().flatten().copied().collect::<Vec<u8>>().into(),
        })
    }
}

/// Reads a body for its account: what each source of its kind names, and what looks through its rest.
///
/// # Errors
/// `malformed_account`, or `body_too_large` for JSON that is not all in.
pub fn read<'r>(
    route: &'r Route,
    kind: &Kind,
    body: Beginning<'_>,
) -> Result<(Vec<Found<'r>>, Option<Rest>), Refusal> {
    if body.is_empty() {
        return Ok((Vec::new(), None));
    }
    let sources = || route.account.iter();
    match kind {
        Kind::Json => {
            let places: Vec<(&Source, &Pointer)> = sources()
                .filter_map(
                    |source| if let Source::Json(place) = source { Some((source, place)) } else { None },
                )
                .collect();
            let pointers: Vec<&Pointer> = places.iter().map(|(_, place)| *place).collect();
            let values = json::find(&body.whole()?, &pointers).map_err(|why| malformed(told(why)))?;
            let found =
                places.into_iter().zip(values).filter_map(|((source, _), value)| Some((source, value?)));
            let found = found.map(|(source, value)| match value {
                Value::Text(text) => Ok(Found { value: text.into(), source }),
                Value::Integer(number) if route.json_integer => Ok(Found { value: number.to_string().into(), source }),
                Value::Integer(_) | Value::Other if route.json_integer => {
                    Err(malformed("the account must be a JSON string or a whole number that every reader takes for the same"))
                }
                Value::Integer(_) | Value::Other => Err(malformed("the account must be a JSON string")),
            });
            Ok((found.collect::<Result<_, _>>()?, None))
        }
        Kind::Form => {
            let fields: Vec<(&Source, &String)> = sources()
                .filter_map(|source| if let Source::Form(key) = source { Some((source, key)) } else { None })
                .collect();
            let mut scanner = form::Scanner::new(fields.iter().map(|(_, key)| (*key).clone()).collect());
            body.frames.iter().try_for_each(|frame| scanner.feed(frame))?;
            if body.complete {
                scanner.end()?;
            }
            let found = named(fields, scanner.values()?);
            Ok((found, (!body.complete).then_some(Rest::Form(scanner))))
        }
        Kind::Multipart(boundary) => {
            let fields: Vec<(&Source, &String)> = sources()
                .filter_map(
                    |source| if let Source::Multipart(key) = source { Some((source, key)) } else { None },
                )
                .collect();
            let keys = fields.iter().map(|(_, key)| (*key).clone()).collect();
            let mut scanner = multipart::Scanner::new(boundary, keys);
            body.frames.iter().try_for_each(|frame| scanner.feed(frame))?;
            if body.complete {
                scanner.end()?;
            }
            let found = named(fields, scanner.values()?);
            Ok((found, (!body.complete).then_some(Rest::Multipart(scanner))))
        }
    }
}

fn named<'r>(fields: Vec<(&'r Source, &String)>, values: Vec<Option<String>>) -> Vec<Found<'r>> {
    let found = fields.into_iter().zip(values);
    found.filter_map(|((source, _), value)| Some(Found { value: value?.into(), source })).collect()
}

/// Whether a JSON body has what a route asks for. An empty one has nothing.
///
/// # Errors
/// `malformed_request` for one that cannot be read, or that some would read otherwise; `body_too_large`.
pub fn matches(route: &Route, body: Beginning<'_>) -> Result<bool, Refusal> {
    if body.is_empty() {
        return Ok(route.json.is_empty());
    }
    let pointers: Vec<&Pointer> = route.json.iter().map(|(place, _)| place).collect();
    let values = json::find(&body.whole()?, &pointers)
        .map_err(|why| Refusal::new(Code::MalformedRequest, told(why)))?;
    let ambiguous = |detail| Err(Refusal::new(Code::MalformedRequest, detail));
    let mut all = true;
    for ((_, want), have) in route.json.iter().zip(values) {
        match (want, have) {
            (_, None) => all = false,
            (JsonValue::Text(want), Some(Value::Text(have))) => {
                if *want != have && is_same_value(&have, want) {
                    return ambiguous("a JSON field that routes look for has a value in another spelling");
                }
                all &= *want == have;
            }
            (JsonValue::Integer(want), Some(Value::Integer(have))) => all &= *want == have,
            // Some readers make one of the other.
            (JsonValue::Text(_), Some(Value::Integer(_) | Value::Other))
            | (JsonValue::Integer(_), Some(Value::Text(_) | Value::Other)) => {
                return ambiguous("a JSON field that routes look for has a value of another type");
            }
        }
    }
    Ok(all)
}

fn told(why: JsonError) -> String {
    why.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_body_is_plain_or_refused() {
        for json in
            ["application/json", "Application/JSON; charset=UTF-8", "text/plain", "application/problem+json"]
        {
            assert_eq!(parse_kind(json), Some(Kind::Json), "{json}");
        }
        assert_eq!(parse_kind("application/x-www-form-urlencoded"), Some(Kind::Form));
        let multipart = Some(Kind::Multipart("a-b".to_owned()));
        assert_eq!(parse_kind("multipart/form-data; boundary=a-b"), multipart);
        assert_eq!(parse_kind("multipart/form-data; charset=utf-8; boundary=\"a-b\""), multipart);
        for bad in [
            "",
            "json",
            "application/xml",
            "application/octet-stream",
            "application/json; charset=utf-16",
            "application/json; charset=utf-7",
            "application/json, multipart/form-data",
            "application/json; boundary",
            "multipart/mixed; boundary=a",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=a; boundary*=utf-8''b",
            "multipart/form-data; xboundary=b; boundary=a",
            "multipart/form-data; x-boundary=b; boundary=a",
            "multipart/form-data; x=\"boundary=b\"; boundary=a",
            "multipart/form-data; boundary=a; x=\"Boundary=b\"",
            "multipart/form-data; boundary=\"a b\"",
            "multipart/form-data; boundary=\"a\\\"b\"",
            &format!("multipart/form-data; boundary={}", "x".repeat(71)),
        ] {
            assert_eq!(parse_kind(bad), None, "{bad}");
        }
    }
}

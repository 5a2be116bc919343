//! The account of a request, from wherever the route says.
//!
//! Everything that could be read in two ways is refused (I8). It never asks anybody whether the account exists.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

use super::head::{Head, Refusal, is_alike};
use crate::code::Code;
use crate::config::{Captures, Source};
use crate::fence::name::AccountName;

/// The account: all sources that are present must agree.
///
/// # Errors
/// `malformed_account`, or `malformed_request` where `Connection` would remove the account's header.
pub fn account<'a>(
    sources: &'a [Source],
    captures: &Captures<'a>,
    head: &Head<'a>,
    headers: &'a HeaderMap,
) -> Result<Cow<'a, str>, Refusal> {
    let mut account: Option<Cow<'a, str>> = None;
    for source in sources {
        let found = match source {
            Source::Path(name) => captures.get(name).map(|raw| decode(raw, false)).transpose()?,
            Source::Query(key) => from_query(head.query.unwrap_or(""), key)?,
            Source::Header(name) => from_header(headers, name)?,
            Source::Static(name) => Some(Cow::Borrowed(name.as_str())),
        };
        let Some(found) = found else { continue };
        if !AccountName::allows(&found) {
            return Err(malformed("an account is 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -"));
        }
        match &account {
            Some(earlier) if *earlier != found => {
                return Err(malformed("the request names two different accounts"));
            }
            Some(_) => {}
            None => account = Some(found),
        }
    }
    account.ok_or_else(|| malformed("the request names no account where the route looks for it"))
}

fn malformed(detail: &'static str) -> Refusal {
    Refusal::new(Code::MalformedAccount, detail)
}

fn from_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, str>>, Refusal> {
    if headers.keys().any(|other| other != name && is_alike(other, name)) {
        return Err(malformed("the account's header is given in another spelling"));
    }
    for token in super::head::connection_tokens(headers) {
        if token?.eq_ignore_ascii_case(name.as_str()) {
            return Err(Refusal::new(
                Code::MalformedRequest,
                "Connection must not name the account's header",
            ));
        }
    }
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(malformed("the account's header must be given once"));
    }
    match value.map(http::HeaderValue::to_str) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(Cow::Borrowed(text))),
        Some(Err(_)) => Err(malformed("the account's header must be visible ASCII")),
    }
}

fn from_query<'a>(query: &'a str, key: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    let mut found = None;
    // Some servers part fields at `;` as well: the key must be there once under either reading, and the same.
    for field in query.split('&') {
        for (at, piece) in field.split(';').enumerate() {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            if !names(name, key) {
                continue;
            }
            if found.is_some() {
                return Err(malformed("the account's query key must be given once"));
            }
            if at > 0 || field.contains(';') {
                return Err(malformed("the account's query field must not contain a semicolon"));
            }
            found = Some(decode(value, true)?);
        }
    }
    Ok(found)
}

/// Whether a raw query key is `key` once it is decoded, leniently: what might be it counts.
fn names(raw: &str, key: &str) -> bool {
    raw == key || decode(raw, true).is_ok_and(|decoded| decoded.trim() == key)
}

/// Decodes percent escapes once. In a query a `+` is a space to some and a plus to others, so it has to be escaped.
fn decode(raw: &str, query: bool) -> Result<Cow<'_, str>, Refusal> {
    if query && raw.contains('+') {
        return Err(malformed("a + in the account's query field must be written %2B"));
    }
    if !raw.contains('%') {
        return Ok(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(malformed("a % in the account must be followed by two hex digits"));
        };
        decoded.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| malformed("the account must be ASCII"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn a_query_key_counts_once_under_every_reading() {
        let key = |query: &str| from_query(query, "key").map(|found| found.map(Cow::into_owned));
        assert_eq!(key("a=1&key=A&b=2"), Ok(Some("A".to_owned())));
        assert_eq!(key("key=%2B49"), Ok(Some("+49".to_owned())));
        assert_eq!(key("a=1"), Ok(None));
        for bad in [
            "key=A&key=B",
            "key=A&key=A",
            "key=A&k%65y=B",
            "a=1;key=A",
            "key=A;b=1",
            "key=A;key=B",
            "key=+49",
        ] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_account_header_is_given_once_and_in_one_spelling() {
        let name = HeaderName::from_static("x-device-id");
        let code = |fields: &[(&str, &str)]| {
            from_header(&headers(fields), &name).map(|found| found.map(Cow::into_owned)).map_err(|r| r.code)
        };
        assert_eq!(code(&[("x-device-id", "A")]), Ok(Some("A".to_owned())));
        assert_eq!(code(&[("x-device-id", "A"), ("x-device-id", "A")]), Err(Code::MalformedAccount));
        assert_eq!(code(&[("x-device-id", "A"), ("x_device_id", "B")]), Err(Code::MalformedAccount));
        assert_eq!(code(&[("x-device-id", "A"), ("connection", "X-Device-Id")]), Err(Code::MalformedRequest));
        assert_eq!(code(&[]), Ok(None));
    }
}

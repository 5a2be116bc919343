//! The account of a request, from wherever its route says, and the name that it stands for.
//!
//! Everything that could be read in two ways is refused (I8). It never asks anybody whether the account exists, and no
//! refusal of it shows what was found.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, header};

use super::alike::is_one_field;
use super::body::Kind;
use super::head::{Head, Refusal, connection_tokens};
use super::query;
use crate::code::Code;
use crate::config::{Captures, Identity, Route, Source, hash};
use crate::fence::name::AccountName;

/// How many bytes an identity that is a secret may have.
pub const IDENTITY_MAX: usize = 4096;

/// What a source names. Perhaps a secret: it is shown to nobody.
pub struct Found<'a> {
    /// As the sender reads it.
    pub value: Cow<'a, str>,
    /// Where it was.
    pub source: &'a Source,
}

impl std::fmt::Debug for Found<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("source", self.source).finish_non_exhaustive()
    }
}

/// What the sources in a request's head name: all that are present agree.
///
/// # Errors
/// `malformed_account`, or `malformed_request` where `Connection` would remove the account's header.
pub fn in_head<'a>(
    route: &'a Route,
    captures: &Captures<'a>,
    head: &Head<'a>,
    headers: &'a HeaderMap,
) -> Result<Option<Found<'a>>, Refusal> {
    let mut account = None;
    for source in &route.account {
        let value = match source {
            Source::Path(name) => captures.get(name).map(from_path).transpose()?,
            Source::Query(key) => query::value(head.query.unwrap_or(""), key)?,
            Source::Header(name) => from_header(headers, name)?.map(Cow::Borrowed),
            Source::Bearer => from_bearer(headers)?.map(Cow::Borrowed),
            Source::Static(name) => Some(Cow::Borrowed(name.as_str())),
            Source::Json(_) | Source::Form(_) | Source::Multipart(_) => None,
        };
        if let Some(value) = value {
            account = Some(agree(route, account, Found { value, source })?);
        }
    }
    Ok(account)
}

/// Checks that the query gives no field of a form that the form itself does not give with the same value: many senders
/// make one list of both.
///
/// # Errors
/// `malformed_account` if it does.
pub fn beside_query(route: &Route, named: &[Found<'_>], kind: &Kind, head: &Head<'_>) -> Result<(), Refusal> {
    for source in &route.account {
        let key = match (source, kind) {
            (Source::Form(key), Kind::Form) | (Source::Multipart(key), Kind::Multipart(_)) => key,
            _ => continue,
        };
        let is_own = route.account.iter().any(|other| matches!(other, Source::Query(own) if own == key));
        let Some(value) = query::value(head.query.unwrap_or_default(), key)?.filter(|_| !is_own) else {
            continue;
        };
        if named.iter().all(|found| found.source != source || found.value != value) {
            return Err(malformed("the query gives the account's field another value than the form"));
        }
    }
    Ok(())
}

/// One more source's word beside those before.
///
/// # Errors
/// `malformed_account` if they disagree.
pub fn agree<'a>(route: &Route, earlier: Option<Found<'a>>, found: Found<'a>) -> Result<Found<'a>, Refusal> {
    if route.identity.is_secret() {
        if !(1..=IDENTITY_MAX).contains(&found.value.len()) {
            return Err(malformed("what stands for the account is empty or too long"));
        }
        // Some senders trim, and some stop at a NUL.
        if found.value.trim() != found.value || found.value.chars().any(char::is_control) {
            return Err(malformed("what stands for the account has spaces at an end, or control characters"));
        }
    } else if !AccountName::allows(&found.value) {
        return Err(malformed("an account is 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -"));
    }
    match earlier {
        Some(earlier) if earlier.value != found.value => {
            Err(malformed("the request names two different accounts"))
        }
        Some(earlier) => Ok(earlier),
        None => Ok(found),
    }
}

/// The name of the account that was found.
///
/// # Errors
/// `malformed_account` where none was, `unknown_account` where no table has it.
pub fn name<'a>(route: &'a Route, found: Option<Found<'a>>) -> Result<Cow<'a, str>, Refusal> {
    let Some(Found { value, .. }) = found else {
        return Err(malformed("the request names no account where the route looks for it"));
    };
    match &route.identity {
        Identity::Plain => Ok(value),
        Identity::Sha256 => {
            let digits = hash(&value).into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
            Ok(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect())
        }
        Identity::Map(table) => match table.account(&value) {
            Some(account) => Ok(Cow::Borrowed(account)),
            None => Err(Refusal::new(
                Code::UnknownAccount,
                "what stands for the account is not in this gateway's table; ask its operator",
            )),
        },
    }
}

pub(super) fn malformed(detail: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Code::MalformedAccount, detail)
}

fn from_path(raw: &str) -> Result<Cow<'_, str>, Refusal> {
    // No account has one; a secret may, and some servers drop what follows it.
    if raw.contains(';') {
        return Err(malformed("the account must not stand beside a semicolon"));
    }
    query::decode(raw, false)
}

fn from_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    if headers.keys().any(|other| other != name && is_one_field(other.as_str(), name.as_str())) {
        return Err(malformed("the account's header is given in another spelling"));
    }
    for token in connection_tokens(headers) {
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
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(malformed("the account's header must be visible ASCII")),
    }
}

fn from_bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    const SCHEME: &str = "bearer";
    let Some(text) = from_header(headers, &header::AUTHORIZATION)? else { return Ok(None) };
    let (scheme, rest) = text.split_at_checked(SCHEME.len()).unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Ok(None);
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/:=@".contains(&b);
    match rest.strip_prefix(' ') {
        Some(token) if !token.is_empty() && token.bytes().all(plain) => Ok(Some(token)),
        Some(_) | None => Err(malformed("Authorization must be Bearer, one space and a token")),
    }
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
    fn a_bearer_is_one_token_after_one_space() {
        let bearer = |fields: &[(&str, &str)]| {
            from_bearer(&headers(fields)).map(|found| found.map(str::to_owned)).map_err(|r| r.code)
        };
        assert_eq!(bearer(&[("authorization", "Bearer a.b~c/d+e==")]), Ok(Some("a.b~c/d+e==".to_owned())));
        assert_eq!(bearer(&[("authorization", "bEARER A")]), Ok(Some("A".to_owned())));
        assert_eq!(bearer(&[("authorization", "Basic A")]), Ok(None));
        assert_eq!(bearer(&[]), Ok(None));
        for bad in [
            "Bearer",
            "Bearer ",
            "Bearer\tA",
            "BearerA",
            "Bearer  A",
            "Bearer A B",
            "Bearer A,B",
            "Bearer \"A\"",
        ] {
            assert_eq!(bearer(&[("authorization", bad)]), Err(Code::MalformedAccount), "{bad}");
        }
        let twice = [("authorization", "Bearer A"), ("authorization", "Bearer A")];
        assert_eq!(bearer(&twice), Err(Code::MalformedAccount));
    }

    #[test]
    fn an_account_header_is_given_once_and_in_one_spelling() {
        let name = HeaderName::from_static("x-device-id");
        let code = |fields: &[(&str, &str)]| {
            from_header(&headers(fields), &name).map(|found| found.map(str::to_owned)).map_err(|r| r.code)
        };
        assert_eq!(code(&[("x-device-id", "A")]), Ok(Some("A".to_owned())));
        assert_eq!(code(&[("x-device-id", "A"), ("x-device-id", "A")]), Err(Code::MalformedAccount));
        assert_eq!(code(&[("x-device-id", "A"), ("x_device_id", "B")]), Err(Code::MalformedAccount));
        assert_eq!(code(&[("x-device-id", "A"), ("x.device.id", "B")]), Err(Code::MalformedAccount));
        assert_eq!(code(&[("x-device-id", "A"), ("connection", "X-Device-Id")]), Err(Code::MalformedRequest));
        assert_eq!(code(&[]), Ok(None));
    }
}

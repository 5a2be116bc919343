//! The head of a request, read strictly: whatever two programs could read in two ways is refused here.
//!
//! Looks, and never changes anything. It knows no routes, accounts or tokens.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, Method, Version, header};

use super::fields::{Fields, Once, is_fencing};
use super::query::{Naming, naming};
use crate::code::Code;

/// A refusal that the request itself causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: Code,
    /// What is wrong and what to do.
    pub detail: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with a detail for the caller.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into() }
    }
}

fn malformed(detail: &'static str) -> Refusal {
    Refusal::new(Code::MalformedRequest, detail)
}

/// What of a head the rest needs to know.
#[derive(Debug)]
pub struct Head<'a> {
    /// The path, raw.
    pub path: &'a str,
    /// The query, raw.
    pub query: Option<&'a str>,
    /// The Host, or HTTP/2's authority.
    pub host: Option<&'a str>,
    /// The caller waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// Some senders take another method for it than its own.
    pub other_method: bool,
}

/// Checks a head.
///
/// # Errors
/// The refusal that it deserves.
pub fn check<'a>(parts: &'a Parts, fields: &Fields<'a>, most_bytes: usize) -> Result<Head<'a>, Refusal> {
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Err(Refusal::new(Code::MethodNotAllowed, "CONNECT and TRACE are not supported"));
    }
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if fields.bytes + target > most_bytes {
        let detail = format!("the head may have at most {most_bytes} bytes");
        return Err(Refusal::new(Code::HeadersTooLarge, detail));
    }
    let host = check_target(parts, fields)?;
    check_framing(parts, fields)?;
    let expects_continue = check_expect(fields)?;
    let path = parts.uri.path();
    check_path(path)?;
    let query = parts.uri.query();
    if query.is_some_and(|query| !query.is_ascii()) {
        return Err(Refusal::new(
            Code::MalformedPath,
            "the query must be ASCII; percent-encode everything else",
        ));
    }
    let other_method = has_other_method(parts, fields, query.unwrap_or_default());
    Ok(Head { path, query, host, expects_continue, other_method })
}

/// Whether a field, or `_method` in the query, gives another method.
fn has_other_method(parts: &Parts, fields: &Fields<'_>, query: &str) -> bool {
    let own = parts.method.as_str().as_bytes();
    let Once { value, again } = fields.method;
    let given = again || value.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(own));
    let mut pieces = query.split(['&', ';']).map(|piece| piece.split_once('=').unwrap_or((piece, "")));
    given
        || pieces.any(|(name, value)| {
            naming(name.as_bytes(), "_method") == Naming::Exact && !value.as_bytes().eq_ignore_ascii_case(own)
        })
}

fn check_target<'a>(parts: &'a Parts, fields: &Fields<'a>) -> Result<Option<&'a str>, Refusal> {
    if fields.host.again {
        return Err(malformed("there must be exactly one Host"));
    }
    let host = match fields.host.value.map(|value| value.to_str()) {
        None => None,
        Some(Ok(host)) if is_authority(host) => Some(host),
        Some(_) => return Err(malformed("the Host must be a name or an address, with or without a port")),
    };
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    if authority.is_some_and(|authority| !is_authority(authority)) {
        return Err(malformed("the target's authority must not have user information"));
    }
    match parts.uri.scheme_str() {
        Some(scheme) if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") => {
            return Err(malformed("the target's scheme must be http or https"));
        }
        None if authority.is_some() => return Err(malformed("the target must be a path or an http URL")),
        Some(_) | None => {}
    }
    if !parts.uri.path().starts_with('/') {
        return Err(malformed("the target must be a path or an http URL"));
    }
    match (authority, host) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Err(malformed("the target's authority and the Host must be equal"))
        }
        // HTTP/2 needs no Host beside its authority; HTTP/1.1 always does, HTTP/1.0 beside a whole URL.
        (Some(authority), None) if parts.version == Version::HTTP_2 => Ok(Some(authority)),
        (None, None) if parts.version == Version::HTTP_10 => Ok(None),
        (_, None) => Err(malformed("there must be exactly one Host")),
        (_, host) => Ok(host),
    }
}

/// A name or an address, with or without a port: no user, and no list that some would read as two.
fn is_authority(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:[]".contains(&b);
    text.bytes().all(plain) && text.parse::<http::uri::Authority>().is_ok()
}

const CONTENT: &str = "content-";

fn check_framing(parts: &Parts, fields: &Fields<'_>) -> Result<(), Refusal> {
    if fields.misspelt {
        return Err(malformed("a field that says how the request is read is given in another spelling"));
    }
    if let Once { value: Some(target), again } = fields.target
        && (again || parts.uri.path_and_query().is_none_or(|own| *target != own.as_str()))
    {
        return Err(malformed("X-Original-URL and X-Rewrite-URL must not name another target"));
    }
    if let Once { value: Some(coding), again } = fields.transfer_encoding
        && (again || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(malformed("the only transfer coding supported is chunked"));
    }
    if fields.ending.has_connection() {
        for token in connection_tokens(&parts.headers) {
            let token = token?;
            // Whatever it names ends here: the sender would read the body without knowing what it is.
            let body = token.get(..CONTENT.len()).is_some_and(|start| start.eq_ignore_ascii_case(CONTENT));
            if is_fencing(token) || body || token.eq_ignore_ascii_case("host") {
                return Err(malformed("Connection must not name X-Fencing-*, Content-* or Host"));
            }
        }
    }
    if let Once { value: Some(upgrade), again } = fields.upgrade {
        // Java's client asks for this by default; it is content with an answer over HTTP/1.1.
        let h2c = upgrade.as_bytes().eq_ignore_ascii_case(b"h2c") && fields.http2_settings.value.is_some();
        if again || !h2c {
            return Err(malformed("Upgrade is not supported"));
        }
    }
    Ok(())
}

/// The names that `Connection` lists: they end at this hop.
pub fn connection_tokens(headers: &HeaderMap) -> impl Iterator<Item = Result<&str, Refusal>> {
    headers.get_all(header::CONNECTION).iter().flat_map(|value| {
        let text = value.to_str().map_err(|_| malformed("Connection must be a list of names"));
        let (text, failed) = match text {
            Ok(text) => (text, None),
            Err(refusal) => ("", Some(Err(refusal))),
        };
        failed
            .into_iter()
            .chain(text.split(',').map(|token| Ok(token.trim())).filter(|token| *token != Ok("")))
    })
}

fn check_expect(fields: &Fields<'_>) -> Result<bool, Refusal> {
    match fields.expect {
        Once { value: None, .. } => Ok(false),
        Once { value: Some(expectation), again: false }
            if expectation.as_bytes().eq_ignore_ascii_case(b"100-continue") =>
        {
            Ok(true)
        }
        Once { .. } => {
            Err(Refusal::new(Code::ExpectationFailed, "the only expectation supported is 100-continue"))
        }
    }
}

/// Refuses paths that two programs could read differently.
fn check_path(path: &str) -> Result<(), Refusal> {
    let bad = |detail: &'static str| Err(Refusal::new(Code::MalformedPath, detail));
    let bytes = path.as_bytes();
    let mut rest = bytes;
    let mut segment = 0;
    let mut dots = true;
    let mut first = true;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'/' => {
                if !first && segment == 0 {
                    return bad("empty path segments (//) are not accepted");
                }
                if segment > 0 && dots && segment <= 2 {
                    return bad("the path segments . and .. are not accepted");
                }
                (segment, dots, first) = (0, true, false);
                continue;
            }
            b'%' => {
                let digit = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return bad("a % in the path must be followed by two hex digits");
                };
                if matches!(high * 16 + low, 0x2f | 0x5c | 0x2e | 0x00) {
                    return bad("encoded slashes, backslashes, dots and NUL are not accepted in the path");
                }
            }
            b'\\' => return bad("backslashes are not accepted in the path"),
            // Some servers drop what follows a semicolon before they look for dots and empty segments.
            b';' if segment == 0 || (dots && segment <= 2) => {
                return bad("path segments that are empty, . or .. before a semicolon are not accepted");
            }
            0x21..=0x7e => {}
            _ => return bad("the path must be visible ASCII; percent-encode everything else"),
        }
        segment += 1;
        dots &= byte == b'.';
    }
    if segment > 0 && dots && segment <= 2 {
        return bad("the path segments . and .. are not accepted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(request: http::Request<()>) -> Parts {
        request.into_parts().0
    }

    fn code(request: http::Request<()>) -> Option<Code> {
        let parts = parts(request);
        check(&parts, &Fields::of(&parts.headers), 1000).err().map(|refusal| refusal.code)
    }

    fn get(uri: &str) -> http::request::Builder {
        http::Request::builder().uri(uri).header("host", "h")
    }

    #[test]
    fn paths_that_two_programs_could_read_differently_are_refused() {
        for good in [
            "/", "/a", "/a/", "/a/b.c", "/a/...", "/a%20b", "/%252F", "/a;x", "/...;x", "/a;..", "/.a",
            "/a..b",
        ] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in [
            "//",
            "/a//b",
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a/..;/b",
            "/a/.;x",
            "/..;x=y/b",
            "/;/a",
            "/a/;x",
            "/a/..",
            "/%2F",
            "/%2e%2e/b",
            "/%5c",
            "/%00",
            "/%zz",
            "/%",
            "/%4",
            "/a\\b",
            "/\u{e4}",
            "/a b",
        ] {
            assert_eq!(check_path(bad).map_err(|r| r.code), Err(Code::MalformedPath), "{bad}");
        }
    }

    #[test]
    fn the_host_is_one_and_the_targets_authority() {
        let plain = http::Request::builder().uri("/a").body(()).unwrap();
        assert_eq!(code(plain), Some(Code::MalformedRequest));
        assert_eq!(code(get("/a").body(()).unwrap()), None);
        assert_eq!(code(get("/a").header("host", "h").body(()).unwrap()), Some(Code::MalformedRequest));
        assert_eq!(code(get("http://h/a").body(()).unwrap()), None);
        assert_eq!(code(get("http://H/a").body(()).unwrap()), None);
        assert_eq!(code(get("http://other/a").body(()).unwrap()), Some(Code::MalformedRequest));
        assert_eq!(code(get("http://u@h/a").body(()).unwrap()), Some(Code::MalformedRequest));
        assert_eq!(code(get("ftp://h/a").body(()).unwrap()), Some(Code::MalformedRequest));
        assert_eq!(code(get("*").body(()).unwrap()), Some(Code::MalformedRequest));
        assert_eq!(code(get("h:80").body(()).unwrap()), Some(Code::MalformedRequest));
        let old = http::Request::builder().uri("/a").version(Version::HTTP_10).body(()).unwrap();
        assert_eq!(code(old), None);
        let old = http::Request::builder().uri("http://h/a").version(Version::HTTP_10).body(()).unwrap();
        assert_eq!(code(old), Some(Code::MalformedRequest));
        for odd in ["", "a,b", "a, b", "u@h", "h/p", "h\u{e4}"] {
            let request = http::Request::builder().uri("/a").header("host", odd).body(()).unwrap();
            assert_eq!(code(request), Some(Code::MalformedRequest), "{odd}");
        }
        for good in ["h", "h:80", "[::1]:80", "a_b.c-d~e"] {
            let request = http::Request::builder().uri("/a").header("host", good).body(()).unwrap();
            assert_eq!(code(request), None, "{good}");
        }
        let second = http::Request::builder().uri("http://h/a").version(Version::HTTP_2);
        assert_eq!(code(second.body(()).unwrap()), None);
    }

    #[test]
    fn another_method_is_seen_wherever_senders_look_for_it() {
        let other = |uri: &str, name: &str, value: &str| {
            let parts = parts(get(uri).header(name, value).body(()).unwrap());
            check(&parts, &Fields::of(&parts.headers), 1000).unwrap().other_method
        };
        assert!(other("/a", "x-http-method-override", "PUT") && other("/a", "x-method-override", "POST"));
        assert!(other("/a?b=1&_method=post", "x", "y") && other("/a?%5fmethod=PUT", "x", "y"));
        assert!(!other("/a?_method=get&method=PUT", "x-http-method", "GET"));
    }

    #[test]
    fn odd_framing_is_refused() {
        let with = |name: &str, value: &str| code(get("/a").header(name, value).body(()).unwrap());
        assert_eq!(with("transfer-encoding", "chunked"), None);
        assert_eq!(with("transfer-encoding", "gzip, chunked"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "close, X-Fencing-Seq"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "x_fencing_seq"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "content-length"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "keep-alive, Content-Type"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "content-encoding"), Some(Code::MalformedRequest));
        assert_eq!(with("connection", "keep-alive"), None);
        assert_eq!(with("transfer_encoding", "chunked"), Some(Code::MalformedRequest));
        assert_eq!(with("content_type", "text/plain"), Some(Code::MalformedRequest));
        assert_eq!(with("x-original-url", "/b"), Some(Code::MalformedRequest));
        assert_eq!(with("x-rewrite-url", "/a?b"), Some(Code::MalformedRequest));
        assert_eq!(with("x-original-url", "/a"), None);
        assert_eq!(with("upgrade", "websocket"), Some(Code::MalformedRequest));
        assert_eq!(with("upgrade", "h2c"), Some(Code::MalformedRequest));
        assert_eq!(with("expect", "100-Continue"), None);
        assert_eq!(with("expect", "200-maybe"), Some(Code::ExpectationFailed));
        assert_eq!(with("x-long", &"x".repeat(1000)), Some(Code::HeadersTooLarge));
        let java = get("/a").header("upgrade", "h2c").header("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA");
        assert_eq!(code(java.body(()).unwrap()), None);
        let trace = get("/a").method(Method::TRACE).body(()).unwrap();
        assert_eq!(code(trace), Some(Code::MethodNotAllowed));
    }
}

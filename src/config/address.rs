//! Grammars of single strings: hosts, connect strings, znode paths, accounts and where they are.
//!
//! Each error says what is wrong and what is allowed. Nothing is ever resolved or contacted.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::model::Source;
use super::pointer::Pointer;

const CONNECT: &str = "host:port,host:port/chroot";

/// Checks a connect string; it is kept as it is.
pub(super) fn connect(text: &str) -> Result<String, String> {
    let (servers, chroot) = match text.split_once('/') {
        Some((servers, _)) if servers.ends_with(':') => {
            return Err(format!("schemes such as tcp+tls:// are not built yet; allowed: {CONNECT}"));
        }
        Some((servers, path)) => (servers, Some(format!("/{path}"))),
        None => (text, None),
    };
    for server in servers.split(',') {
        host_and_port(server).map_err(|what| format!("{what}; allowed: {CONNECT}"))?;
    }
    match chroot {
        // One slash at the end is no chroot, and it is common to write it.
        Some(path) if path == "/" => Ok(servers.to_owned()),
        Some(path) => znode(&path).map(|_| text.to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// A host without brackets, and a port where one is given.
pub(super) fn host_and_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a bracket without its partner")?;
            host.parse::<Ipv6Addr>().map_err(|_| "no IPv6 address between the brackets")?;
            match port.strip_prefix(':') {
                None if port.is_empty() => (host, None),
                None => return Err("something other than a port after the address".to_owned()),
                Some(port) => (host, Some(port)),
            }
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            check_name(host)?;
            (host, port)
        }
    };
    let Some(port) = port else { return Ok((host, None)) };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok((host, Some(port))),
        _ => Err("a port that is not 1 to 65535".to_owned()),
    }
}

fn check_name(host: &str) -> Result<(), String> {
    if host.contains('@') {
        return Err("user information is not allowed".to_owned());
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > 253 || !name.split('.').all(label) {
        return Err("no host of letters, digits, - _ and dots".to_owned());
    }
    // What looks like an address and is none would be asked of the name server.
    if name.bytes().all(|b| b.is_ascii_digit() || b == b'.') && host.parse::<Ipv4Addr>().is_err() {
        return Err("no IPv4 address".to_owned());
    }
    Ok(())
}

/// Checks an absolute znode path that is not `/`.
pub(super) fn znode(text: &str) -> Result<String, String> {
    const ALLOWED: &str = "an absolute path such as /wx-accounts, without a slash at its end";
    let refuse = |what: &str| Err(format!("{what}; allowed: {ALLOWED}"));
    let Some(inner) = text.strip_prefix('/') else { return refuse("does not begin with a slash") };
    if inner.is_empty() {
        return refuse("the root of ZooKeeper itself");
    }
    for segment in inner.split('/') {
        match segment {
            "" => return refuse("an empty segment"),
            "." | ".." => return refuse("a . or .. segment"),
            _ => {}
        }
    }
    // ZooKeeper's own rule.
    let bad = |c: char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    if inner.contains(bad) {
        return refuse("a character that ZooKeeper does not allow");
    }
    if inner == "zookeeper" || inner.starts_with("zookeeper/") {
        return refuse("/zookeeper is ZooKeeper's own");
    }
    Ok(text.to_owned())
}

/// A method: upper-case letters, digits and hyphens, so that it compares as it is written.
pub(super) fn method(text: &str) -> Result<String, String> {
    const ALLOWED: &str = "upper-case methods such as GET or POST, not CONNECT or TRACE";
    let token = (1..=32).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    match text {
        "CONNECT" | "TRACE" => Err(format!("never forwarded; allowed: {ALLOWED}")),
        _ if token => Ok(text.to_owned()),
        _ => Err(format!("no method; allowed: {ALLOWED}")),
    }
}

/// Whether `name` can be an account's.
pub(super) fn is_account(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@:~+-".contains(&b))
}

pub(super) const SOURCES: &str = "path:NAME, query:KEY, header:NAME, bearer, json:/POINTER, form:FIELD, multipart:FIELD or \
                                  static:NAME, or a list of them";

/// Parses where the account is.
pub(super) fn source(text: &str) -> Result<Source, String> {
    let (kind, name) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "bearer" if text == kind => Ok(Source::Bearer),
        "bearer" => Err(format!("names something; allowed: {SOURCES}")),
        "path" | "query" | "header" | "json" | "form" | "multipart" | "static" if name.is_empty() => {
            Err(format!("names nothing; allowed: {SOURCES}"))
        }
        "path" => Ok(Source::Path(name.to_owned())),
        "query" => key(name).map(Source::Query),
        "form" => key(name).map(Source::Form),
        "multipart" => key(name).map(Source::Multipart),
        "json" => Pointer::parse(name).map(Source::Json),
        "header" => header(name).map(Source::Header),
        "static" if is_account(name) => Ok(Source::Static(name.to_owned())),
        "static" => Err("no account; allowed: 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -, not . or ..".to_owned()),
        _ => Err(format!("unknown; allowed: {SOURCES}")),
    }
}

/// Checks the key of a query or a form: one that every reader takes for itself.
pub(super) fn key(name: &str) -> Result<String, String> {
    let plain = |c: char| !c.is_control() && !c.is_whitespace() && !"[]&;=\"\\%+".contains(c);
    if (1..=128).contains(&name.len()) && name.chars().all(plain) {
        return Ok(name.to_owned());
    }
    Err("no key; allowed: 1 to 128 characters without spaces and [ ] & ; = % + \\ and quotes".to_owned())
}

/// Headers that the gateway removes or makes itself: the sender would not see the account that was judged.
const OWN_HEADERS: [&str; 19] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

fn header(name: &str) -> Result<http::HeaderName, String> {
    let header: http::HeaderName =
        name.parse().map_err(|_| "no header name; allowed: letters, digits and hyphens".to_owned())?;
    let known = header.as_str();
    let spelt = known.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let token = spelt.starts_with("x-fencing-") && known != "x-fencing-account";
    if token || OWN_HEADERS.contains(&spelt.as_str()) {
        return Err("the gateway sets or removes this header itself; allowed: other headers".to_owned());
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_string_is_servers_and_a_chroot() {
        for good in ["127.0.0.1:2181", "zk", "a:1,b:2,[::1]:3", "a:1,b:2/x/y"] {
            assert_eq!(connect(good).unwrap(), good);
        }
        assert_eq!(connect("a:1/").unwrap(), "a:1");
        for bad in ["", ",", "a:1,", "a:0", "a b", "a:1//x", "a:1/x/", "a:1/x,b:2/../y", "user@a:1"] {
            assert!(connect(bad).is_err(), "{bad}");
        }
        assert!(connect("tcp+tls://a:1").unwrap_err().contains("not built yet"));
    }

    #[test]
    fn a_znode_path_is_absolute_and_not_the_root() {
        for good in ["/wx-accounts", "/a/b.c/d", "/ä", "/zookeepers"] {
            assert_eq!(znode(good).unwrap(), good);
        }
        for bad in
            ["", "/", "a", "/a/", "//a", "/a/./b", "/..", "/a\n", "/\u{fffd}", "/zookeeper", "/zookeeper/x"]
        {
            assert!(znode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn methods_are_upper_case_and_never_tunnels() {
        assert_eq!(method("POST").unwrap(), "POST");
        assert_eq!(method("M-SEARCH").unwrap(), "M-SEARCH");
        for bad in ["", "post", "Post", "CONNECT", "TRACE", "A B", "GÉT"] {
            assert!(method(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sources_name_where_the_account_is() {
        assert_eq!(source("path:account"), Ok(Source::Path("account".into())));
        assert_eq!(source("query:wxid"), Ok(Source::Query("wxid".into())));
        assert_eq!(source("static:a:b@c"), Ok(Source::Static("a:b@c".into())));
        assert_eq!(source("header:X-Account"), Ok(Source::Header("x-account".parse().unwrap())));
        assert!(source("header:X-Fencing-Account").is_ok());
        for bad in [
            "",
            "path",
            "path:",
            "query:",
            "header:",
            "header:a b",
            "header:Host",
            "header:X-Fencing-Seq",
            "header:x_fencing_account",
            "header:X.Fencing.Seq",
            "header:X-Request-Id",
            "header:content_length",
            "static:",
            "static:.",
            "static:..",
            "static:a/b",
            "static:ä",
            "cookie:x",
        ] {
            assert!(source(bad).is_err(), "{bad}");
        }
        assert!(source(&format!("static:{}", "a".repeat(129))).is_err());
        assert_eq!(source("bearer"), Ok(Source::Bearer));
        assert_eq!(source("form:wxid"), Ok(Source::Form("wxid".into())));
        assert_eq!(source("multipart:wxid"), Ok(Source::Multipart("wxid".into())));
        assert_eq!(source("json:/data/guid"), Ok(Source::Json(Pointer::parse("/data/guid").unwrap())));
        for bad in ["bearer:x", "json:", "json:guid", "form:", "form:a b", "multipart:a[]", "query:a;b"] {
            assert!(source(bad).is_err(), "{bad}");
        }
    }
}

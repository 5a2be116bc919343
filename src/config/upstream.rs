//! Where a sender listens, and how it is spoken to: an address, and the keys that say how.
//!
//! It opens none of the files it names, and contacts nobody.

use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::address::host_and_port;
use super::section::Section;
use super::tls;
use super::value::{choice, parsed};

/// Where a sender listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// As Host has it: brackets around IPv6, the port unless it is the scheme's own.
    pub authority: String,
    /// Where connections lead.
    pub endpoint: Endpoint,
    /// Whether it is spoken to over TLS.
    pub tls: bool,
}

/// Where connections lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A name or an address, without brackets, and a port that is never 0.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// How senders are spoken to. What is said of TLS counts for those that are https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// What the keys are called.
    pub keys: &'static Keys,
    /// Whose certificates they must show, PEM; `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// What we show, PEM: our chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that their certificates must be for; `None`: that of the address.
    pub name: Option<ServerName<'static>>,
    /// Over which version of HTTP.
    pub http: Http,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1.
    One,
    /// HTTP/2, known beforehand; over TLS it has to be agreed to as well.
    Two,
    /// What is agreed on over TLS; HTTP/1.1 elsewhere.
    Agreed,
}

/// What the keys are called.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    /// Of [`Protocol::ca`].
    pub ca: &'static str,
    /// Of the chain in [`Protocol::identity`].
    pub cert: &'static str,
    /// Of the key to it.
    pub cert_key: &'static str,
    /// Of [`Protocol::name`].
    pub name: &'static str,
    /// Of [`Protocol::http`]; `None`: it is HTTP/1.1.
    pub http: Option<&'static str>,
    /// Who is not https where TLS has nothing to say.
    whom: &'static str,
}

/// In a gateway's route.
pub(super) const ROUTES: Keys = Keys {
    ca: "upstream_ca",
    cert: "upstream_cert",
    cert_key: "upstream_cert_key",
    name: "upstream_name",
    http: Some("upstream_http"),
    whom: "no upstream is https",
};

/// In an agent's file.
pub(super) const AGENTS: Keys = Keys {
    ca: "gateway_ca",
    cert: "gateway_cert",
    cert_key: "gateway_cert_key",
    name: "gateway_name",
    http: Some("gateway_http"),
    whom: "the gateway is not https",
};

/// Of the elections that a gateway holds.
pub(super) const ELECTIONS: Keys = Keys {
    ca: "elections_ca",
    cert: "elections_cert",
    cert_key: "elections_cert_key",
    name: "elections_name",
    http: None,
    whom: "the elections are not https",
};

impl Protocol {
    /// HTTP/1.1, and the authorities that the system trusts.
    pub(super) fn plain(keys: &'static Keys) -> Self {
        Self { keys, ca: None, identity: None, name: None, http: Http::One }
    }
}

/// Reads the keys. Without addresses there is nothing to check them against, and the addresses' own problem is told.
pub(super) fn protocol(
    section: &mut Section<'_>,
    keys: &'static Keys,
    upstreams: Option<&[Upstream]>,
) -> Protocol {
    let ca = section.optional(keys.ca, tls::file);
    let (has_cert, cert) = (section.is_there(keys.cert), section.optional(keys.cert, tls::file));
    let (has_key, cert_key) = (section.is_there(keys.cert_key), section.optional(keys.cert_key, tls::file));
    let name = section.optional(keys.name, parsed(NAME, tls::certified));
    let versions = choice(&[("1", Http::One), ("2", Http::Two), ("auto", Http::Agreed)], &[]);
    let http = keys.http.map_or(Http::One, |key| section.take(key, versions, Http::One));
    let has_tls = upstreams.is_none_or(|all| all.iter().any(|upstream| upstream.tls));
    let about_tls = [
        (keys.ca, ca.is_some()),
        (keys.cert, has_cert),
        (keys.cert_key, has_key),
        (keys.name, name.is_some()),
    ];
    let agreed = keys.http.filter(|_| http == Http::Agreed).map(|key| (key, true));
    for (key, _) in about_tls.into_iter().chain(agreed).filter(|(_, said)| *said && !has_tls) {
        let place = section.place_of(key);
        let otherwise = if Some(key) == keys.http { ", or \"1\" or \"2\"" } else { "" };
        let text = format!("`{key}`: {}; allowed: with \"https://host:port\"{otherwise}", keys.whom);
        section.problem(&place, text);
    }
    if has_cert != has_key {
        let (key, other) = if has_cert { (keys.cert, keys.cert_key) } else { (keys.cert_key, keys.cert) };
        let place = section.place_of(key);
        section.problem(&place, format!("`{key}`: `{other}` is missing; allowed: both or neither"));
    }
    Protocol { keys, ca, identity: cert.zip(cert_key), name, http }
}

const NAME: &str = "a name such as \"sender.internal\"";

/// What an address may be, and what a list of them is.
pub(super) const UPSTREAM: &str = "\"http://host:port\", \"https://host:port\" or \"unix:/path\", or a list of such addresses of one sender";
/// What a single one may be.
pub(super) const GATEWAY: &str = "\"http://host:port\", \"https://host:port\" or \"unix:/path\"";
/// What it may be where there are no sockets.
pub(super) const URL: &str = "\"http://host:port\" or \"https://host:port\"";
const ALLOWED: &str = "http://host:port, https://host:port or unix:/path";

/// Parses `http://host[:port]`, the same with https, or `unix:` and the path of a socket: nothing of a request.
pub(super) fn upstream(text: &str) -> Result<Upstream, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket(path);
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("no URL; allowed: {ALLOWED}"))?;
    let (tls, usual) = match scheme.to_ascii_lowercase().as_str() {
        "http" => (false, 80),
        "https" => (true, 443),
        _ => return Err(format!("unknown scheme; allowed: {ALLOWED}")),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(format!(
            "has a path, a query or a fragment; allowed: {ALLOWED}, and `rewrite` for the path"
        ));
    }
    let (host, port) = host_and_port(authority).map_err(|what| format!("{what}; allowed: {ALLOWED}"))?;
    let (host, port) = (host.to_ascii_lowercase(), port.unwrap_or(usual));
    let named = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let authority = if port == usual { named } else { format!("{named}:{port}") };
    Ok(Upstream { authority, endpoint: Endpoint::Tcp(host, port), tls })
}

/// The same without sockets.
pub(super) fn url(text: &str) -> Result<Upstream, String> {
    let upstream = upstream(text)?;
    match upstream.endpoint {
        Endpoint::Tcp(..) => Ok(upstream),
        Endpoint::Unix(_) => Err("a socket; allowed: http://host:port or https://host:port".to_owned()),
    }
}

/// The longest path that the system takes for a socket.
const LONGEST_PATH: usize = 107;

fn socket(path: &str) -> Result<Upstream, String> {
    let good = path.starts_with('/')
        && !path.ends_with('/')
        && path.len() <= LONGEST_PATH
        && !path.contains(char::is_control);
    if !good {
        return Err(format!(
            "no path of a socket; allowed: unix: and an absolute path of at most {LONGEST_PATH} bytes"
        ));
    }
    // A socket has no name; senders take this one for themselves.
    Ok(Upstream { authority: "localhost".to_owned(), endpoint: Endpoint::Unix(path.into()), tls: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_scheme_and_authority_only() {
        let good = |text: &str| {
            let Upstream { authority, endpoint, tls } = upstream(text).unwrap();
            assert_eq!(tls, text.starts_with("https"));
            let Endpoint::Tcp(host, port) = endpoint else { unreachable!("{text}") };
            (authority, host, port)
        };
        assert_eq!(good("http://127.0.0.1:9000"), ("127.0.0.1:9000".into(), "127.0.0.1".into(), 9000));
        assert_eq!(good("HTTP://Sender.local/"), ("sender.local".into(), "sender.local".into(), 80));
        assert_eq!(good("http://sender:80"), ("sender".into(), "sender".into(), 80));
        assert_eq!(good("https://sender"), ("sender".into(), "sender".into(), 443));
        assert_eq!(good("https://sender:80"), ("sender:80".into(), "sender".into(), 80));
        assert_eq!(good("http://[::1]:9000"), ("[::1]:9000".into(), "::1".into(), 9000));
        for bad in [
            "",
            "sender:9000",
            "ftp://sender",
            "http://",
            "http:///x",
            "http://s/path",
            "http://s//",
            "http://s?q",
            "http://s#f",
            "http://u:p@s",
            "http://s:0",
            "http://s:65536",
            "http://s:",
            "http://s:+1",
            "http://::1",
            "http://[::1",
            "http://[::1]9",
            "http://[x]",
            "http://a b",
            "http://a..b",
            "http://1.2.3",
            "http://ß",
        ] {
            assert!(upstream(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_upstream_may_be_the_path_of_a_socket() {
        let found = upstream("unix:/run/sender.sock").unwrap();
        assert_eq!(found.endpoint, Endpoint::Unix("/run/sender.sock".into()));
        assert_eq!((found.authority.as_str(), found.tls), ("localhost", false));
        let longest = format!("unix:/{}", "a".repeat(LONGEST_PATH - 1));
        assert!(upstream(&longest).is_ok());
        for bad in
            ["unix:", "unix:sender.sock", "unix:./x", "unix:/run/", "unix:/a\0", &format!("{longest}a")]
        {
            assert!(upstream(bad).is_err(), "{bad}");
        }
    }
}

//! The keys of `[listen.tls]` and of an agent's `[agent.tls]`, and what they say.
//!
//! It opens none of the files it names.

use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::error::{Problem, Read};
use super::section::Section;
use super::tree::Node;
use super::value::{choice, list, parsed};

/// What is shown to callers over TLS, and asked of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where it stands in the file, with brackets.
    pub section: &'static str,
    /// The chain of certificates, PEM, our own first.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Whose certificates callers must show, PEM; `None`: they show none.
    pub client_ca: Option<PathBuf>,
    /// Which listeners speak it, and the names one of which a caller's certificate must be for there. No names: any.
    pub listeners: Vec<(TlsListener, Vec<ServerName<'static>>)>,
}

impl Tls {
    /// Whether a listener speaks it.
    #[must_use]
    pub fn is_on(&self, listener: TlsListener) -> bool {
        self.listeners.iter().any(|(one, _)| *one == listener)
    }

    /// Whether a listener lets only those in whose certificates an authority has signed.
    #[must_use]
    pub fn guards(&self, listener: TlsListener) -> bool {
        self.client_ca.is_some() && self.is_on(listener)
    }
}

/// A listener that may speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsListener {
    /// The gateway's proxy.
    Proxy,
    /// The admin listener, the gateway's or an agent's.
    Admin,
    /// That of embedded elections.
    Elections,
    /// An agent's, where bots send.
    Bots,
}

/// A listener: its name in the file, and the key of its clients' names.
pub(super) type Named = (&'static str, TlsListener, &'static str);

/// The gateway's. The first one's names are those of the others too, unless they have their own.
pub(super) const GATEWAYS: [Named; 3] = [
    ("proxy", TlsListener::Proxy, CLIENT_NAMES),
    ("admin", TlsListener::Admin, "admin_names"),
    ("elections", TlsListener::Elections, "elections_names"),
];

/// An agent's.
pub(super) const AGENTS: [Named; 2] =
    [("listen", TlsListener::Bots, CLIENT_NAMES), ("admin", TlsListener::Admin, "admin_names")];

const CLIENT_NAMES: &str = "client_names";

/// `None` where there is no such section, or with problems. `absent`: a listener that there is not, and why.
pub(super) fn read(
    node: Option<&Node>,
    name: &'static str,
    all: &[Named],
    absent: Option<(TlsListener, &str)>,
    problems: &mut Vec<Problem>,
) -> Option<Tls> {
    let mut section = Section::new(name, Some(node?));
    let cert = section.need("cert", FILE, file);
    let key = section.need("key", FILE, file);
    let client_ca = section.optional("client_ca", file);
    let mut own_names = Vec::new();
    for (_, _, names) in all {
        let read = list("a list such as [\"bot-1.internal\"]", parsed("strings", certified));
        own_names.push(section.optional(names, read));
    }
    let choices: Vec<_> = all.iter().map(|(word, listener, _)| (*word, *listener)).collect();
    let words: Vec<_> = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let there = choices.iter().map(|(_, listener)| *listener);
    let there = there.filter(|listener| absent.is_none_or(|(absent, _)| absent != *listener)).collect();
    let listeners = section.take("listeners", list(&words.join(", "), choice(&choices, &[])), there);
    let absence = |listener| absent.filter(|(absent, _)| *absent == listener).map(|(_, why)| why);
    for ((word, listener, names), own) in all.iter().zip(&own_names) {
        let refusal = if let Some(why) = absence(*listener).filter(|_| listeners.contains(listener)) {
            Some(("listeners", format!("`listeners`: \"{word}\": {why}; allowed: without it")))
        } else if own.is_none() {
            None
        } else if client_ca.is_none() {
            Some((*names, format!("`{names}`: nothing asks for certificates; allowed: with client_ca")))
        } else if let Some(why) = absence(*listener) {
            Some((*names, format!("`{names}`: {why}; allowed: without it")))
        } else if *names != CLIENT_NAMES && !listeners.contains(listener) {
            Some((*names, format!("`{names}`: `listeners` is without \"{word}\"; allowed: with it")))
        } else {
            None
        };
        if let Some((key, text)) = refusal {
            let place = section.place_of(key);
            section.problem(&place, text);
        }
    }
    section.finish(problems);
    let shared = own_names.first().cloned().flatten().unwrap_or_default();
    let spoken = all.iter().zip(own_names).filter(|((_, listener, _), _)| listeners.contains(listener));
    let listeners = spoken.map(|((_, listener, _), own)| (*listener, own.unwrap_or_else(|| shared.clone())));
    Some(Tls { section: name, cert: cert?, key: key?, client_ca, listeners: listeners.collect() })
}

const FILE: &str = "a file such as \"server.pem\"";

/// A file's path.
pub(super) fn file(node: &Node) -> Read<PathBuf> {
    let parse =
        |text: &str| if text.is_empty() { Err("no file; allowed: its path") } else { Ok(text.into()) };
    parsed(FILE, parse)(node)
}

/// A name that a certificate is for.
pub(super) fn certified(text: &str) -> Result<ServerName<'static>, &'static str> {
    ServerName::try_from(text.to_owned()).map_err(
        |_| "no name; allowed: a DNS name or an address, as the certificate's alternative name has it",
    )
}

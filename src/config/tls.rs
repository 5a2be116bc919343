//! The keys of `[listen.tls]`.
//!
//! It opens none of the files it names.

use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::error::{Problem, Read};
use super::model::{Tls, TlsListener};
use super::section::Section;
use super::tree::Node;
use super::value::{choice, list, parsed};

/// `None` where there is no such section, or with problems.
pub(super) fn read(node: Option<&Node>, problems: &mut Vec<Problem>) -> Option<Tls> {
    let mut section = Section::new("[listen.tls]", Some(node?));
    let cert = section.need("cert", FILE, file);
    let key = section.need("key", FILE, file);
    let client_ca = section.optional("client_ca", file);
    let names = || list("a list such as [\"bot-1.internal\"]", parsed("strings", name));
    let client_names = section.optional("client_names", names());
    let admin_names = section.optional("admin_names", names());
    for (key, names) in [("client_names", &client_names), ("admin_names", &admin_names)] {
        if names.is_some() && client_ca.is_none() {
            let place = section.place_of(key);
            section
                .problem(&place, format!("`{key}`: nothing asks for certificates; allowed: with client_ca"));
        }
    }
    let listeners = [("proxy", TlsListener::Proxy), ("admin", TlsListener::Admin)];
    let all = listeners.map(|(_, listener)| listener).to_vec();
    let listeners = section.take("listeners", list("\"proxy\", \"admin\"", choice(&listeners, &[])), all);
    section.finish(problems);
    let client_names = client_names.unwrap_or_default();
    let admin_names = admin_names.unwrap_or_else(|| client_names.clone());
    Some(Tls { cert: cert?, key: key?, client_ca, client_names, admin_names, listeners })
}

const FILE: &str = "a file such as \"server.pem\"";

/// A file's path.
pub(super) fn file(node: &Node) -> Read<PathBuf> {
    let parse =
        |text: &str| if text.is_empty() { Err("no file; allowed: its path") } else { Ok(text.into()) };
    parsed(FILE, parse)(node)
}

pub(super) fn name(text: &str) -> Result<ServerName<'static>, &'static str> {
    ServerName::try_from(text.to_owned()).map_err(
        |_| "no name; allowed: a DNS name or an address, as the certificate's alternative name has it",
    )
}

//! The keys of `[auth]`, and what may listen without any.
//!
//! It never shows what stands where a key's hash should: somebody may have written the key itself.

use std::net::SocketAddr;

use super::error::{Problem, Read};
use super::model::Auth;
use super::section::Section;
use super::tree::Node;
use super::value::{list, parsed};
use crate::key::{Key, KeyHash, Pattern};

/// More keys than this are a list of something else; each costs a comparison for each request.
const MOST_KEYS: usize = 1000;

pub(super) fn read(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Auth {
    let auth = Auth {
        keys: keys(&mut section, "keys", true, problems),
        admin_keys: keys(&mut section, "admin_keys", false, problems),
    };
    section.finish(problems);
    auth
}

fn keys(
    section: &mut Section<'_>,
    name: &'static str,
    with_accounts: bool,
    problems: &mut Vec<Problem>,
) -> Vec<Key> {
    let place = section.place_of(name);
    let sections = section.tables(name);
    if sections.len() > MOST_KEYS {
        section.problem(&place, format!("`{name}`: {} are too many; allowed: {MOST_KEYS}", sections.len()));
    }
    let mut keys: Vec<Key> = Vec::new();
    for mut section in sections {
        let key = key(&mut section, with_accounts);
        if let Some(key) = key {
            if keys.iter().any(|other| other.name == key.name) {
                let place = section.place_of("name");
                section.problem(&place, "`name`: another key has it; allowed: each once");
            }
            if keys.iter().any(|other| other.hash == key.hash) {
                let place = section.place_of("sha256");
                section.problem(&place, "`sha256`: the same key again; allowed: each once");
            }
            keys.push(key);
        }
        section.finish(problems);
    }
    keys
}

fn key(section: &mut Section<'_>, with_accounts: bool) -> Option<Key> {
    let name = section.need("name", NAME, parsed(NAME, parse_name));
    let hash = section.need("sha256", HASH, hash);
    let patterns = list("a list such as [\"wxid_1\", \"team-*\"]", parsed("strings", parse_pattern));
    let accounts = if with_accounts {
        section.need("accounts", "a list such as [\"wxid_1\", \"team-*\"], or [\"*\"]", patterns)
    } else {
        Some(Vec::new())
    };
    Some(Key { name: name?, hash: hash?, accounts: accounts? })
}

const NAME: &str = "1 to 64 of A-Z a-z 0-9 . _ -";

fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("no name; allowed: {NAME}"))
}

fn parse_pattern(text: &str) -> Result<Pattern, &'static str> {
    Pattern::parse(text)
        .ok_or("no pattern; allowed: an account's name, with * for any characters, up to 128 characters")
}

const HASH: &str = "the key's SHA-256 as 64 hex digits; `fencegate key new` makes a key and prints it";

fn hash(node: &Node) -> Read<KeyHash> {
    match node.text().map(KeyHash::parse) {
        Some(Some(hash)) if hash == KeyHash::of(b"") => {
            node.refuse(format!("the hash of no key at all; allowed: {HASH}"))
        }
        Some(Some(hash)) => Ok(hash),
        Some(None) => node.refuse(format!("no hash; allowed: {HASH}")),
        None => node.refuse(format!("{} is not allowed; allowed: {HASH}", node.kind())),
    }
}

/// Refuses a listener that others can reach and that asks nobody who they are.
pub(super) fn check_exposed(
    section: &mut Section<'_>,
    listener: &str,
    address: SocketAddr,
    keys: &str,
    guarded: bool,
) {
    if guarded || is_local(address) {
        return;
    }
    let place = section.place_of(listener);
    let port = address.port();
    section.problem(
        &place,
        format!(
            "`{listener}`: {address} can be reached from other machines, and nothing asks callers who they are; \
             allowed: an address of this machine alone such as 127.0.0.1:{port}, or keys ([auth] {keys}; `fencegate \
             key new` makes one), or client certificates ([listen.tls] client_ca), or `insecure = true` in [listen] where whoever can reach it may do everything"
        ),
    );
}

/// The same for an agent, which knows no keys of bots: whoever sends to it sends as the holder.
pub(super) fn check_agent_exposed(
    section: &mut Section<'_>,
    listener: &str,
    address: SocketAddr,
    guarded: bool,
) {
    if guarded || is_local(address) {
        return;
    }
    let place = section.place_of(listener);
    let port = address.port();
    section.problem(
        &place,
        format!(
            "`{listener}`: {address} can be reached from other machines, and nothing asks callers who they are; \
             allowed: an address of this machine alone such as 127.0.0.1:{port}, or client certificates ([agent.tls] \
             client_ca), or `insecure = true` in [agent] where whoever can reach it may send for what this agent leads"
        ),
    );
}

/// Whether only this machine reaches an address.
#[must_use]
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

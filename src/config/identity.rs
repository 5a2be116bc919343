//! How what a request names becomes an account's name: as it is, hashed, or looked up in a table.
//!
//! The last two are for identities that are secrets: a table keeps their hashes only, and no problem shows one.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use super::address;
use super::error::{Place, Read, line_and_column, quote};
use super::tree::{self, Node, Value};

/// A table of a hundred thousand accounts is well below it.
const FILE_MAX: u64 = 64 << 20;

/// How what a request names becomes an account's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// It is the name.
    Plain,
    /// The name is its SHA-256, in lower-case hex.
    Sha256,
    /// The name stands in a table.
    Map(Table),
}

impl Identity {
    /// Whether what a request names is a secret, and never shown.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        !matches!(self, Self::Plain)
    }
}

/// The SHA-256 of an identity.
#[must_use]
pub fn hash(identity: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    // Both have 32 bytes.
    hash.iter_mut().zip(digest(&SHA256, identity.as_bytes()).as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

/// Accounts by the hashes of the identities that stand for them. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Table(Arc<HashMap<[u8; 32], String>>);

impl Table {
    /// The account that an identity stands for.
    #[must_use]
    pub fn account(&self, identity: &str) -> Option<&str> {
        self.0.get(&hash(identity)).map(String::as_str)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} identities]", self.0.len())
    }
}

pub(super) const ALLOWED: &str = "\"plain\", \"sha256\" or \"map:FILE\"";

/// Reads the value of `identity`. A table's path is relative to `folder`.
pub(super) fn read(node: &Node, folder: &Path) -> Read<Identity> {
    match node.text() {
        Some("plain") => Ok(Identity::Plain),
        Some("sha256") => Ok(Identity::Sha256),
        Some(text) => match text.strip_prefix("map:") {
            Some(file) if !file.is_empty() => table(&folder.join(file))
                .map(Identity::Map)
                .or_else(|why| node.refuse(format!("{}: {why}", node.show()))),
            _ => node.refuse(format!("{} is unknown; allowed: {ALLOWED}", node.show())),
        },
        None => node.refuse_type(ALLOWED),
    }
}

/// Reads a table. What is wrong is told by line and column, and never with what stands there.
fn table(file: &Path) -> Result<Table, String> {
    let allowed = "allowed: a readable TOML file with lines such as \"identity\" = \"account\"";
    let name = quote(&file.display().to_string());
    let size = std::fs::metadata(file).map(|data| data.len());
    if size.is_ok_and(|size| size > FILE_MAX) {
        return Err(format!("{name} has more than {FILE_MAX} bytes; {allowed}"));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{name} cannot be read: {}; {allowed}", error.kind()))?;
    let at = |place: &Place| match place {
        Place::At(offset) => {
            let (line, column) = line_and_column(&text, *offset);
            format!("{name}:{line}:{column}")
        }
        Place::Whole | Place::Variable(_) => name.clone(),
    };
    // A parser's own words may repeat what it read.
    let root =
        tree::parse(&text).map_err(|problem| format!("{}: not TOML; {allowed}", at(&problem.place)))?;
    let Value::Table(entries) = root.value else { return Err(format!("{name}: no table; {allowed}")) };
    let mut accounts = HashMap::new();
    for entry in entries {
        let place = at(&entry.place);
        let account = match entry.node.value {
            Value::Text(account) if address::is_account(&account) => account,
            Value::Text(_) => {
                return Err(format!(
                    "{place}: its account is no account; allowed: 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -"
                ));
            }
            Value::Integer(_) | Value::Flag(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
                return Err(format!("{place}: no string (a key with dots needs quotes); {allowed}"));
            }
        };
        if entry.key.is_empty() {
            return Err(format!("{place}: an empty identity; {allowed}"));
        }
        accounts.insert(hash(&entry.key), account);
    }
    if accounts.is_empty() {
        return Err(format!("{name} is empty; {allowed}"));
    }
    Ok(Table(Arc::new(accounts)))
}

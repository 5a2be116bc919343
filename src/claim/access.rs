//! Who may send for which account, by the key that a request presents.
//!
//! Where there are no keys nothing is looked at. It knows nothing of holders: a key is no token.

use super::fields::Fields;
use super::head::Refusal;
use crate::code::Code;
use crate::key::{self, Key};

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'k>(Option<&'k Key>);

/// Finds out who sends.
///
/// # Errors
/// There are keys, and the request presents none of them, or several.
pub fn caller<'k>(keys: &'k [Key], fields: &Fields<'_>) -> Result<Caller<'k>, Refusal> {
    if keys.is_empty() {
        return Ok(Caller(None));
    }
    let presented = fields.key.value.ok_or(Refusal::new(Code::Unauthenticated, ""))?;
    if fields.key.again {
        return Err(Refusal::new(Code::Unauthenticated, "send one X-Fencing-Key"));
    }
    let unknown = || {
        Refusal::new(
            Code::Unauthenticated,
            "this X-Fencing-Key is not known here; ask the gateway's operator",
        )
    };
    key::find(keys, presented.as_bytes()).map(|key| Caller(Some(key))).ok_or_else(unknown)
}

impl Caller<'_> {
    /// Nobody was asked for.
    #[must_use]
    pub const fn unknown() -> Self {
        Self(None)
    }

    /// Checks that it may send for an account.
    ///
    /// # Errors
    /// Its key is for others.
    pub fn check(self, account: &str) -> Result<(), Refusal> {
        match self.0 {
            Some(key) if !key.allows(account) => Err(Refusal::new(Code::AccountForbidden, "")),
            Some(_) | None => Ok(()),
        }
    }
}

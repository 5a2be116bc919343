//! The name of an account. It is a znode's name, a label and part of log lines, so its alphabet is small.

use std::borrow::Borrow;
use std::fmt;

use smol_str::SmolStr;

/// An account's name: 1 to 128 of `A-Z a-z 0-9 . _ @ : ~ + -`, not `.` or `..`. Cheap to clone. A short one lies
/// where it is kept: comparing it in a large map touches no other memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountName(SmolStr);

impl AccountName {
    /// The name, if it is one.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        Self::allows(name).then(|| Self(SmolStr::new(name)))
    }

    /// Whether `name` is a name.
    #[must_use]
    pub fn allows(name: &str) -> bool {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._@:~+-".contains(&b);
        (1..=128).contains(&name.len()) && name.bytes().all(fits) && name != "." && name != ".."
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// By text, so that maps can be asked without making a name.
impl Borrow<str> for AccountName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_small_alphabet() {
        for good in ["wxid_1", "a", "+491234", "a@b.c:1~2-3", "...", &"x".repeat(128)] {
            assert!(AccountName::new(good).is_some(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a%41", "a;b", "a\n", &"x".repeat(129)] {
            assert!(AccountName::new(bad).is_none(), "{bad}");
        }
    }
}

//! Keys: who may come at all, and for which accounts.
//!
//! A key is kept as its hash. It never prints one, and compares without telling by its time how much was right.

use std::borrow::Cow;
use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

/// `X-Fencing-Key`. Like everything with this beginning it is never forwarded.
pub const HEADER: HeaderName = HeaderName::from_static("x-fencing-key");

/// Longer ones are no keys, and are not hashed.
const LONGEST: usize = 256;
/// What our own keys begin with, so that they are found where they should not be.
const PREFIX: &str = "fgk_";

/// The SHA-256 of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, key).as_ref());
        Self(hash)
    }

    /// Reads 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut hash = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A key that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// What operators call it.
    pub name: String,
    /// What is known of it.
    pub hash: KeyHash,
    /// The accounts it may act for.
    pub accounts: Vec<Pattern>,
}

impl Key {
    /// Whether it may act for an account.
    #[must_use]
    pub fn allows(&self, account: &str) -> bool {
        self.accounts.iter().any(|pattern| pattern.matches(account))
    }
}

/// The key among `keys` that was presented. It takes as long whichever it is, and if it is none of them.
#[must_use]
pub fn find<'k>(keys: &'k [Key], presented: &[u8]) -> Option<&'k Key> {
    if presented.len() > LONGEST {
        return None;
    }
    let hash = KeyHash::of(presented);
    let mut found = None;
    for key in keys {
        if bool::from(key.hash.0.ct_eq(&hash.0)) {
            found = Some(key);
        }
    }
    found
}

/// The key that a request presents to an operator's listener: in its own header, as a bearer, or, as browsers do, as the
/// password of a user.
#[must_use]
pub fn presented(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    let once = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
    };
    if headers.contains_key(&HEADER) {
        return once(&HEADER).map(Cow::Borrowed);
    }
    let authorization = once(&header::AUTHORIZATION)?;
    let space = authorization.iter().position(|b| *b == b' ')?;
    let (scheme, rest) = authorization.split_at_checked(space)?;
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Cow::Borrowed(rest));
    }
    let user = BASE64_STANDARD.decode(rest).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic"))?;
    let colon = user.iter().position(|b| *b == b':')?;
    user.get(colon + 1..).map(|password| Cow::Owned(password.to_vec()))
}

/// A new key: 256 bits that nobody can guess, as text that every header takes.
///
/// # Errors
/// The system has no random numbers.
pub fn generate() -> Result<String, &'static str> {
    let mut secret = [0; 32];
    SystemRandom::new().fill(&mut secret).map_err(|_| "the system has no random numbers")?;
    Ok(format!("{PREFIX}{}", KeyHash(secret)))
}

/// Names of accounts: one name, or with `*` for any characters, also none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Reads a pattern.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._@:~+-*".contains(&b);
        ((1..=128).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.to_owned()))
    }

    /// Whether it names this account.
    #[must_use]
    pub fn matches(&self, account: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == account };
        let Some(mut left) = account.strip_prefix(first) else { return false };
        let mut parts = rest.split('*');
        let last = parts.next_back().unwrap_or_default();
        // The first place where a part fits leaves the most for those after it.
        for part in parts {
            let Some((_, after)) = left.split_once(part) else { return false };
            left = after;
        }
        left.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, secret: &str, accounts: &[&str]) -> Key {
        let accounts = accounts.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        Key { name: name.to_owned(), hash: KeyHash::of(secret.as_bytes()), accounts }
    }

    #[test]
    fn a_hash_is_sha_256_in_hex() {
        let hash = KeyHash::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert_eq!(KeyHash::parse(text), Some(hash));
        assert_eq!(KeyHash::parse(&text.to_uppercase()), Some(hash));
        for bad in
            ["", "ba", &text[1..], &format!("{text}0"), &text.replace('b', "g"), &text.replace('b', "+")]
        {
            assert_eq!(KeyHash::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_key_that_was_presented_is_found_and_nothing_else_is() {
        let keys = [key("a", "secret-a", &["*"]), key("b", "secret-b", &["*"])];
        for known in &keys {
            let found = find(&keys, format!("secret-{}", known.name).as_bytes());
            assert_eq!(found, Some(known));
        }
        for other in ["", "secret-", "secret-c", "secret-a ", "Secret-a", &keys[0].hash.to_string()] {
            assert_eq!(find(&keys, other.as_bytes()), None, "{other}");
        }
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(find(&[key("long", &long, &["*"])], long.as_bytes()), None);
    }

    #[test]
    fn a_new_key_is_new_and_fits_into_a_header() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), PREFIX.len() + 64);
        assert!(HeaderValue::from_str(&one).is_ok() && one.starts_with(PREFIX));
        assert!(one.len() <= LONGEST);
    }

    #[test]
    fn a_key_is_presented_once_in_one_of_two_ways() {
        let of = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            presented(&headers).map(|key| String::from_utf8(key.to_vec()).unwrap())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("x-fencing-key", "k")]).as_deref(), Some("k"));
        assert_eq!(of(&[("authorization", "Bearer k")]).as_deref(), Some("k"));
        assert_eq!(of(&[("authorization", "bearer  k ")]).as_deref(), Some("k"));
        assert_eq!(of(&[("x-fencing-key", "a"), ("x-fencing-key", "a")]), None);
        assert_eq!(
            of(&[("x-fencing-key", "a"), ("x-fencing-key", "b"), ("authorization", "Bearer b")]),
            None
        );
        assert_eq!(of(&[("authorization", "Basic dXNlcjpr")]).as_deref(), Some("k"));
        assert_eq!(of(&[("authorization", "basic OmE6Yg==")]).as_deref(), Some("a:b"));
        for other in ["k", "Basic k", "Basic a2V5", "Digest dXNlcjpr", "Bearer", "Bearerk"] {
            assert_eq!(of(&[("authorization", other)]), None, "{other}");
        }
    }

    /// The same by trying every way.
    fn matches_slowly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) if matches_slowly(rest, name) => true,
            (Some((b'*', _)), Some((_, left))) => matches_slowly(pattern, left),
            (Some((a, rest)), Some((b, left))) if a == b => matches_slowly(rest, left),
            _ => false,
        }
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        let words = |letters: &[u8], longest: u32| -> Vec<String> {
            let base = letters.len();
            (0..=longest)
                .flat_map(|length| (0..base.pow(length)).map(move |number| (length, number)))
                .map(|(length, number)| {
                    (0..length).map(|at| char::from(letters[number / base.pow(at) % base])).collect()
                })
                .collect()
        };
        let names = words(b"ab", 5);
        for pattern in words(b"ab*", 5).iter().skip(1) {
            for name in &names {
                let matches = Pattern::parse(pattern).unwrap().matches(name);
                assert_eq!(matches, matches_slowly(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
            }
        }
        for bad in ["", "a b", "a/b", "ä", "?", &"x".repeat(129)] {
            assert_eq!(Pattern::parse(bad), None, "{bad}");
        }
    }
}

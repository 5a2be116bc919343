//! Fields of an `application/x-www-form-urlencoded` body, found while it passes.
//!
//! Nothing is kept but the names that are being read and the values that are looked for.

use super::account::malformed;
use super::head::Refusal;
use super::query::{Naming, SEMICOLON, SPELLING, TWICE, decode, naming};

/// Names longer than this are nobody's.
const NAME_MAX: usize = 1024;
/// Values that are looked for are not longer.
const VALUE_MAX: usize = 3 * super::account::IDENTITY_MAX;

/// Which part of a field is being read.
#[derive(Debug)]
enum Part {
    Name(Vec<u8>),
    /// Of another field.
    Other,
    /// Of the field with this number.
    Value(usize, Vec<u8>),
}

/// Reads a form piece by piece.
pub struct Scanner {
    keys: Vec<String>,
    found: Vec<Option<Vec<u8>>>,
    part: Part,
    /// The piece that is being read begins after a semicolon.
    after_semicolon: bool,
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").finish_non_exhaustive()
    }
}

impl Scanner {
    /// Looks for these keys.
    #[must_use]
    pub fn new(keys: Vec<String>) -> Self {
        let found = vec![None; keys.len()];
        Self { keys, found, part: Part::Name(Vec::new()), after_semicolon: false }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// A key is there twice, or in a way that some read otherwise.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let mut rest = data;
        while !rest.is_empty() {
            let in_name = matches!(self.part, Part::Name(_));
            let ends = |byte: &u8| matches!(byte, b'&' | b';') || (in_name && *byte == b'=');
            let at = rest.iter().position(ends);
            let (piece, after) = rest.split_at_checked(at.unwrap_or(rest.len())).unwrap_or((rest, &[]));
            self.take(piece)?;
            let Some((end, after)) = after.split_first() else { return Ok(()) };
            match end {
                b'=' => self.name_ends()?,
                separator => self.field_ends(*separator == b';')?,
            }
            rest = after;
        }
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        let (text, most) = match &mut self.part {
            Part::Other => return Ok(()),
            Part::Name(name) => (name, NAME_MAX),
            Part::Value(_, value) => (value, VALUE_MAX),
        };
        text.extend_from_slice(piece);
        if text.len() > most {
            return Err(malformed("the form has a name, or the account's field a value, that is too long"));
        }
        Ok(())
    }

    fn name_ends(&mut self) -> Result<(), Refusal> {
        let Part::Name(name) = &self.part else { return Ok(()) };
        let mut next = Part::Other;
        for (index, key) in self.keys.iter().enumerate() {
            match naming(name, key) {
                Naming::Other => {}
                Naming::Alike => return Err(malformed(SPELLING)),
                Naming::Exact if self.after_semicolon => return Err(malformed(SEMICOLON)),
                Naming::Exact if self.found.get(index).is_some_and(Option::is_some) => {
                    return Err(malformed(TWICE));
                }
                Naming::Exact => next = Part::Value(index, Vec::new()),
            }
        }
        self.part = next;
        Ok(())
    }

    fn field_ends(&mut self, by_semicolon: bool) -> Result<(), Refusal> {
        self.name_ends()?;
        if let Part::Value(index, value) = std::mem::replace(&mut self.part, Part::Name(Vec::new())) {
            if by_semicolon {
                return Err(malformed(SEMICOLON));
            }
            if let Some(found) = self.found.get_mut(index) {
                *found = Some(value);
            }
        }
        self.after_semicolon = by_semicolon;
        Ok(())
    }

    /// The body ends.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    pub fn end(&mut self) -> Result<(), Refusal> {
        self.field_ends(false)
    }

    /// What was found so far, whole, for each key.
    ///
    /// # Errors
    /// A value has a bad escape.
    pub fn values(&self) -> Result<Vec<Option<String>>, Refusal> {
        let decoded = |value: &Vec<u8>| {
            let text = std::str::from_utf8(value).map_err(|_| malformed("the account must be ASCII"))?;
            decode(text, true).map(std::borrow::Cow::into_owned)
        };
        self.found.iter().map(|found| found.as_ref().map(decoded).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of `key`, whatever pieces the body comes in.
    fn key(body: &str) -> Result<Option<String>, ()> {
        let whole = read(&[body.as_bytes()]);
        for size in [1, 2, 3] {
            let pieces: Vec<_> = body.as_bytes().chunks(size).collect();
            assert_eq!(read(&pieces), whole, "{body} in pieces of {size}");
        }
        whole
    }

    fn read(pieces: &[&[u8]]) -> Result<Option<String>, ()> {
        let mut scanner = Scanner::new(vec!["key".to_owned()]);
        let fed = pieces.iter().try_for_each(|piece| scanner.feed(piece)).and_then(|()| scanner.end());
        fed.and_then(|()| scanner.values()).map(|mut values| values.remove(0)).map_err(|_| ())
    }

    #[test]
    fn a_form_field_counts_once_under_every_reading() {
        assert_eq!(key("a=1&key=A&b=2"), Ok(Some("A".to_owned())));
        assert_eq!(key("k%65y=%2B49"), Ok(Some("+49".to_owned())));
        assert_eq!(key("key="), Ok(Some(String::new())));
        assert_eq!(key("key=a=b"), Ok(Some("a=b".to_owned())));
        for absent in ["", "&&", "a=1;b", "keys=1", "a=key", "a=1&=key"] {
            assert_eq!(key(absent), Ok(None), "{absent}");
        }
        for bad in [
            "key=A&key=B",
            "key=A&key",
            "key=A&k%65y=A",
            "a=1;key=A",
            "key=A;b=1",
            "key=A&key[]=B",
            "key=A&KEY=B",
            "key=A&+key=B",
            "key=+",
            "key=%f",
            "key=\u{e4}%ff",
        ] {
            assert_eq!(key(bad), Err(()), "{bad}");
        }
        assert_eq!(key(&format!("{}=1", "x".repeat(2000))), Err(()));
        assert_eq!(key(&format!("x={}", "x".repeat(20_000))), Ok(None));
        assert_eq!(key(&format!("key={}", "x".repeat(20_000))), Err(()));
    }
}

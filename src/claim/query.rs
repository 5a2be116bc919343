//! Fields of queries and forms: names, values and percent escapes.
//!
//! A field is looked for under every reading that servers are known to have; one that only some would find is refused.

use std::borrow::Cow;

use super::account::malformed;
use super::alike;
use super::head::Refusal;

/// What the raw name of a field is to somebody who looks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Another one, to everybody.
    Other,
    /// The key.
    Exact,
    /// The key to some, and another one to others.
    Alike,
}

/// Compares a raw name with a key.
#[must_use]
pub fn naming(raw: &[u8], key: &str) -> Naming {
    if raw == key.as_bytes() {
        return Naming::Exact;
    }
    let name = decode_leniently(raw, false);
    if name == key.as_bytes() {
        return Naming::Exact;
    }
    // Old servers of Microsoft's know an escape of their own.
    let has_old = raw.windows(2).any(|pair| pair.eq_ignore_ascii_case(b"%u"));
    let alike = is_alike(&name, key) || (has_old && is_alike(&decode_leniently(raw, true), key));
    if alike { Naming::Alike } else { Naming::Other }
}

/// Whether some servers take a decoded name for the key: by its [letters](alike::is_alike), up to a `[` or a NUL, or between
/// brackets at its beginning.
#[must_use]
pub fn is_alike(name: &[u8], key: &str) -> bool {
    let is_key = |name: &[u8]| alike::is_alike(&String::from_utf8_lossy(name), key);
    is_key(name)
        || is_key(until(name, b"\0"))
        || is_key(until(name, b"[\0"))
        || name.trim_ascii_start().strip_prefix(b"[").is_some_and(|inner| is_key(until(inner, b"[]\0")))
}

/// A name up to the first of these bytes.
fn until<'a>(name: &'a [u8], ends: &[u8]) -> &'a [u8] {
    let end = name.iter().position(|byte| ends.contains(byte)).unwrap_or(name.len());
    name.get(..end).unwrap_or_default()
}

/// The value of `key`, if it is there.
///
/// # Errors
/// `malformed_account` where it is there twice, or some would read it otherwise.
pub fn value<'a>(query: &'a str, key: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    let mut found = None;
    // Some servers part fields at `;` as well: the key must be there once under either reading, and the same.
    for field in query.split('&') {
        for (at, piece) in field.split(';').enumerate() {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            match naming(name.as_bytes(), key) {
                Naming::Other => continue,
                Naming::Alike => return Err(malformed(SPELLING)),
                Naming::Exact => {}
            }
            if found.is_some() {
                return Err(malformed(TWICE));
            }
            if at > 0 || field.contains(';') {
                return Err(malformed(SEMICOLON));
            }
            found = Some(decode(value, true)?);
        }
    }
    Ok(found)
}

pub(super) const SPELLING: &str = "the account's field is given in another spelling";
pub(super) const TWICE: &str = "the account's field must be given once";
pub(super) const SEMICOLON: &str = "the account's field must not stand beside a semicolon";

/// Decodes percent escapes once. In a field a `+` is a space to some and a plus to others, so it has to be escaped.
///
/// # Errors
/// `malformed_account` for anything that is not read alike by everybody.
pub fn decode(raw: &str, field: bool) -> Result<Cow<'_, str>, Refusal> {
    if field && raw.contains('+') {
        return Err(malformed("a + in the account's field must be written %2B"));
    }
    if !raw.contains('%') {
        return Ok(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let Some((byte, after)) = escaped(rest) else {
            return Err(malformed("a % in the account must be followed by two hex digits"));
        };
        decoded.push(byte);
        rest = after;
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| malformed("the account must be ASCII"))
}

/// What two hex digits say, and what follows them.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], rest) = text.split_first_chunk::<2>()?;
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(high)? * 16 + digit(low)?, rest))
}

/// Decodes a name the way lenient servers do: a bad escape stays as it is. With `old` also `%u0061`.
fn decode_leniently(raw: &[u8], old: bool) -> Cow<'_, [u8]> {
    if !raw.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(raw);
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            if let Some((byte, after)) = escaped(after) {
                decoded.push(byte);
                rest = after;
                continue;
            }
            if let Some((c, after)) = escaped_unit(after).filter(|_| old) {
                decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
                continue;
            }
        }
        decoded.push(if *byte == b'+' { b' ' } else { *byte });
    }
    Cow::Owned(decoded)
}

/// What `u` and four hex digits say, and what follows them.
fn escaped_unit(text: &[u8]) -> Option<(char, &[u8])> {
    let ([b'u' | b'U'], rest) = text.split_first_chunk::<1>()? else { return None };
    let (high, rest) = escaped(rest)?;
    let (low, rest) = escaped(rest)?;
    Some((char::from_u32(u32::from(high) << 8 | u32::from(low))?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_key_counts_once_under_every_reading() {
        let key = |query: &str| value(query, "key").map(|found| found.map(Cow::into_owned));
        assert_eq!(key("a=1&key=A&b=2"), Ok(Some("A".to_owned())));
        assert_eq!(key("key=%2B49"), Ok(Some("+49".to_owned())));
        assert_eq!(key("k%65y=A"), Ok(Some("A".to_owned())));
        assert_eq!(key("key"), Ok(Some(String::new())));
        for absent in ["a=1", "", "keys=1", "akey=1", "a=key", "%6bex=1", "k%e=1", "%u006bex=1", "ke%u=1"] {
            assert_eq!(key(absent), Ok(None), "{absent}");
        }
        for bad in [
            "key=A&key=B",
            "key=A&key=A",
            "key=A&k%65y=B",
            "a=1;key=A",
            "key=A;b=1",
            "key=A;key=B",
            "key=+49",
            "key=A&key[]=B",
            "key%5B0%5D=B",
            "key=A&KEY=B",
            "Key=B",
            "key=A&+key=B",
            "key=A&key%20=B",
            "key=A&key%00x=B",
            "key=A&%u006bey=B",
            "key=A&%e2%84%aaey=B",
            "key=A&%4b%65%59=B",
            "key=A&ke%ffy=B",
            "key=A&!key=B",
            "key=A&'key'=B",
            "key=A&%ef%bb%bfkey=B",
            "key=%4",
            "key=%ff",
        ] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_letter_is_another_or_nothing_to_some() {
        assert_eq!(naming(b"device_id", "device_id"), Naming::Exact);
        for alike in ["device.id", "device+id", "device%20id", "DEVICE_ID", "device-id", "deviceId"] {
            assert_eq!(naming(alike.as_bytes(), "device_id"), Naming::Alike, "{alike}");
        }
        for alike in
            ["device[id", "device%5Bid", "[device_id]", "[device_id][0]", "%5Bdevice_id%5D=", "[device_id"]
        {
            assert_eq!(naming(alike.trim_end_matches('=').as_bytes(), "device_id"), Naming::Alike, "{alike}");
        }
        for other in ["device", "device[number]", "x[device_id]", "[]", ""] {
            assert_eq!(naming(other.as_bytes(), "device_id"), Naming::Other, "{other}");
        }
    }
}

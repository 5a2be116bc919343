//! What a send presents: seq and session, optionally instance and epoch.
//!
//! Pure parsing of single values. It never looks at headers as a whole, accounts or views.

use std::fmt;

use thiserror::Error;

/// A candidate's sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A ZooKeeper session id: 64 bits, signed where Java prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub i64);

/// Lower-case `0x` hex without padding, as the contract's JSON has it.
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The czxid of the znode that proves a holding; rises with every new holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The token of one request, parsed. The account is kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The candidate number the instance believes to hold with.
    pub seq: Seq,
    /// The session it believes to hold with.
    pub session: SessionId,
    /// Its instance id, where it was given: decoded.
    pub instance: Option<String>,
    /// The epoch it was told, where it was given.
    pub epoch: Option<Epoch>,
}

/// Why one value of a token is malformed. The text says what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Not one to `digits` ASCII digits, or too large.
    #[error("X-Fencing-Seq must be 1 to {digits} ASCII digits")]
    Seq {
        /// How many digits the layout allows.
        digits: usize,
    },
    /// Neither a signed 64-bit decimal nor 0x-hex.
    #[error("X-Fencing-Session must be a signed 64-bit decimal number, or 0x and 1 to 16 hex digits")]
    Session,
    /// Not 1 to 256 visible ASCII characters, or a bad percent escape.
    #[error("X-Fencing-Instance must be 1 to 256 visible ASCII characters, all others percent-encoded UTF-8")]
    Instance,
    /// Not a decimal number below 2^63.
    #[error("X-Fencing-Epoch must be 1 to 19 ASCII digits below 2^63")]
    Epoch,
}

fn digits(value: &[u8], most: usize) -> Option<u64> {
    if value.is_empty() || value.len() > most || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses `X-Fencing-Seq`: ASCII digits, leading zeros allowed, at most `most` of them.
///
/// # Errors
/// [`TokenError::Seq`] for anything else; no sign, no space, no other digits than ASCII's.
pub fn parse_seq(value: &[u8], most: usize) -> Result<Seq, TokenError> {
    digits(value, most).map(Seq).ok_or(TokenError::Seq { digits: most })
}

/// Parses a session: signed decimal as Java prints it (no plus, no leading zero), or `0x` and 1 to 16 hex digits of the same 64 bits.
///
/// # Errors
/// [`TokenError::Session`] for anything else.
pub fn parse_session(value: &[u8]) -> Result<SessionId, TokenError> {
    let text = std::str::from_utf8(value).map_err(|_| TokenError::Session)?;
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        if hex.is_empty() || hex.len() > 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(TokenError::Session);
        }
        let bits = u64::from_str_radix(hex, 16).map_err(|_| TokenError::Session)?;
        return Ok(SessionId(bits.cast_signed()));
    }
    let number = text.strip_prefix('-').unwrap_or(text);
    if number.is_empty() || number.len() > 19 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TokenError::Session);
    }
    if number.starts_with('0') && text != "0" {
        return Err(TokenError::Session);
    }
    text.parse().map(SessionId).map_err(|_| TokenError::Session)
}

/// Parses `X-Fencing-Epoch`.
///
/// # Errors
/// [`TokenError::Epoch`] unless it is a decimal number below 2^63.
pub fn parse_epoch(value: &[u8]) -> Result<Epoch, TokenError> {
    digits(value, 19).and_then(|n| i64::try_from(n).ok()).map(Epoch).ok_or(TokenError::Epoch)
}

/// Parses `X-Fencing-Instance` and decodes its percent escapes.
///
/// # Errors
/// [`TokenError::Instance`] for characters outside visible ASCII, more than 256 of them, a bad escape, or escapes
/// that are not UTF-8.
pub fn parse_instance(value: &[u8]) -> Result<String, TokenError> {
    if value.is_empty() || value.len() > 256 || !value.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Instance);
    }
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let high = rest.next().and_then(|b| char::from(*b).to_digit(16));
        let low = rest.next().and_then(|b| char::from(*b).to_digit(16));
        match (high, low) {
            (Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).map_err(|_| TokenError::Instance)?);
            }
            _ => return Err(TokenError::Instance),
        }
    }
    String::from_utf8(decoded).map_err(|_| TokenError::Instance)
}

/// Writes an instance id as `X-Fencing-Instance` has it: the inverse of [`parse_instance`].
#[must_use]
pub fn encode_instance(instance: &str) -> String {
    use fmt::Write;
    let mut encoded = String::with_capacity(instance.len());
    for byte in instance.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seq_is_ascii_digits_only() {
        assert_eq!(parse_seq(b"7", 10), Ok(Seq(7)));
        assert_eq!(parse_seq(b"0000000007", 10), Ok(Seq(7)));
        assert_eq!(parse_seq(b"9999999999", 10), Ok(Seq(9_999_999_999)));
        assert_eq!(parse_seq(b"9999999999999999999", 19), Ok(Seq(9_999_999_999_999_999_999)), "no overflow");
        for bad in ["", "+7", "-0", "0x7", "7.0", "7e0", " 7", "7,8", "00000000007", "\u{0667}", "\u{ff17}"] {
            assert!(parse_seq(bad.as_bytes(), 10).is_err(), "{bad}");
        }
    }

    #[test]
    fn session_reads_both_spellings_of_the_same_bits() {
        assert_eq!(parse_session(b"-1"), Ok(SessionId(-1)));
        assert_eq!(parse_session(b"0xffffffffffffffff"), Ok(SessionId(-1)));
        assert_eq!(parse_session(b"0XFFFFFFFFFFFFFFFF"), Ok(SessionId(-1)));
        assert_eq!(parse_session(b"-9223372036854775808"), Ok(SessionId(i64::MIN)));
        assert_eq!(parse_session(b"0x8000000000000000"), Ok(SessionId(i64::MIN)));
        assert_eq!(SessionId(i64::MIN).to_string(), "0x8000000000000000");
        assert_eq!(parse_session(b"1"), parse_session(b"0x1"));
        assert_eq!(parse_session(b"1"), parse_session(b"0x0000000000000001"));
        assert_eq!(parse_session(b"0"), Ok(SessionId(0)));
        for bad in [
            "",
            "-",
            "--1",
            "+1",
            "-0",
            "-00",
            "-07",
            "07",
            "-9223372036854775809",
            "0x-1",
            "0x+1",
            "-0x1",
            "0x",
            "0x10000000000000000",
            "9223372036854775808",
            "1 ",
            "0xg",
            "ff",
        ] {
            assert!(parse_session(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn epoch_is_a_decimal_below_two_to_the_63() {
        assert_eq!(parse_epoch(b"9223372036854775807"), Ok(Epoch(i64::MAX)));
        for bad in ["", "9223372036854775808", "-1", "0x1", "00000000000000000001"] {
            assert!(parse_epoch(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn instance_is_percent_encoded_utf8_and_round_trips() {
        assert_eq!(parse_instance(b"host-a"), Ok("host-a".into()));
        assert_eq!(parse_instance(b"a%41%E4%BD%A0"), Ok("aA你".into()));
        for id in ["host a", "100%", "你好", "tab\tline\n", "plain"] {
            assert_eq!(parse_instance(encode_instance(id).as_bytes()).as_deref(), Ok(id));
        }
        for bad in ["", "a b", "%zz", "%4", "%", "%ff", "ä", &"x".repeat(257)] {
            assert!(parse_instance(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

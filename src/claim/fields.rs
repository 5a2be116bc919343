//! The header fields that matter here, found in one pass: each look-up in a map of headers costs as much as a pass.
//!
//! Collects, and removes what ends here; it judges nothing.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::alike::is_one_field;
use super::head::connection_tokens;
use crate::key;

/// A field that may be given once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once<'a> {
    /// Its first value.
    pub value: Option<&'a HeaderValue>,
    /// It was given again.
    pub again: bool,
}

impl<'a> Once<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        self.again |= self.value.is_some();
        self.value.get_or_insert(value);
    }
}

/// The fields of one message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields<'a> {
    /// The size of all fields, in bytes.
    pub bytes: usize,
    /// `Host`.
    pub host: Once<'a>,
    /// `Transfer-Encoding`.
    pub transfer_encoding: Once<'a>,
    /// `Content-Length`.
    pub content_length: Once<'a>,
    /// `Upgrade`.
    pub upgrade: Once<'a>,
    /// `HTTP2-Settings`.
    pub http2_settings: Once<'a>,
    /// `Expect`.
    pub expect: Once<'a>,
    /// `X-Request-Id`.
    pub request_id: Once<'a>,
    /// `X-Fencing-Seq`.
    pub seq: Once<'a>,
    /// `X-Fencing-Session`.
    pub session: Once<'a>,
    /// `X-Fencing-Instance`.
    pub instance: Once<'a>,
    /// `X-Fencing-Epoch`.
    pub epoch: Once<'a>,
    /// `X-Fencing-Key`.
    pub key: Once<'a>,
    /// What some senders take for the method instead.
    pub method: Once<'a>,
    /// What some senders take for the target instead.
    pub target: Once<'a>,
    /// A field that says how the message is read is there in a spelling that only some take for it.
    pub misspelt: bool,
    /// What has to go before the message is passed on.
    pub ending: Ending,
}

/// Which fields end at this hop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    /// The known ones, as bits by their place in [`ENDING`].
    known: u16,
    /// There are others that look like the fence's own.
    pub fencing: bool,
}

/// Fields that end at this hop whether or not `Connection` names them, framing, and the token that is replaced.
pub static ENDING: [HeaderName; 14] = [
    HeaderName::from_static("connection"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("te"),
    HeaderName::from_static("trailer"),
    HeaderName::from_static("transfer-encoding"),
    HeaderName::from_static("upgrade"),
    HeaderName::from_static("content-length"),
    HeaderName::from_static("x-fencing-seq"),
    HeaderName::from_static("x-fencing-session"),
    HeaderName::from_static("x-fencing-instance"),
    HeaderName::from_static("x-fencing-epoch"),
    key::HEADER,
];

impl Ending {
    fn note(&mut self, index: u16) {
        self.known |= 1 << index;
    }

    /// The same, but the length stays: the HTTP library has held the body against it.
    #[must_use]
    pub fn keep_length(self) -> Self {
        Self { known: self.known & !(1 << 8), ..self }
    }

    /// The same, but the token's fields stay, because they are about to be replaced.
    #[must_use]
    pub fn keep_token(self) -> Self {
        Self { known: self.known & !(0b1111 << 9), ..self }
    }

    /// The same, but whatever looks like the fence's own stays: the other side is a gateway.
    #[must_use]
    pub fn keep_fence(self) -> Self {
        Self { known: self.known & !(0b1_1111 << 9), fencing: false }
    }

    /// Removes what ends here, and what `Connection` names beside it. Framing is written anew.
    pub fn strip(self, headers: &mut HeaderMap) {
        let mut others: Vec<HeaderName> = Vec::new();
        if self.fencing {
            others.extend(headers.keys().filter(|name| is_fencing(name.as_str())).cloned());
        }
        if self.has_connection() {
            // The two that nearly all of them say name nothing that is not known to end here.
            let says_more = |token: &&str| {
                !token.eq_ignore_ascii_case("keep-alive") && !token.eq_ignore_ascii_case("close")
            };
            let named = connection_tokens(headers).filter_map(Result::ok).filter(says_more);
            others.extend(named.filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok()));
        }
        for name in self.names() {
            headers.remove(name);
        }
        for name in others {
            headers.remove(name);
        }
    }

    /// Whether there is a `Connection`.
    #[must_use]
    pub fn has_connection(self) -> bool {
        self.known & 1 != 0
    }

    /// The known ones that are there.
    fn names(self) -> impl Iterator<Item = &'static HeaderName> {
        ENDING
            .iter()
            .enumerate()
            .filter(move |(index, _)| self.known & (1 << index) != 0)
            .map(|(_, name)| name)
    }
}

impl<'a> Fields<'a> {
    /// What ends here; a length that is told once, by nothing else and in plain digits only stays. The HTTP library also takes
    /// an answer's `2, 2` for one, and some take `010` for eight.
    #[must_use]
    pub fn ending(&self) -> Ending {
        let alone = !self.content_length.again && self.transfer_encoding.value.is_none();
        let plain = |value: &HeaderValue| {
            let digits = value.as_bytes();
            digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || !digits.starts_with(b"0"))
        };
        let stays = alone && self.content_length.value.is_none_or(plain);
        if stays { self.ending.keep_length() } else { self.ending }
    }

    /// The length that the head announces.
    #[must_use]
    pub fn announced(&self) -> Option<u64> {
        self.content_length.value?.to_str().ok()?.parse().ok()
    }

    /// Looks through all fields once.
    #[must_use]
    pub fn of(headers: &'a HeaderMap) -> Self {
        let mut fields = Self::default();
        for (name, value) in headers {
            let name = name.as_str();
            fields.bytes += name.len() + value.len() + 4;
            match name {
                "connection" => fields.ending.note(0),
                "keep-alive" => fields.ending.note(1),
                "proxy-connection" => fields.ending.note(2),
                "http2-settings" => {
                    fields.ending.note(3);
                    fields.http2_settings.add(value);
                }
                "te" => fields.ending.note(4),
                "trailer" => fields.ending.note(5),
                "transfer-encoding" => {
                    fields.ending.note(6);
                    fields.transfer_encoding.add(value);
                }
                "upgrade" => {
                    fields.ending.note(7);
                    fields.upgrade.add(value);
                }
                "content-length" => {
                    fields.ending.note(8);
                    fields.content_length.add(value);
                }
                "x-fencing-seq" => {
                    fields.ending.note(9);
                    fields.seq.add(value);
                }
                "x-fencing-session" => {
                    fields.ending.note(10);
                    fields.session.add(value);
                }
                "x-fencing-instance" => {
                    fields.ending.note(11);
                    fields.instance.add(value);
                }
                "x-fencing-epoch" => {
                    fields.ending.note(12);
                    fields.epoch.add(value);
                }
                "x-fencing-key" => {
                    fields.ending.note(13);
                    fields.key.add(value);
                }
                "host" => fields.host.add(value),
                "expect" => fields.expect.add(value),
                "x-request-id" => fields.request_id.add(value),
                "x-http-method-override" | "x-http-method" | "x-method-override" => fields.method.add(value),
                "x-original-url" | "x-rewrite-url" => fields.target.add(value),
                other => {
                    fields.ending.fencing |= is_fencing(other);
                    fields.misspelt |= is_misspelt(other);
                }
            }
        }
        fields
    }
}

/// Whether a field belongs to the fence, in the right spelling or one that some servers take for it.
#[must_use]
pub fn is_fencing(name: &str) -> bool {
    const PREFIX: &str = "x-fencing-";
    name.get(..PREFIX.len()).is_some_and(|start| is_one_field(start, PREFIX))
}

/// Fields that say where a message ends, what it is, or where it goes.
const DECIDING: [&str; 10] = [
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

fn is_misspelt(name: &str) -> bool {
    let odd = |byte: u8| !byte.is_ascii_alphanumeric() && byte != b'-';
    name.bytes().any(odd) && DECIDING.iter().any(|known| is_one_field(name, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_ends_here_is_noted_at_its_place() {
        for name in &ENDING {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("1"));
            assert_eq!(Fields::of(&headers).ending.names().collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn a_field_that_is_given_again_is_noted() {
        let mut headers = HeaderMap::new();
        headers.append("host", HeaderValue::from_static("a"));
        assert!(!Fields::of(&headers).host.again);
        headers.append("host", HeaderValue::from_static("b"));
        let fields = Fields::of(&headers);
        assert!(fields.host.again);
        assert_eq!(fields.host.value.unwrap(), "a");
    }

    #[test]
    fn only_a_length_in_plain_digits_stays() {
        for (length, stays) in [
            ("2", true),
            ("0", true),
            ("010", false),
            ("00", false),
            ("2, 2", false),
            ("+2", false),
            ("2 ", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("content-length", HeaderValue::from_static(length));
            assert_eq!(Fields::of(&headers).ending().names().count() == 0, stays, "{length}");
        }
    }

    #[test]
    fn fields_that_decide_are_known_in_every_spelling() {
        for (name, misspelt) in [
            ("content_type", true),
            ("content.length", true),
            ("transfer_encoding", true),
            ("x_original-url", true),
            ("content-type", false),
            ("x_device_id", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
            assert_eq!(Fields::of(&headers).misspelt, misspelt, "{name}");
        }
    }

    #[test]
    fn fencing_fields_are_known_in_every_spelling() {
        for name in ["x-fencing-seq", "X_Fencing_Seq", "x-fencing_anything", "x.fencing~seq"] {
            assert!(is_fencing(name), "{name}");
        }
        for name in ["x-fencing", "x-fenced-seq", "fencing-seq", "é-fencing-é"] {
            assert!(!is_fencing(name), "{name}");
        }
    }
}

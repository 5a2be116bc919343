//! Requests to be tried: good ones for each place an account can be in, and hostile changes to them.
//!
//! Everything comes from one seed, so that a case can be made again.

use fastrand::Rng;

/// A request before it is bytes.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) method: String,
    pub(crate) target: Vec<u8>,
    pub(crate) version: &'static str,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    /// How its length is told, over HTTP/1.
    pub(crate) framing: Framing,
    /// Over HTTP/2.
    pub(crate) second: bool,
    /// Nothing was changed, so that another request may follow on its connection.
    pub(crate) clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length,
    Chunked,
}

pub(crate) const ACCOUNTS: [&str; 2] = ["wxid_a", "wxid_b"];

/// Bytes that parsers differ about.
const ODD: [&str; 40] = [
    "%2F", "%2f", "%5C", "%00", "%2e", "%2E%2e", "%252F", "..", ".", "//", "/", "\\", ";x", ";", "?", "#",
    "&", "=", "%", "%4", "+", " ", "\t", "\r", "\n", "\r\n", "\0", "\u{7f}", "\u{e4}", "\u{ff11}", ",", "\"",
    "'", "{", "}", "[", "]", "a", "A", ":",
];

/// What some servers take for `account` in a query or a form.
const NAMES: [&str; 15] = [
    "account%00",
    "acc%6funt",
    "account[]",
    "account%5b%5d",
    "Account",
    "+account",
    "account.",
    "acc%u006funt",
    "!account",
    "_account",
    "acc-ount",
    "acc%ffount",
    "%ef%bb%bfaccount",
    "%22account%22",
    "[account]",
];

/// The same in JSON.
const KEYS: [&str; 8] = [
    "account",
    "Account",
    "acc_ount",
    "acc-ount ",
    "acco\\u0075nt",
    "account\\u0000x",
    "acc\u{200b}ount",
    "_account",
];

/// The same of a part.
const PARTS: [&str; 7] = [
    "name=\"account\"",
    "name='account'",
    "name=Account",
    "name=\"=?utf-8?B?YWNjb3VudA==?=\"",
    "name=\"account[]\"",
    "name=\"acc_ount\"",
    "name*=utf-8''account",
];

impl Case {
    /// Case number `number` of a seed.
    pub(crate) fn make(seed: u64, number: u64, token: &[(String, String)]) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let second = rng.u8(..5) == 0;
        let mut case = Self::good(&mut rng, second, token);
        // Long and random, so that no change makes one of another.
        case.id = format!("c{number}-{:016x}", rng.u64(..));
        case.fields.push((b"x-case".to_vec(), case.id.clone().into_bytes()));
        for _ in 0..[0, 1, 1, 1, 2, 3][rng.usize(..6)] {
            case.clean = false;
            case.change(&mut rng);
        }
        case
    }

    fn good(rng: &mut Rng, second: bool, token: &[(String, String)]) -> Self {
        let account = ACCOUNTS[rng.usize(..2)];
        let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut add = |name: &str, value: &str| fields.push((name.into(), value.into()));
        if !second {
            add("host", "h");
        }
        token.iter().for_each(|(name, value)| add(name, value));
        let mut body = String::new();
        let target = match rng.u8(..11) {
            8 => {
                add("x-account", account);
                "/g/other".to_owned()
            }
            9 => {
                let other = ACCOUNTS[rng.usize(..2)];
                add("x-account", other);
                format!("/g/send/{account}")
            }
            10 => {
                add("content-type", "application/x-www-form-urlencoded");
                let other = ACCOUNTS[rng.usize(..2)];
                body = format!("{{\"x\":\"&account={account}&\",\"data\":{{\"account\":\"{other}\"}}}}");
                "/l".to_owned()
            }
            0 => format!("/wx/{account}/send"),
            1 => format!("/q?a=1&account={account}&b=2"),
            2 => {
                add("x-account", account);
                "/h".to_owned()
            }
            3 => {
                add("authorization", &format!("Bearer {account}"));
                "/b".to_owned()
            }
            4 => {
                add("content-type", "application/json");
                body = format!(
                    "{{\"x\":[1,{{\"account\":\"no\"}}],\"data\":{{\"account\":\"{account}\",\"y\":\"z\"}}}}"
                );
                "/j".to_owned()
            }
            5 => {
                add("content-type", "application/x-www-form-urlencoded");
                body = format!("a=b+c&account={account}&d=%41");
                "/f".to_owned()
            }
            6 => {
                add("content-type", "multipart/form-data; boundary=b-1");
                body = format!(
                    "--b-1\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\nx\r\n--b-1\r\n\
                     Content-Disposition: form-data; name=\"account\"\r\n\r\n{account}\r\n--b-1--\r\n"
                );
                "/m".to_owned()
            }
            _ => format!("/bot{account}/send"),
        };
        let framing = match (body.is_empty(), rng.bool()) {
            (true, _) => Framing::None,
            (false, true) => Framing::Length,
            (false, false) => Framing::Chunked,
        };
        let method = if body.is_empty() && rng.bool() { "GET" } else { "POST" }.to_owned();
        let version = if second { "HTTP/2" } else { "HTTP/1.1" };
        Self {
            id: String::new(),
            method,
            target: target.into(),
            version,
            fields,
            body: body.into(),
            framing,
            second,
            clean: true,
        }
    }

    fn change(&mut self, rng: &mut Rng) {
        let other = ACCOUNTS[rng.usize(..2)];
        let odd = ODD[rng.usize(..ODD.len())];
        match rng.u8(..25) {
            0 | 1 => insert(rng, &mut self.target, odd.as_bytes()),
            2 => {
                let more =
                    format!("{}account={other}", ["?", "&", ";", "?x=1&", "&ACCOUNT=1&"][rng.usize(..5)]);
                self.target.extend_from_slice(more.as_bytes());
            }
            3 => {
                let more = format!("&{}={other}", NAMES[rng.usize(..NAMES.len())]);
                let place = if self.body.is_empty() { &mut self.target } else { &mut self.body };
                place.extend_from_slice(more.as_bytes());
            }
            4 => escape_some(rng, &mut self.target),
            5 => {
                let mut absolute =
                    format!("http://{}", ["h", "other", "h@other", "h:80", ""][rng.usize(..5)]).into_bytes();
                absolute.append(&mut self.target);
                self.target = absolute;
            }
            6 => {
                let prefix = [
                    "/wx/wxid_b/..",
                    "/wx/wxid_b;",
                    "/wx/wxid_b/..;",
                    "/;",
                    "//wx",
                    "/.",
                    "/wx/wxid_a/%2e%2e",
                ][rng.usize(..7)];
                let mut target = prefix.as_bytes().to_vec();
                target.append(&mut self.target);
                self.target = target;
            }
            7 | 8 => {
                let (name, value) = self.odd_field(rng, other);
                let at = rng.usize(..=self.fields.len());
                self.fields.insert(at, (name.into(), value.into()));
            }
            9 => {
                let at = rng.usize(..self.fields.len());
                let (name, value) = &mut self.fields[at];
                let place = if rng.bool() { name } else { value };
                insert(rng, place, odd.as_bytes());
            }
            10 => {
                let at = rng.usize(..self.fields.len());
                let (name, value) = self.fields[at].clone();
                let name = match rng.u8(..4) {
                    0 => name.iter().map(|byte| if *byte == b'-' { b'_' } else { *byte }).collect(),
                    1 => name.to_ascii_uppercase(),
                    _ => name,
                };
                self.fields.push((name, if rng.bool() { value } else { other.into() }));
            }
            11 => {
                let at = rng.usize(..self.fields.len());
                self.fields.remove(at);
            }
            12 | 13 => insert(rng, &mut self.body, odd.as_bytes()),
            14 => {
                let pieces = [
                    format!(",\"account\":\"{other}\""),
                    format!(",\"data\":{{\"account\":\"{other}\"}}"),
                    format!("\"Account\":\"{other}\","),
                    format!("\"acco\\u0075nt\":\"{other}\","),
                    format!("\r\n--b-1\r\nContent-Disposition: form-data; name=\"account\"\r\n\r\n{other}"),
                    format!("\n--b-1\nContent-Disposition: form-data; name=account\n\n{other}"),
                    format!("&account={other}&"),
                    format!(";account={other}"),
                    "\u{feff}".to_owned(),
                    "\r\n--b-1--\r\n".to_owned(),
                    "; filename=\"x\"".to_owned(),
                    "[".repeat(80),
                ];
                let piece = &pieces[rng.usize(..pieces.len())];
                insert(rng, &mut self.body, piece.as_bytes());
            }
            15 => escape_some(rng, &mut self.body),
            19 => {
                let more = format!("?{}={other}", NAMES[rng.usize(..NAMES.len())]);
                self.target.extend_from_slice(more.as_bytes());
            }
            20 => {
                let more = format!("{}={other}&", NAMES[rng.usize(..NAMES.len())]);
                self.body.splice(0..0, more.into_bytes());
            }
            21 => {
                let place = self.body.iter().rposition(|byte| *byte == b'{').map_or(0, |at| at + 1);
                let more = format!("\"{}\":\"{other}\",", KEYS[rng.usize(..KEYS.len())]);
                self.body.splice(place..place, more.into_bytes());
            }
            22 => {
                let name = PARTS[rng.usize(..PARTS.len())];
                let more = format!("--b-1\r\nContent-Disposition: form-data; {name}\r\n\r\n{other}\r\n");
                self.body.splice(0..0, more.into_bytes());
            }
            23 => {
                let at = rng.usize(..self.target.len().max(1));
                if let Some(byte) = self.target.get_mut(at) {
                    *byte = byte.to_ascii_uppercase();
                }
            }
            24 => self.target.extend_from_slice([&b"/"[..], b";x", b"/;x", b"%20"][rng.usize(..4)]),
            16 => {
                self.framing = [Framing::None, Framing::Length, Framing::Chunked][rng.usize(..3)];
            }
            17 if !self.second => {
                self.version = ["HTTP/1.0", "HTTP/1.1", "HTTP/1.2", "HTTP/0.9", "http/1.1"][rng.usize(..5)]
            }
            18 => {
                self.method = ["GET", "HEAD", "PUT", "post", "TRACE", "CONNECT", "P\u{d6}ST", ""]
                    [rng.usize(..8)]
                .to_owned()
            }
            _ => {
                let keep = rng.usize(..=self.body.len());
                self.body.truncate(keep);
            }
        }
    }

    fn odd_field(&self, rng: &mut Rng, other: &str) -> (&'static str, String) {
        let length = self.body.len().to_string();
        let kinds = [
            ("x-account", other.to_owned()),
            ("X_Account", other.to_owned()),
            ("x-fencing-account", other.to_owned()),
            ("X_Fencing_Account", other.to_owned()),
            ("x-fencing-epoch", "1".to_owned()),
            ("authorization", format!("bearer {other}")),
            ("host", "h".to_owned()),
            ("host", "other".to_owned()),
            ("content-length", length.clone()),
            ("content-length", format!("+{length}")),
            ("content-length", "1".to_owned()),
            ("transfer-encoding", "chunked".to_owned()),
            ("transfer-encoding", "gzip, chunked".to_owned()),
            ("Transfer-Encoding ", "chunked".to_owned()),
            ("connection", "x-account, x-fencing-seq".to_owned()),
            ("connection", "close".to_owned()),
            ("connection", "host, content-length".to_owned()),
            ("expect", "100-continue".to_owned()),
            ("upgrade", "h2c".to_owned()),
            ("te", "trailers".to_owned()),
            ("content-encoding", "gzip".to_owned()),
            ("content-type", "application/x-www-form-urlencoded".to_owned()),
            ("content-type", "multipart/form-data; boundary=\"b-1\"; boundary=x".to_owned()),
            ("content-type", "application/json; charset=utf-16".to_owned()),
            (":path", format!("/wx/{other}/send")),
            (":authority", "other".to_owned()),
            ("x-http-method-override", "PUT".to_owned()),
            ("connection", "content-type".to_owned()),
            ("Content_Type", "application/json".to_owned()),
            ("content.length", "1".to_owned()),
            ("Transfer_Encoding", "chunked".to_owned()),
            ("X.Account", other.to_owned()),
            ("x~fencing~account", other.to_owned()),
            ("x-original-url", format!("/wx/{other}/send")),
            ("X-Rewrite-URL", "/".to_owned()),
        ];
        kinds[rng.usize(..kinds.len())].clone()
    }

    /// As it goes over an HTTP/1 connection, with a hidden request behind it now and then.
    pub(crate) fn to_wire(&self, token: &[(String, String)]) -> Vec<u8> {
        let mut rng =
            Rng::with_seed(self.id.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte)));
        let mut wire = format!("{} ", self.method).into_bytes();
        wire.extend_from_slice(&self.target);
        wire.extend_from_slice(format!(" {}\r\n", self.version).as_bytes());
        for (name, value) in &self.fields {
            wire.extend_from_slice(name);
            wire.extend_from_slice(b": ");
            wire.extend_from_slice(value);
            wire.extend_from_slice(b"\r\n");
        }
        match self.framing {
            Framing::None => wire.extend_from_slice(b"\r\n"),
            Framing::Length => {
                wire.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
                wire.extend_from_slice(&self.body);
            }
            Framing::Chunked => {
                wire.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in self.body.chunks(1 + rng.usize(..40)) {
                    let extension = ["", ";x", ";x=\"y\""][rng.usize(..3)];
                    wire.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                    wire.extend_from_slice(chunk);
                    wire.extend_from_slice(b"\r\n");
                }
                wire.extend_from_slice(b"0\r\n\r\n");
            }
        }
        if !self.clean && rng.u8(..8) == 0 {
            let at = rng.usize(..wire.len());
            match rng.u8(..4) {
                0 => wire[at] = rng.u8(..),
                1 => drop(wire.remove(at)),
                2 => wire.insert(at, [b'\r', b'\n', 0, b' ', b'\t', b':'][rng.usize(..6)]),
                _ => {
                    let fields: String =
                        token.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                    let hidden = format!(
                        "GET /wx/wxid_b/hidden HTTP/1.1\r\nHost: h\r\nX-Case: hidden\r\n{fields}\r\n"
                    );
                    wire.splice(at..at, hidden.into_bytes());
                }
            }
        }
        wire
    }
}

fn insert(rng: &mut Rng, into: &mut Vec<u8>, piece: &[u8]) {
    let at = rng.usize(..=into.len());
    into.splice(at..at, piece.iter().copied());
}

/// Percent-encodes, or encodes for JSON, some of the letters.
fn escape_some(rng: &mut Rng, text: &mut Vec<u8>) {
    let json = text.first() == Some(&b'{');
    let mut out = Vec::new();
    for byte in text.drain(..) {
        match (byte.is_ascii_alphabetic() && rng.u8(..6) == 0, json) {
            (true, true) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            (true, false) => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            (false, _) => out.push(byte),
        }
    }
    *text = out;
}

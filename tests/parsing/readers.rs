//! How senders read the account of a request: several readers for each place, strict and lenient ones.
//!
//! Nothing of the gateway's own parsing is used here. The first reader of a place is the one that has to find the account;
//! the others may find it, or nothing, but never another one.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// The fields of a head, as they came.
pub(crate) type Fields = [(String, Vec<u8>)];

/// What each reader finds.
pub(crate) fn accounts(target: &str, fields: &Fields, body: &[u8]) -> Vec<Option<String>> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut segments = path.split('/').skip(1);
    match segments.next().unwrap_or_default() {
        "wx" => path_readers(path, |path| path.split('/').nth(2).map(str::to_owned)),
        "q" => field_readers(query.as_bytes()),
        "h" => header_readers(fields, "x-account"),
        "b" => header_readers(fields, "authorization")
            .into_iter()
            .map(|found| found.map(|value| value.rsplit(' ').next().unwrap_or_default().to_owned()))
            .collect(),
        "j" => json_readers(body),
        "f" => field_readers(body).into_iter().chain(merged(query)).collect(),
        "m" => part_readers(body, fields).into_iter().chain(merged(query)).collect(),
        // Told by its type what a body is, or by looking.
        "l" => match fields.iter().find(|(name, _)| name == "content-type") {
            Some((_, kind)) if kind.to_ascii_lowercase().starts_with(b"application/x-www-form") => {
                field_readers(body)
            }
            Some(_) | None => json_readers(body),
        },
        "g" => guarded_readers(path, fields),
        first if first.starts_with("bot") => path_readers(path, |path| {
            path.split('/').nth(1).and_then(|segment| segment.strip_prefix("bot")).map(str::to_owned)
        }),
        _ => vec![None],
    }
}

/// What those find first that make one list of a query's fields and a form's.
fn merged(query: &str) -> Vec<Option<String>> {
    field_readers(query.as_bytes())
}

/// Below `/g`, `/g/send/ACCOUNT` has its account in the path to whoever dispatches it so, everything else in a header.
fn guarded_readers(path: &str, fields: &Fields) -> Vec<Option<String>> {
    let send = |path: &str| {
        let segments: Vec<&str> = path.split('/').collect();
        matches!(segments.as_slice(), ["", "g", "send", account] if !account.is_empty())
            .then(|| segments[3].to_owned())
    };
    let header = header_readers(fields, "x-account").into_iter().next().flatten();
    let exact = match send(path) {
        Some(account) => Some(text(percent(account.as_bytes(), false))),
        None => header.clone(),
    };
    let tidy: Vec<String> = path
        .split('/')
        .map(|segment| {
            text(percent(segment.as_bytes(), false)).split(';').next().unwrap_or_default().to_lowercase()
        })
        .collect();
    let tidy = tidy.join("/");
    let loose = send(tidy.trim_end_matches('/')).or(header);
    vec![exact, loose]
}

/// Letters and digits only, in lower case, as of names that are compared with little care. Nobody leaves a separator out.
fn bare(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || *c == ';').flat_map(char::to_lowercase).collect()
}

/// The same with the escapes of old servers.
fn old_percent(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let mut pieces = text.split("%u");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let unit = piece.get(..4).and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        match unit {
            Some(c) => out.extend([c.to_string(), piece[4..].to_owned()]),
            None => out.extend(["%u", piece]),
        }
    }
    out.into_bytes()
}

fn percent(text: &[u8], plus: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let hex = text.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.filter(|_| text[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if plus && text[at] == b'+' { b' ' } else { text[at] });
                at += 1;
            }
        }
    }
    out
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn path_readers(path: &str, pick: impl Fn(&str) -> Option<String>) -> Vec<Option<String>> {
    let decode = |part: String| text(percent(part.as_bytes(), false));
    // Decodes first, and then takes slashes and dots for what they are; with backslashes, without empty segments.
    let mut tidy: Vec<String> = Vec::new();
    for segment in decode(path.to_owned()).replace('\\', "/").split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(tidy.pop()),
            segment => tidy.push(segment.to_owned()),
        }
    }
    let tidy = format!("/{}", tidy.join("/"));
    let cut = decode(path.to_owned()).split('\0').next().unwrap_or_default().to_owned();
    vec![pick(path).map(decode), pick(&decode(path.to_owned())), pick(&tidy), pick(&cut)]
}

fn field_readers(raw: &[u8]) -> Vec<Option<String>> {
    let mut readers = Vec::new();
    for separators in [&b"&"[..], &b"&;"[..]] {
        for lenient in [false, true] {
            let mut found = Vec::new();
            for piece in raw.split(|byte| separators.contains(byte)) {
                let equals = piece.iter().position(|byte| *byte == b'=').unwrap_or(piece.len());
                let name = text(percent(&piece[..equals], true));
                let value = text(percent(piece.get(equals + 1..).unwrap_or_default(), true));
                let old = text(percent(&old_percent(&piece[..equals]), true));
                let short = old.split(['[', '\0']).next().unwrap_or_default();
                if name == "account" || (lenient && [bare(short), bare(&old)].contains(&"account".to_owned()))
                {
                    found.push(value);
                }
            }
            readers.push(found.first().cloned());
            readers.push(found.last().cloned());
        }
    }
    readers
}

fn header_readers(fields: &Fields, name: &str) -> Vec<Option<String>> {
    let all = |alike: bool| {
        let fits = move |have: &str| {
            have == name || (alike && have.replace(|c: char| !c.is_alphanumeric(), "-") == name)
        };
        fields
            .iter()
            .filter(move |(have, _)| fits(have))
            .map(|(_, value)| text(value.clone()))
            .collect::<Vec<_>>()
    };
    let (exact, alike) = (all(false), all(true));
    let joined = (!exact.is_empty()).then(|| exact.join(", "));
    vec![joined, exact.first().cloned(), exact.last().cloned(), alike.first().cloned(), alike.last().cloned()]
}

/// JSON with every key that it has, in order.
enum Json {
    Object(Vec<(String, Json)>),
    Text(String),
    Other,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Json;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Json::Object(pairs))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
                while seq.next_element::<Json>()?.is_some() {}
                Ok(Json::Other)
            }
            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json::Text(text.to_owned()))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Every value at `steps`, in order; `same` says which keys are a step.
fn walk<'j>(json: &'j Json, steps: &[&str], same: &dyn Fn(&str, &str) -> bool, found: &mut Vec<&'j Json>) {
    let Some((step, further)) = steps.split_first() else { return found.push(json) };
    if let Json::Object(pairs) = json {
        pairs
            .iter()
            .filter(|(key, _)| same(key, step))
            .for_each(|(_, value)| walk(value, further, same, found));
    }
}

fn json_readers(body: &[u8]) -> Vec<Option<String>> {
    // Some take the first document and leave the rest, some know the byte order mark.
    let plain = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let first = serde_json::Deserializer::from_slice(plain).into_iter::<Json>().next();
    let lenient = first.and_then(Result::ok);
    let strict: Option<Json> = serde_json::from_slice(body).ok();
    let mut readers = Vec::new();
    for (json, folds) in [(&strict, false), (&lenient, false), (&lenient, true)] {
        let same = move |key: &str, step: &str| {
            key == step
                || (folds && (bare(key) == step || bare(key.split('\0').next().unwrap_or_default()) == step))
        };
        let mut found = Vec::new();
        json.iter().for_each(|json| walk(json, &["data", "account"], &same, &mut found));
        let shown = |json: Option<&&Json>| match json? {
            Json::Text(text) => Some(text.clone()),
            Json::Object(_) | Json::Other => None,
        };
        readers.push(shown(found.first()));
        readers.push(shown(found.last()));
    }
    readers
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

/// The parts between delimiters: their heads and their contents.
fn split_parts(body: &[u8], delimiter: &[u8], line: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut parts = Vec::new();
    let mut rest = body;
    while let Some(at) = find(rest, delimiter) {
        rest = &rest[at + delimiter.len()..];
        if rest.starts_with(b"--") {
            break;
        }
        let end = find(rest, delimiter).unwrap_or(rest.len());
        let piece =
            rest[..end].strip_suffix(b"\r\n").or(rest[..end].strip_suffix(b"\n")).unwrap_or(&rest[..end]);
        let empty = [line, line].concat();
        if let Some(head) = find(piece, &empty) {
            parts.push((text(piece[..head].to_vec()), piece[head + empty.len()..].to_vec()));
        }
    }
    parts
}

fn part_readers(body: &[u8], fields: &Fields) -> Vec<Option<String>> {
    let kind = fields.iter().find(|(name, _)| name == "content-type").map(|(_, value)| text(value.clone()));
    let kind = kind.unwrap_or_default();
    let boundary = kind.split("boundary=").nth(1).unwrap_or_default();
    let boundary = boundary.split(';').next().unwrap_or_default().trim().trim_matches('"');
    let delimiter = format!("--{boundary}").into_bytes();
    let strict: fn(&str) -> bool = |head| {
        let named = |piece: &str| piece.trim() == "name=\"account\"";
        head.lines()
            .any(|line| line.to_lowercase().starts_with("content-disposition:") && line.split(';').any(named))
    };
    let lenient: fn(&str) -> bool = |head| {
        let head =
            head.to_lowercase().replace([' ', '\t'], "").replace("=?utf-8?b?ywnjb3vuda==?=", "account");
        ["name=account", "name=\"account\"", "name='account'", "name=\"account[", "name*=utf-8''account"]
            .iter()
            .any(|name| head.contains(name) && !head.contains(&format!("file{name}")))
    };
    let mut readers = Vec::new();
    for (line, names) in [(&b"\r\n"[..], strict), (&b"\r\n"[..], lenient), (&b"\n"[..], lenient)] {
        let parts = split_parts(body, &delimiter, line);
        let mut found =
            parts.iter().filter(|(head, _)| names(head)).map(|(_, content)| text(content.clone()));
        let first = found.next();
        readers.push(first.clone());
        readers.push(found.next_back().or(first));
    }
    readers
}

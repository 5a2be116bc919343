//! Properties of everything that is parsed before a verdict: whatever comes, nothing panics, pieces do not matter, and what is
//! found is what was written. Bounded runs; `PROPTEST_CASES` makes them longer.
//!
//! Inputs that failed once are tests of their own, at the end.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

use fencegate::claim::body::Kind;
use fencegate::claim::query::{self, Naming};
use fencegate::claim::{body, form, head, json, multipart};
use fencegate::config::{Pointer, Route, Template, parse};
use fencegate::fence::name::AccountName;
use fencegate::fence::token::{encode_instance, parse_epoch, parse_instance, parse_seq, parse_session};
use http::HeaderMap;
use proptest::prelude::*;

const CASES: u32 = 2000;

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Text that is made of what parsers look for.
fn pieces(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => proptest::sample::select(words).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[a-z0-9]{1,6}",
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// The same bytes in pieces of one size.
fn form_of(body: &[u8], size: usize) -> Option<Vec<Option<String>>> {
    let mut scanner = form::Scanner::new(vec!["key".to_owned(), "b".to_owned()]);
    body.chunks(size).try_for_each(|piece| scanner.feed(piece)).ok()?;
    scanner.end().ok()?;
    scanner.values().ok()
}

fn parts_of(body: &[u8], size: usize) -> Option<Vec<Option<String>>> {
    let mut scanner = multipart::Scanner::new("b", vec!["key".to_owned()]);
    body.chunks(size).try_for_each(|piece| scanner.feed(piece)).ok()?;
    scanner.end().ok()?;
    scanner.values().ok()
}

fn route(account: &str) -> Route {
    let text = format!(
        "[zookeeper]\nconnect = \"a:1\"\n[[route]]\npath = \"/{{x}}\"\naccount = \"{account}\"\nupstream = \"http://a\"\n"
    );
    parse("gateway.toml", &text, []).unwrap().routes.remove(0)
}

const FORM: &[&str] = &["key", "=", "&", ";", "%", "6b", "%6b", "+", "[", "]", "KEY", "%00", "b", "key=a&"];
const PARTS: &[&str] = &[
    "--b",
    "\r\n",
    "--",
    "\r",
    "\n",
    "Content-Disposition: form-data; name=\"key\"\r\n\r\n",
    "a",
    ":",
    ";",
    "\"",
    "name=",
    "Content-Disposition: form-data",
    "\r\n--b\r\n",
    "\r\n--b--",
    "key",
    "filename=\"x\"",
    " ",
];
const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\"key\"",
    "\"key\":\"a\"",
    "\\u006b",
    "\\ud83d",
    "\\ude00",
    "1",
    "-0",
    "1e9",
    ".",
    "true",
    "null",
    " ",
    "{\"key\":",
    "\"KEY\"",
    "\0",
];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn tokens_are_read_back_or_refused(text in "[-+0-9a-fA-FxX. \u{661}]{0,24}", seq: u32, session: i64, epoch in 0_i64..) {
        let bytes = text.as_bytes();
        if let Ok(seq) = parse_seq(bytes, 10) {
            prop_assert!(bytes.len() <= 10 && bytes.iter().all(u8::is_ascii_digit));
            prop_assert_eq!(text.parse::<u64>().unwrap(), seq.0);
        }
        if let Ok(session) = parse_session(bytes) {
            let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"));
            let value = match digits {
                Some(digits) => i128::from(u64::from_str_radix(digits, 16).unwrap().cast_signed()),
                None => text.parse::<i128>().unwrap(),
            };
            prop_assert_eq!(value, i128::from(session.0));
            prop_assert!(!text.starts_with('+'));
        }
        let _ = parse_epoch(bytes);
        prop_assert_eq!(parse_seq(format!("{seq:010}").as_bytes(), 10).unwrap().0, u64::from(seq));
        prop_assert_eq!(parse_session(session.to_string().as_bytes()).unwrap().0, session);
        prop_assert_eq!(parse_session(format!("0x{session:x}").as_bytes()).unwrap().0, session);
        prop_assert_eq!(parse_epoch(epoch.to_string().as_bytes()).unwrap().0, epoch);
    }

    #[test]
    fn instances_are_encoded_and_read_back(instance in "\\PC{1,60}", raw: Vec<u8>) {
        let encoded = encode_instance(&instance);
        if encoded.len() <= 256 {
            prop_assert_eq!(parse_instance(encoded.as_bytes()).unwrap(), instance);
        }
        let _ = parse_instance(&raw);
    }

    #[test]
    fn an_account_is_what_its_alphabet_says(name in "\\PC{0,140}") {
        let fits = !name.is_empty() && name.len() <= 128 && name != "." && name != ".."
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._@:~+-".contains(c));
        prop_assert_eq!(AccountName::allows(&name), fits);
    }

    #[test]
    fn a_path_that_is_accepted_has_no_segment_that_some_would_drop(
        path in pieces(&["/", ".", "..", "%2e", "%2F", "%", ";", "\\", "a", "%41", "//", "%00", "/wx/", "bot", "?", "#"]),
    ) {
        let target = format!("/{path}");
        let Ok(request) = http::Request::builder().uri(&target).header("host", "h").body(()) else { return Ok(()) };
        let (parts, ()) = request.into_parts();
        let fields = fencegate::claim::fields::Fields::of(&parts.headers);
        if let Ok(head) = head::check(&parts, &fields, 64 * 1024) {
            let mut segments: Vec<_> = head.path.split('/').skip(1).collect();
            if segments.last() == Some(&"") {
                segments.pop();
            }
            for segment in segments {
                let bare = segment.split(';').next().unwrap();
                prop_assert!(!["", ".", ".."].contains(&bare), "{}", head.path);
                let decoded = query::decode(segment, false);
                prop_assert!(decoded.is_err() || !decoded.unwrap().contains(['/', '\\', '\0']), "{}", head.path);
            }
            for template in ["/wx/{account}/{*rest}", "/bot{token}/{x}", "/{*all}", "/{a}5/b{c}d"] {
                let template = Template::parse(template).unwrap();
                if let Some(captures) = template.matches(head.path) {
                    let whole = |name| captures.get(name).is_some_and(|text| !text.is_empty() && text != "..");
                    prop_assert!(template.names().all(whole), "{}", head.path);
                }
            }
        }
    }

    #[test]
    fn templates_and_pointers_never_panic_and_pointers_are_shown_as_written(text in pieces(&["/", "{", "}", "*", "~0", "~1", "~", "a", "%41"])) {
        let _ = Template::parse(&text);
        if let Ok(pointer) = Pointer::parse(&text) {
            prop_assert_eq!(pointer.to_string(), text);
        }
    }

    #[test]
    fn a_query_says_the_same_as_a_form_of_the_same_bytes(text in pieces(FORM)) {
        let text: String = text.chars().filter(char::is_ascii).collect();
        let found = query::value(&text, "key").ok().map(|value| value.map(std::borrow::Cow::into_owned));
        let mut scanner = form::Scanner::new(vec!["key".to_owned()]);
        let form = scanner.feed(text.as_bytes()).and_then(|()| scanner.end()).and_then(|()| scanner.values());
        prop_assert_eq!(found, form.ok().map(|mut values| values.remove(0)));
    }

    #[test]
    fn a_form_is_the_same_in_pieces_of_any_size(body in pieces(FORM), raw: Vec<u8>) {
        for body in [body.as_bytes(), &raw] {
            let whole = form_of(body, usize::MAX);
            for size in [1, 2, 3, 7] {
                prop_assert_eq!(form_of(body, size), whole.clone());
            }
        }
    }

    #[test]
    fn a_form_field_is_read_back(value in "[ -~]{0,40}", before in "[a-z]{1,5}", after in "[a-z]{0,5}") {
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let body = format!("x{before}=1&key={escaped}&y{after}");
        prop_assert_eq!(form_of(body.as_bytes(), 5).unwrap()[0].clone(), Some(value));
    }

    #[test]
    fn a_multipart_body_is_the_same_in_pieces_of_any_size(body in pieces(PARTS), raw: Vec<u8>) {
        for body in [body.as_bytes(), &raw, format!("--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n{body}\r\n--b--").as_bytes()] {
            let whole = parts_of(body, usize::MAX);
            for size in [1, 2, 3, 7] {
                prop_assert_eq!(parts_of(body, size), whole.clone());
            }
        }
    }

    #[test]
    fn a_part_is_read_back(value: Vec<u8>, before: Vec<u8>) {
        let text = String::from_utf8_lossy(&value).into_owned();
        prop_assume!(!text.contains("--b") && !before.windows(3).any(|part| part == b"--b"));
        let mut body = b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"\r\n\r\n".to_vec();
        body.extend_from_slice(&before);
        body.extend_from_slice(format!("\r\n--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n{text}\r\n--b--").as_bytes());
        prop_assert_eq!(parts_of(&body, 4), Some(vec![Some(text)]));
    }

    #[test]
    fn json_is_found_as_another_parser_finds_it(text in pieces(JSON), raw: Vec<u8>) {
        let place = Pointer::parse("/key").unwrap();
        let _ = json::find(&raw, &[&place]);
        if let Ok(found) = json::find(text.as_bytes(), &[&place]) {
            let read: Result<serde_json::Value, _> = serde_json::from_str(&text);
            // The other one refuses lone surrogates everywhere, and numbers beyond all bounds.
            if let Ok(read) = read {
                let text = found[0].as_ref().and_then(|value| if let json::Value::Text(text) = value { Some(text.as_str()) } else { None });
                prop_assert_eq!(text, read.get("key").and_then(serde_json::Value::as_str));
            }
        } else if let Ok(serde_json::Value::Object(read)) = serde_json::from_str(&text) {
            // Refused although another one reads it: a key twice or alike, or too deep.
            prop_assert!(!read.is_empty(), "{}", text);
        }
    }

    #[test]
    fn json_that_another_writes_is_read(name in "\\PC{0,20}", key in "\\PC{1,8}", other in "\\PC{0,8}") {
        prop_assume!(!key.contains(['/', '~']) && !key.chars().any(char::is_control));
        prop_assume!(key.to_lowercase() != other.to_lowercase());
        let body = serde_json::json!({ other: [1, { "x": null }], key.clone(): name.clone() }).to_string();
        let place = Pointer::parse(&format!("/{key}")).unwrap();
        match json::find(body.as_bytes(), &[&place]) {
            Ok(found) => prop_assert_eq!(&found[0], &Some(json::Value::Text(name))),
            Err(why) => prop_assert_eq!(why, json::JsonError::Spelling),
        }
    }

    #[test]
    fn a_content_type_is_one_kind_or_refused(
        kind in pieces(&["application/json", "multipart/form-data", "; ", "boundary", "=", "b", "\"", "charset=utf-8", ",", "/", "application/x-www-form-urlencoded", " "]),
    ) {
        let mut headers = HeaderMap::new();
        let Ok(value) = kind.parse() else { return Ok(()) };
        headers.insert("content-type", value);
        for (account, fits) in [("json:/a", "json"), ("form:a", "form"), ("multipart:a", "multipart")] {
            if let Ok(read) = body::kind(&route(account), &headers) {
                let lower = kind.to_lowercase();
                prop_assert!(lower.contains(fits) , "{kind}");
                let one = ["json", "urlencoded", "multipart/"].iter().filter(|word| lower.split(';').next().unwrap().contains(*word)).count();
                prop_assert_eq!(one, 1, "{}", kind);
                prop_assert_eq!(matches!(read, Kind::Multipart(_)), fits == "multipart");
            }
        }
    }

    #[test]
    fn a_name_is_the_key_to_everybody_to_some_or_to_nobody(name in pieces(FORM)) {
        let decoded = name.replace("%6b", "k");
        let naming = query::naming(name.as_bytes(), "key");
        if decoded == "key" {
            prop_assert_eq!(naming, Naming::Exact);
        }
        if naming == Naming::Other {
            prop_assert!(!name.to_lowercase().starts_with("key[") && name.trim() != "key");
        }
    }
}

// What failed once

#[test]
fn a_dot_segment_with_a_parameter_is_a_dot_segment() {
    for path in ["/wx/wxid_b/..;/h", "/wx/..;x=y/wxid_a/x", "/;/wx/a", "/wx/.;/a"] {
        let (parts, ()) =
            http::Request::builder().uri(path).header("host", "h").body(()).unwrap().into_parts();
        let fields = fencegate::claim::fields::Fields::of(&parts.headers);
        assert!(head::check(&parts, &fields, 1000).is_err(), "{path}");
    }
}

#[test]
fn a_space_before_the_equals_sign_of_a_name_is_refused() {
    let body = b"--b\r\nContent-Disposition: form-data; name =\"key\"\r\n\r\nwxid_b\r\n--b--\r\n";
    assert_eq!(parts_of(body, usize::MAX), None);
}

//! Values at given places of a JSON body, found in one strict pass.
//!
//! It builds no tree and re-serialises nothing. Objects on the way to a place must not have a key twice, because
//! readers differ in which one counts.

use std::collections::HashSet;

use thiserror::Error;

use super::alike;
use crate::config::Pointer;

const DEPTH_MAX: usize = 64;
/// How many keys an object on the way may have: they are kept until it ends, and count against no limit.
const KEYS_MAX: usize = 10_000;
/// Beyond it, some readers round.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// What stands at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, unescaped.
    Text(String),
    /// A whole number, as every reader takes it.
    Integer(i64),
    /// Something else.
    Other,
}

/// Why a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each is described by its text")]
pub enum JsonError {
    #[error("the body must be JSON in UTF-8 without a byte order mark")]
    Syntax,
    #[error("the JSON body may be nested {DEPTH_MAX} levels deep at most")]
    Depth,
    #[error("the JSON body has a key twice where the account or the route is looked for")]
    Twice,
    #[error("the JSON body has more than {KEYS_MAX} keys where the account or the route is looked for")]
    Keys,
    #[error("the JSON body has a key in another spelling where the account or the route is looked for")]
    Spelling,
    #[error(
        "the JSON body has a key that makes some readers look elsewhere ($ref, __proto__) where the account or the route is looked for"
    )]
    Elsewhere,
}

/// Keys that stand for what is somewhere else in the document.
const ELSEWHERE: [&str; 2] = ["$ref", "__proto__"];

/// Finds what stands at each place; `None` where nothing does.
///
/// # Errors
/// The body is no JSON, or some would read it otherwise.
pub fn find(body: &[u8], places: &[&Pointer]) -> Result<Vec<Option<Value>>, JsonError> {
    let text = std::str::from_utf8(body).map_err(|_| JsonError::Syntax)?;
    let mut reader = Reader { text, at: 0, places, found: vec![None; places.len()] };
    let all: Vec<usize> = (0..places.len()).collect();
    reader.space();
    reader.value(&all, 0, 0)?;
    reader.space();
    if reader.at == text.len() { Ok(reader.found) } else { Err(JsonError::Syntax) }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    places: &'a [&'a Pointer],
    found: Vec<Option<Value>>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), JsonError> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        if !rest.starts_with(text.as_bytes()) {
            return Err(JsonError::Syntax);
        }
        self.at += text.len();
        Ok(())
    }

    /// Reads a value. The places of `live` lead through it or to it, and it stands `depth` levels deep; `steps` of them
    /// are done.
    fn value(&mut self, live: &[usize], steps: usize, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(JsonError::Depth);
        }
        let value = match self.peek() {
            Some(b'{') => self.object(live, steps, depth).map(|()| Value::Other),
            Some(b'[') => self.array(live, steps, depth).map(|()| Value::Other),
            Some(b'"') if live.is_empty() => self.skip_string().map(|()| Value::Other),
            Some(b'"') => self.string().map(Value::Text),
            Some(b't') => self.expect("true").map(|()| Value::Other),
            Some(b'f') => self.expect("false").map(|()| Value::Other),
            Some(b'n') => self.expect("null").map(|()| Value::Other),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(JsonError::Syntax),
        }?;
        for place in live {
            let ends = self.places.get(*place).is_some_and(|pointer| pointer.steps().len() == steps);
            if let (true, Some(found)) = (ends, self.found.get_mut(*place)) {
                *found = Some(value.clone());
            }
        }
        Ok(())
    }

    /// The step that a place makes here.
    fn step(&self, place: usize, steps: usize) -> Option<&str> {
        self.places.get(place)?.steps().get(steps).map(String::as_str)
    }

    fn object(&mut self, live: &[usize], steps: usize, depth: usize) -> Result<(), JsonError> {
        let on_the_way = live.iter().any(|place| self.step(*place, steps).is_some());
        let mut keys = HashSet::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let mut further = Vec::new();
            if on_the_way {
                if self.peek() != Some(b'"') {
                    return Err(JsonError::Syntax);
                }
                let key = self.string()?;
                if ELSEWHERE.contains(&key.as_str()) {
                    return Err(JsonError::Elsewhere);
                }
                for place in live {
                    match self.step(*place, steps) {
                        Some(step) if step == key => further.push(*place),
                        Some(step) if is_alike(&key, step) => return Err(JsonError::Spelling),
                        Some(_) | None => {}
                    }
                }
                if !keys.insert(key) {
                    return Err(JsonError::Twice);
                }
                if keys.len() > KEYS_MAX {
                    return Err(JsonError::Keys);
                }
            } else {
                self.skip_string()?;
            }
            self.space();
            self.expect(":")?;
            self.space();
            self.value(&further, steps + 1, depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(JsonError::Syntax),
            }
            self.space();
        }
    }

    fn array(&mut self, live: &[usize], steps: usize, depth: usize) -> Result<(), JsonError> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for index in 0_usize.. {
            let here = |place: &&usize| self.step(**place, steps).is_some_and(|step| is_index(step, index));
            let further: Vec<usize> = live.iter().filter(here).copied().collect();
            self.value(&further, steps + 1, depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(JsonError::Syntax),
            }
            self.space();
        }
        Ok(())
    }

    /// Passes a string whose text does not matter; as strict as [`string`](Self::string), but for lone surrogates.
    fn skip_string(&mut self) -> Result<(), JsonError> {
        self.expect("\"")?;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(0x20..) => self.at += 1,
                Some(_) | None => return Err(JsonError::Syntax),
            }
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.expect("\"")?;
        let mut text = String::new();
        loop {
            let begin = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..0x20)) {
                self.at += 1;
            }
            text.push_str(self.text.get(begin..self.at).ok_or(JsonError::Syntax)?);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let first = self.escape()?;
                    let pair = match first {
                        0xd800..0xdc00 => {
                            self.expect("\\")?;
                            let second = self.escape()?;
                            let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
                            0x10000 + ((first - 0xd800) << 10) + low.ok_or(JsonError::Syntax)?
                        }
                        other => other,
                    };
                    text.push(char::from_u32(pair).ok_or(JsonError::Syntax)?);
                }
                Some(_) | None => return Err(JsonError::Syntax),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<u32, JsonError> {
        let byte = self.peek().ok_or(JsonError::Syntax)?;
        self.at += 1;
        Ok(u32::from(match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4).ok_or(JsonError::Syntax)?;
                if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(JsonError::Syntax);
                }
                self.at += 4;
                return u32::from_str_radix(digits, 16).map_err(|_| JsonError::Syntax);
            }
            _ => return Err(JsonError::Syntax),
        }))
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == begin { Err(JsonError::Syntax) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let begin = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        let mut whole = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            whole = false;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            whole = false;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = self.text.get(begin..self.at).unwrap_or_default();
        let exact = |number: &i64| number.unsigned_abs() <= EXACT_MAX && text != "-0";
        let number = whole.then(|| text.parse().ok().filter(exact)).flatten();
        Ok(number.map_or(Value::Other, Value::Integer))
    }
}

fn is_index(step: &str, index: usize) -> bool {
    step.parse() == Ok(index)
        && step.bytes().all(|b| b.is_ascii_digit())
        && (step == "0" || !step.starts_with('0'))
}

/// Whether some readers take one key for the other, whole or up to a NUL.
fn is_alike(key: &str, step: &str) -> bool {
    let short = key.split('\0').next().unwrap_or_default();
    alike::is_alike(key, step) || (short.len() < key.len() && alike::is_alike(short, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(body: &str, place: &str) -> Result<Option<Value>, JsonError> {
        find(body.as_bytes(), &[&Pointer::parse(place).unwrap()]).map(|mut found| found.remove(0))
    }

    fn text(text: &str) -> Result<Option<Value>, JsonError> {
        Ok(Some(Value::Text(text.to_owned())))
    }

    #[test]
    fn a_value_is_found_at_its_place_only() {
        assert_eq!(at(r#" {"a":1,"appId":"wx","b":{"appId":"no"}} "#, "/appId"), text("wx"));
        assert_eq!(at(r#"{"data":{"x":[],"guid":"g"}}"#, "/data/guid"), text("g"));
        assert_eq!(at(r#"{"a":["x",{"b":"y"}]}"#, "/a/1/b"), text("y"));
        assert_eq!(at(r#"{"\u0061":"\u0041\ud83d\ude00\n\/"}"#, "/a"), text("A\u{1f600}\n/"));
        assert_eq!(at(r#"{"a/b":{"~":"x"}}"#, "/a~1b/~0"), text("x"));
        assert_eq!(at(r#"{"n":1000002}"#, "/n"), Ok(Some(Value::Integer(1_000_002))));
        assert_eq!(at(r#"{"n":-7}"#, "/n"), Ok(Some(Value::Integer(-7))));
        for other in
            ["1.0", "1e3", "-0", "9007199254740992", "true", "null", "{}", "[]", "18446744073709551616"]
        {
            assert_eq!(at(&format!("{{\"n\":{other}}}"), "/n"), Ok(Some(Value::Other)), "{other}");
        }
        for absent in
            [r#"{"b":"appId"}"#, "[]", "\"appId\"", "1", r#"{"a":{"appId":"x"}}"#, r#"["appId","x"]"#]
        {
            assert_eq!(at(absent, "/appId"), Ok(None), "{absent}");
        }
        assert_eq!(at(r#"{"data":"guid"}"#, "/data/guid"), Ok(None));
        assert_eq!(at(r#"["a"]"#, "/00"), Ok(None));
    }

    #[test]
    fn keys_that_some_would_take_for_others_are_refused_on_the_way_only() {
        for twice in [r#"{"a":"1","a":"2"}"#, r#"{"a":"1","\u0061":"2"}"#, r#"{"x":1,"x":2,"a":"1"}"#] {
            assert_eq!(at(twice, "/a"), Err(JsonError::Twice), "{twice}");
        }
        for alike in [r#"{"a":"1","A":"2"}"#, r#"{"A":"2"}"#, r#"{"a":"1","a\u0000x":"2"}"#] {
            assert_eq!(at(alike, "/a"), Err(JsonError::Spelling), "{alike}");
        }
        for alike in ["to\u{212a}en", "_token", "to_ken", "Token ", "to-ken"] {
            assert_eq!(at(&format!("{{\"{alike}\":\"x\"}}"), "/token"), Err(JsonError::Spelling), "{alike}");
        }
        for elsewhere in [
            r#"{"d":{"$ref":"$.x","a":"1"},"x":{"a":"2"}}"#,
            r#"{"d":{"a":"1"},"__proto__":{"d":{"a":"2"}}}"#,
            r#"{"\u005f_proto__":{"d":1}}"#,
        ] {
            assert_eq!(at(elsewhere, "/d/a"), Err(JsonError::Elsewhere), "{elsewhere}");
        }
        assert_eq!(
            at(r#"{"d":{"a":"1","x":{"$ref":"y"}}}"#, "/d/a"),
            text("1"),
            "nobody looks for anything there"
        );
        assert_eq!(at(r#"{"d":{"a":"1"},"D":{}}"#, "/d/a"), Err(JsonError::Spelling));
        assert_eq!(at(r#"{"d":{"a":"1","x":1,"x":1}}"#, "/d/a"), Err(JsonError::Twice));
        assert_eq!(at(r#"{"a":"1","b":{"x":1,"x":2}}"#, "/a"), text("1"));
    }

    #[test]
    fn keys_are_kept_on_the_way_only_and_not_without_end() {
        let many = |count: usize| (0..count).map(|i| format!("\"k{i}\":{i},")).collect::<String>();
        let beside = |count: usize| format!("{{{}\"a\":\"x\"}}", many(count));
        assert_eq!(at(&beside(KEYS_MAX - 1), "/a"), text("x"));
        assert_eq!(at(&beside(KEYS_MAX), "/a"), Err(JsonError::Keys));
        let elsewhere = format!("{{\"a\":\"x\",\"b\":{}}}", beside(KEYS_MAX));
        assert_eq!(at(&elsewhere, "/a"), text("x"));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let nested =
            |levels: usize| format!("{{\"a\":\"x\",\"b\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(at(&nested(64), "/a"), text("x"));
        assert_eq!(at(&nested(65), "/a"), Err(JsonError::Depth));
        assert_eq!(at(&"[".repeat(100_000), "/a"), Err(JsonError::Depth));
        for bad in [
            "",
            "\u{feff}{\"a\":\"x\"}",
            "{\"a\":\"x\"}}",
            "{\"a\":\"x\"} {}",
            "{\"a\":\"x\",}",
            "{\"a\":\"x\"",
            "{'a':'x'}",
            "{a:\"x\"}",
            "{\"a\":\"x\"/**/}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x41\"}",
            "{\"a\":\"\\u00g0\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\\udc00\"}",
            "{\"a\":\"\\ud800\\u0041\"}",
            "{\"a\":01}",
            "{\"a\":+1}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":NaN}",
            "{\"a\":nul}",
            "{\"a\" \"x\"}",
            "[1 2]",
            "{\"b\":\"\\q\",\"a\":\"x\"}",
        ] {
            assert_eq!(at(bad, "/a"), Err(JsonError::Syntax), "{bad}");
        }
        assert_eq!(find(b"{\"a\":\"\xff\"}", &[]), Err(JsonError::Syntax));
        assert_eq!(
            at(r#"{"b":"\ud800","a":"x"}"#, "/a"),
            text("x"),
            "elsewhere a lone surrogate is nobody's business"
        );
    }
}

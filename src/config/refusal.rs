//! A route's own form of refusals: for clients that read nothing but `ret` or `code` of a JSON body.
//!
//! Whatever is put in is escaped, so that the result is always JSON. It knows no codes.

use super::error::{Problem, Read};
use super::section::Section;
use super::tree::Node;
use super::value::parsed;

const BODY_MAX: usize = 64 * 1024;
const NAMES: [(&str, Blank); 6] = [
    ("{code}", Blank::Code),
    ("{status}", Blank::Status),
    ("{outcome}", Blank::Outcome),
    ("{detail}", Blank::Detail),
    ("{account}", Blank::Account),
    ("{request_id}", Blank::RequestId),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blank {
    Code,
    Status,
    Outcome,
    Detail,
    Account,
    RequestId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Blank(Blank),
}

/// A form: a status of its own where it has one, and a JSON body with blanks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Instead of the code's own.
    pub status: Option<u16>,
    parts: Vec<Part>,
}

/// What a form is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Filling<'a> {
    /// `{code}`
    pub code: &'a str,
    /// `{status}`: the code's, whatever status is answered.
    pub status: u16,
    /// `{outcome}`
    pub outcome: &'a str,
    /// `{detail}`
    pub detail: &'a str,
    /// `{account}`; empty where it is not known.
    pub account: &'a str,
    /// `{request_id}`
    pub request_id: &'a str,
}

impl Form {
    /// The body.
    #[must_use]
    pub fn fill(&self, filling: &Filling<'_>) -> String {
        let mut body = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => body.push_str(text),
                Part::Blank(Blank::Status) => body.push_str(&filling.status.to_string()),
                Part::Blank(Blank::Code) => escape(&mut body, filling.code),
                Part::Blank(Blank::Outcome) => escape(&mut body, filling.outcome),
                Part::Blank(Blank::Detail) => escape(&mut body, filling.detail),
                Part::Blank(Blank::Account) => escape(&mut body, filling.account),
                Part::Blank(Blank::RequestId) => escape(&mut body, filling.request_id),
            }
        }
        body
    }

    fn parse(text: &str) -> Result<Self, String> {
        const ALLOWED: &str =
            "JSON with {code}, {detail}, {outcome}, {account} and {request_id} in strings, and {status}";
        if text.len() > BODY_MAX {
            return Err(format!("more than {BODY_MAX} bytes; allowed: {ALLOWED}"));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, name, blank)) = next_blank(rest) {
            let (literal, after) = rest.split_at(at);
            parts.push(Part::Literal(literal.to_owned()));
            parts.push(Part::Blank(blank));
            rest = after.get(name.len()..).unwrap_or_default();
        }
        parts.push(Part::Literal(rest.to_owned()));
        let form = Self { status: None, parts };
        let sample =
            Filling { code: "a", status: 1, outcome: "a", detail: "a\"", account: "", request_id: "a" };
        match serde_json::from_str::<serde_json::Value>(&form.fill(&sample)) {
            Ok(_) => Ok(form),
            Err(error) => Err(format!("no JSON once it is filled in ({error}); allowed: {ALLOWED}")),
        }
    }
}

fn next_blank(text: &str) -> Option<(usize, &'static str, Blank)> {
    NAMES
        .iter()
        .filter_map(|(name, blank)| text.find(name).map(|at| (at, *name, *blank)))
        .min_by_key(|(at, _, _)| *at)
}

/// As the inside of a JSON string.
fn escape(body: &mut String, text: &str) {
    let quoted = serde_json::Value::from(text).to_string();
    body.push_str(quoted.get(1..quoted.len() - 1).unwrap_or_default());
}

/// Reads `{ status, body }`.
pub(super) fn read(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Option<Form> {
    let status = section.optional("status", status);
    let form = section.need("body", "a JSON text", parsed("a JSON text", Form::parse));
    section.finish(problems);
    form.map(|form| Form { status, ..form })
}

/// A status that nobody between takes for something else: a 5xx says whether a send may be tried again, and some have no
/// body.
fn status(node: &Node) -> Read<u16> {
    const ALLOWED: &str = "200 to 499, but not 204, 205 or 304, which have no body";
    match node.integer().map(u16::try_from) {
        Some(Ok(status @ 200..=499)) if ![204, 205, 304].contains(&status) => Ok(status),
        Some(_) => node.refuse(format!("{} is out of bounds; allowed: {ALLOWED}", node.show())),
        None => node.refuse_type(ALLOWED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_stays_inside_its_string() {
        let form = Form::parse(r#"{"ret":{status},"data":{},"msg":"{code}: {detail} {x} {{account}}","id":"{request_id}/{outcome}"}"#)
            .unwrap();
        let filling = Filling {
            code: "stale_token",
            status: 409,
            outcome: "not_sent",
            detail: "a \"quoted\"\nline \\ {account}",
            account: "wxid_1",
            request_id: "r",
        };
        let filled: serde_json::Value = serde_json::from_str(&form.fill(&filling)).unwrap();
        assert_eq!(
            filled,
            serde_json::json!({
                "ret": 409, "data": {}, "id": "r/not_sent",
                "msg": "stale_token: a \"quoted\"\nline \\ {account} {x} {wxid_1}",
            })
        );
    }

    #[test]
    fn a_form_that_is_no_json_is_refused() {
        for bad in ["", "{", "{code}", r#"{"a":{detail}}"#, "{\"a\":\"{code}}", "plain {code}"] {
            assert!(Form::parse(bad).is_err(), "{bad}");
        }
        assert!(Form::parse("{\"ret\":500}").is_ok());
    }
}

//! `fencegate status` and `fencegate healthcheck`: what a running gateway says of itself, for people and for containers.
//!
//! Everything is asked over the admin listener; nothing is changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::ask::{self, AskError};
use crate::config::Listen;
use crate::gateway::registry::Escaped;

/// How many accounts are asked for at once.
const PAGE: usize = 1_000;

/// Which accounts are shown.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Those in this state; empty: in any.
    pub state: String,
    /// Those whose names begin so.
    pub prefix: String,
}

#[derive(Deserialize)]
struct View {
    backend: String,
    connected: bool,
    accounts: u64,
    loading: bool,
    proof: Option<Proof>,
}

#[derive(Deserialize)]
struct Proof {
    age_ms: u64,
    last_ms: f64,
    barrier: String,
}

#[derive(Deserialize)]
struct Page {
    accounts: Vec<Account>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Account {
    account: String,
    state: String,
    holder: Option<Holder>,
    invalid_reason: Option<String>,
    candidates: u64,
    in_flight: u64,
    parked: u64,
    handovers: u64,
    last_handover: Option<Handover>,
    rejections: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Holder {
    seq: u64,
    instance_id: String,
}

#[derive(Deserialize)]
struct Handover {
    at: u64,
    reason: String,
}

/// The view and the accounts, as text. `now_ms`: the wall clock, for how long ago a handover was.
///
/// # Errors
/// Nobody answers, or not with what it should.
pub async fn status(
    listen: &Listen,
    key: Option<&str>,
    selection: &Selection,
    now_ms: u64,
) -> Result<String, AskError> {
    let view: View = get(listen, key, "/v1/view").await?;
    let (mut accounts, mut after) = (Vec::new(), String::new());
    loop {
        let mut path = format!("/v1/accounts?limit={PAGE}");
        let Selection { state, prefix } = selection;
        for (name, value) in [("state", state), ("prefix", prefix), ("after", &after)] {
            if !value.is_empty() {
                let _ = write!(path, "&{name}={}", encoded(value));
            }
        }
        let page: Page = get(listen, key, &path).await?;
        accounts.extend(page.accounts);
        match page.next {
            Some(next) => after = next,
            None => return Ok(headline(&view, accounts.len()) + &table(&accounts, now_ms)),
        }
    }
}

/// Whether the process answers; with `ready`, whether it is ready. What it said.
///
/// # Errors
/// It is not, and why.
pub async fn health(listen: &Listen, ready: bool) -> Result<String, AskError> {
    let path = if ready { "/readyz" } else { "/healthz" };
    let (status, body) = ask::ask(listen, None, Method::GET, path).await?;
    match status {
        StatusCode::OK if ready => Ok("ready".to_owned()),
        StatusCode::OK => Ok("healthy".to_owned()),
        _ => {
            let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let reasons = said.get("reasons").and_then(serde_json::Value::as_array);
            let reasons = reasons.into_iter().flatten().filter_map(serde_json::Value::as_str);
            let reasons = reasons.collect::<Vec<_>>().join("; ");
            Err(AskError::Refused(if reasons.is_empty() { status.to_string() } else { reasons }))
        }
    }
}

async fn get<T: DeserializeOwned>(listen: &Listen, key: Option<&str>, path: &str) -> Result<T, AskError> {
    let (status, body) = ask::ask(listen, key, Method::GET, path).await?;
    if status != StatusCode::OK {
        return Err(ask::refused(status, &body));
    }
    serde_json::from_slice(&body)
        .map_err(|why| AskError::Refused(format!("{path} is not what a gateway answers: {why}")))
}

/// Percent-encoded for a query.
fn encoded(value: &str) -> String {
    value.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

fn headline(view: &View, shown: usize) -> String {
    let link = match (view.connected, view.loading) {
        (false, _) => "not connected",
        (true, true) => "connected, reading accounts",
        (true, false) => "connected",
    };
    let proof = view.proof.as_ref().map_or_else(
        || "no proof yet".to_owned(),
        |proof| {
            format!(
                "last proof {} ago, in {} ms ({})",
                span(proof.age_ms),
                proof.last_ms,
                Escaped(&proof.barrier)
            )
        },
    );
    let all = view.accounts;
    let accounts =
        if usize::try_from(all) == Ok(shown) { format!("{all}") } else { format!("{shown} of {all}") };
    format!("{} {link}; {proof}; accounts: {accounts}\n", Escaped(&view.backend))
}

const HEADS: [&str; 10] = [
    "ACCOUNT",
    "STATE",
    "HOLDER",
    "SEQ",
    "CANDIDATES",
    "IN FLIGHT",
    "PARKED",
    "HANDOVERS",
    "REJECTED",
    "LAST HANDOVER",
];
/// Those columns are numbers, and stand to the right.
const NUMBERS: std::ops::Range<usize> = 3..9;

/// One line for each account, in columns as wide as they have to be.
fn table(accounts: &[Account], now_ms: u64) -> String {
    let rows: Vec<_> = accounts.iter().map(|account| row(account, now_ms)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain(HEADS.get(column).map(|head| head.len())).max().unwrap_or(0)
        })
        .collect();
    let heads = HEADS.map(str::to_owned);
    std::iter::once(&heads).chain(&rows).fold("\n".to_owned(), |mut text, row| {
        let begins = text.len();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if NUMBERS.contains(&column) {
                write!(text, "{cell:>width$}  ")
            } else {
                write!(text, "{cell:<width$}  ")
            };
        }
        text.truncate(begins.max(text.trim_end().len()));
        text.push('\n');
        text
    })
}

fn row(account: &Account, now_ms: u64) -> [String; HEADS.len()] {
    let none = || "-".to_owned();
    let state = match &account.invalid_reason {
        Some(why) => {
            format!("{}: {}", account.state, why.chars().filter(|c| !c.is_control()).collect::<String>())
        }
        None => Escaped(&account.state).to_string(),
    };
    [
        Escaped(&account.account).to_string(),
        state,
        account.holder.as_ref().map_or_else(none, |holder| Escaped(&holder.instance_id).to_string()),
        account.holder.as_ref().map_or_else(none, |holder| holder.seq.to_string()),
        account.candidates.to_string(),
        account.in_flight.to_string(),
        account.parked.to_string(),
        account.handovers.to_string(),
        account.rejections.values().sum::<u64>().to_string(),
        account.last_handover.as_ref().map_or_else(none, |last| {
            format!("{}, {} ago", Escaped(&last.reason), span(now_ms.saturating_sub(last.at)))
        }),
    ]
}

/// A duration as people say it.
fn span(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms} ms"),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(name: &str, more: &serde_json::Value) -> Account {
        let mut whole = json!({
            "account": name, "state": "vacant", "holder": null, "invalid_reason": null, "candidates": 0, "in_flight": 0,
            "parked": 0, "handovers": 0, "last_handover": null, "rejections": {},
        });
        for (key, value) in more.as_object().unwrap() {
            whole[key] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_they_have_to_be_and_no_line_ends_in_spaces() {
        let held = json!({
            "state": "held", "holder": { "seq": 12, "instance_id": "host-a" }, "candidates": 3, "handovers": 1,
            "last_handover": { "at": 1_000, "reason": "resigned" }, "rejections": { "stale_token": 7, "no_holder": 1 },
        });
        let accounts = [account("wxid_1", &held), account("a-longer-name", &json!({}))];
        let text = table(&accounts, 61_000);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "ACCOUNT        STATE   HOLDER  SEQ  CANDIDATES  IN FLIGHT  PARKED  HANDOVERS  REJECTED  LAST HANDOVER",
                "wxid_1         held    host-a   12           3          0       0          1         8  resigned, 60 s ago",
                "a-longer-name  vacant  -         -           0          0       0          0         0  -",
            ]
        );
        assert_eq!(table(&[], 0), "");
    }

    #[test]
    fn what_instances_call_themselves_cannot_move_the_cursor() {
        let hostile =
            json!({ "state": "held", "holder": { "seq": 1, "instance_id": "a\u{1b}[2J\n\u{202e}b" } });
        let text = table(&[account("wxid_1", &hostile)], 0);
        assert!(text.contains("a\\u{1b}[2J\\u{a}\\u{202e}b"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn durations_are_told_in_the_largest_unit_that_tells_enough() {
        for (ms, told) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 days"),
        ] {
            assert_eq!(span(ms), told);
        }
    }

    #[test]
    fn a_query_takes_any_name() {
        assert_eq!(encoded("a+b:@~c"), "a%2Bb%3A%40~c");
    }
}

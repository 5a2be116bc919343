//! Sessions, candidates and what stands.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Room;
use crate::election::embedded::{Denied, LONGEST_TTL, SHORTEST_TTL};
use crate::election::memory::Standing;
use crate::fence::name::AccountName;
use crate::fence::token::{SessionId, parse_session};
use crate::fence::view::Holder;
use crate::key::{self, Key};
use crate::web::problem::Problem;

/// An instance id is at most this long: what a token can present.
const LONGEST_INSTANCE: usize = 256;

/// How many accounts are looked at with one request.
const MOST_LOOKED_AT: usize = 1000;

const LISTS_NOTHING: &str = "a JSON object such as {\"instance_id\":\"host-a\",\"ttl\":\"15s\"}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    instance_id: String,
    ttl: String,
}

/// `POST /v1/sessions`
pub(super) async fn begin(
    State(room): State<Arc<Room>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    guard(&room, &headers)?;
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let wish: Wish = serde_json::from_slice(&body)
        .map_err(|why| bad(format!("the body must be {LISTS_NOTHING}: {why}")))?;
    let instance = wish.instance_id;
    if instance.is_empty() || instance.len() > LONGEST_INSTANCE || instance.chars().any(char::is_control) {
        return Err(bad(format!(
            "instance_id must have 1 to {LONGEST_INSTANCE} bytes without control characters"
        )));
    }
    let ttl = duration(&wish.ttl).filter(|ttl| (SHORTEST_TTL..=LONGEST_TTL).contains(ttl));
    let ttl = ttl.ok_or_else(|| bad("ttl must be 2s to 5m, such as \"15s\"".to_owned()))?;
    let begun = room.embedded.begin(&instance, ttl).map_err(denied)?;
    let told = json!({ "session": begun.session.to_string(), "secret": begun.secret, "ttl_ms": millis(ttl) });
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(told)).into_response())
}

/// `PUT /v1/sessions/{session}`
pub(super) async fn renew(
    State(room): State<Arc<Room>>,
    Path(session): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    let secret = own(&room, &session, &headers)?;
    let (session, ttl) = room.embedded.renew(secret).map_err(denied)?;
    Ok(Json(json!({ "session": session.to_string(), "ttl_ms": millis(ttl) })))
}

/// `DELETE /v1/sessions/{session}`
pub(super) async fn end(
    State(room): State<Arc<Room>>,
    Path(session): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let secret = own(&room, &session, &headers)?;
    room.embedded.end(secret).map_err(denied)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/elections/{account}/candidates`
pub(super) async fn stand(
    State(room): State<Arc<Room>>,
    Path(account): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    let account = may_stand(&room, &account, &headers)?;
    let secret = secret(&headers)?;
    let seq = room.embedded.stand(&account, secret).map_err(denied)?;
    let holder = room.embedded.look(&account).and_then(|seen| seen.holder).filter(|holder| holder.seq == seq);
    let epoch = holder.as_ref().map(|holder| holder.epoch.to_string());
    Ok(Json(json!({ "seq": seq.0, "holder": holder.is_some(), "epoch": epoch })))
}

/// `DELETE /v1/elections/{account}/candidates`
pub(super) async fn resign(
    State(room): State<Arc<Room>>,
    Path(account): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let account = may_stand(&room, &account, &headers)?;
    room.embedded.resign(&account, secret(&headers)?).map_err(denied)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    /// Names with commas between them.
    accounts: Option<String>,
}

/// `GET /v1/elections`: the names of all accounts, or with `?accounts=a,b` these as they stand, in this order.
pub(super) async fn list(
    State(room): State<Arc<Room>>,
    selection: Result<Query<Selection>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    guard(&room, &headers)?;
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let Query(Selection { accounts }) =
        selection.map_err(|why| bad(format!("only ?accounts=a,b is asked here: {why}")))?;
    if let Some(accounts) = accounts {
        let accounts = accounts.split(',').map(named).collect::<Result<Vec<_>, _>>()?;
        if accounts.len() > MOST_LOOKED_AT {
            return Err(bad(format!("at most {MOST_LOOKED_AT} accounts are looked at with one request")));
        }
        let secret = secret(&headers).ok();
        let elections: Vec<_> = accounts.iter().map(|account| shown(&room, account, secret)).collect();
        return Ok(Json(json!({ "elections": elections })));
    }
    let mut names = room.embedded.names();
    names.sort_unstable();
    let names: Vec<&str> = names.iter().map(AccountName::as_str).collect();
    Ok(Json(json!({ "accounts": names })))
}

/// `GET /v1/elections/{account}`
pub(super) async fn look(
    State(room): State<Arc<Room>>,
    Path(account): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    guard(&room, &headers)?;
    Ok(Json(shown(&room, &named(&account)?, secret(&headers).ok())))
}

/// An election as it stands. One for which nobody ever stood is vacant. Whoever shows the secret of a session that lives is
/// told its own candidate as well; any other secret changes nothing, since everybody may look.
pub(super) fn shown(room: &Room, account: &AccountName, secret: Option<&str>) -> Value {
    let Standing { holder, candidates, newest } = room.embedded.look(account).unwrap_or_default();
    let numbers: Vec<u64> = candidates.iter().map(|(seq, _)| *seq).collect();
    let mut shown = json!({
        "account": account.as_str(),
        "holder": holder.as_deref().map(shown_holder),
        "candidates": numbers,
        "newest": newest,
    });
    if let Some(session) = secret.and_then(|secret| room.embedded.whose(secret).ok())
        && let Some(shown) = shown.as_object_mut()
    {
        let own = candidates.iter().find(|(_, owner)| *owner == session).map(|(seq, _)| *seq);
        shown.insert("own".to_owned(), own.into());
    }
    shown
}

fn shown_holder(holder: &Holder) -> Value {
    json!({
        "seq": holder.seq.0,
        "session": holder.session.to_string(),
        "instance": holder.instance,
        "epoch": holder.epoch.to_string(),
    })
}

pub(super) async fn nothing_here() -> Problem {
    let detail = "nothing is here; see /v1/sessions, /v1/elections and /v1/events";
    Problem::new(StatusCode::NOT_FOUND, detail)
}

pub(super) async fn wrong_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this is not asked with that method")
}

fn denied(why: Denied) -> Problem {
    let status = match why {
        Denied::NoSession => StatusCode::NOT_FOUND,
        Denied::Secret => StatusCode::UNAUTHORIZED,
        Denied::Full(_) | Denied::Failing(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, why.to_string())
}

/// Lets a caller through that presents a key, or anybody if there are none. Its key, if it needs one.
///
/// # Errors
/// There are keys, and this is none of them.
pub(super) fn guard<'r>(room: &'r Room, headers: &HeaderMap) -> Result<Option<&'r Key>, Problem> {
    if room.keys.is_empty() {
        return Ok(None);
    }
    // The bearer is the session's secret; the key has its own header.
    let presented = headers.contains_key("x-fencing-key").then(|| key::presented(headers)).flatten();
    match presented.and_then(|key| key::find(&room.keys, &key)) {
        Some(key) => Ok(Some(key)),
        None => Err(Problem::new(StatusCode::UNAUTHORIZED, "X-Fencing-Key must be one of [auth] keys")),
    }
}

fn may_stand(room: &Room, account: &str, headers: &HeaderMap) -> Result<AccountName, Problem> {
    let key = guard(room, headers)?;
    let account = named(account)?;
    if key.is_some_and(|key| !key.allows(account.as_str())) {
        return Err(Problem::new(StatusCode::FORBIDDEN, format!("the key is not for {account}")));
    }
    Ok(account)
}

fn named(account: &str) -> Result<AccountName, Problem> {
    let detail = "an account has 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -";
    AccountName::new(account).ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, detail))
}

/// The secret, if it is that of the session in the path.
fn own<'h>(room: &Room, session: &str, headers: &'h HeaderMap) -> Result<&'h str, Problem> {
    guard(room, headers)?;
    let said = parse_session(session.as_bytes());
    let said: SessionId = said.map_err(|why| Problem::new(StatusCode::BAD_REQUEST, why.to_string()))?;
    let secret = secret(headers)?;
    match room.embedded.whose(secret).map_err(denied)? {
        session if session == said => Ok(secret),
        _ => Err(denied(Denied::Secret)),
    }
}

pub(super) fn secret(headers: &HeaderMap) -> Result<&str, Problem> {
    let detail = "the session's secret must come as Authorization: Bearer SECRET";
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret = bearer.and_then(|text| text.strip_prefix("Bearer "));
    secret.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, detail))
}

/// Seconds or minutes, such as `15s`; also `2500ms`.
fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(millis)?))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

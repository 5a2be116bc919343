//! The handlers, one for each route.
//!
//! Whatever walks over all accounts is done off the runtime's thread, few at a time.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{self, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::shape::{Page, Snapshot, Standing, ViewJson};
use super::{Admin, Shared};
use crate::fence::name::AccountName;
use crate::gateway::registry::Registry;
use crate::web::problem::Problem;

/// How many accounts a page has unless told otherwise.
const PAGE: usize = 1_000;

/// How many it may have.
const MOST_PER_PAGE: usize = 10_000;

type Room = State<Arc<Shared>>;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(shared): Room) -> Response {
    let registry = &shared.admin.registry;
    let proven = registry.proofs.latest().is_some();
    let reasons = shared.admin.status.reasons(registry.clock.now(), proven, registry.is_history_reset());
    if reasons.is_empty() {
        return Json(json!({ "ready": true })).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "reasons": reasons }))).into_response()
}

pub(super) async fn metrics(State(shared): Room) -> Result<Response, Problem> {
    let text = walk(&shared, super::metrics::render).await?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

pub(super) async fn view(State(shared): Room) -> Response {
    Json(ViewJson::of(&shared.admin)).into_response()
}

pub(super) async fn account(
    State(shared): Room,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|why| Problem::new(StatusCode::BAD_REQUEST, why.body_text()))?;
    match shared.admin.registry.get(&name) {
        Some(entry) => Ok(Json(Snapshot::of(&entry)).into_response()),
        None if AccountName::allows(&name) => {
            let detail = format!("no account named {name} was ever seen in the elections");
            Err(Problem::new(StatusCode::NOT_FOUND, detail))
        }
        None => {
            let detail = "no account can have this name: 1 to 128 of A-Z a-z 0-9 . _ @ : ~ + -";
            Err(Problem::new(StatusCode::NOT_FOUND, detail))
        }
    }
}

pub(super) async fn accounts(
    State(shared): Room,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Problem> {
    let bad = |detail| Problem::new(StatusCode::BAD_REQUEST, detail);
    let Query(pairs) = query.map_err(|why| bad(why.body_text()))?;
    let selection = Selection::parse(&pairs).map_err(bad)?;
    let body = walk(&shared, move |admin| serde_json::to_string(&selection.page(&admin.registry))).await?;
    let body = body.map_err(|why| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

pub(super) async fn accept_history(State(shared): Room, headers: HeaderMap) -> Result<Response, Problem> {
    super::access::may_change(&shared)?;
    if is_foreign(&headers) {
        let detail = "the Origin header names another site than Host: a page elsewhere may not do this";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    // On this thread, which is the follower's too: no read is applied in the middle of it.
    if shared.admin.registry.accept_history() {
        return Ok(Json(json!({ "accepted": true })).into_response());
    }
    let detail =
        "there is nothing to accept: the elections' history did not go back, or that was accepted already";
    Err(Problem::new(StatusCode::CONFLICT, detail))
}

pub(super) async fn nothing_here(uri: Uri) -> Problem {
    let detail = format!(
        "nothing is at {}; there are / (a page), /healthz, /readyz, /metrics, /v1/view, /v1/accounts, /v1/accounts/NAME, \
         /v1/events and /v1/history/accept",
        uri.path()
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}

pub(super) async fn wrong_method(method: Method) -> Problem {
    let detail = format!("{method} is not allowed here; the Allow header says what is");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

/// Whether a browser sent this on behalf of another site. Other clients send no `Origin`.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    site.is_none() || site != host
}

/// Does something with all accounts on a thread where it holds up nobody. Dropped, what has begun goes on.
async fn walk<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&Admin) -> T + Send + 'static,
) -> Result<T, Problem> {
    // Never closed, so that there is always a place in the end.
    let place = Arc::clone(&shared.walks).acquire_owned().await.ok();
    let admin = Arc::clone(&shared.admin);
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&admin);
        drop(place);
        done
    });
    done.await.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "this could not be put together"))
}

/// Which accounts are asked for.
#[derive(Debug, PartialEq, Eq)]
struct Selection {
    state: Option<Standing>,
    prefix: String,
    after: String,
    limit: usize,
}

impl Selection {
    fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let (mut state, mut prefix, mut after, mut limit) = (None, None, None, None);
        for (key, value) in pairs {
            let again = match key.as_str() {
                "state" => state.replace(parse_state(value)?).is_some(),
                "prefix" => prefix.replace(parse_part(key, value)?).is_some(),
                "after" => after.replace(parse_part(key, value)?).is_some(),
                "limit" => limit.replace(parse_limit(value)?).is_some(),
                _ => {
                    return Err(format!(
                        "there is no parameter {key:?}; allowed are state, prefix, limit and after"
                    ));
                }
            };
            if again {
                return Err(format!("{key} is given twice; once is allowed"));
            }
        }
        Ok(Self {
            state,
            prefix: prefix.unwrap_or_default(),
            after: after.unwrap_or_default(),
            limit: limit.unwrap_or(PAGE),
        })
    }

    fn page(&self, registry: &Registry) -> Page {
        let mut entries = registry.entries();
        entries.retain(|entry| {
            let name = entry.name.as_str();
            name > self.after.as_str() && name.starts_with(&self.prefix)
        });
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut accounts = Vec::new();
        for entry in entries {
            let account = Snapshot::of(&entry);
            if !account.present || self.state.is_some_and(|state| state != account.standing) {
                continue;
            }
            if accounts.len() == self.limit {
                let next = accounts.last().map(|last: &Snapshot| last.name.to_string());
                return Page { accounts, next };
            }
            accounts.push(account);
        }
        Page { accounts, next: None }
    }
}

fn parse_state(value: &str) -> Result<Standing, String> {
    let found = Standing::ALL.into_iter().find(|state| state.as_str() == value);
    found.ok_or_else(|| format!("state must be held, vacant, invalid or unknown, not {value:?}"))
}

fn parse_limit(value: &str) -> Result<usize, String> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let limit = value.parse().ok().filter(|limit| digits && (1..=MOST_PER_PAGE).contains(limit));
    limit.ok_or_else(|| format!("limit must be a whole number from 1 to {MOST_PER_PAGE}, not {value:?}"))
}

/// A name or its beginning.
fn parse_part(key: &str, value: &str) -> Result<String, String> {
    // "." and ".." begin names, though they are none.
    if value.chars().all(|c| c == '.') || AccountName::allows(value) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "{key} must be a name or the beginning of one: at most 128 of A-Z a-z 0-9 . _ @ : ~ + - (+ is written %2B \
         in a query), not {value:?}"
    ))
}

//! What operators see of an agent: health, readiness, metrics, the roles, and a stream of their changes.
//!
//! It changes nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use futures_util::future::{Either, pending};
use futures_util::stream::{StreamExt, once};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError::Lagged;

use super::{Agent, metrics};
use crate::elector::Standing;
use crate::web::pages;
use crate::web::problem::Problem;
use crate::web::server::Closing;

/// How many event streams may be open: half of the connections, so that probes and scrapes always find one.
const MOST_STREAMS: usize = 128;

/// How often a comment is sent when nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug)]
struct Shared {
    agent: Arc<Agent>,
    streams: Arc<Semaphore>,
}

/// The routes; `to_pages`: what they are to pages of other sites.
pub(super) fn router(agent: Arc<Agent>, to_pages: pages::Room) -> Router {
    let shared = Arc::new(Shared { agent, streams: Arc::new(Semaphore::new(MOST_STREAMS)) });
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .route("/v1/roles", get(roles))
        .route("/v1/events", get(events))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is nothing here; see /v1/roles"))
        .method_not_allowed_fallback(async || Problem::new(StatusCode::METHOD_NOT_ALLOWED, "use GET"))
        .layer(middleware::from_fn_with_state(to_pages, pages::guard))
        .with_state(shared)
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let agent = &shared.agent;
    let mut reasons = Vec::new();
    if agent.is_stopping() {
        reasons.push("the agent is shutting down");
    } else if !agent.elector.is_ready() {
        reasons.push("a session is not open, or an account has not been looked at yet");
    }
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "reasons": reasons }))).into_response()
}

async fn metrics_text(State(shared): State<Arc<Shared>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics::render(&shared.agent)).into_response()
}

/// One account's role.
#[derive(Debug, Serialize)]
struct RoleJson<'a> {
    account: &'a str,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    since: u64,
    reason: &'static str,
}

impl<'a> RoleJson<'a> {
    fn of(account: &'a str, standing: Standing) -> Self {
        let Standing { role, why, since_ms } = standing;
        let term = role.term();
        Self {
            account,
            role: role.as_str(),
            seq: term.map(|term| term.seq.0),
            epoch: term.map(|term| term.epoch.to_string()),
            since: since_ms,
            reason: why.as_str(),
        }
    }
}

async fn roles(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(all_roles(&shared.agent))
}

fn all_roles(agent: &Agent) -> Value {
    let standings = agent.elector.standings();
    let accounts: Vec<_> =
        standings.iter().map(|(name, standing)| RoleJson::of(name.as_str(), *standing)).collect();
    let sessions: Vec<String> = agent.elector.sessions().iter().map(ToString::to_string).collect();
    json!({
        "instance_id": &**agent.elector.instance(),
        "session": sessions.first(),
        "sessions": sessions,
        "accounts": accounts,
    })
}

async fn events(
    State(shared): State<Arc<Shared>>,
    closing: Option<Extension<Closing>>,
) -> Result<Response, Problem> {
    let place = Semaphore::try_acquire_owned(Arc::clone(&shared.streams)).map_err(|_| {
        let detail = format!("{MOST_STREAMS} event streams are open already; try again later");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    // Changes from here on: none is missed between the roles and the first of them.
    let changes = BroadcastStream::new(shared.agent.elector.changes());
    let first = write("roles", &all_roles(&shared.agent));
    let told = changes.map(move |change| {
        // The place is given back when the stream is dropped.
        let _held = &place;
        match change {
            Ok(change) => {
                let mut role = json!(RoleJson::of(change.account.as_str(), change.to));
                if let Some(role) = role.as_object_mut() {
                    role.insert("from".to_owned(), change.from.as_str().into());
                }
                write("role", &role)
            }
            Err(Lagged(missed)) => write("lagged", &json!({ "missed": missed })),
        }
    });
    let messages = once(std::future::ready(first)).chain(told).map(Ok::<_, Infallible>);
    let closed = match closing {
        Some(Extension(mut closing)) => Either::Left(async move { closing.wait().await }),
        None => Either::Right(pending()),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(Box::pin(messages.take_until(Box::pin(closed)))).keep_alive(keep_alive).into_response())
}

fn write(name: &'static str, data: &Value) -> Message {
    Message::default().event(name).data(data.to_string())
}

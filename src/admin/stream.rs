//! `/v1/events`: what happens, as server-sent events.
//!
//! It begins with the view, so that a reader knows where things stand. A reader that is too slow is told how much it
//! missed; nothing waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, pending};
use futures_util::stream::{StreamExt, once};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError::Lagged;

use super::shape::{HandoverJson, RefusalJson, Snapshot, ViewJson};
use super::{Admin, Shared};
use crate::gateway::events::Event;
use crate::web::problem::Problem;
use crate::web::server::Closing;

/// How often a comment is sent when nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    closing: Option<Extension<Closing>>,
) -> Result<Response, Problem> {
    let place = Semaphore::try_acquire_owned(Arc::clone(&shared.streams)).map_err(|_| {
        let detail = format!("{} event streams are open already; try again later", super::MOST_STREAMS);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let admin = Arc::clone(&shared.admin);
    let told = BroadcastStream::new(admin.registry.events());
    let first = once(std::future::ready(Ok(Arc::new(Event::View))));
    let messages = first.chain(told).map(move |told| {
        // The place is given back when the stream is dropped.
        let _held = &place;
        Ok::<_, Infallible>(match told {
            Ok(event) => message(&admin, &event),
            Err(Lagged(missed)) => write("lagged", &json!({ "missed": missed })),
        })
    });
    let closed = match closing {
        Some(Extension(mut closing)) => Either::Left(async move { closing.wait().await }),
        None => Either::Right(pending()),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(Box::pin(messages.take_until(Box::pin(closed)))).keep_alive(keep_alive).into_response())
}

/// An event as it is told, with accounts and the view as they are by now.
fn message(admin: &Admin, event: &Event) -> Message {
    match event {
        Event::View => write("view", &ViewJson::of(admin)),
        Event::Account(name) => {
            let entry = admin.registry.get(name.as_str());
            let account = entry.map_or_else(|| Snapshot::gone(name.clone()), |entry| Snapshot::of(&entry));
            write("account", &account)
        }
        Event::Handover { account, at_ms, reason, from, to } => {
            write("handover", &HandoverJson::of(account, *at_ms, *reason, from, to))
        }
        Event::Refusal { account, code, request_id } => {
            write("refusal", &RefusalJson::of(account.as_ref(), *code, request_id))
        }
    }
}

fn write(name: &'static str, data: &impl Serialize) -> Message {
    // JSON on one line has no newline that could begin another field. Only a map whose keys are no text fails, and
    // there is none.
    let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
    Message::default().event(name).data(data)
}

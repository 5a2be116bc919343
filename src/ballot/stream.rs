//! `/v1/events`: elections as they change, as server-sent events.
//!
//! A reader that is too slow is told that it missed something, and looks again; nothing waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, pending, ready};
use futures_util::stream::{StreamExt, once};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::BroadcastStream;

use super::{MOST_STREAMS, Room, api};
use crate::election::Change;
use crate::web::problem::Problem;
use crate::web::server::Closing;

/// How often a comment is sent when nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn events(
    State(room): State<Arc<Room>>,
    closing: Option<Extension<Closing>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    api::guard(&room, &headers)?;
    let place = Semaphore::try_acquire_owned(Arc::clone(&room.streams)).map_err(|_| {
        let detail = format!("{MOST_STREAMS} event streams are open already; try again later");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let changes = BroadcastStream::new(room.embedded.changes());
    let secret = api::secret(&headers).ok().map(str::to_owned);
    // Whoever reads this and looks afterwards misses nothing.
    let first = once(ready(Ok::<_, Infallible>(Event::default().event("open").data("{}"))));
    let messages = first.chain(changes.map(move |change| {
        // The place is given back when the stream is dropped.
        let _held = &place;
        Ok(match change {
            Ok(Change::Account { name, .. }) => Event::default()
                .event("account")
                .data(api::shown(&room, &name, secret.as_deref()).to_string()),
            Ok(Change::Lost(_)) | Err(_) => Event::default().event("lagged").data("{}"),
        })
    }));
    let closed = match closing {
        Some(Extension(mut closing)) => Either::Left(async move { closing.wait().await }),
        None => Either::Right(pending()),
    };
    let messages = Box::pin(messages.take_until(Box::pin(closed)));
    Ok(Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

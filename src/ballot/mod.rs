//! The elections that the gateway keeps itself, served over HTTP: agents and plain clients in other processes take part.
//!
//! It says what [`election::embedded`](crate::election::embedded) said, and decides nothing. A session's secret comes as
//! bearer; where the gateway has keys, one of them is needed as well.

mod api;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use axum::{Router, middleware};
use tokio::sync::Semaphore;

use crate::election::embedded::Embedded;
use crate::key::Key;
use crate::web::pages;

/// How many event streams may be open; renewals need connections too.
const MOST_STREAMS: usize = 1024;

/// How many bytes a body may have: an instance id and a duration.
const MOST_BYTES: usize = 4096;

/// What handlers share.
#[derive(Debug)]
struct Room {
    embedded: Embedded,
    /// Who may come. Empty: whoever can reach the listener.
    keys: Vec<Key>,
    streams: Arc<Semaphore>,
}

/// The routes; `to_pages`: what they are to pages of other sites.
pub fn router(embedded: Embedded, keys: Vec<Key>, to_pages: pages::Room) -> Router {
    let room = Arc::new(Room { embedded, keys, streams: Arc::new(Semaphore::new(MOST_STREAMS)) });
    Router::new()
        .route("/v1/sessions", post(api::begin))
        .route("/v1/sessions/{session}", put(api::renew).delete(api::end))
        .route("/v1/elections", get(api::list))
        .route("/v1/elections/{account}", get(api::look))
        .route("/v1/elections/{account}/candidates", post(api::stand).delete(api::resign))
        .route("/v1/events", get(stream::events))
        .fallback(api::nothing_here)
        .method_not_allowed_fallback(api::wrong_method)
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(middleware::from_fn_with_state(to_pages, pages::guard))
        .with_state(room)
}

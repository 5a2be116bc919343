//! What operators see: health and readiness, metrics, the accounts, and a stream of what happens.
//!
//! It looks at what the registry knows and changes nothing, with one exception: accepting a new history. It never waits
//! for the coordination service, so that it answers while that is away. Whatever walks over all accounts does so on a
//! thread of its own, because this room shares its runtime with the follower.

mod access;
mod api;
mod metrics;
mod page;
mod shape;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Router, middleware};
use tokio::sync::Semaphore;

use crate::gateway::registry::Registry;
use crate::gateway::status::Status;
use crate::key::Key;
use crate::telemetry::Telemetry;
use crate::web::pages::{self, Room};
pub use crate::web::server::serve;

/// How many walks over all accounts may be under way at once.
const MOST_WALKS: usize = 2;

/// How many event streams may be open: half of the connections, so that probes and scrapes always find one.
const MOST_STREAMS: usize = 128;

/// How often measured values are moved into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// What the room looks at.
pub struct Admin {
    /// The accounts.
    pub registry: Arc<Registry>,
    /// The link and the process.
    pub status: Arc<Status>,
    /// Who may look. Empty: whoever can reach the listener.
    pub keys: Vec<Key>,
    /// Whether other machines can reach the listener.
    pub exposed: bool,
    /// Whether the listener speaks TLS: then a page of another site cannot pass for one of its own.
    pub tls: bool,
    /// The backend's name in the configuration.
    pub backend: &'static str,
    /// The barrier's name in the configuration.
    pub barrier: &'static str,
    /// Whether accounts have series of their own.
    pub per_account: bool,
    /// How many accounts have series of their own, in the order of their names.
    pub max_accounts: usize,
    /// When the process started: wall clock, milliseconds since 1970.
    pub started_at_ms: u64,
    /// The current values of the gauges that the proxy owns, by their names in [`crate::telemetry::name`].
    pub gauges: Arc<dyn Fn() -> Vec<(&'static str, f64)> + Send + Sync>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// What handlers share.
#[derive(Debug)]
struct Shared {
    admin: Arc<Admin>,
    walks: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// The routes.
pub fn router(admin: Arc<Admin>) -> Router {
    let room = Room::guarded(!admin.keys.is_empty() || admin.exposed || admin.tls);
    let shared = Arc::new(Shared {
        admin,
        walks: Arc::new(Semaphore::new(MOST_WALKS)),
        streams: Arc::new(Semaphore::new(MOST_STREAMS)),
    });
    Router::new()
        .route("/", get(page::page))
        .route("/healthz", get(api::healthz))
        .route("/readyz", get(api::readyz))
        .route("/metrics", get(api::metrics))
        .route("/v1/view", get(api::view))
        .route("/v1/accounts", get(api::accounts))
        .route("/v1/accounts/{account}", get(api::account))
        .route("/v1/events", get(stream::events))
        .route("/v1/history/accept", post(api::accept_history))
        .fallback(api::nothing_here)
        .method_not_allowed_fallback(api::wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), access::guard))
        .layer(middleware::from_fn_with_state(room, pages::guard))
        .with_state(shared)
}

/// Moves measured values into their buckets every few seconds, for ever.
pub async fn upkeep(telemetry: Arc<Telemetry>) {
    let mut due = tokio::time::interval(UPKEEP);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        telemetry.upkeep();
    }
}

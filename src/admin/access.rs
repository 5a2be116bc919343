//! Who may look, and who may change something: the room's own keys.
//!
//! Health and readiness are for everybody: probes carry no keys, and learn nothing of accounts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Shared;
use crate::key::{self, Key};
use crate::web::problem::Problem;

const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Lets a request through if it presents a key, or if there are none.
pub(super) async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if is_open(&shared.admin.keys, &request) {
        return next.run(request).await;
    }
    let detail =
        "send one of [auth] admin_keys: as X-Fencing-Key, as a bearer, or as the password of any user";
    let mut refusal = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
    // Browsers ask for a password then.
    refusal
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"fencegate\""));
    refusal
}

fn is_open(keys: &[Key], request: &Request) -> bool {
    let known = || key::presented(request.headers()).and_then(|key| key::find(keys, &key));
    keys.is_empty() || OPEN.contains(&request.uri().path()) || known().is_some()
}

/// Checks that a request that came through may change something.
///
/// # Errors
/// Others than this machine can reach the room, and no key protects it.
pub(super) fn may_change(shared: &Shared) -> Result<(), Problem> {
    if shared.admin.exposed && shared.admin.keys.is_empty() {
        let detail = "changes need a key where other machines can reach the admin listener: add [auth] admin_keys, which \
                      `fencegate key new` makes";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(())
}

//! The live page at `/`: one file, fed by the room's own routes.
//!
//! It loads nothing from elsewhere and works without a network beyond this listener. Its style and script are the only ones
//! that the browser may run: their hashes stand in the answer's policy, and are made of the file itself.

use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use ring::digest::{SHA256, digest};

const PAGE: &str = include_str!("page.html");

static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        source("style"),
        source("script")
    )
});

/// The page.
pub(super) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}

/// What a policy says of the page's only element with this tag: the hash of what is in it.
fn source(tag: &str) -> String {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inner =
        PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).map_or("", |(inner, _)| inner);
    format!("'sha256-{}'", BASE64_STANDARD.encode(digest(&SHA256, inner.as_bytes())))
}

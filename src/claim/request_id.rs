//! What a request is called in logs and answers.

use http::HeaderValue;

use super::fields::{Fields, Once};
use crate::clock::wall_ms;

/// Kept if it is fit to be a log field, else made.
#[must_use]
pub fn request_id(fields: &Fields<'_>) -> HeaderValue {
    if let Once { value: Some(id), again: false } = fields.request_id {
        let fits = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
        if (1..=128).contains(&id.len()) && id.as_bytes().iter().all(fits) {
            return id.clone();
        }
    }
    // It has to be unique, not secret.
    let (mut text, mut random) = ([0; uuid::fmt::Hyphenated::LENGTH], [0; 10]);
    fastrand::fill(&mut random);
    let id = uuid::Builder::from_unix_timestamp_millis(wall_ms(), &random).into_uuid();
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).unwrap_or(HeaderValue::from_static("-"))
}

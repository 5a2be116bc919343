//! What tests expect of a request: admitted, refused in the whole shape of a refusal, or no request at all.
//!
//! Each check also looks at what reached the sender.

use serde_json::{Value, json};

use super::http1::Response;
use super::sender::Recorded;
use super::stage::Holder;
use super::wait::PATIENCE;

/// Writes bytes on a connection of their own; the first final answer, or none where the connection was closed.
#[track_caller]
pub fn answer_to(holder: &Holder, bytes: impl AsRef<[u8]>) -> Option<Response> {
    let mut connection = holder.connect();
    let _ = connection.write(bytes);
    connection.read_within(PATIENCE).ok()
}

/// A refusal by the gateway itself, in its whole form; nothing of the account's reached the sender.
#[track_caller]
pub fn assert_refused(holder: &Holder, what: &str, response: &Response, status: u16, code: &str) -> Value {
    assert_eq!((response.status, response.code().as_deref()), (status, Some(code)), "{what}");
    assert_eq!(response.header("x-fencing-verdict"), Some(code), "{what}");
    assert_eq!(response.header("x-fencing-outcome"), Some("not_sent"), "{what}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{what}");
    let problem = response.json();
    assert_eq!(problem["type"], format!("urn:fencegate:{code}"), "{what}");
    assert_eq!((&problem["status"], &problem["outcome"]), (&json!(status), &json!("not_sent")), "{what}");
    assert!(problem["title"].is_string() && !problem["detail"].as_str().unwrap().is_empty(), "{what}");
    assert_eq!(problem["request_id"].as_str(), response.header("x-request-id"), "{what}");
    assert!(holder.seen().is_empty(), "{what}: something reached the sender");
    problem
}

/// Bytes that are refused with a code.
#[track_caller]
pub fn assert_bytes_refused(holder: &Holder, bytes: impl AsRef<[u8]>, status: u16, code: &str) {
    let what = String::from_utf8_lossy(&bytes.as_ref()[..bytes.as_ref().len().min(300)]).into_owned();
    let response = answer_to(holder, bytes).unwrap_or_else(|| panic!("closed without an answer: {what}"));
    assert_refused(holder, &what, &response, status, code);
}

/// Bytes that are no request: a bare 4xx or a close, and nothing reaches the sender.
#[track_caller]
pub fn assert_no_request(holder: &Holder, bytes: impl AsRef<[u8]>) {
    let what = String::from_utf8_lossy(bytes.as_ref()).into_owned();
    if let Some(response) = answer_to(holder, bytes) {
        assert!((400..500).contains(&response.status), "{}: {what}", response.status);
    }
    assert!(holder.seen().is_empty(), "{what}: something reached the sender");
}

/// The one request of the account that reached the sender, whole.
#[track_caller]
pub fn only(holder: &Holder) -> Recorded {
    let mut seen = holder.wait_for_ended(1);
    assert_eq!(seen.len(), 1, "requests of {} at the sender", holder.account);
    let request = seen.remove(0);
    assert!(request.whole && !request.aborted);
    request
}

#[track_caller]
pub fn assert_admitted(response: &Response) {
    assert_eq!((response.status, response.header("x-fencing-verdict")), (200, Some("admitted")));
    assert!(!response.headers.has("x-fencing-outcome"));
}

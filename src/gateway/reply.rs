//! What the gateway answers itself: problem+json with a code, an outcome, and what to do.
//!
//! One function turns any refusal or failure into a reply. It never answers for the sender.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::code::{Code, Outcome};
use crate::config::{Filling, Form};
use crate::fence::token::Claim;
use crate::fence::view::Holder;
use crate::forward::memory::Kept;

/// `X-Request-Id`.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `X-Fencing-Verdict`.
pub const VERDICT: HeaderName = HeaderName::from_static("x-fencing-verdict");
const OUTCOME: HeaderName = HeaderName::from_static("x-fencing-outcome");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// HTTP wants a 401 to name a scheme; this one is the key's own header.
const CHALLENGE: HeaderValue = HeaderValue::from_static("X-Fencing-Key realm=\"fencegate\"");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// What is known of a request when it is answered.
#[derive(Debug, Default)]
pub struct Known<'a> {
    /// The account, where the request names one.
    pub account: Option<&'a str>,
    /// The token, where it is well-formed.
    pub claim: Option<&'a Claim>,
    /// The holder under the view that refused.
    pub current: Option<&'a Holder>,
    /// The methods that a route allows, with `method_not_allowed`.
    pub allow: Option<&'a str>,
    /// The form that its route gives a refusal; `None`: problem+json.
    pub form: Option<&'a Form>,
}

/// The part of a problem that its code decides.
#[derive(Serialize)]
struct Kind<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    outcome: &'static str,
    detail: &'a str,
}

impl<'a> Kind<'a> {
    fn new(code: Code, detail: &'a str) -> Self {
        Self {
            r#type: code.urn(),
            title: code.title(),
            status: code.status(),
            code: code.as_str(),
            outcome: code.outcome().as_str(),
            detail,
        }
    }

    /// As JSON, without the closing brace.
    fn open(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(640);
        write_json(&mut json, self);
        json.pop();
        json
    }
}

/// What each code's problem begins with, where nothing more is known than the code: written once, because a zombie that
/// retries without end gets it again and again.
static KINDS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| Code::ALL.iter().map(|code| Kind::new(*code, advice(*code)).open()).collect());

/// A structure of text and numbers can always be written.
fn write_json(json: &mut Vec<u8>, value: &impl Serialize) {
    let _ = serde_json::to_writer(json, value);
}

fn member(json: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    json.extend_from_slice(name.as_bytes());
    write_json(json, value);
}

/// The body of a problem.
fn document(code: Code, detail: &str, request_id: &HeaderValue, known: &Known<'_>) -> Vec<u8> {
    let mut json = match KINDS.get(code.index()) {
        Some(kind) if detail.is_empty() => {
            let mut json = Vec::with_capacity(640);
            json.extend_from_slice(kind);
            json
        }
        Some(_) | None => Kind::new(code, detail).open(),
    };
    member(&mut json, ",\"request_id\":", &request_id.to_str().unwrap_or("-"));
    if let Some(account) = known.account {
        member(&mut json, ",\"account\":", &account);
    }
    if let Some(claim) = known.claim {
        let presented = Presented { seq: claim.seq.0, session: claim.session.to_string() };
        member(&mut json, ",\"presented\":", &presented);
    }
    if let Some(holder) = known.current {
        let current =
            Current { seq: holder.seq.0, instance_id: &holder.instance, active_since: holder.active_since };
        member(&mut json, ",\"current\":", &current);
    }
    json.push(b'}');
    json
}

#[derive(Serialize)]
struct Presented {
    seq: u64,
    session: String,
}

/// Never the session: it would let a zombie forge the holder's token.
#[derive(Serialize)]
struct Current<'a> {
    seq: u64,
    instance_id: &'a str,
    active_since: Option<i64>,
}

/// What a code means and what to do, where nothing more is known.
#[must_use]
pub const fn advice(code: Code) -> &'static str {
    match code {
        Code::MalformedRequest => "mend the client",
        Code::MalformedPath => "mend the path",
        Code::MalformedAccount => "name one account",
        Code::MalformedToken => "send the token as the election gave it",
        Code::Unauthenticated => "send the key that its operator gave you, as X-Fencing-Key",
        Code::AccountForbidden => "this key is for other accounts; ask the gateway's operator",
        Code::Denied => "this route refuses everything; ask its operator",
        Code::NoRoute => "no route matches this path; check the URL, or the gateway's routes",
        Code::UnknownAccount => {
            "the account has no znode below the root; check its name, or let an instance register first"
        }
        Code::MethodNotAllowed => "use a method that the route allows",
        Code::BodyTimeout => "send the body faster",
        Code::StaleToken => "a newer holder exists; stop sending and go back to the election",
        Code::SessionMismatch => {
            "another session holds with this number; stop sending and go back to the election"
        }
        Code::NotHolder => "this candidate does not hold the account; wait until it does",
        Code::InstanceMismatch => {
            "another instance holds with this number; stop sending and go back to the election"
        }
        Code::EpochMismatch => "this is the token of another term; stop sending and go back to the election",
        Code::NoHolder => "nobody holds the account; go back to the election",
        Code::InvalidHolder => {
            "the account's holder does not count; its operator finds the reason in the gateway's log"
        }
        Code::Superseded => {
            "the holder changed before the send began; stop sending and go back to the election"
        }
        Code::BodyTooLarge => "send a smaller body",
        Code::UnsupportedBody => "send the body in a form the route can read",
        Code::ExpectationFailed => "expect nothing but 100-continue",
        Code::MissingToken => "send X-Fencing-Seq and X-Fencing-Session",
        Code::HeadersTooLarge => "send fewer or shorter headers",
        Code::UpstreamUnreachable => "nothing was sent; try again",
        Code::ViewUnproven => {
            "the elections could not be proven current in time; nothing was sent; try again"
        }
        Code::HistoryReset => {
            "ZooKeeper's history went back; nothing is sent until the new one is accepted: fencegate accept-history, or \
             POST /v1/history/accept on the admin listener"
        }
        Code::Overloaded => "a limit of the gateway is reached; nothing was sent; try again",
        Code::ShuttingDown => "the gateway is shutting down; nothing was sent; try again",
        Code::Internal => "the gateway failed; the request may have been sent; do not blindly resend",
        Code::UpstreamFailed => "the request may have been sent; do not blindly resend",
        Code::UpstreamTimeout => "the request may have been sent; do not blindly resend",
        Code::HandoverCut => "a new holder followed; the request may have been sent; do not blindly resend",
        Code::ShutdownCut => "the gateway shut down; the request may have been sent; do not blindly resend",
    }
}

/// The reply to a refusal or failure.
#[must_use]
pub fn problem(code: Code, detail: &str, request_id: &HeaderValue, known: &Known<'_>) -> Response<ReplyBody> {
    let body = document(code, detail, request_id, known);
    let mut reply = Response::new(ReplyBody::whole(body.into()));
    *reply.status_mut() = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, PROBLEM);
    headers.insert(VERDICT, HeaderValue::from_static(code.as_str()));
    headers.insert(OUTCOME, HeaderValue::from_static(code.outcome().as_str()));
    headers.insert(REQUEST_ID, request_id.clone());
    if code.status() == 503 {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
    }
    if let Some(allow) = known.allow.and_then(|allow| HeaderValue::from_str(allow).ok()) {
        headers.insert(header::ALLOW, allow);
    }
    debug_assert!(code.status() != 503 || code.outcome() == Outcome::NotSent);
    if let Some(form) = known.form {
        fill(&mut reply, form, code, detail, request_id, known.account);
    }
    reply
}

/// Gives a refusal the form that its route has for clients that read bodies only. What the headers say stays true.
fn fill(
    reply: &mut Response<ReplyBody>,
    form: &Form,
    code: Code,
    detail: &str,
    request_id: &HeaderValue,
    account: Option<&str>,
) {
    let filling = Filling {
        code: code.as_str(),
        status: code.status(),
        outcome: code.outcome().as_str(),
        detail: if detail.is_empty() { advice(code) } else { detail },
        account: account.unwrap_or_default(),
        request_id: request_id.to_str().unwrap_or("-"),
    };
    *reply.body_mut() = ReplyBody::whole(form.fill(&filling).into());
    reply.headers_mut().insert(header::CONTENT_TYPE, JSON);
    if let Some(status) = form.status.and_then(|status| StatusCode::from_u16(status).ok()) {
        *reply.status_mut() = status;
    }
}

/// A reply's body broke off: the caller's connection is aborted, never ended cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the sender's answer broke off")]
pub struct Aborted;

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Frames(VecDeque<Bytes>),
    /// What is there, what still comes, and how much both are, where that is known.
    Rest(VecDeque<Bytes>, mpsc::Receiver<Option<Bytes>>, Option<u64>),
}

/// The body of any reply.
#[derive(Debug)]
pub struct ReplyBody {
    content: Content,
    /// Kept until the body is dropped: the connection is busy with it.
    busy: Option<Arc<super::activity::Busy>>,
    /// Kept for the same time: what is counted of it.
    kept: Option<Kept>,
}

impl ReplyBody {
    /// One piece.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self { content: Content::Whole(bytes), busy: None, kept: None }
    }

    /// Pieces that are all there.
    #[must_use]
    pub fn frames(mut frames: VecDeque<Bytes>) -> Self {
        if frames.len() <= 1 {
            return Self::whole(frames.pop_front().unwrap_or_default());
        }
        Self { content: Content::Frames(frames), busy: None, kept: None }
    }

    /// Pieces that are there, and those that still come; with their length in all, where it is known.
    #[must_use]
    pub fn partial(
        frames: VecDeque<Bytes>,
        rest: mpsc::Receiver<Option<Bytes>>,
        length: Option<u64>,
    ) -> Self {
        Self { content: Content::Rest(frames, rest, length), busy: None, kept: None }
    }
}

impl ReplyBody {
    /// Holds what is counted of an answer as long as its body.
    pub(super) fn hold(&mut self, kept: Option<Kept>) {
        self.kept = kept;
    }

    /// Notes on its connection how far it gets, until it is dropped.
    pub(super) fn watch(&mut self, busy: Arc<super::activity::Busy>) {
        if !self.is_end_stream() {
            busy.hand_over();
        }
        self.busy = Some(busy);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let ready = |bytes: Bytes| Poll::Ready(Some(Ok(Frame::data(bytes))));
        match &mut self.content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => ready(std::mem::take(bytes)),
            Content::Frames(frames) => frames.pop_front().map_or(Poll::Ready(None), ready),
            Content::Rest(frames, rest, left) => {
                let next = match frames.pop_front() {
                    Some(frame) => Poll::Ready(Some(Some(frame))),
                    None => rest.poll_recv(cx),
                };
                match next {
                    Poll::Ready(Some(Some(bytes))) => {
                        *left = left.map(|left| left.saturating_sub(bytes.len() as u64));
                        ready(bytes)
                    }
                    Poll::Ready(Some(None)) => {
                        self.content = Content::Whole(Bytes::new());
                        Poll::Ready(None)
                    }
                    Poll::Ready(None) => {
                        self.busy.iter().for_each(|busy| busy.abort());
                        Poll::Ready(Some(Err(Aborted)))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.busy.iter().for_each(|busy| busy.make_room());
        let next = self.poll_next(cx);
        if matches!(next, Poll::Ready(Some(Ok(_)))) && !self.is_end_stream() {
            self.busy.iter().for_each(|busy| busy.hand_over());
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Frames(frames) => frames.is_empty(),
            Content::Rest(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Frames(frames) => {
                SizeHint::with_exact(frames.iter().map(|frame| frame.len() as u64).sum())
            }
            Content::Rest(_, _, Some(left)) => SizeHint::with_exact(*left),
            Content::Rest(_, _, None) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_the_same_document_whether_or_not_its_beginning_was_written_before() {
        for code in Code::ALL {
            let id = HeaderValue::from_static("r\"1");
            let known = Known { account: Some("wxid_1"), ..Known::default() };
            let written = document(*code, "", &id, &known);
            assert_eq!(written, document(*code, advice(*code), &id, &known));
            let read: serde_json::Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(
                read,
                serde_json::json!({
                    "type": code.urn(), "title": code.title(), "status": code.status(), "code": code.as_str(),
                    "outcome": code.outcome().as_str(), "detail": advice(*code), "request_id": "r\"1",
                    "account": "wxid_1",
                })
            );
        }
    }
}

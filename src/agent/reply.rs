//! What the agent answers: the gateway's answer as it is, or a problem of its own.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde_json::json;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::code::Code;
use crate::forward::exchange::{Answer, AnswerBody};
use crate::forward::memory::Kept;

const VERDICT: HeaderName = HeaderName::from_static("x-fencing-verdict");
const OUTCOME: HeaderName = HeaderName::from_static("x-fencing-outcome");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Why a request was not forwarded.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The account is not led: the role, and what to do.
    NotLeader(&'static str, String),
    /// One of the gateway's codes.
    Code(Code, String),
}

/// A problem, with the account where it is known.
pub(super) fn problem(
    refusal: &Refusal,
    account: Option<&str>,
    request_id: Option<&HeaderValue>,
) -> Response<ReplyBody> {
    let (code, urn, title, status, detail, outcome, role) = match refusal {
        Refusal::NotLeader(role, detail) => (
            "not_leader",
            "urn:fencegate:not_leader",
            "This instance does not lead the account",
            409,
            detail,
            "not_sent",
            Some(role),
        ),
        Refusal::Code(code, detail) => {
            (code.as_str(), code.urn(), code.title(), code.status(), detail, code.outcome().as_str(), None)
        }
    };
    let detail = if detail.is_empty() { title } else { detail };
    let mut body = json!({
        "type": urn, "title": title, "status": status, "detail": detail, "code": code, "outcome": outcome,
    });
    let id = request_id.and_then(|id| id.to_str().ok());
    for (key, value) in [("account", account), ("role", role.copied()), ("request_id", id)] {
        if let (Some(value), Some(body)) = (value, body.as_object_mut()) {
            body.insert(key.to_owned(), value.into());
        }
    }
    let mut reply = Response::new(ReplyBody::whole(body.to_string().into()));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(VERDICT, HeaderValue::from_static(code));
    headers.insert(OUTCOME, HeaderValue::from_static(outcome));
    if let Some(id) = request_id {
        headers.insert(REQUEST_ID, id.clone());
    }
    if status == 503 {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply
}

/// The gateway's answer; its headers are as they came.
pub(super) fn forwarded(answer: Answer) -> Response<ReplyBody> {
    let Answer { head, body, kept } = answer;
    let mut reply = Response::new(match body {
        AnswerBody::Whole(frames) => ReplyBody { frames, rest: None, kept },
        AnswerBody::Partial(frames, rest) => ReplyBody { frames, rest: Some(rest), kept },
    });
    *reply.status_mut() = head.status;
    *reply.headers_mut() = head.headers;
    reply
}

/// The answer broke off: the bot's connection is aborted, never ended cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the gateway's answer broke off")]
pub(super) struct Aborted;

/// The body of any reply.
#[derive(Debug)]
pub(super) struct ReplyBody {
    frames: VecDeque<Bytes>,
    /// What still comes; its clean end is a `None`.
    rest: Option<mpsc::Receiver<Option<Bytes>>>,
    /// What is counted of it, for as long as it is held.
    kept: Option<Kept>,
}

impl ReplyBody {
    fn whole(bytes: Bytes) -> Self {
        Self { frames: VecDeque::from([bytes]), rest: None, kept: None }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        let Some(rest) = &mut self.rest else {
            self.kept = None;
            return Poll::Ready(None);
        };
        match rest.poll_recv(cx) {
            Poll::Ready(Some(Some(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(Some(None)) => {
                self.rest = None;
                Poll::Ready(None)
            }
            Poll::Ready(None) => Poll::Ready(Some(Err(Aborted))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest {
            None => SizeHint::with_exact(self.frames.iter().map(|frame| frame.len() as u64).sum()),
            Some(_) => SizeHint::default(),
        }
    }
}

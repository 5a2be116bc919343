//! One request and its answer as a stream of an HTTP/2 connection.
//!
//! What became of it is told as it is: a request counts as unsent only if nothing at all was written since its stream was
//! opened. A sender's word that it has not looked at a request (REFUSED_STREAM, GOAWAY) does not count: it has it. Nothing
//! is sent again here.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header, response};
use hyper::body::Body;
use thiserror::Error;

use super::body::RequestBody;
use super::link::Room;
use super::says::End;
use crate::clock::Moment;

/// Why there is no answer.
#[derive(Debug, Error)]
#[error("{why}")]
pub(super) struct Lost {
    /// No byte of the request was written.
    pub(super) unsent: bool,
    why: String,
}

/// What begins a stream.
#[derive(Debug)]
pub(super) enum Begun {
    /// Its stream, and the request once more, where all of it was in.
    Call(Box<Call>, Option<Request<RequestBody>>),
    /// The connection takes none any more; the request as it was.
    Closed(Request<RequestBody>),
    /// It cannot be said in HTTP/2.
    Unfit,
}

/// A stream. Dropped, it is reset soon.
#[derive(Debug)]
pub(super) struct Call {
    /// Dropped last.
    sending: SendStream<Bytes>,
    answer: Answer,
    /// Until all of it is handed over.
    body: Option<RequestBody>,
    /// What is next of it.
    piece: Bytes,
    /// All of the request is handed over, and its end.
    sent: bool,
    /// The writes before it.
    before: u64,
    room: Room,
}

#[derive(Debug)]
enum Answer {
    Head(ResponseFuture),
    /// What comes, how much of it has come, and how much it should be.
    Body(RecvStream, u64, Option<u64>),
}

impl Call {
    /// Opens a stream for a request.
    pub(super) fn begin(room: Room, secure: bool, request: Request<RequestBody>) -> Begun {
        let (parts, body) = request.into_parts();
        let Some(uri) = uri(&parts, secure) else { return Begun::Unfit };
        let mut head = Request::new(());
        *head.method_mut() = parts.method.clone();
        *head.uri_mut() = uri;
        *head.version_mut() = Version::HTTP_2;
        *head.headers_mut() = fields(&parts.headers, &parts.method, &body);
        let (before, is_whole) = (room.writes(), body.is_end_stream());
        let Ok((answer, sending)) = room.sender().send_request(head, is_whole) else {
            return Begun::Closed(Request::from_parts(parts, body));
        };
        let spare = body.again().map(|body| Request::from_parts(parts, body));
        let call = Self {
            sending,
            answer: Answer::Head(answer),
            body: (!is_whole).then_some(body),
            piece: Bytes::new(),
            sent: is_whole,
            before,
            room,
        };
        Begun::Call(Box::new(call), spare)
    }

    /// Hands the request over as the sender takes it. An error if it broke off: then its stream is reset.
    fn hand_over(&mut self, cx: &mut Context<'_>) -> Result<(), Lost> {
        while let Some(body) = &mut self.body {
            if self.piece.is_empty() {
                let next = match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(next) => next,
                };
                match next {
                    Some(Ok(frame)) => self.piece = frame.into_data().unwrap_or_default(),
                    Some(Err(broken)) => {
                        self.body = None;
                        self.sending.send_reset(Reason::CANCEL);
                        return Err(Lost { unsent: false, why: broken.to_string() });
                    }
                    None => {
                        self.body = None;
                        self.sent = self.sending.send_data(Bytes::new(), true).is_ok();
                        return Ok(());
                    }
                }
                self.sending.reserve_capacity(self.piece.len());
            }
            let is_last = body.is_end_stream();
            if self.piece.is_empty() && !is_last {
                continue;
            }
            let mut room = self.sending.capacity();
            if room == 0 && !self.piece.is_empty() {
                let more = self.sending.poll_capacity(cx);
                // Before its head is written it waits for our own side only.
                self.room.starve(more.is_pending() && self.room.writes() != self.before);
                room = match more {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(Ok(room))) => room,
                    // The sender wants no more of it: its answer says why.
                    Poll::Ready(Some(Err(_)) | None) => {
                        self.body = None;
                        return Ok(());
                    }
                };
            }
            self.room.starve(false);
            let part = self.piece.split_to(room.min(self.piece.len()));
            let is_end = is_last && self.piece.is_empty();
            if part.is_empty() && !is_end {
                continue;
            }
            let taken = self.sending.send_data(part, is_end).is_ok();
            if is_end || !taken {
                self.body = None;
                self.sent = is_end && taken;
            }
        }
        Ok(())
    }

    /// The answer's head.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<response::Parts, Lost>> {
        self.hand_over(cx)?;
        let Answer::Head(answer) = &mut self.answer else {
            return Poll::Ready(Err(Lost { unsent: false, why: "its head was taken".to_owned() }));
        };
        match ready!(Pin::new(answer).poll(cx)) {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                let length = head.headers.get(header::CONTENT_LENGTH);
                let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
                self.room.answered();
                self.answer = Answer::Body(body, 0, length);
                Poll::Ready(Ok(head))
            }
            Err(why) => {
                let unsent = self.room.writes() == self.before;
                Poll::Ready(Err(Lost { unsent, why: why.to_string() }))
            }
        }
    }

    /// The next piece of its body; trailers end here.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        if let Err(lost) = self.hand_over(cx) {
            return Poll::Ready(Some(Err(lost)));
        }
        let Answer::Body(body, came, length) = &mut self.answer else { return Poll::Ready(None) };
        match ready!(body.poll_data(cx)) {
            Some(Ok(data)) => {
                *came += data.len() as u64;
                // What is read makes room at once; the answer's buffer bounds what is kept of it.
                let _ = body.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(data)))
            }
            None => Poll::Ready(None),
            // All of it is here, and the sender wants no more of the request.
            Some(Err(why)) if why.reason() == Some(Reason::NO_ERROR) && *length == Some(*came) => {
                Poll::Ready(None)
            }
            Some(Err(why)) => Poll::Ready(Some(Err(Lost { unsent: false, why: why.to_string() }))),
        }
    }

    /// Whether nothing more of the answer comes.
    pub(super) fn is_answered(&self) -> bool {
        matches!(&self.answer, Answer::Body(body, ..) if body.is_end_stream())
    }

    /// Ends it: in order if both messages are through, else by a reset; and waits until that is written.
    pub(super) async fn end(mut self, end: End, now: Moment, idle: Duration) {
        if end == End::Late {
            self.room.retire();
        }
        if end.is_broken() || !self.sent {
            self.sending.send_reset(Reason::CANCEL);
            self.room.settle().await;
        } else if self.room.is_blocked() {
            self.room.settle().await;
        }
        let Self { sending, answer, room, .. } = self;
        drop((sending, answer));
        room.leave(now, idle);
    }

    /// Waits for the answer's head, as long as `stop` does not say otherwise.
    pub(super) async fn head<S>(
        &mut self,
        stop: impl Fn(&mut Context<'_>) -> Poll<S>,
    ) -> Result<Result<response::Parts, Lost>, S> {
        poll_fn(|cx| match self.poll_head(cx) {
            Poll::Ready(head) => Poll::Ready(Ok(head)),
            Poll::Pending => stop(cx).map(Err),
        })
        .await
    }
}

/// Where the request goes: its Host is the authority.
fn uri(parts: &http::request::Parts, secure: bool) -> Option<Uri> {
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(Authority::try_from(parts.headers.get(header::HOST)?.as_bytes()).ok()?);
    let path = parts.uri.path_and_query().cloned();
    uri.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
    Uri::from_parts(uri).ok()
}

/// The request's fields, without Host, and with the length that HTTP/1.1 would say.
fn fields(headers: &HeaderMap, method: &Method, body: &RequestBody) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(header::HOST);
    if let Some(length) = body.size_hint().exact() {
        let says_nothing = [Method::POST, Method::PUT, Method::PATCH].contains(method);
        if length > 0 || says_nothing {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    headers
}

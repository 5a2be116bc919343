//! One exchange with an upstream: a request goes out at most once, its answer comes back whole or not at all.
//!
//! Whatever goes wrong says whether the sender may have seen a byte. It never retries once one may have been written,
//! and it never looks into an answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::Authority;
use super::body::{Progress, RequestBody};
use super::pool::{Connection, Pool, Target};
use crate::code::Code;

/// How long and how much.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For a new connection.
    pub connect: Duration,
    /// For the whole exchange, from its beginning to the end of the answer.
    pub total: Duration,
    /// How long a connection may stay idle afterwards.
    pub idle: Duration,
    /// How much of an answer is read before it is passed on.
    pub answer_buffer: u64,
}

/// Why there is no answer. The code says whether the sender may have seen the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the caller.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
}

impl Failure {
    fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its head, as it came.
    pub head: http::response::Parts,
    /// Its body.
    pub body: AnswerBody,
}

/// An answer's body.
#[derive(Debug)]
pub enum AnswerBody {
    /// All of it; the exchange is over.
    Whole(VecDeque<Bytes>),
    /// Its beginning, and where the rest comes; the exchange goes on in a task of its own. Its clean end is a `None`; if
    /// nothing comes any more without one, it broke.
    Partial(VecDeque<Bytes>, mpsc::Receiver<Option<Bytes>>),
}

/// What is sent, and where.
#[derive(Debug)]
pub struct Outgoing {
    /// The request.
    pub request: Request<RequestBody>,
    /// Where its body stands, if it was not all in.
    pub progress: Option<Progress>,
    /// Where it goes.
    pub target: Arc<Target>,
    /// Its bounds.
    pub bounds: Bounds,
}

struct Exchange<A> {
    pool: Arc<Pool>,
    target: Arc<Target>,
    bounds: Bounds,
    authority: A,
    deadline: Pin<Box<Sleep>>,
    progress: Option<Progress>,
}

/// Why waiting ended early.
enum Stopped {
    Revoked(Code),
    Late,
}

impl<A: Authority> Exchange<A> {
    /// Waits for `work`, but not beyond the deadline or the authority.
    async fn within<F: Future>(&mut self, work: F) -> Result<F::Output, Stopped> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if let Poll::Ready(code) = self.authority.poll_revoked(cx) {
                return Poll::Ready(Err(Stopped::Revoked(code)));
            }
            self.deadline.as_mut().poll(cx).map(|()| Err(Stopped::Late))
        })
        .await
    }

    /// A connection that is ready, the last used one first.
    async fn connection(&mut self) -> Result<Connection, Failure> {
        let unreachable = |why: String| Failure::new(Code::UpstreamUnreachable, why);
        loop {
            let pooled = self.pool.take(&self.target);
            let Some(mut connection) = pooled else { break };
            // Its task may not have seen yet that the last exchange is over, or that the sender closed it.
            match self.within(connection.sender.ready()).await {
                Ok(Ok(())) => return Ok(connection),
                Ok(Err(_)) => {}
                Err(stopped) => return Err(not_sent(stopped)),
            }
        }
        let target = Arc::clone(&self.target);
        let connect = tokio::time::timeout(self.bounds.connect, Pool::connect(&target));
        match self.within(connect).await {
            Ok(Ok(Ok(connection))) => Ok(connection),
            Ok(Ok(Err(why))) => Err(unreachable(format!("the sender cannot be reached: {why}"))),
            Ok(Err(_)) => Err(unreachable("the sender did not accept a connection in time".to_owned())),
            Err(stopped) => Err(not_sent(stopped)),
        }
    }

    /// Sends the request; an answer's head.
    async fn send(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<(Connection, Response<Incoming>), Failure> {
        loop {
            let mut connection = self.connection().await?;
            self.authority
                .begin()
                .map_err(|code| Failure::new(code, "the holder changed before the send began"))?;
            let answer = connection.sender.try_send_request(request);
            let failure = match self.within(answer).await {
                Ok(Ok(response)) => return Ok((connection, response)),
                Ok(Err(mut failed)) => match failed.take_message() {
                    Some(unsent) => {
                        // The connection closed while it was idle: the request never left this process.
                        self.authority.unbegin();
                        if !connection.used {
                            connection.close().await;
                            let why = format!("the sender closed a new connection: {}", failed.error());
                            return Err(Failure::new(Code::UpstreamUnreachable, why));
                        }
                        request = unsent;
                        continue;
                    }
                    None => self.broken(failed.error()),
                },
                Err(stopped) => maybe_sent(stopped),
            };
            connection.close().await;
            return Err(failure);
        }
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> Failure {
        let by_caller = self.progress.as_ref().is_some_and(Progress::is_broken);
        let who = if by_caller {
            "the request's body broke off, so the send was aborted"
        } else {
            "the exchange broke"
        };
        Failure::new(Code::UpstreamFailed, format!("{who}: {why}"))
    }

    /// Reads the answer: whole, or as much of it as fits.
    async fn receive(
        &mut self,
        body: &mut Incoming,
        buffer: u64,
    ) -> Result<(VecDeque<Bytes>, bool), Failure> {
        let (mut frames, mut size) = (VecDeque::new(), 0);
        loop {
            if body.is_end_stream() {
                return Ok((frames, true));
            }
            if size >= buffer {
                return Ok((frames, false));
            }
            match self.within(body.frame()).await {
                Ok(None) => return Ok((frames, true)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        size += data.len() as u64;
                        frames.push_back(data);
                    }
                }
                Ok(Some(Err(why))) => return Err(self.broken(&why)),
                Err(stopped) => return Err(maybe_sent(stopped)),
            }
        }
    }

    /// Gives the connection back if both messages are through; else closes it.
    async fn finish(&mut self, mut connection: Connection, reusable: bool) {
        // An answer may come before all of its request is written; what is left must not hold up the next one.
        if reusable && self.progress.as_ref().is_none_or(Progress::is_sent) && connection.is_through().await {
            connection.used = true;
            self.pool.put(&self.target, connection, self.bounds.idle);
        } else {
            connection.close().await;
        }
    }

    /// Passes the rest of a long answer on. The caller's speed bounds it, and the deadline bounds the caller.
    async fn pump(
        mut self,
        connection: Connection,
        mut body: Incoming,
        reusable: bool,
        caller: mpsc::Sender<Option<Bytes>>,
        ended: impl FnOnce(Option<Code>) + Send + 'static,
    ) {
        let failure = loop {
            let data = match self.within(body.frame()).await {
                Ok(None) => break None,
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(_))) => break Some(Code::UpstreamFailed),
                Err(stopped) => break Some(maybe_sent(stopped).code),
            };
            // A caller that left no longer matters: the answer is read to its end all the same.
            match self.within(caller.send(Some(data))).await {
                Ok(_) => {}
                Err(stopped) => break Some(maybe_sent(stopped).code),
            }
        };
        match failure {
            None => self.finish(connection, reusable).await,
            Some(_) => connection.close().await,
        }
        // The permit goes before anybody is told; a slow caller does not hold it.
        drop(self);
        ended(failure);
        if failure.is_none() {
            let _ = caller.send(None).await;
        }
    }
}

fn not_sent(stopped: Stopped) -> Failure {
    match stopped {
        Stopped::Revoked(Code::ShutdownCut) => Failure::new(Code::ShuttingDown, ""),
        Stopped::Revoked(_) => Failure::new(Code::Superseded, "the holder changed before the send began"),
        Stopped::Late => Failure::new(Code::UpstreamUnreachable, "the sender could not be reached in time"),
    }
}

fn maybe_sent(stopped: Stopped) -> Failure {
    match stopped {
        // The advice for the code says it all.
        Stopped::Revoked(code) => Failure::new(code, ""),
        Stopped::Late => Failure::new(Code::UpstreamTimeout, "the sender did not answer in time"),
    }
}

/// Sends one request under an authority and reads its answer.
///
/// `ended` is told once how it ended: `None` if it was answered whole. The authority is given back before that, when the exchange has ended: the request written and the answer read to its end, or the
/// connection closed. Dropping the future closes the connection; callers that may leave keep it in a task.
///
/// # Errors
/// With a code whose outcome is `not_sent` no byte was written.
pub async fn send<A: Authority>(
    pool: &Arc<Pool>,
    outgoing: Outgoing,
    authority: A,
    ended: impl FnOnce(Option<Code>) + Send + 'static,
) -> Result<Answer, Failure> {
    let Outgoing { request, progress, target, bounds } = outgoing;
    let deadline = Box::pin(tokio::time::sleep(bounds.total));
    let mut exchange = Exchange { pool: Arc::clone(pool), target, bounds, authority, deadline, progress };
    match run(&mut exchange, request).await {
        Ok((head, connection, body, frames, whole)) => {
            let reusable = !announces_close(&head) && !is_framed_twice(&head.headers);
            if whole {
                exchange.finish(connection, reusable).await;
                drop(exchange);
                ended(None);
                return Ok(Answer { head, body: AnswerBody::Whole(frames) });
            }
            let (caller, rest) = mpsc::channel(8);
            tokio::spawn(exchange.pump(connection, body, reusable, caller, ended));
            Ok(Answer { head, body: AnswerBody::Partial(frames, rest) })
        }
        Err(failure) => {
            drop(exchange);
            ended(Some(failure.code));
            Err(failure)
        }
    }
}

type Received = (http::response::Parts, Connection, Incoming, VecDeque<Bytes>, bool);

async fn run<A: Authority>(
    exchange: &mut Exchange<A>,
    request: Request<RequestBody>,
) -> Result<Received, Failure> {
    let (connection, response) = exchange.send(request).await?;
    let (head, mut body) = response.into_parts();
    if head.status.is_informational() {
        connection.close().await;
        let why = format!("the sender answered {} to a request that asked for no such thing", head.status);
        return Err(Failure::new(Code::UpstreamFailed, why));
    }
    let buffer = if is_event_stream(&head) { 0 } else { exchange.bounds.answer_buffer };
    match exchange.receive(&mut body, buffer).await {
        Ok((frames, whole)) => Ok((head, connection, body, frames, whole)),
        Err(failure) => {
            connection.close().await;
            Err(failure)
        }
    }
}

fn announces_close(head: &http::response::Parts) -> bool {
    head.version != http::Version::HTTP_11
        || head.headers.get_all(header::CONNECTION).iter().any(|value| {
            value
                .to_str()
                .is_ok_and(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("close")))
        })
}

/// With both, the sender may mean another end than the one that was read.
fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH)
}

/// Events are passed on as they come: whoever asked for them waits for each.
fn is_event_stream(head: &http::response::Parts) -> bool {
    head.headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

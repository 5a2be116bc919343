//! One exchange with an upstream: a request goes out at most once, its answer comes back whole or not at all.
//!
//! Whatever goes wrong says whether the sender may have seen a byte. It never retries once one may have been written,
//! and it never looks into an answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::mpsc;

use super::body::{Progress, RequestBody};
use super::memory::{Kept, Memory};
use super::pool::{Connection, Pool};
use super::target::{Choice, Others, Target};
use super::{Authority, Stop};
use crate::code::Code;

/// Answers up to this size are not counted against the memory: the number of sends in flight bounds them well enough.
const SMALL: u64 = 16 * 1024;

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
    /// To be held as long as the body is.
    pub kept: Option<Kept>,
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
    pub choice: Choice,
    /// Its bounds.
    pub bounds: Bounds,
    /// What bounds the answers that are read ahead.
    pub memory: Memory,
}

/// The state of one exchange. It lives in one place, so that the futures over it stay small.
struct Exchange<A> {
    pool: Arc<Pool>,
    target: Arc<Target>,
    /// Where else it may go, as long as no connection is accepted.
    others: Option<Others>,
    bounds: Bounds,
    memory: Memory,
    kept: Option<Kept>,
    authority: A,
    progress: Option<Progress>,
    /// Until it is sent.
    request: Option<Request<RequestBody>>,
    /// While it is open and ours.
    connection: Option<Connection>,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Answered whole; another request may follow.
    Reusable,
    /// Answered whole; no other request may follow.
    Whole,
    /// Not answered whole.
    Broken,
}

impl<A: Authority> Exchange<A> {
    /// Waits for `work`, as long as the authority lasts.
    fn within<'a, F: Future>(
        &'a mut self,
        mut work: Pin<&'a mut F>,
    ) -> impl Future<Output = Result<F::Output, Stop>> + use<'a, A, F> {
        poll_fn(move |cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            self.authority.poll_stop(cx).map(Err)
        })
    }

    /// Finds a connection that is ready, the last used one first.
    async fn connect(&mut self) -> Result<(), Failure> {
        while let Some(mut connection) = self.pool.take(&self.target) {
            if !connection.sender.is_ready() {
                // Its task may not have seen yet that the last exchange is over, or that the sender closed it.
                let ready = self.within(pin!(connection.sender.ready())).await.map_err(not_sent)?;
                if ready.is_err() {
                    continue;
                }
            }
            self.connection = Some(connection);
            return Ok(());
        }
        Box::pin(self.connect_anew()).await
    }

    async fn connect_anew(&mut self) -> Result<(), Failure> {
        loop {
            let target = Arc::clone(&self.target);
            let connect = pin!(tokio::time::timeout(self.bounds.connect, Pool::connect(&target)));
            let why = match self.within(connect).await.map_err(not_sent)? {
                Ok(Ok(connection)) => {
                    target.answered();
                    self.connection = Some(connection);
                    return Ok(());
                }
                Ok(Err(why)) => format!("the sender cannot be reached: {why}"),
                Err(_) => "the sender did not accept a connection in time".to_owned(),
            };
            let now = self.pool.now();
            target.failed(now);
            match self.others.as_mut().and_then(|others| others.next(now)) {
                Some(next) => self.go_to(next),
                None => return Err(Failure::new(Code::UpstreamUnreachable, why)),
            }
        }
    }

    /// Another address, before anything was written.
    fn go_to(&mut self, next: Arc<Target>) {
        let old = std::mem::replace(&mut self.target, next);
        if let Some(request) = &mut self.request
            && request.headers().get(header::HOST) == Some(&old.authority)
        {
            request.headers_mut().insert(header::HOST, self.target.authority.clone());
        }
    }

    /// Sends the request; an answer's head.
    async fn send(&mut self) -> Result<Response<Incoming>, Failure> {
        loop {
            self.connect().await?;
            self.authority.begin().map_err(|code| Failure::new(code, ""))?;
            let (Some(connection), Some(request)) = (&mut self.connection, self.request.take()) else {
                return Err(Failure::new(Code::Internal, ""));
            };
            let answer = pin!(connection.sender.try_send_request(request));
            let mut failed = match self.within(answer).await.map_err(maybe_sent)? {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            self.request = failed.take_message();
            if self.request.is_none() {
                return Err(self.broken(failed.error()));
            }
            // The connection closed while it was idle: the request never left this process.
            self.authority.unbegin();
            if self.connection.as_ref().is_none_or(|connection| !connection.used) {
                let why = format!("the sender closed a new connection: {}", failed.error());
                return Err(Failure::new(Code::UpstreamUnreachable, why));
            }
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

    /// Reads the answer into `frames`: whole, or as much of it as fits. True if it is whole.
    async fn receive(
        &mut self,
        body: &mut Incoming,
        buffer: u64,
        frames: &mut VecDeque<Bytes>,
    ) -> Result<bool, Failure> {
        let mut size = 0;
        loop {
            if body.is_end_stream() {
                return Ok(true);
            }
            if size >= buffer {
                return Ok(false);
            }
            match self.within(pin!(body.frame())).await.map_err(maybe_sent)? {
                None => return Ok(true),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        let before = size.max(SMALL);
                        size += data.len() as u64;
                        frames.push_back(data);
                        if size > SMALL && !self.memory.keep(&mut self.kept, size - before) {
                            return Ok(false);
                        }
                    }
                }
                Some(Err(why)) => return Err(self.broken(&why)),
            }
        }
    }

    /// Sends, and reads what has to be read before the answer is passed on.
    async fn run(&mut self) -> Result<(Answer, End, Option<Incoming>), Failure> {
        let (head, mut body) = self.send().await?.into_parts();
        if head.status.is_informational() {
            let why =
                format!("the sender answered {} to a request that asked for no such thing", head.status);
            return Err(Failure::new(Code::UpstreamFailed, why));
        }
        let says = Says::of(&head);
        // Events are passed on as they come: whoever asked for them waits for each.
        let buffer = if says.events { 0 } else { self.bounds.answer_buffer };
        let mut frames = VecDeque::new();
        let whole = self.receive(&mut body, buffer, &mut frames).await?;
        let kept = self.kept.take();
        let end = says.end(head.version);
        if let Some(idle) = says.idle {
            self.bounds.idle = self.bounds.idle.min(idle);
        }
        Ok((Answer { head, body: AnswerBody::Whole(frames), kept }, end, (!whole).then_some(body)))
    }

    /// The exchange is over. Gives the connection back if both messages are through; closes it if it may not be used
    /// again, and resets it if the request is not: what is left of it never reaches the sender.
    async fn finish(&mut self, end: End) {
        let Some(mut connection) = self.connection.take() else { return };
        // An answer may come before all of its request is written; what is left must not hold up the next one.
        let through = end != End::Broken
            && self.progress.as_ref().is_none_or(Progress::is_sent)
            && connection.is_through().await;
        match end {
            End::Reusable if through => {
                connection.used = true;
                self.pool.put(&self.target, connection, self.bounds.idle);
            }
            End::Whole if through => Box::pin(connection.close()).await,
            End::Reusable | End::Whole | End::Broken => Box::pin(connection.cut()).await,
        }
    }

    /// Passes the rest of a long answer on. The caller's speed bounds it, and the deadline bounds the caller.
    async fn pump(
        mut self,
        mut body: Incoming,
        end: End,
        caller: mpsc::Sender<Option<Bytes>>,
        ended: impl FnOnce(Option<Code>) + Send + 'static,
    ) {
        let failure = loop {
            let data = match self.within(pin!(body.frame())).await {
                Ok(None) => break None,
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(_))) => break Some(Code::UpstreamFailed),
                Err(stopped) => break Some(maybe_sent(stopped).code),
            };
            // A caller that left no longer matters: the answer is read to its end all the same.
            match self.within(pin!(caller.send(Some(data)))).await {
                Ok(_) => {}
                Err(stopped) => break Some(maybe_sent(stopped).code),
            }
        };
        self.finish(if failure.is_none() { end } else { End::Broken }).await;
        // The permit goes before anybody is told; a slow caller does not hold it.
        drop(self);
        ended(failure);
        if failure.is_none() {
            let _ = caller.send(None).await;
        }
    }
}

fn not_sent(stop: Stop) -> Failure {
    match stop {
        Stop::ShuttingDown => Failure::new(Code::ShuttingDown, ""),
        Stop::Superseded | Stop::Cut => Failure::new(Code::Superseded, ""),
        Stop::Late => Failure::new(Code::UpstreamUnreachable, "the sender could not be reached in time"),
    }
}

fn maybe_sent(stop: Stop) -> Failure {
    match stop {
        Stop::ShuttingDown => Failure::new(Code::ShutdownCut, ""),
        Stop::Superseded | Stop::Cut => Failure::new(Code::HandoverCut, ""),
        Stop::Late => Failure::new(Code::UpstreamTimeout, "the sender did not answer in time"),
    }
}

/// Sends one request under an authority and reads its answer.
///
/// The authority is given back when the exchange has ended: the request written and the answer read to its end, or the
/// connection closed. Then `ended` is told once how it ended: `None` if it was answered whole. Dropping the future closes
/// the connection and tells nobody; whoever may leave keeps it in a task.
///
/// # Errors
/// With a code whose outcome is `not_sent` no byte was written.
pub fn send<A: Authority, E: FnOnce(Option<Code>) + Send + 'static>(
    pool: &Arc<Pool>,
    outgoing: Outgoing,
    authority: A,
    ended: E,
) -> impl Future<Output = Result<Answer, Failure>> + Send + 'static + use<A, E> {
    let mut exchange = begin(pool, outgoing, authority);
    async move {
        match exchange.run().await {
            Ok((answer, end, None)) => {
                exchange.finish(end).await;
                drop(exchange);
                ended(None);
                Ok(answer)
            }
            Ok((answer, end, Some(rest))) => Ok(pass_on(exchange, answer, end, rest, ended)),
            Err(failure) => {
                exchange.finish(End::Broken).await;
                drop(exchange);
                ended(Some(failure.code));
                Err(failure)
            }
        }
    }
}

fn begin<A: Authority>(pool: &Arc<Pool>, outgoing: Outgoing, authority: A) -> Exchange<A> {
    let Outgoing { request, progress, choice: Choice { target, others }, bounds, memory } = outgoing;
    authority.allow(bounds.total);
    let (pool, request) = (Arc::clone(pool), Some(request));
    Exchange {
        pool,
        target,
        others,
        bounds,
        memory,
        kept: None,
        authority,
        progress,
        request,
        connection: None,
    }
}

/// The exchange goes on in a task; the answer's body comes from there.
fn pass_on<A: Authority>(
    exchange: Exchange<A>,
    answer: Answer,
    end: End,
    rest: Incoming,
    ended: impl FnOnce(Option<Code>) + Send + 'static,
) -> Answer {
    let Answer { head, body, kept } = answer;
    let (AnswerBody::Whole(frames) | AnswerBody::Partial(frames, _)) = body;
    let (caller, passed_on) = mpsc::channel(8);
    tokio::spawn(exchange.pump(rest, end, caller, ended));
    Answer { head, body: AnswerBody::Partial(frames, passed_on), kept }
}

/// The time that `Keep-Alive: timeout=n` gives, less a second, or half of it.
fn kept_for(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?;
    let timeout = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    let kept = Duration::from_secs(timeout.trim().parse().ok()?);
    Some(kept.saturating_sub(Duration::from_secs(1)).max(kept / 2))
}

/// What an answer's head says, found in one pass.
#[derive(Default)]
struct Says {
    length: bool,
    coding: bool,
    close: bool,
    events: bool,
    /// How long the sender keeps the connection, less what a request may take to get there.
    idle: Option<Duration>,
}

impl Says {
    fn of(head: &http::response::Parts) -> Self {
        let mut says = Self::default();
        for (name, value) in &head.headers {
            let value = value.as_bytes();
            if name == header::CONTENT_LENGTH {
                says.length = true;
            } else if name == header::TRANSFER_ENCODING {
                says.coding = true;
            } else if name == header::CONNECTION {
                let is_close = |token: &[u8]| token.trim_ascii().eq_ignore_ascii_case(b"close");
                says.close |= value.split(|byte| *byte == b',').any(is_close);
            } else if name == "keep-alive" {
                says.idle = kept_for(value);
            } else if name == header::CONTENT_TYPE {
                const EVENTS: &[u8] = b"text/event-stream";
                let start = value.trim_ascii_start().get(..EVENTS.len());
                says.events |= start.is_some_and(|start| start.eq_ignore_ascii_case(EVENTS));
            }
        }
        says
    }

    /// Whether another request may follow on the connection. Framed in both ways, the sender may mean another end than the
    /// one that was read.
    fn end(&self, version: http::Version) -> End {
        let reusable = version == http::Version::HTTP_11 && !(self.length && self.coding) && !self.close;
        if reusable { End::Reusable } else { End::Whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_for_less_than_its_sender_says() {
        let kept = |text: &str| kept_for(text.as_bytes()).map(|kept| kept.as_millis());
        assert_eq!(kept("timeout=5, max=100"), Some(4000));
        assert_eq!(kept("max=100, timeout=2"), Some(1000));
        assert_eq!(kept("timeout=1"), Some(500));
        assert_eq!(kept("timeout=0"), Some(0));
        for nothing in ["", "max=100", "timeout", "timeout=", "timeout=x", "timeout=-1", "timeout=1.5"] {
            assert_eq!(kept(nothing), None, "{nothing}");
        }
    }
}

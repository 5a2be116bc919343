//! One exchange with an upstream: a request goes out at most once, its answer comes back whole or not at all.
//!
//! Whatever goes wrong says whether the sender may have seen a byte. It never retries once one may have been written,
//! and it never looks into an answer.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header, response};
use hyper::body::{Body, Frame, Incoming};
use thiserror::Error;
use tokio::sync::mpsc;

use super::body::{Progress, RequestBody};
use super::call::{Begun, Call};
pub use super::failure::Failure;
use super::failure::{maybe_sent, not_sent};
use super::memory::{Kept, Memory};
use super::pool::{Line, Pool};
use super::says::{End, Says};
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
    /// Whether its Host is the caller's, whatever address it goes to.
    pub preserves_host: bool,
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
    preserves_host: bool,
    bounds: Bounds,
    memory: Memory,
    kept: Option<Kept>,
    authority: A,
    progress: Option<Progress>,
    /// Until it is sent.
    request: Option<Request<RequestBody>>,
    /// While it is open and ours.
    line: Option<Line>,
}

/// Where an answer's body comes from.
#[derive(Debug)]
enum Arriving {
    /// A connection of its own.
    Alone(Incoming),
    /// The stream that the exchange has.
    OnStream,
}

/// Why it broke.
#[derive(Debug, Error)]
enum Lost {
    #[error(transparent)]
    Alone(hyper::Error),
    #[error(transparent)]
    OnStream(super::call::Lost),
}

impl<A: Authority> Exchange<A> {
    /// Waits for `work`, as long as the authority lasts.
    fn within<'a, F: Future>(
        &'a mut self,
        work: Pin<&'a mut F>,
    ) -> impl Future<Output = Result<F::Output, Stop>> + use<'a, A, F> {
        within(&self.authority, work)
    }

    /// Finds a connection that is ready, the last used one first.
    async fn connect(&mut self) -> Result<(), Failure> {
        while let Some(mut line) = self.pool.take(&self.target) {
            if let Line::Connection(connection) = &mut line
                && !connection.sender.is_ready()
            {
                // Its task may not have seen yet that the last exchange is over, or that the sender closed it.
                let ready = self.within(pin!(connection.sender.ready())).await.map_err(not_sent)?;
                if ready.is_err() {
                    continue;
                }
            }
            self.line = Some(line);
            return Ok(());
        }
        Box::pin(self.connect_anew()).await
    }

    async fn connect_anew(&mut self) -> Result<(), Failure> {
        loop {
            let (pool, target) = (Arc::clone(&self.pool), Arc::clone(&self.target));
            let connect = pin!(tokio::time::timeout(self.bounds.connect, pool.connect(&target)));
            let why = match self.within(connect).await.map_err(not_sent)? {
                Ok(Ok(line)) => {
                    target.answered();
                    self.line = Some(line);
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
        self.target = next;
        if let Some(request) = &mut self.request
            && !self.preserves_host
        {
            request.headers_mut().insert(header::HOST, self.target.authority.clone());
        }
    }

    /// Sends the request; an answer's head.
    async fn send(&mut self) -> Result<(response::Parts, Arriving), Failure> {
        loop {
            self.connect().await?;
            self.authority.begin().map_err(|code| Failure::new(code, ""))?;
            let Some(request) = self.request.take() else { return Err(Failure::new(Code::Internal, "")) };
            let Some(Line::Connection(connection)) = &mut self.line else {
                match Box::pin(self.send_on_stream(request)).await? {
                    Some(head) => return Ok((head, Arriving::OnStream)),
                    None => continue,
                }
            };
            let answer = pin!(connection.sender.try_send_request(request));
            let mut failed = match within(&self.authority, answer).await.map_err(maybe_sent)? {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    return Ok((head, Arriving::Alone(body)));
                }
                Err(failed) => failed,
            };
            let request = failed.take_message();
            if request.is_none() {
                return Err(self.broken(failed.error()));
            }
            let used = connection.used;
            self.unsent(request, used, failed.error())?;
        }
    }

    /// The same on a shared connection; `None` where it was closed and the request never left this process.
    async fn send_on_stream(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Option<response::Parts>, Failure> {
        let Some(Line::Room(room)) = self.line.take() else { return Err(Failure::new(Code::Internal, "")) };
        let used = room.is_used();
        let (call, spare) = match Call::begin(room, self.target.tls.is_some(), request) {
            Begun::Call(call, spare) => (call, spare),
            Begun::Closed(request) => {
                self.unsent(Some(request), used, &"it takes no more requests")?;
                return Ok(None);
            }
            Begun::Unfit => {
                self.authority.unbegin();
                return Err(Failure::new(Code::MalformedRequest, "its Host is no authority"));
            }
        };
        let Line::Stream(call) = self.line.insert(Line::Stream(call)) else {
            return Err(Failure::new(Code::Internal, ""));
        };
        let head = call.head(|cx| self.authority.poll_stop(cx)).await.map_err(maybe_sent)?;
        match head {
            Ok(head) => Ok(Some(head)),
            Err(lost) if lost.unsent => {
                self.line = None;
                self.unsent(spare, used, &lost)?;
                Ok(None)
            }
            Err(lost) => Err(self.broken(&lost)),
        }
    }

    /// The connection closed while it was idle: the request never left this process, and may go out again if it is still
    /// there.
    fn unsent(
        &mut self,
        request: Option<Request<RequestBody>>,
        used: bool,
        why: &dyn fmt::Display,
    ) -> Result<(), Failure> {
        self.authority.unbegin();
        self.request = request;
        if used && self.request.is_some() {
            return Ok(());
        }
        let what = if used { "an idle connection" } else { "a new connection" };
        Err(Failure::new(Code::UpstreamUnreachable, format!("the sender closed {what}: {why}")))
    }

    fn broken(&self, why: &dyn fmt::Display) -> Failure {
        let by_caller = self.progress.as_ref().is_some_and(Progress::is_broken);
        let who = if by_caller {
            "the request's body broke off, so the send was aborted"
        } else {
            "the exchange broke"
        };
        Failure::new(Code::UpstreamFailed, format!("{who}: {why}"))
    }

    /// The next piece of the answer; `None` at its end.
    async fn next(&mut self, from: &mut Arriving) -> Result<Option<Bytes>, Failure> {
        let Self { authority, line, .. } = self;
        let next = poll_fn(|cx| {
            let next = match (&mut *from, &mut *line) {
                (Arriving::Alone(body), _) => {
                    let data = |frame: Frame<Bytes>| frame.into_data().unwrap_or_default();
                    Pin::new(body)
                        .poll_frame(cx)
                        .map(|next| next.map(|next| next.map(data).map_err(Lost::Alone)))
                }
                (Arriving::OnStream, Some(Line::Stream(call))) => {
                    call.poll_data(cx).map(|next| next.map(|next| next.map_err(Lost::OnStream)))
                }
                (Arriving::OnStream, _) => Poll::Ready(None),
            };
            match next {
                Poll::Ready(next) => Poll::Ready(Ok(next.transpose())),
                Poll::Pending => authority.poll_stop(cx).map(Err),
            }
        });
        next.await.map_err(maybe_sent)?.map_err(|why| self.broken(&why))
    }

    /// Whether nothing more of the answer comes.
    fn is_answered(&self, from: &Arriving) -> bool {
        match (from, &self.line) {
            (Arriving::Alone(body), _) => body.is_end_stream(),
            (Arriving::OnStream, Some(Line::Stream(call))) => call.is_answered(),
            (Arriving::OnStream, _) => false,
        }
    }

    /// Reads the answer into `frames`: whole, or as much of it as fits. True if it is whole.
    async fn receive(
        &mut self,
        from: &mut Arriving,
        buffer: u64,
        frames: &mut VecDeque<Bytes>,
    ) -> Result<bool, Failure> {
        let mut size = 0;
        loop {
            if self.is_answered(from) {
                return Ok(true);
            }
            if size >= buffer {
                return Ok(false);
            }
            let Some(data) = self.next(from).await? else { return Ok(true) };
            if data.is_empty() {
                continue;
            }
            let before = size.max(SMALL);
            size += data.len() as u64;
            frames.push_back(data);
            if size > SMALL && !self.memory.keep(&mut self.kept, size - before) {
                return Ok(false);
            }
        }
    }

    /// Sends, and reads what has to be read before the answer is passed on.
    async fn run(&mut self) -> Result<(Answer, End, Option<Arriving>), Failure> {
        let (head, mut body) = self.send().await?;
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
        let mut connection = match self.line.take() {
            Some(Line::Connection(connection)) => connection,
            Some(Line::Stream(call)) => {
                return Box::pin(call.end(end, self.pool.now(), self.bounds.idle)).await;
            }
            Some(Line::Room(_)) | None => return,
        };
        // An answer may come before all of its request is written; what is left must not hold up the next one.
        let through = !end.is_broken()
            && self.progress.as_ref().is_none_or(Progress::is_sent)
            && connection.is_through().await;
        match end {
            End::Reusable if through => {
                connection.used = true;
                self.pool.put(&self.target, connection, self.bounds.idle);
            }
            End::Whole if through => Box::pin(connection.close()).await,
            End::Reusable | End::Whole | End::Broken | End::Late => Box::pin(connection.cut()).await,
        }
    }

    /// Passes the rest of a long answer on. The caller's speed bounds it, and the deadline bounds the caller.
    async fn pump(
        mut self,
        mut body: Arriving,
        end: End,
        caller: mpsc::Sender<Option<Bytes>>,
        ended: impl FnOnce(Option<Code>) + Send + 'static,
    ) {
        let failure = loop {
            let data = match self.next(&mut body).await {
                Ok(None) => break None,
                Ok(Some(data)) => data,
                Err(failure) => break Some(failure.code),
            };
            // A caller that left no longer matters: the answer is read to its end all the same.
            match self.within(pin!(caller.send(Some(data)))).await {
                Ok(_) => {}
                Err(stopped) => break Some(maybe_sent(stopped).code),
            }
        };
        self.finish(failure.map_or(end, failed)).await;
        // The permit goes before anybody is told; a slow caller does not hold it.
        drop(self);
        ended(failure);
        if failure.is_none() {
            let _ = caller.send(None).await;
        }
    }
}

/// How an exchange ended that failed.
fn failed(code: Code) -> End {
    if code == Code::UpstreamTimeout { End::Late } else { End::Broken }
}

/// Waits for `work`, as long as the authority lasts.
fn within<'a, A: Authority, F: Future>(
    authority: &'a A,
    mut work: Pin<&'a mut F>,
) -> impl Future<Output = Result<F::Output, Stop>> + use<'a, A, F> {
    poll_fn(move |cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        authority.poll_stop(cx).map(Err)
    })
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
                exchange.finish(failed(failure.code)).await;
                drop(exchange);
                ended(Some(failure.code));
                Err(failure)
            }
        }
    }
}

fn begin<A: Authority>(pool: &Arc<Pool>, outgoing: Outgoing, authority: A) -> Exchange<A> {
    let Outgoing { request, progress, choice, preserves_host, bounds, memory } = outgoing;
    let Choice { target, others } = choice;
    authority.allow(bounds.total);
    let (pool, request) = (Arc::clone(pool), Some(request));
    Exchange {
        pool,
        target,
        others,
        preserves_host,
        bounds,
        memory,
        kept: None,
        authority,
        progress,
        request,
        line: None,
    }
}

/// The exchange goes on in a task; the answer's body comes from there.
fn pass_on<A: Authority>(
    exchange: Exchange<A>,
    answer: Answer,
    end: End,
    rest: Arriving,
    ended: impl FnOnce(Option<Code>) + Send + 'static,
) -> Answer {
    let Answer { head, body, kept } = answer;
    let (AnswerBody::Whole(frames) | AnswerBody::Partial(frames, _)) = body;
    let (caller, passed_on) = mpsc::channel(8);
    tokio::spawn(exchange.pump(rest, end, caller, ended));
    Answer { head, body: AnswerBody::Partial(frames, passed_on), kept }
}

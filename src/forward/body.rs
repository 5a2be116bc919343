//! A request's body on its way to the sender: what was buffered, then what still arrives.
//!
//! Data only: trailers end here. It never re-encodes, and never ends cleanly before its announced end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::Sleep;

/// Why a body broke off after bytes of the request may have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The caller left or broke its framing.
    #[error("the caller's body broke off")]
    Left,
    /// It is larger than allowed.
    #[error("the caller's body is larger than the route allows")]
    TooLarge,
    /// Nothing came for too long.
    #[error("the caller's body did not arrive in time")]
    Slow,
    /// What looks through it refuses it.
    #[error("the caller's body could be read in two ways")]
    Ambiguous,
}

/// Looks through the part of a body that passes while the request is sent.
pub trait Screen: Send + std::fmt::Debug {
    /// Looks at the next piece; false if it must not be passed on.
    fn look(&mut self, data: &[u8]) -> bool;

    /// The same for the end. Asked before the last piece is passed on, where that is known to be the last.
    fn end(&mut self) -> bool;
}

/// Zero: it is still being sent.
const SENT: u8 = 1;
const BROKEN: u8 = 2;

/// What became of a body, to be asked after the exchange.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

impl Progress {
    /// All of it was handed over.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.0.load(SeqCst) == SENT
    }

    /// It broke off.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.0.load(SeqCst) == BROKEN
    }
}

/// The part that had not arrived when the request was judged.
#[derive(Debug)]
pub struct Rest {
    /// Where it arrives.
    pub incoming: Incoming,
    /// How many more bytes are allowed.
    pub most: u64,
    /// How long it may pause.
    pub pause: Duration,
    /// What looks through it.
    pub screen: Option<Box<dyn Screen>>,
}

#[derive(Debug)]
struct Streaming {
    /// Taken when it is dropped.
    incoming: Option<Incoming>,
    most: u64,
    pause: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Taken at the end.
    screen: Option<Box<dyn Screen>>,
}

impl Streaming {
    /// Whether what looks through it lets a piece pass.
    fn passes(&mut self, data: &[u8], is_last: bool) -> bool {
        let Some(screen) = &mut self.screen else { return true };
        screen.look(data) && (!is_last || self.ends_well())
    }

    fn ends_well(&mut self) -> bool {
        self.screen.take().is_none_or(|mut screen| screen.end())
    }
}

/// A request's body.
#[derive(Debug)]
pub struct RequestBody {
    frames: VecDeque<Bytes>,
    buffered: u64,
    rest: Option<Streaming>,
    /// Without a rest nothing can go wrong, and nobody asks.
    progress: Option<Progress>,
}

impl RequestBody {
    /// A body that is all in.
    #[must_use]
    pub fn buffered(frames: VecDeque<Bytes>) -> Self {
        let buffered = frames.iter().map(|frame| frame.len() as u64).sum();
        Self { frames, buffered, rest: None, progress: None }
    }

    /// A body of which only the beginning is in.
    #[must_use]
    pub fn streaming(frames: VecDeque<Bytes>, rest: Rest) -> (Self, Progress) {
        let mut body = Self::buffered(frames);
        let Rest { incoming, most, pause, screen } = rest;
        body.rest = Some(Streaming { incoming: Some(incoming), most, pause, timer: None, screen });
        let progress = Progress::default();
        body.progress = Some(progress.clone());
        (body, progress)
    }

    /// The same once more, if all of it is in.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        self.rest.is_none().then(|| Self::buffered(self.frames.clone()))
    }

    fn mark(&self, state: u8) {
        if let Some(progress) = &self.progress {
            progress.0.store(state, SeqCst);
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let Some(incoming) = &mut rest.incoming else { return Poll::Ready(None) };
        loop {
            match Pin::new(&mut *incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    rest.timer = None;
                    let Ok(data) = frame.into_data() else { continue };
                    match rest.most.checked_sub(data.len() as u64) {
                        Some(most) => rest.most = most,
                        None => return Poll::Ready(Some(Err(Broken::TooLarge))),
                    }
                    let is_last = incoming.is_end_stream();
                    if !rest.passes(&data, is_last) {
                        return Poll::Ready(Some(Err(Broken::Ambiguous)));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(Broken::Left))),
                Poll::Ready(None) if rest.ends_well() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(Err(Broken::Ambiguous))),
                Poll::Pending => {
                    let timer = rest.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(rest.pause)));
                    return match timer.as_mut().poll(cx) {
                        Poll::Ready(()) => Poll::Ready(Some(Err(Broken::Slow))),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// What is withheld from the sender is still read, so that the caller can read its answer.
impl Drop for Streaming {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            discard(incoming, ());
        }
    }
}

/// Reads and drops what a caller still sends, up to 8 MiB or 5 s, so that it can read its answer. `kept` is dropped
/// afterwards.
pub fn discard(mut incoming: Incoming, kept: impl Send + 'static) {
    const MOST: u64 = 8 * 1024 * 1024;
    const LONG: Duration = Duration::from_secs(5);
    if incoming.is_end_stream() {
        return;
    }
    let reading = async move {
        let _kept = kept;
        let mut size = 0;
        while let Some(Ok(frame)) = incoming.frame().await {
            size += frame.data_ref().map_or(0, |data| data.len() as u64);
            if size > MOST {
                return;
            }
        }
    };
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(tokio::time::timeout(LONG, reading));
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(frame) = self.frames.pop_front() {
            self.buffered -= frame.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match self.poll_rest(cx) {
            Poll::Ready(Some(Ok(data))) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Poll::Ready(Some(Err(broken))) => {
                self.mark(BROKEN);
                Poll::Ready(Some(Err(broken)))
            }
            Poll::Ready(None) => {
                self.mark(SENT);
                self.rest = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        // Asked before the first poll as well: a body that streams is only over once its end was seen.
        self.frames.is_empty() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            None => SizeHint::with_exact(self.buffered),
            Some(rest) => match rest.incoming.as_ref().and_then(|incoming| incoming.size_hint().exact()) {
                Some(more) => SizeHint::with_exact(self.buffered + more),
                None => SizeHint::default(),
            },
        }
    }
}

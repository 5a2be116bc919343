//! What is counted of each request and each send, so that every one is counted once (I5, I7).
//!
//! Guards: whatever happens to a request, dropping them leaves the books right.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::body::Budget;
use super::service::{Gateway, Room};
use crate::clock::Moment;
use crate::code::Code;
use crate::mutant::{self, Mutant};
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::spawn;
use crate::telemetry::Verdict;

/// A request from its head to its verdict.
#[derive(Debug)]
pub struct Journey {
    gateway: Arc<Gateway>,
    body_in: Option<Moment>,
    reading: bool,
    judged: bool,
}

impl Journey {
    /// A head was parsed.
    #[must_use]
    pub fn begin(gateway: Arc<Gateway>) -> Self {
        gateway.registry.telemetry.received.increment(1);
        gateway.being_read.fetch_add(1, SeqCst);
        Self { gateway, body_in: None, reading: true, judged: false }
    }

    /// It waits for something else than its body.
    pub fn pause_reading(&mut self) {
        if std::mem::take(&mut self.reading) {
            self.gateway.being_read.fetch_sub(1, SeqCst);
        }
    }

    /// It waits for its body again.
    pub fn go_on_reading(&mut self) {
        if !std::mem::replace(&mut self.reading, true) {
            self.gateway.being_read.fetch_add(1, SeqCst);
        }
    }

    /// All of the body that has to be in is in.
    pub fn body_is_in(&mut self) {
        self.pause_reading();
        self.body_in = Some(self.gateway.registry.clock.now());
    }

    /// The verdict; the first one counts.
    pub fn verdict(&mut self, verdict: Verdict) {
        self.pause_reading();
        if !std::mem::replace(&mut self.judged, true) {
            self.gateway.registry.telemetry.verdict(verdict);
        }
    }

    /// The send begins.
    #[must_use]
    pub fn take_off(&self, room: Room, permit: bool, budget: Budget) -> Flight {
        let began = self.gateway.registry.clock.now();
        if let Some(body_in) = self.body_in {
            self.gateway.registry.telemetry.overhead_seconds.record(began.since(body_in).as_secs_f64());
        }
        Flight { gateway: Arc::clone(&self.gateway), began, permit, _room: room, _budget: budget }
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        // Dropped without a verdict: the caller left.
        self.verdict(Verdict::Withdrawn);
    }
}

/// A send from its permit to its end.
#[derive(Debug)]
pub struct Flight {
    gateway: Arc<Gateway>,
    began: Moment,
    permit: bool,
    _room: Room,
    _budget: Budget,
}

impl Flight {
    /// It ended: answered, or with a code.
    pub fn land(self, failure: Option<Code>) {
        let telemetry = &self.gateway.registry.telemetry;
        let took = self.gateway.registry.clock.now().since(self.began);
        telemetry.upstream_seconds.record(took.as_secs_f64());
        if self.permit {
            telemetry.send(failure);
        }
    }
}

/// A future that goes on in a task of its own when it is dropped before its end.
pub struct RunToEnd<F: Future + Send + 'static>(Option<Pin<Box<F>>>)
where
    F::Output: Send;

impl<F> RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Runs it.
    pub fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F> Future for RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F> Drop for RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn drop(&mut self) {
        if mutant::is(Mutant::LeaveEarly) {
            return;
        }
        // Outside of a runtime it is only dropped when the process ends.
        if let (Some(future), Ok(_)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_dropped_before_its_end_goes_on() {
        let (done, seen) = tokio::sync::oneshot::channel();
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let mut future = Box::pin(RunToEnd::new(async move {
            let _ = wait.await;
            let _ = done.send(7);
        }));
        let waker = futures_util::task::noop_waker();
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(future);
        go.send(()).unwrap();
        assert_eq!(seen.await, Ok(7));
    }
}

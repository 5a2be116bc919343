//! What threads share things by: the standard library's mutexes and atomics, tokio's signals and tasks.
//!
//! With the feature `interleavings` they are shuttle's, or the same with a point before each step at which shuttle may let
//! another thread go on: `tests/interleavings.rs` explores the real pieces with it. It adds nothing else, and nothing to any
//! other build.

#[cfg(not(feature = "interleavings"))]
mod plain {
    pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

    pub(crate) use futures_util::task::AtomicWaker;
    pub(crate) use tokio::spawn;
    pub(crate) use tokio::sync::{Notify, futures::Notified, watch};
    pub(crate) use tokio::task::JoinHandle;
}

#[cfg(not(feature = "interleavings"))]
pub(crate) use plain::*;

#[cfg(feature = "interleavings")]
mod explored {
    #![allow(unreachable_pub, reason = "named in signatures that are public")]

    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    pub use shuttle::future::{JoinHandle, spawn};
    pub use shuttle::sync::{Mutex, MutexGuard, atomic};

    /// Another thread may go on here.
    #[derive(Debug, Default)]
    struct Point(atomic::AtomicBool);

    impl Point {
        fn pass(&self) {
            self.0.load(atomic::Ordering::SeqCst);
        }
    }

    /// tokio's, with points.
    #[derive(Debug, Default)]
    pub struct Notify {
        inner: tokio::sync::Notify,
        point: Point,
    }

    impl Notify {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn notified(&self) -> Notified<'_> {
            self.point.pass();
            Notified { inner: Box::pin(self.inner.notified()), point: &self.point }
        }

        pub fn notify_one(&self) {
            self.point.pass();
            self.inner.notify_one();
        }

        pub fn notify_waiters(&self) {
            self.point.pass();
            self.inner.notify_waiters();
        }
    }

    /// tokio's, with points.
    #[derive(Debug)]
    pub struct Notified<'a> {
        inner: Pin<Box<tokio::sync::futures::Notified<'a>>>,
        point: &'a Point,
    }

    impl Notified<'_> {
        pub fn enable(mut self: Pin<&mut Self>) -> bool {
            self.point.pass();
            self.inner.as_mut().enable()
        }
    }

    impl Future for Notified<'_> {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.point.pass();
            self.inner.as_mut().poll(cx)
        }
    }

    /// futures-util's, with points.
    #[derive(Debug, Default)]
    pub struct AtomicWaker {
        inner: futures_util::task::AtomicWaker,
        point: Point,
    }

    impl AtomicWaker {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn register(&self, waker: &Waker) {
            self.point.pass();
            self.inner.register(waker);
        }

        pub fn wake(&self) {
            self.point.pass();
            self.inner.wake();
        }
    }

    /// tokio's, with points.
    pub mod watch {
        use std::sync::Arc;

        use tokio::sync::watch::{self, Ref, error::RecvError};

        use super::Point;

        #[derive(Debug)]
        pub struct Sender<T> {
            inner: watch::Sender<T>,
            point: Arc<Point>,
        }

        impl<T> Sender<T> {
            pub fn new(value: T) -> Self {
                Self { inner: watch::Sender::new(value), point: Arc::default() }
            }

            pub fn borrow(&self) -> Ref<'_, T> {
                self.point.pass();
                self.inner.borrow()
            }

            pub fn send_replace(&self, value: T) -> T {
                self.point.pass();
                self.inner.send_replace(value)
            }

            pub fn subscribe(&self) -> Receiver<T> {
                self.point.pass();
                Receiver { inner: self.inner.subscribe(), point: Arc::clone(&self.point) }
            }
        }

        #[derive(Debug)]
        pub struct Receiver<T> {
            inner: watch::Receiver<T>,
            point: Arc<Point>,
        }

        impl<T> Receiver<T> {
            pub async fn changed(&mut self) -> Result<(), RecvError> {
                self.point.pass();
                self.inner.changed().await
            }
        }
    }
}

#[cfg(feature = "interleavings")]
pub(crate) use explored::*;

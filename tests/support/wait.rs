//! Waiting for conditions, with deadlines that only a fault reaches.
//!
//! Polling is the only sleep in the kit that stands for a condition; no test sleeps on its own.

use std::sync::{Arc, Condvar, LazyLock, Mutex, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// How long the kit waits before it calls something broken.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long it sleeps between two looks.
pub const POLL: Duration = Duration::from_millis(5);

/// The moment of this call, comparable with the moments in [`Recorded`](super::Recorded).
pub fn now() -> Instant {
    Instant::now()
}

/// Returns as soon as `condition` is true; panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Returns the first value that `attempt` comes up with; panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    wait_for_within(what, PATIENCE, attempt)
}

/// [`wait_for`] with a deadline of one's own, where the deadline itself is under test.
#[track_caller]
pub fn wait_for_within<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + limit;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(POLL);
    }
}

/// Panics with `what` if `condition` turns false at any look within `span`. For what must not happen.
#[track_caller]
pub fn stays(what: &str, span: Duration, mut condition: impl FnMut() -> bool) {
    let end = now() + span;
    while now() < end {
        assert!(condition(), "{what}: no longer so");
        std::thread::sleep(POLL);
    }
}

/// [`wait_until`] for tests whose runtime must go on working meanwhile.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = now() + PATIENCE;
    while !condition() {
        assert!(now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Runs a future on the kit's own runtime and blocks for its result. Panics after [`PATIENCE`].
#[track_caller]
pub fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kit")
            .enable_all()
            .build()
            .expect("a runtime for the kit")
    });
    let (tell, told) = mpsc::sync_channel(1);
    RUNTIME.spawn(async move {
        let _ = tell.send(future.await);
    });
    match told.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("nothing came back within {PATIENCE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the future panicked; see above"),
    }
}

/// Something a test holds back until it says so. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    /// A latch that holds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everybody go, now and later.
    pub fn release(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Whether it was released.
    pub fn is_released(&self) -> bool {
        *self.0.0.lock().unwrap()
    }

    /// Blocks until it is released; panics after [`PATIENCE`].
    #[track_caller]
    pub fn wait(&self) {
        let guard = self.0.0.lock().unwrap();
        let (released, _) = self.0.1.wait_timeout_while(guard, PATIENCE, |released| !*released).unwrap();
        assert!(*released, "the latch was not released within {PATIENCE:?}");
    }
}

//! Runs a world in virtual time: whoever could go on next is drawn from the seed.
//!
//! Tasks are polled one at a time, and only those that were woken; which of them is a draw, so that the order in which
//! they were woken, which tokio leaves to chance here and there, decides nothing. Nothing here waits for real time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fencegate::clock::Clock;

/// More polls than any world needs: beyond it, something goes round in a circle.
const MOST_POLLS: u64 = 20_000_000;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where tasks are started. Clones are the same place.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Shared>);

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    born: Vec<(u64, Task)>,
    ready: BTreeSet<u64>,
    root: Option<Waker>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

struct Bell {
    task: u64,
    shared: Arc<Shared>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut state = self.shared.state();
        state.ready.insert(self.task);
        if let Some(root) = &state.root {
            root.wake_by_ref();
        }
    }
}

impl Tasks {
    /// Starts a task. It is polled when it is drawn.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.0.state();
        state.last += 1;
        let number = state.last;
        state.born.push((number, Box::pin(task)));
        state.ready.insert(number);
        if let Some(root) = &state.root {
            root.wake_by_ref();
        }
    }
}

/// Runs `main` and what it spawns until `main` has ended; the rest is dropped. `clock` goes with tokio's time, which goes on
/// when nobody can.
pub fn run<F>(seed: u64, clock: &Clock, tasks: &Tasks, main: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let began = Arc::new(OnceLock::new());
    let hands = Hands { clock: clock.clone(), began: Arc::clone(&began), shown: Mutex::default() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // Time jumps while the thread is parked: before anybody is polled, everybody's clock shows it.
        .on_thread_unpark(move || hands.follow())
        .build()
        .unwrap();
    runtime.block_on(async {
        began.get_or_init(now);
        tasks.spawn(main);
        // Without tokio's budget: it would make tasks of one poll starve each other.
        tokio::task::unconstrained(drive(fastrand::Rng::with_seed(seed), tasks)).await;
    });
}

#[allow(clippy::disallowed_methods, reason = "tokio's paused time, which is none of the system's clocks")]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

struct Hands {
    clock: Clock,
    began: Arc<OnceLock<tokio::time::Instant>>,
    shown: Mutex<Duration>,
}

impl Hands {
    fn follow(&self) {
        let Some(began) = self.began.get() else { return };
        let mut shown = self.shown.lock().unwrap();
        let gone = now() - *began;
        self.clock.advance(gone - *shown);
        *shown = gone;
    }
}

async fn drive(mut rng: fastrand::Rng, tasks: &Tasks) {
    let shared = &tasks.0;
    let mut living: BTreeMap<u64, (Task, Waker)> = BTreeMap::new();
    let (mut polls, mut main) = (0, None);
    poll_fn(|cx| {
        shared.state().root = Some(cx.waker().clone());
        loop {
            let number = {
                let mut state = shared.state();
                for (number, task) in state.born.drain(..) {
                    main.get_or_insert(number);
                    let bell = Arc::new(Bell { task: number, shared: Arc::clone(shared) });
                    living.insert(number, (task, Waker::from(bell)));
                }
                if state.ready.is_empty() {
                    return Poll::Pending;
                }
                let drawn = rng.usize(..state.ready.len());
                let number = state.ready.iter().nth(drawn).copied().unwrap();
                state.ready.remove(&number);
                number
            };
            let Some((task, waker)) = living.get_mut(&number) else { continue };
            polls += 1;
            assert!(polls < MOST_POLLS, "a world that goes round in a circle");
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                living.remove(&number);
                if main == Some(number) {
                    return Poll::Ready(());
                }
            }
        }
    })
    .await;
    // Whatever is left may wake others while it is dropped.
    shared.state().root = None;
    drop(living);
}

//! The gateway's links to the coordination service: a server that lags, a line that delays, falls silent and breaks.
//!
//! It keeps what ZooKeeper promises to one session and no more: operations are executed in their order, a barrier only when
//! the server has everything that was committed before it, and what the server has applied is announced before the answers
//! that come later.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use fencegate::clock::Moment;
use fencegate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use fencegate::fence::name::AccountName;
use fencegate::fence::token::SessionId;
use fencegate::fence::view::Reading;
use tokio::sync::{Notify, oneshot};

use super::world::World;

/// How long things take, in milliseconds; drawn anew for each of them, up to these.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// One way between the gateway and its server.
    pub way: u64,
    /// From a commit to a server's knowing it.
    pub lag: u64,
    /// Nobody can connect.
    pub away: bool,
}

/// What both ends of a line share.
#[derive(Default)]
pub struct Line {
    state: Mutex<Ends>,
    /// Wakes the server's end.
    pub work: Notify,
}

#[derive(Default)]
struct Ends {
    /// Sent by the gateway, with the moment of arrival.
    asked: VecDeque<(Moment, Operation)>,
    /// Arrived at the gateway.
    changes: VecDeque<Change>,
    waker: Option<Waker>,
    /// Nothing passes any more, and nobody is told.
    silent: bool,
    /// It is over.
    over: bool,
}

enum Operation {
    Barrier(oneshot::Sender<()>),
    List(oneshot::Sender<Listing>),
    Read(Vec<AccountName>, oneshot::Sender<Vec<Reading>>),
}

enum Delivery {
    Change(Change),
    Proven(oneshot::Sender<()>),
    Listed(oneshot::Sender<Listing>, Listing),
    Read(oneshot::Sender<Vec<Reading>>, Vec<Reading>),
}

impl Line {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.state.lock().unwrap()
    }

    /// Nothing passes from here on.
    pub fn fall_silent(&self) {
        self.ends().silent = true;
    }

    /// It breaks: whatever is under way is lost, and the gateway is told.
    pub fn cut(&self, why: &str) {
        let mut ends = self.ends();
        ends.over = true;
        ends.asked.clear();
        ends.announce(Change::Lost(why.to_owned()));
        drop(ends);
        self.work.notify_one();
    }
}

impl Ends {
    fn announce(&mut self, change: Change) {
        self.changes.push_back(change);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Makes links into a world.
pub struct Service(pub Arc<World>);

/// The gateway's end.
pub struct Wire {
    world: Arc<World>,
    line: Arc<Line>,
    number: u64,
    rng: fastrand::Rng,
}

impl Backend for Service {
    type Link = Wire;

    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn connect(&mut self) -> Result<Wire, BackendError> {
        let (mut rng, number) = self.0.fork();
        let weather = self.0.weather();
        tokio::time::sleep(Duration::from_millis(rng.u64(..=weather.way * 3))).await;
        if self.0.weather().away {
            return Err(BackendError::Lost("away".to_owned()));
        }
        let line = Arc::new(Line::default());
        let lag = Duration::from_millis(rng.u64(..=weather.lag));
        let server = Server::new(Arc::clone(&self.0), Arc::clone(&line), lag, rng.fork());
        self.0.connected(&line);
        self.0.tasks.spawn(server.run());
        Ok(Wire { world: Arc::clone(&self.0), line, number, rng })
    }
}

impl Wire {
    fn ask<T: Send + 'static>(
        &mut self,
        operation: impl FnOnce(oneshot::Sender<T>) -> Operation,
    ) -> Pending<T> {
        let (answer, answered) = oneshot::channel();
        let way = Duration::from_millis(self.rng.u64(..=self.world.weather().way));
        let mut ends = self.line.ends();
        if !ends.over {
            let earliest = ends.asked.back().map_or(Moment::default(), |(at, _)| *at);
            ends.asked.push_back((self.world.clock.now().after(way).max(earliest), operation(answer)));
        }
        drop(ends);
        self.line.work.notify_one();
        Box::pin(async { answered.await.map_err(|_| BackendError::Lost("connection lost".to_owned())) })
    }
}

impl Link for Wire {
    fn session(&self) -> SessionId {
        SessionId(i64::try_from(self.number).unwrap())
    }

    fn barrier(&mut self) -> Pending<()> {
        self.ask(Operation::Barrier)
    }

    fn list(&mut self) -> Pending<Listing> {
        self.ask(Operation::List)
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let mut names = names.to_vec();
        // The names come in the order of a map.
        let order = names.clone();
        names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        let place: Vec<usize> =
            order.iter().map(|name| names.iter().position(|n| n == name).unwrap()).collect();
        let read = self.ask(|answer| Operation::Read(names, answer));
        Box::pin(async move {
            let readings = read.await?;
            Ok(place.into_iter().map(|place| readings[place].clone()).collect())
        })
    }

    async fn next(&mut self) -> Change {
        poll_fn(|cx| {
            let mut ends = self.line.ends();
            ends.waker = Some(cx.waker().clone());
            ends.changes.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.line.ends().changes.pop_front()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.line.ends().over = true;
        self.line.work.notify_one();
    }
}

/// The server's end.
struct Server {
    world: Arc<World>,
    line: Arc<Line>,
    lag: Duration,
    rng: fastrand::Rng,
    applied: usize,
    /// The barrier at the head of the queue: when the leader commits it; then how much the answer has to wait for.
    barrier: Option<(Moment, Option<usize>)>,
    /// On their way to the gateway.
    sent: VecDeque<(Moment, Delivery)>,
}

impl Server {
    fn new(world: Arc<World>, line: Arc<Line>, lag: Duration, rng: fastrand::Rng) -> Self {
        let now = world.clock.now();
        let applied =
            world.state().service.log().iter().take_while(|commit| commit.at.after(lag) <= now).count();
        Self { world, line, lag, rng, applied, barrier: None, sent: VecDeque::new() }
    }

    async fn run(mut self) {
        while let Some(next) = self.work() {
            let line = Arc::clone(&self.line);
            let _ = tokio::time::timeout(next, line.work.notified()).await;
        }
    }

    /// Does what is due; how long until something else is, or `None` once the line is over.
    fn work(&mut self) -> Option<Duration> {
        let now = self.world.clock.now();
        let (over, silent) = {
            let ends = self.line.ends();
            (ends.over, ends.silent)
        };
        if over {
            return None;
        }
        if silent {
            return Some(Duration::from_secs(3600));
        }
        let commit = self.apply(now);
        let operation = self.execute(now);
        while self.sent.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, delivery)) = self.sent.pop_front() else { break };
            self.deliver(delivery);
        }
        let delivery = self.sent.front().map(|(at, _)| *at);
        let next = [commit, operation, delivery].into_iter().flatten().min();
        Some(next.map_or(Duration::from_secs(3600), |at| at.until(now).max(Duration::from_millis(1))))
    }

    /// Applies what has arrived by now; when the next commit will.
    fn apply(&mut self, now: Moment) -> Option<Moment> {
        loop {
            let at = self.world.state().service.log().get(self.applied)?.at.after(self.lag);
            if at > now {
                return Some(at);
            }
            self.apply_next(now);
        }
    }

    fn apply_next(&mut self, now: Moment) {
        let announced: Vec<Change> = {
            let state = self.world.state();
            let commit = &state.service.log()[self.applied];
            let change = |sighting: &_| Change::Account {
                name: state.service.names[commit.account].clone(),
                sighting: *sighting,
                zxid: Some(commit.zxid),
            };
            commit.sightings.iter().map(change).collect()
        };
        self.applied += 1;
        for change in announced {
            self.send(now, Delivery::Change(change));
        }
    }

    fn send(&mut self, now: Moment, delivery: Delivery) {
        let way = Duration::from_millis(self.rng.u64(..=self.world.weather().way));
        let earliest = self.sent.back().map_or(Moment::default(), |(at, _)| *at);
        self.sent.push_back((now.after(way).max(earliest), delivery));
    }

    /// Executes the operations that have arrived, in their order; when the next can be.
    fn execute(&mut self, now: Moment) -> Option<Moment> {
        loop {
            let (arrives, is_barrier) = {
                let ends = self.line.ends();
                let (at, operation) = ends.asked.front()?;
                (*at, matches!(operation, Operation::Barrier(_)))
            };
            if arrives > now {
                return Some(arrives);
            }
            if is_barrier && let Some(wait) = self.pass_barrier(now) {
                return Some(wait);
            }
            let (_, operation) = self.line.ends().asked.pop_front()?;
            let delivery = {
                let state = self.world.state();
                match operation {
                    Operation::Barrier(answer) => Delivery::Proven(answer),
                    Operation::List(answer) => Delivery::Listed(answer, state.service.list(self.applied)),
                    Operation::Read(names, answer) => {
                        let read = |name| state.service.read(name, self.applied);
                        Delivery::Read(answer, names.iter().map(read).collect())
                    }
                }
            };
            self.send(now, delivery);
        }
    }

    /// Through the leader and back; until when it takes, or `None` once it is through.
    fn pass_barrier(&mut self, now: Moment) -> Option<Moment> {
        let way = self.world.weather().way;
        let mut hop = || now.after(Duration::from_millis(self.rng.u64(..=way)));
        match self.barrier {
            None => self.barrier = Some((hop(), None)),
            Some((at, None)) if at <= now => {
                // Committed: everything before it is in the log by now.
                self.barrier = Some((hop(), Some(self.world.state().service.log().len())));
            }
            Some((at, Some(committed))) if at <= now => {
                while self.applied < committed {
                    self.apply_next(now);
                }
                self.barrier = None;
                return None;
            }
            Some((at, _)) => return Some(at),
        }
        self.pass_barrier(now)
    }

    fn deliver(&self, delivery: Delivery) {
        match delivery {
            Delivery::Change(change) => self.line.ends().announce(change),
            Delivery::Proven(answer) => drop(answer.send(())),
            Delivery::Listed(answer, listing) => drop(answer.send(listing)),
            Delivery::Read(answer, readings) => drop(answer.send(readings)),
        }
    }
}

//! The coordination service: one account, a log of who held it, and a server that applies the log when it gets to it.
//!
//! It keeps what ZooKeeper promises to one session and no more: operations are executed in their order, a barrier only when
//! everything that was committed before is applied, and what is applied is announced before the answers that come later.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use fencegate::election::{Backend, BackendError, Change, Link, Listing, Pending};
use fencegate::fence::handover::Sighting;
use fencegate::fence::name::AccountName;
use fencegate::fence::token::{Epoch, Seq, SessionId};
use fencegate::fence::view::{Holder, Reading, View};
use shuttle::rand::{Rng, thread_rng};
use tokio::sync::{Notify, oneshot};

/// The account.
pub const ACCOUNT: &str = "wxid_1";

/// The holder of the term with this number.
pub fn holder(term: u64) -> Holder {
    Holder {
        seq: Seq(term),
        session: SessionId(i64::try_from(term).unwrap()),
        instance: "host".to_owned(),
        epoch: Epoch(i64::try_from(term).unwrap() + 100),
        active_since: None,
    }
}

/// The service. Its own bookkeeping is no part of what is explored: no thread is changed under these mutexes.
#[derive(Default)]
pub struct Service {
    log: Mutex<Vec<View>>,
    line: Mutex<Option<Arc<Line>>>,
    links: Mutex<usize>,
    root: Mutex<i64>,
}

#[derive(Default)]
struct Line {
    ends: Mutex<Ends>,
    work: Notify,
}

#[derive(Default)]
struct Ends {
    asked: VecDeque<Operation>,
    changes: VecDeque<Change>,
    waker: Option<Waker>,
    over: bool,
}

enum Operation {
    Barrier(oneshot::Sender<()>),
    List(oneshot::Sender<Listing>),
    Read(usize, oneshot::Sender<Vec<Reading>>),
}

impl Line {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap()
    }

    fn announce(&self, change: Change) {
        let mut ends = self.ends();
        ends.changes.push_back(change);
        if let Some(waker) = ends.waker.take() {
            waker.wake();
        }
    }
}

impl Service {
    /// One in which `view` is all that ever was.
    pub fn new(view: View) -> Arc<Self> {
        Arc::new(Self { log: Mutex::new(vec![view]), ..Self::default() })
    }

    /// The number of the newest commit.
    pub fn newest(&self) -> usize {
        self.log.lock().unwrap().len() - 1
    }

    /// What was true at some moment since commit `since`.
    pub fn since(&self, since: usize) -> Vec<View> {
        self.log.lock().unwrap()[since..].to_vec()
    }

    /// How many links were made.
    pub fn links(&self) -> usize {
        *self.links.lock().unwrap()
    }

    /// The account is like this from now on.
    pub fn commit(&self, view: View) {
        shuttle::thread::yield_now();
        self.log.lock().unwrap().push(view);
        if let Some(line) = &*self.line.lock().unwrap() {
            line.work.notify_one();
        }
    }

    /// The service was restored: its root bears an older transaction than before.
    pub fn restore(&self) {
        *self.root.lock().unwrap() -= 1;
    }

    /// The line breaks: whatever is under way is lost. How many links there have been so far, if there is one to be made.
    pub fn cut(&self) -> Option<usize> {
        shuttle::thread::yield_now();
        self.line.lock().unwrap().take().map(|line| {
            let mut ends = line.ends();
            ends.over = true;
            ends.asked.clear();
            drop(ends);
            line.announce(Change::Lost("cut".to_owned()));
            line.work.notify_one();
            self.links()
        })
    }

    /// The server's end of a line.
    async fn serve(self: Arc<Self>, line: Arc<Line>, mut applied: usize) {
        let name = AccountName::new(ACCOUNT).unwrap();
        // One that lags announces nothing before it has to.
        let lags = thread_rng().gen_bool(0.5);
        loop {
            let (over, asked) = {
                let ends = line.ends();
                (ends.over, !ends.asked.is_empty())
            };
            if over {
                return;
            }
            let behind = self.newest() - applied;
            let executes = asked && (behind == 0 || lags || thread_rng().gen_bool(0.5));
            if executes {
                let operation = line.ends().asked.pop_front();
                if matches!(operation, Some(Operation::Barrier(_))) {
                    for _ in 0..behind {
                        line.announce(other(&name));
                    }
                    applied += behind;
                }
                let view = self.since(applied)[0].clone();
                // Nobody may wait for it any more.
                match operation {
                    Some(Operation::Barrier(answer)) => drop(answer.send(())),
                    Some(Operation::List(answer)) => {
                        let names = if view == View::Absent { vec![] } else { vec![name.clone()] };
                        drop(answer.send(Listing {
                            names,
                            strange: 0,
                            newest: Some(*self.root.lock().unwrap()),
                        }));
                    }
                    Some(Operation::Read(many, answer)) => {
                        let reading = Reading { view, ..Reading::default() };
                        drop(answer.send(vec![reading; many]));
                    }
                    None => {}
                }
            } else if behind > 0 && !lags {
                line.announce(other(&name));
                applied += 1;
            } else {
                line.work.notified().await;
                continue;
            }
            shuttle::future::yield_now().await;
        }
    }
}

fn other(name: &AccountName) -> Change {
    Change::Account { name: name.clone(), sighting: Sighting::Other, zxid: None }
}

/// Makes links.
pub struct Links(pub Arc<Service>);

/// The gateway's end of one.
pub struct Wire(Arc<Line>);

impl Backend for Links {
    type Link = Wire;

    fn name(&self) -> &'static str {
        "explored"
    }

    async fn connect(&mut self) -> Result<Wire, BackendError> {
        let line = Arc::new(Line::default());
        *self.0.line.lock().unwrap() = Some(Arc::clone(&line));
        *self.0.links.lock().unwrap() += 1;
        // A server that knows as much as it may.
        let applied = thread_rng().gen_range(0..=self.0.newest());
        drop(shuttle::future::spawn(Arc::clone(&self.0).serve(Arc::clone(&line), applied)));
        Ok(Wire(line))
    }
}

impl Wire {
    fn ask<T: Send + 'static>(&self, operation: impl FnOnce(oneshot::Sender<T>) -> Operation) -> Pending<T> {
        let (answer, answered) = oneshot::channel();
        let mut ends = self.0.ends();
        if !ends.over {
            ends.asked.push_back(operation(answer));
        }
        drop(ends);
        self.0.work.notify_one();
        Box::pin(async { answered.await.map_err(|_| BackendError::Lost("the line is over".to_owned())) })
    }
}

impl Link for Wire {
    fn session(&self) -> SessionId {
        SessionId(1)
    }

    fn barrier(&mut self) -> Pending<()> {
        self.ask(Operation::Barrier)
    }

    fn list(&mut self) -> Pending<Listing> {
        self.ask(Operation::List)
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let many = names.len();
        self.ask(|answer| Operation::Read(many, answer))
    }

    async fn next(&mut self) -> Change {
        poll_fn(|cx| {
            let mut ends = self.0.ends();
            ends.waker = Some(cx.waker().clone());
            ends.changes.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn try_next(&mut self) -> Option<Change> {
        self.0.ends().changes.pop_front()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.ends().over = true;
        self.0.work.notify_one();
    }
}

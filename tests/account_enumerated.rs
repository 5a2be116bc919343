//! When a view counts as current, enumerated: every interleaving of a small ZooKeeper with one account.
//!
//! The oracle is the service itself: a sequence of versions, committed one after the other, and servers that may lag
//! behind it until a barrier has passed through them. A session is a FIFO in both directions: requests are answered in
//! the order sent, and the events of changes that an answer includes arrive before it. The shell between the session
//! and the account is as careless as it may be: it applies reads late and in any order, and it reads before the first
//! barrier of a link; only before it calls a barrier a proof, it takes the events that arrived before.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fencegate::clock::Moment;
use fencegate::fence::account::{Account, Mark, Proof, Response};
use fencegate::fence::gate::{Answer, Order, Terms};
use fencegate::fence::handover::Sighting;
use fencegate::fence::token::{Claim, Epoch, Seq, SessionId};
use fencegate::fence::view::{Holder, Marks, Reading, View};

const NOW: Moment = Moment::from_nanos(0);
const TERMS: Terms = Terms { patience: Duration::ZERO, most_in_flight: 1 };

/// How far one enumeration goes: how often each of these happens on one path.
#[derive(Clone, Copy)]
struct Bounds {
    changes: u8,
    barriers: u8,
    reads: u8,
    links: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Input {
    /// A new holder: one more version is committed.
    Change,
    /// The server of the session hears of one more version, and tells the watch.
    CatchUp,
    SendBarrier,
    SendRead,
    /// The server executes the first request: a barrier once it is passed by everything committed.
    Execute,
    /// The shell takes the first event.
    TakeEvent,
    /// The shell takes the answer to a barrier, after the events before it.
    TakeProof,
    /// The shell applies the answer to a read: any of those that are in.
    Apply(usize),
    /// The link is lost with all that is under way; a new one stands, to a server that lags by so much.
    Relink(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Barrier {
        order: u8,
    },
    /// `marked` events had been taken when it was sent.
    Read {
        order: u8,
        marked: u8,
        link: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answered {
    request: Request,
    /// The version that a read shows, or that was committed when a barrier passed.
    version: u8,
    /// Events that arrived before it over the same link.
    events_before: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    committed: u8,
    server: u8,
    link: u8,
    links: u8,
    /// Barriers begun.
    barriers: u8,
    reads: u8,
    /// Events taken from all links.
    taken: u8,
    /// Events that arrived over this link, and those of them that were taken.
    arrived: u8,
    taken_of_link: u8,
    requests: VecDeque<Request>,
    /// Answers to barriers, in the order in which they came.
    passed: VecDeque<Answered>,
    /// Answers to reads that the shell has not applied; they outlive their link.
    unapplied: Vec<Answered>,
    /// Proofs, each with its link and the version that was committed when it passed.
    proofs: Vec<(u8, u8, u8)>,
}

impl World {
    fn new() -> Self {
        Self {
            committed: 0,
            server: 0,
            link: 1,
            links: 1,
            barriers: 0,
            reads: 0,
            taken: 0,
            arrived: 0,
            taken_of_link: 0,
            requests: VecDeque::new(),
            passed: VecDeque::new(),
            unapplied: Vec::new(),
            proofs: Vec::new(),
        }
    }

    fn inputs(&self, bounds: Bounds) -> Vec<Input> {
        let mut inputs = Vec::new();
        let mut may = |yes: bool, input| {
            if yes {
                inputs.push(input);
            }
        };
        may(self.committed < bounds.changes, Input::Change);
        may(self.server < self.committed, Input::CatchUp);
        may(self.barriers < bounds.barriers, Input::SendBarrier);
        may(self.reads < bounds.reads, Input::SendRead);
        may(!self.requests.is_empty(), Input::Execute);
        may(self.taken_of_link < self.arrived, Input::TakeEvent);
        may(!self.passed.is_empty(), Input::TakeProof);
        for index in 0..self.unapplied.len() {
            may(true, Input::Apply(index));
        }
        if self.links < bounds.links {
            for lag in 0..=self.committed.min(2) {
                may(true, Input::Relink(lag));
            }
        }
        inputs
    }
}

/// The account, and the marks of reads under way, by the number of events that had been taken.
struct Bench {
    account: Account<u8>,
    marks: Vec<Mark>,
}

impl Bench {
    fn new() -> Self {
        let account = Account::default();
        let marks = vec![account.freshness().mark()];
        Self { account, marks }
    }

    fn take_event(&mut self, world: &mut World) {
        world.taken += 1;
        world.taken_of_link += 1;
        self.account.sighted(Sighting::HolderGone, None, NOW);
        self.marks.push(self.account.freshness().mark());
    }

    fn catch_up(world: &mut World) {
        world.server += 1;
        world.arrived += 1;
    }

    fn step(&mut self, input: Input, world: &mut World) {
        match input {
            Input::Change => world.committed += 1,
            Input::CatchUp => Self::catch_up(world),
            Input::SendBarrier => {
                world.barriers += 1;
                world.requests.push_back(Request::Barrier { order: world.barriers });
            }
            Input::SendRead => {
                world.reads += 1;
                let (order, marked, link) = (world.barriers, world.taken, world.link);
                world.requests.push_back(Request::Read { order, marked, link });
            }
            Input::Execute => {
                let request = world.requests.pop_front().unwrap();
                let answers = match request {
                    Request::Barrier { .. } => {
                        while world.server < world.committed {
                            Self::catch_up(world);
                        }
                        None
                    }
                    Request::Read { .. } => Some(&mut world.unapplied),
                };
                let answered = Answered { request, version: world.server, events_before: world.arrived };
                match answers {
                    Some(unapplied) => unapplied.push(answered),
                    None => world.passed.push_back(answered),
                }
            }
            Input::TakeEvent => self.take_event(world),
            Input::TakeProof => {
                let answered = world.passed.pop_front().unwrap();
                while world.taken_of_link < answered.events_before {
                    self.take_event(world);
                }
                let Request::Barrier { order } = answered.request else { panic!("{answered:?}") };
                world.proofs.push((order, world.link, answered.version));
            }
            Input::Apply(index) => self.apply(world.unapplied.remove(index), world),
            Input::Relink(lag) => {
                world.requests.clear();
                world.passed.clear();
                (world.arrived, world.taken_of_link) = (0, 0);
                world.server = world.committed - lag;
                world.link = world.barriers + 1;
                world.links += 1;
            }
        }
    }

    fn apply(&mut self, answered: Answered, world: &World) {
        let Request::Read { order, marked, link } = answered.request else { panic!("{answered:?}") };
        let mark = self.marks[usize::from(marked)];
        let applied =
            self.account.apply(reading(answered.version), mark, Order(order.into()), Order(link.into()), NOW);
        assert!(!applied.history_went_back, "there is one history: {answered:?} {world:?}");
        // Liveness: whatever events say, a proof is judged by a read that was sent after its barrier.
        if order >= link {
            for proof in world.proofs.iter().filter(|(proven, ..)| *proven <= order) {
                assert!(self.shown(*proof).is_some(), "{proof:?} is judged by a read after barrier {order}");
            }
        }
    }

    /// The version that a claim is judged by under a proof, if it is judged.
    fn shown(&mut self, (order, link, _): (u8, u8, u8)) -> Option<u8> {
        let nobody = Claim { seq: Seq(u64::MAX), session: SessionId(0), instance: None, epoch: None };
        let proof = Proof { order: Order(order.into()), link: Order(link.into()) };
        match self.account.ask(&nobody, proof, TERMS, || 0) {
            Response::Unread => None,
            Response::Judged(Answer::Refused(_)) => Some(u8::try_from(self.account.candidates()).unwrap()),
            Response::Judged(answer) => panic!("{answer:?}"),
        }
    }

    fn key(&self, world: &World) -> u64 {
        let mut hasher = DefaultHasher::new();
        (world, format!("{:?}", self.account)).hash(&mut hasher);
        hasher.finish()
    }
}

/// As many candidates as the version's number, so that it can be told which one was applied. Every other version has a
/// holder; the ones between have no account, and no marks that would tell their age.
fn reading(version: u8) -> Reading {
    let candidates = (0..version.into()).collect();
    if version.is_multiple_of(2) {
        return Reading { candidates, ..Reading::default() };
    }
    let holder = Holder {
        seq: Seq(version.into()),
        session: SessionId(0),
        instance: String::new(),
        epoch: Epoch(version.into()),
        active_since: None,
    };
    let marks = Marks { newest: version.into(), ..Marks::default() };
    Reading { view: View::Held(Arc::new(holder)), candidates, marks: Some(marks), bytes: 0 }
}

/// How much an enumeration met.
#[derive(Debug, Default)]
struct Met {
    states: usize,
    steps: usize,
    judged: usize,
    /// Judged although an event was announced that no read covers.
    judged_while_dirty: usize,
    /// Judged by a view that is newer than the proof.
    judged_by_newer: usize,
    unread: usize,
}

impl Met {
    fn is_at_least(&self, least: &Self) {
        assert!(self.states >= least.states && self.steps >= least.steps, "{self:?}");
        assert!(self.judged >= least.judged && self.unread >= least.unread, "{self:?}");
        assert!(self.judged_while_dirty >= least.judged_while_dirty, "{self:?}");
        assert!(self.judged_by_newer >= least.judged_by_newer, "{self:?}");
    }
}

fn enumerate(bounds: Bounds) -> Met {
    struct Node {
        world: World,
        parent: usize,
        input: Option<Input>,
    }
    let mut nodes = vec![Node { world: World::new(), parent: 0, input: None }];
    let mut known = HashSet::from([Bench::new().key(&nodes[0].world)]);
    let mut met = Met::default();
    let mut next = 0;
    while next < nodes.len() {
        for input in nodes[next].world.inputs(bounds) {
            let mut way = vec![input];
            let mut at = next;
            while let Some(input) = nodes[at].input {
                way.push(input);
                at = nodes[at].parent;
            }
            let (mut bench, mut world) = (Bench::new(), World::new());
            for input in way.into_iter().rev() {
                bench.step(input, &mut world);
            }
            met.steps += 1;
            if !known.insert(bench.key(&world)) {
                continue;
            }
            for proof in world.proofs.clone() {
                let Some(shown) = bench.shown(proof) else {
                    met.unread += 1;
                    continue;
                };
                assert!(shown >= proof.2, "G1: version {shown} judged under {proof:?}: {world:?}");
                met.judged += 1;
                met.judged_while_dirty += usize::from(bench.account.freshness().is_dirty());
                met.judged_by_newer += usize::from(shown > proof.2);
            }
            nodes.push(Node { world, parent: next, input: Some(input) });
        }
        next += 1;
    }
    met.states = nodes.len();
    met
}

#[test]
fn whatever_is_judged_is_as_new_as_its_proofs_barrier_over_one_link() {
    let met = enumerate(Bounds { changes: 3, barriers: 3, reads: 2, links: 1 });
    met.is_at_least(&Met {
        states: 332_000,
        steps: 1_070_000,
        judged: 183_000,
        judged_while_dirty: 143_000,
        judged_by_newer: 120_000,
        unread: 163_000,
    });
}

#[test]
fn whatever_is_judged_is_as_new_as_its_proofs_barrier_with_reads_out_of_order() {
    let met = enumerate(Bounds { changes: 2, barriers: 2, reads: 3, links: 1 });
    met.is_at_least(&Met {
        states: 90_000,
        steps: 300_000,
        judged: 38_000,
        judged_while_dirty: 27_000,
        judged_by_newer: 21_000,
        unread: 28_000,
    });
}

#[test]
fn whatever_is_judged_is_as_new_as_its_proofs_barrier_over_a_lost_link_and_a_server_that_lags() {
    let met = enumerate(Bounds { changes: 2, barriers: 2, reads: 2, links: 2 });
    met.is_at_least(&Met {
        states: 212_000,
        steps: 604_000,
        judged: 81_000,
        judged_while_dirty: 62_000,
        judged_by_newer: 43_000,
        unread: 104_000,
    });
}

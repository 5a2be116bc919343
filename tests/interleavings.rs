//! Orders of steps of the planes' threads, explored: requests on workers against the follower that changes what they are
//! judged by. No order may break an invariant, and nobody may wait for a signal that was given before it listened.
//!
//! `INTERLEAVINGS` says how many orders of each scenario are tried, `INTERLEAVINGS_SEED` which. What fails is printed with its
//! schedule, and `INTERLEAVINGS_SCHEDULE` replays that.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod interleaved;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as StdAtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fencegate::clock::Clock;
use fencegate::code::Code;
use fencegate::config;
use fencegate::fence::view::View;
use fencegate::gateway::admission::Unjudged;
use fencegate::gateway::body::Budget;
use fencegate::gateway::entry::Send;
use fencegate::gateway::journey::Journey;
use fencegate::gateway::parking::{Bounds, park};
use fencegate::gateway::service::Gateway;
use fencegate::mutant::{Mutant, choose};
use http::HeaderValue;

use interleaved::service::{Service, holder};
use interleaved::world::{Sending, World};
use interleaved::{dawdle, explore, find, pass};
use shuttle::future::{JoinHandle, block_on};
use shuttle::sync::atomic::AtomicU64;
use shuttle::thread;

/// How many orders of each scenario.
const TIMES: usize = 1000;

fn held(term: u64) -> View {
    View::Held(Arc::new(holder(term)))
}

/// Requests of the old and of the new holder on two workers, while the holder changes.
fn a_change_of_holder() {
    let world = World::new();
    assert_eq!(block_on(world.send(0, 1, Sending::Ends)).unwrap(), None);
    let service = Arc::clone(&world.service);
    let changes = thread::spawn(move || {
        dawdle();
        service.commit(held(2));
    });
    let sends =
        [(0, 1), (1, 1), (0, 2), (1, 2)].map(|(worker, term)| world.send(worker, term, Sending::Ends));
    for send in sends {
        block_on(send).unwrap();
    }
    changes.join().unwrap();
    // Whoever asks when all is over is admitted.
    assert_eq!(block_on(world.send(0, 2, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// A holder that was deposed asks again, while proofs that began before are on their way.
fn a_zombie() {
    let world = World::new();
    assert_eq!(block_on(world.send(0, 1, Sending::Ends)).unwrap(), None);
    let before = world.send(0, 1, Sending::Ends);
    world.service.commit(held(2));
    let zombie = world.send(1, 1, Sending::Ends);
    assert_eq!(block_on(zombie).unwrap(), Some(Code::StaleToken));
    block_on(before).unwrap();
    world.is_at_rest();
}

/// Two changes, the second while the first's successor may wait for the drain.
fn a_third_holder() {
    let world = World::new();
    assert_eq!(block_on(world.send(0, 1, Sending::Ends)).unwrap(), None);
    let service = Arc::clone(&world.service);
    let changes = thread::spawn(move || {
        dawdle();
        service.commit(View::Vacant);
        service.commit(held(2));
        dawdle();
        service.commit(held(3));
    });
    let sends = [(0, 1), (1, 2), (0, 3)].map(|(worker, term)| world.send(worker, term, Sending::Ends));
    for send in sends {
        block_on(send).unwrap();
    }
    changes.join().unwrap();
    assert_eq!(block_on(world.send(1, 3, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// The link breaks while proofs are under way and wanted: they are voided, and whoever waits gets the next.
fn a_link_that_breaks() {
    let world = World::new();
    let service = Arc::clone(&world.service);
    let clock = world.clock.clone();
    let breaks = thread::spawn(move || {
        service.commit(held(2));
        cut_and_wait(&service, &clock);
    });
    let sends = [(0, 1), (1, 2), (0, 2)].map(|(worker, term)| world.send(worker, term, Sending::Ends));
    for send in sends {
        block_on(send).unwrap();
    }
    breaks.join().unwrap();
    assert_eq!(block_on(world.send(1, 2, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// The follower makes the next link after a pause.
fn cut_and_wait(service: &Service, clock: &Clock) {
    let links = service.cut();
    while links.is_some_and(|links| service.links() <= links) {
        pass(clock, Duration::from_millis(10));
    }
}

/// The service is restored from an older copy, everything is refused, and somebody accepts that.
fn a_history_that_went_back() {
    let world = World::new();
    // Read once: the root is known.
    assert_eq!(block_on(world.send(0, 1, Sending::Ends)).unwrap(), None);
    let service = Arc::clone(&world.service);
    let (clock, registry) = (world.clock.clone(), Arc::clone(&world.registry));
    let restores = thread::spawn(move || {
        service.commit(held(2));
        service.restore();
        cut_and_wait(&service, &clock);
        let links = service.links();
        while !registry.accept_history() {
            thread::yield_now();
        }
        while service.links() <= links {
            pass(&clock, Duration::from_millis(10));
        }
    });
    let sends = [(0, 1), (1, 2), (0, 2)].map(|(worker, term)| world.send(worker, term, Sending::Ends));
    for send in sends {
        block_on(send).unwrap();
    }
    restores.join().unwrap();
    assert_eq!(block_on(world.send(1, 2, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// A send without end is cut at the handover's deadline, while another ends by itself.
fn a_cut() {
    let world = World::new();
    let hangs = world.send(0, 1, Sending::Hangs);
    let ends = world.send(1, 1, Sending::Ends);
    while !world.is_under_way() {
        thread::yield_now();
    }
    let service = Arc::clone(&world.service);
    let changes = thread::spawn(move || service.commit(held(2)));
    let next = world.send(1, 2, Sending::Ends);
    changes.join().unwrap();
    // A server that lags tells of the change when somebody asks.
    let last = world.send(0, 2, Sending::Ends);
    let sends = [hangs, ends, next];
    while !sends.iter().chain([&last]).all(JoinHandle::is_finished) {
        pass(&world.clock, Duration::from_millis(700));
    }
    assert_eq!(block_on(last).unwrap(), None);
    for send in sends {
        block_on(send).unwrap();
    }
    world.is_at_rest();
}

/// The account goes, is forgotten, and comes again.
fn an_account_that_goes_and_comes() {
    let world = World::new();
    let service = Arc::clone(&world.service);
    let changes = thread::spawn(move || {
        service.commit(View::Absent);
        service.commit(held(2));
        service.commit(View::Absent);
        service.commit(held(3));
    });
    let sends = [(0, 1), (1, 2), (0, 3)].map(|(worker, term)| world.send(worker, term, Sending::Ends));
    for send in sends {
        block_on(send).unwrap();
    }
    changes.join().unwrap();
    assert_eq!(block_on(world.send(1, 3, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// Callers leave at any step.
fn callers_that_leave() {
    let world = World::new();
    let service = Arc::clone(&world.service);
    let changes = thread::spawn(move || {
        dawdle();
        service.commit(held(2));
    });
    let leaving = [(0, 1), (1, 1), (0, 2), (1, 2)].map(|(worker, term)| world.send_and_leave(worker, term));
    let stays = world.send(1, 2, Sending::Ends);
    for send in leaving {
        block_on(send).unwrap();
    }
    block_on(stays).unwrap();
    changes.join().unwrap();
    assert_eq!(block_on(world.send(0, 2, Sending::Ends)).unwrap(), None);
    world.is_at_rest();
}

/// Three take places, room and bytes at once, of which there are two.
fn counts() {
    const MOST: usize = 2;
    const BYTES: u64 = MOST as u64 * 10;
    let text = "[zookeeper]\nconnect = \"127.0.0.1:1\"\n[limits]\nmax_in_flight = 2\n[[route]]\npath = \"/{account}\"\naccount = \"path:account\"\nupstream = \"http://127.0.0.1:1\"\n";
    let config = config::parse("explored", text, []).unwrap();
    let world = World::new();
    let registry = Arc::clone(&world.registry);
    let gateway = Arc::new(Gateway::new(&config, registry, Arc::default(), None).unwrap());
    let buffered = Arc::<AtomicU64>::default();
    // Of places, of those for others than the holder, of rooms, of unjudged sends.
    let held: Arc<[StdAtomicUsize; 4]> = Arc::default();
    let threads = [true, false, false].map(|holder| {
        let (gateway, buffered, held) = (Arc::clone(&gateway), Arc::clone(&buffered), Arc::clone(&held));
        thread::spawn(move || {
            let registry = &gateway.registry;
            let _journey = Journey::begin(Arc::clone(&gateway));
            let bounds = Bounds { most: MOST, most_per_account: MOST };
            let place = park(&registry.places, &registry.unknown_places, bounds, holder);
            let _places = place.is_some().then(|| Counted::of(&held, 0, MOST));
            let _others = (place.is_some() && !holder).then(|| Counted::of(&held, 1, MOST.div_ceil(2)));
            let room = gateway.room(&gateway.routes[0]);
            let _rooms = room.is_some().then(|| Counted::of(&held, 2, MOST));
            let send = Arc::new(Send::new(HeaderValue::from_static("id")));
            let unjudged = Unjudged::enter(registry, None, send, MOST);
            let _unjudged = unjudged.is_some().then(|| Counted::of(&held, 3, MOST));
            let mut budget = Budget::default();
            for _ in 0..2 {
                budget.take(5, [(&buffered, BYTES); 3]);
            }
            thread::yield_now();
            drop((_places, _others, _rooms, _unjudged));
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!((gateway.in_flight(), gateway.being_read(), buffered.load(SeqCst)), (0, 0, 0), "I5, I7");
    assert!(gateway.room(&gateway.routes[0]).is_some());
    world.is_at_rest();
}

/// One of `most`.
struct Counted<'a>(&'a StdAtomicUsize);

impl<'a> Counted<'a> {
    fn of(held: &'a [StdAtomicUsize; 4], what: usize, most: usize) -> Self {
        assert!(held[what].fetch_add(1, SeqCst) < most, "more than {most} of kind {what}");
        Self(&held[what])
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

const SCENARIOS: &[(&str, fn())] = &[
    ("counts", counts),
    ("a zombie", a_zombie),
    ("an account that goes and comes", an_account_that_goes_and_comes),
    ("a change of holder", a_change_of_holder),
    ("a third holder", a_third_holder),
    ("a link that breaks", a_link_that_breaks),
    ("a history that went back", a_history_that_went_back),
    ("a cut", a_cut),
    ("callers that leave", callers_that_leave),
];

#[test]
fn every_race_that_is_put_in_is_found() {
    let mut survivors = Vec::new();
    for (name, mutant) in Mutant::RACES {
        choose(Some(*mutant));
        let tries =
            [20, 200, 2000].into_iter().flat_map(|times| SCENARIOS.iter().map(move |one| (times, one)));
        let mut found = tries.filter_map(|(times, (scenario, run))| Some((scenario, find(times, *run)?)));
        match found.next() {
            Some((scenario, wrong)) => println!("mutant {name}: found by {scenario}: {wrong}"),
            None => survivors.push(name),
        }
    }
    choose(None);
    assert!(survivors.is_empty(), "these survive: {survivors:?}");
}

#[test]
fn i1_i2_g1_whenever_the_holder_changes() {
    explore(TIMES, a_change_of_holder);
}

#[test]
fn g1_whatever_is_under_way_when_a_zombie_asks() {
    explore(TIMES, a_zombie);
}

#[test]
fn i1_i2_whenever_a_third_holder_comes() {
    explore(TIMES, a_third_holder);
}

#[test]
fn i3_nobody_is_left_waiting_for_a_proof_that_was_voided() {
    explore(TIMES, a_link_that_breaks);
}

#[test]
fn i1_i5_whether_a_send_ends_or_is_cut() {
    explore(TIMES, a_cut);
}

#[test]
fn i4_whoever_waits_for_an_account_that_is_forgotten_looks_it_up_again() {
    explore(TIMES, an_account_that_goes_and_comes);
}

#[test]
fn i5_whatever_a_caller_waits_for_when_it_leaves() {
    explore(TIMES, callers_that_leave);
}

#[test]
fn i3_nobody_is_left_behind_by_a_history_that_is_accepted() {
    explore(TIMES, a_history_that_went_back);
}

#[test]
fn i5_i7_whoever_counts_at_once() {
    explore(TIMES, counts);
}

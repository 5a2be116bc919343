//! How much may be under way and held at once. Guards: dropped, they give back what they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::config::{AgentLimits, Route};

/// All bounds that requests share.
#[derive(Debug)]
pub(super) struct Rooms {
    most: usize,
    most_buffered: u64,
    in_flight: Arc<AtomicUsize>,
    buffered: Arc<AtomicU64>,
    /// By route: how many are under way, and how many may be.
    routes: Vec<(Arc<AtomicUsize>, usize)>,
}

/// One request's place.
#[derive(Debug)]
pub(super) struct Room {
    counters: [Arc<AtomicUsize>; 2],
    buffered: Arc<AtomicU64>,
    most_buffered: u64,
    taken: u64,
}

impl Rooms {
    pub(super) fn new(limits: &AgentLimits, routes: &[Route]) -> Self {
        let most = |route: &Route| route.max_in_flight.unwrap_or(limits.max_in_flight);
        Self {
            most: limits.max_in_flight,
            most_buffered: limits.max_buffered,
            in_flight: Arc::default(),
            buffered: Arc::default(),
            routes: routes.iter().map(|route| (Arc::default(), most(route))).collect(),
        }
    }

    /// A place for one more request of a route, if there is one.
    pub(super) fn enter(&self, route: usize) -> Option<Room> {
        let (own, most) = self.routes.get(route)?;
        let room = Room {
            counters: [Arc::clone(&self.in_flight), Arc::clone(own)],
            buffered: Arc::clone(&self.buffered),
            most_buffered: self.most_buffered,
            taken: 0,
        };
        let before = room.counters.each_ref().map(|counter| counter.fetch_add(1, SeqCst));
        (before[0] < self.most && before[1] < *most).then_some(room)
    }

    /// How many requests are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }
}

impl Room {
    /// Counts more bytes that are held. False if the bound is exceeded.
    pub(super) fn hold(&mut self, bytes: u64) -> bool {
        self.taken += bytes;
        self.buffered.fetch_add(bytes, SeqCst) + bytes <= self.most_buffered
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.buffered.fetch_sub(self.taken, SeqCst);
        for counter in &self.counters {
            counter.fetch_sub(1, SeqCst);
        }
    }
}

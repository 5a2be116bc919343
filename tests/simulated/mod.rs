//! A seeded world in virtual time around the gateway's core, and an oracle that keeps its own record of it.
//!
//! [`world`] draws it and lives through it, [`oracle`] says what must hold, [`service`] and [`wire`] are the coordination
//! service and the gateway's links to it, [`instance`] the bots' side, [`traffic`] requests and sender, [`executor`] time.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic, and each test uses its own part"
)]

pub mod executor;
pub mod instance;
pub mod oracle;
pub mod service;
pub mod traffic;
pub mod wire;
pub mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub use world::{Outcome, run};

/// A number from the environment.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// Runs worlds on all cores; the outcomes that are wrong, at most one for each core. `prepare` is called on each thread.
pub fn search(seeds: std::ops::Range<u64>, steps: u64, prepare: impl Fn() + Sync) -> Found {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let found = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                prepare();
                while !stop.load(SeqCst) {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = run(seed, steps, false);
                    let mut found = found.lock().unwrap();
                    found.worlds += 1;
                    for (what, count) in outcome.counts {
                        *found.counts.entry(what).or_default() += count;
                    }
                    if let Some(wrong) = outcome.wrong {
                        found.wrong.insert(seed, wrong);
                        stop.store(true, SeqCst);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// What a search found.
#[derive(Debug, Default)]
pub struct Found {
    pub worlds: u64,
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    /// By seed.
    pub wrong: std::collections::BTreeMap<u64, String>,
}

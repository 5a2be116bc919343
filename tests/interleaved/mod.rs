//! Small worlds in which every step of every thread is a choice: the gateway's registry, follower, proofs, admission and
//! gate are the real ones, and shuttle decides who goes on.
//!
//! [`service`] is the coordination service, [`world`] has the requests and what must hold. Time stands still unless a
//! scenario lets it [pass](pass), so that no timer saves whoever was not woken: that is a deadlock, and shuttle says so.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

pub mod service;
pub mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fencegate::clock::Clock;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tokio::runtime::{Builder, Runtime};

/// More steps than any of these worlds needs: beyond it, something goes round in a circle.
const MOST_STEPS: usize = 200_000;

thread_local! {
    /// Never dropped: a scenario that failed may have left timers, whose wakers are of its world.
    static TIME: &'static Runtime = Box::leak(Box::new(
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap(),
    ));
}

/// A number from the environment.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// Explores a scenario, half of the times with each scheduler: one goes on with anybody, the other seldom changes. Or replays
/// the schedule that a failure printed.
pub fn explore(times: usize, scenario: fn()) {
    if let Ok(schedule) = std::env::var("INTERLEAVINGS_SCHEDULE") {
        return run(ReplayScheduler::new_from_encoded(&schedule), FailurePersistence::None, scenario);
    }
    let times = number("INTERLEAVINGS").map_or(times, |times| usize::try_from(times).unwrap());
    let seed = number("INTERLEAVINGS_SEED").unwrap_or(1);
    run(RandomScheduler::new_from_seed(seed, times.div_ceil(2)), FailurePersistence::Print, scenario);
    run(PctScheduler::new_from_seed(seed, 4, times.div_ceil(2)), FailurePersistence::Print, scenario);
}

/// What a scenario finds, within as many times.
pub fn find(times: usize, scenario: fn()) -> Option<String> {
    let schedulers: [fn(usize) -> Box<dyn Scheduler + Send>; 2] = [
        |times| Box::new(RandomScheduler::new_from_seed(1, times)),
        |times| Box::new(PctScheduler::new_from_seed(1, 4, times)),
    ];
    schedulers.iter().find_map(|scheduler| {
        let found = || run(scheduler(times), FailurePersistence::None, scenario);
        catch_unwind(AssertUnwindSafe(found)).err().map(|panic| said(panic.as_ref()))
    })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

fn run(scheduler: impl Scheduler + 'static, failures: FailurePersistence, scenario: fn()) {
    let mut config = Config::new();
    config.stack_size = 0x80000;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.failure_persistence = failures;
    config.silence_warnings = true;
    TIME.with(|time| {
        let _inside = time.enter();
        Runner::new(scheduler, config).run(scenario);
    });
}

/// Lets others go on for a while.
pub fn dawdle() {
    for _ in 0..thread_rng().gen_range(0..60) {
        shuttle::thread::yield_now();
    }
}

/// Time goes on, and wakes whose timers are due. All of a scenario's threads are one thread of the system.
pub fn pass(clock: &Clock, time: Duration) {
    clock.advance(time);
    TIME.with(|runtime| runtime.block_on(tokio::time::advance(time)));
    shuttle::thread::yield_now();
}

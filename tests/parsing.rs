//! I8: the account judged is the account that the sender parses. A hundred thousand requests, good and hostile, over HTTP/1.0,
//! HTTP/1.1 and HTTP/2, to a sender that parses for itself.
//!
//! Each is either refused, and then no byte of it reaches the sender, or the sender finds the account that was judged, and so
//! does every other reader that finds one at all. `FENCEGATE_SEED` plays a seed again, `FENCEGATE_CASES` sets their number.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic in its helpers too"
)]

#[path = "parsing/callers.rs"]
mod callers;
#[path = "parsing/readers.rs"]
mod readers;
#[path = "parsing/requests.rs"]
mod requests;
#[path = "parsing/sender.rs"]
mod sender;
mod support;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use callers::{Caller, Outcome};
use requests::{ACCOUNTS, Case};
use sender::Strict;
use support::{Ensemble, Instance, Setup, route, wait_until};

const CASES: u64 = 100_000;
const CALLERS: usize = 48;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn i8_every_request_is_refused_unsent_or_its_sender_finds_the_account_that_was_judged() {
    let seed = number("FENCEGATE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cases = number("FENCEGATE_CASES").unwrap_or(CASES);
    println!("FENCEGATE_SEED={seed}");
    let ensemble = Ensemble::start(1);
    let bot = Instance::open(&ensemble.connect(), "host-a");
    let sender = Strict::start();
    let url = format!("http://{}", sender.address);
    let add = |setup: Setup, path: &str, account: &str| setup.route(&route(&url, path, account, ""));
    let setup = Setup::new(&ensemble.connect(), &url)
        .section("limits", "header_read_timeout = \"300ms\"\nbody_read_timeout = \"300ms\"\nmax_in_flight_per_account = 1000")
        .section("freshness", "max_staleness = \"1s\"");
    let setup = add(setup, "/wx/{account}/{*rest}", "\"path:account\"");
    let setup = add(setup, "/q", "\"query:account\"");
    let setup = add(setup, "/h", "\"header:x-account\"");
    let setup = add(setup, "/b", "\"bearer\"");
    let setup = add(setup, "/j", "\"json:/data/account\"");
    let setup = add(setup, "/f", "\"form:account\"");
    let setup = add(setup, "/m", "\"multipart:account\"");
    let setup = add(setup, "/l", "[\"form:account\", \"json:/data/account\"]");
    let setup = add(setup, "/g/send/{account}", "\"path:account\"");
    let setup = add(setup, "/g/{*rest}", "\"header:x-account\"");
    let gateway = add(setup, "/bot{account}/{*rest}", "\"path:account\"").start();
    // The same session leads both, so that a token fits either account: what goes wrong is not hidden by a refusal.
    for account in ACCOUNTS {
        bot.lead(account);
        gateway.wait_for_holder(account, bot.seq(account));
    }
    let token: Vec<(String, String)> = bot
        .token(ACCOUNTS[0])
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let next = AtomicU64::new(0);
    let results: Vec<Vec<(u64, Outcome)>> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut caller = Caller::new(gateway.proxy());
                    let mut results = Vec::new();
                    loop {
                        let number = next.fetch_add(1, SeqCst);
                        if number >= cases {
                            return results;
                        }
                        let case = Case::make(seed, number, &token);
                        results.push((number, caller.ask(&case, &case.to_wire(&token))));
                    }
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    wait_until("nothing is in flight", || gateway.metrics().sum("fencegate_in_flight", &[]) == 0.0);
    let notes = sender.notes.lock().unwrap();
    let mut wrong = notes.wrong.clone();
    let (mut admitted, mut refused, mut nothing) = (0_u64, 0_u64, 0_u64);
    let (mut second, mut first) = (0_u64, 0_u64);
    for (number, outcome) in results.into_iter().flatten() {
        let case = Case::make(seed, number, &token);
        let seen = notes.seen.get(&case.id).copied().unwrap_or(0);
        let fits = match outcome {
            Outcome::Admitted => {
                admitted += 1;
                *if case.second { &mut second } else { &mut first } += 1;
                // Its name may have been changed on the way.
                seen <= 1
            }
            Outcome::Refused(_) => {
                refused += 1;
                seen == 0
            }
            Outcome::Nothing => {
                nothing += 1;
                seen <= 1
            }
        };
        if !fits {
            wrong.push(format!("{outcome:?}, seen {seen} times: {}", case.to_wire(&token).escape_ascii()));
        }
    }
    println!(
        "admitted {admitted} (HTTP/1 {first}, HTTP/2 {second}), refused {refused}, no answer {nothing}, whole at the sender {}",
        notes.whole
    );
    assert!(
        wrong.is_empty(),
        "FENCEGATE_SEED={seed}: {} of {cases}:\n{}",
        wrong.len(),
        wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n")
    );
    // Otherwise nothing was tried.
    assert!(first > cases / 10 && second > cases / 40 && refused > cases / 5, "too few of a kind");
}

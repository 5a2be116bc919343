//! Leases, numbers and pauses, on a clock that the test moves.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A folder of its own, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("fencegate-embedded-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TTL: Duration = Duration::from_secs(10);

fn name(text: &str) -> AccountName {
    AccountName::new(text).unwrap()
}

fn open(folder: &Folder) -> (Embedded, Clock) {
    let clock = Clock::manual();
    (Embedded::open(&folder.state(), clock.clone()).unwrap(), clock)
}

/// Lets time pass while the service runs.
fn pass(embedded: &Embedded, clock: &Clock, time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(PACE);
        clock.advance(step);
        embedded.sweep();
        left -= step;
    }
}

fn holder(embedded: &Embedded, account: &str) -> Option<SessionId> {
    embedded.look(&name(account))?.holder.map(|holder| holder.session)
}

#[test]
fn a_session_stands_once_for_an_account_and_the_lowest_number_holds() {
    let folder = Folder::new();
    let (embedded, _) = open(&folder);
    let (a, b) = (embedded.begin("a", TTL).unwrap(), embedded.begin("b", TTL).unwrap());
    let first = embedded.stand(&name("x"), &a.secret).unwrap();
    let second = embedded.stand(&name("x"), &b.secret).unwrap();
    assert!(first < second);
    assert_eq!(embedded.stand(&name("x"), &a.secret), Ok(first), "repeated: the same one");
    assert_eq!(holder(&embedded, "x"), Some(a.session));
    embedded.resign(&name("x"), &a.secret).unwrap();
    assert_eq!(holder(&embedded, "x"), Some(b.session));
    let again = embedded.stand(&name("x"), &a.secret).unwrap();
    assert!(again > second);
    embedded.end(&b.secret).unwrap();
    assert_eq!(holder(&embedded, "x"), Some(a.session));
    assert_eq!(embedded.renew(&b.secret), Err(Denied::NoSession));
}

#[test]
fn a_lease_lives_as_long_as_it_is_renewed() {
    let folder = Folder::new();
    let (embedded, clock) = open(&folder);
    let (a, b) = (embedded.begin("a", TTL).unwrap(), embedded.begin("b", 4 * TTL).unwrap());
    embedded.stand(&name("x"), &a.secret).unwrap();
    embedded.stand(&name("x"), &b.secret).unwrap();
    pass(&embedded, &clock, TTL - PACE);
    assert_eq!(embedded.renew(&a.secret), Ok((a.session, TTL)));
    pass(&embedded, &clock, TTL - PACE);
    assert_eq!(holder(&embedded, "x"), Some(a.session));
    pass(&embedded, &clock, PACE);
    assert_eq!(holder(&embedded, "x"), Some(b.session));
    assert_eq!(embedded.stand(&name("x"), &a.secret), Err(Denied::NoSession));
}

#[test]
fn only_the_secret_of_the_session_itself_will_do() {
    let folder = Folder::new();
    let (embedded, _) = open(&folder);
    let (a, b) = (embedded.begin("a", TTL).unwrap(), embedded.begin("b", TTL).unwrap());
    let mixed = format!("{}{}", &a.secret[..16], &b.secret[16..]);
    let off_by_one = format!("{}{}", &a.secret[..79], if a.secret.ends_with('0') { '1' } else { '0' });
    for bad in [mixed.as_str(), &off_by_one, "", "ä", &a.secret[..16], &format!("{}0", a.secret)] {
        assert_eq!(embedded.renew(bad), Err(Denied::Secret), "{bad}");
    }
    assert!(!format!("{a:?} {embedded:?}").contains(&a.secret[16..]));
}

#[tokio::test(start_paused = true)]
async fn a_barrier_ends_what_is_past_its_deadline_although_no_timer_did() {
    let folder = Folder::new();
    let (mut embedded, clock) = open(&folder);
    let a = embedded.begin("a", TTL).unwrap();
    embedded.stand(&name("x"), &a.secret).unwrap();
    pass(&embedded, &clock, TTL - PACE);
    let mut link = embedded.connect().await.unwrap();
    clock.advance(PACE);
    link.barrier().await.unwrap();
    assert!(matches!(link.try_next(), Some(Change::Account { .. })), "told before the barrier was answered");
    assert_eq!(embedded.memory.holder(&name("x")), None);
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_renewals_are_heard_before_anything_ends() {
    let folder = Folder::new();
    let (mut embedded, clock) = open(&folder);
    let (a, b) = (embedded.begin("a", TTL).unwrap(), embedded.begin("b", TTL).unwrap());
    embedded.stand(&name("x"), &a.secret).unwrap();
    embedded.stand(&name("y"), &b.secret).unwrap();
    let mut link = embedded.connect().await.unwrap();
    clock.advance(TTL * 3);
    let mut barrier = link.barrier();
    let early = tokio::time::timeout(Duration::from_millis(1), &mut barrier).await;
    assert!(early.is_err(), "nothing is proven while renewals may be waiting");
    embedded.renew(&a.secret).unwrap();
    clock.advance(SETTLE);
    barrier.await.unwrap();
    assert_eq!(holder(&embedded, "x"), Some(a.session), "it was heard");
    assert_eq!(holder(&embedded, "y"), None, "nobody renewed it");
}

#[test]
fn numbers_never_come_back_however_often_it_ends() {
    let folder = Folder::new();
    let mut last = 0;
    for _ in 0..3 {
        let (embedded, _) = open(&folder);
        let a = embedded.begin("a", TTL).unwrap();
        let seq = embedded.stand(&name("x"), &a.secret).unwrap().0;
        assert!(seq > last, "{seq} after {last}");
        last = embedded.memory.counter();
    }
    std::fs::remove_file(folder.state()).unwrap();
    let lost = crate::clock::wall_ms() * 1000;
    let (embedded, _) = open(&folder);
    assert!(embedded.memory.counter() >= lost, "a lost file: above the wall clock");
}

#[test]
fn a_block_is_reserved_before_the_last_one_is_used_up() {
    let folder = Folder::new();
    let (embedded, _) = open(&folder);
    let a = embedded.begin("a", TTL).unwrap();
    let reserved = embedded.state().reserved;
    embedded.memory.skip_to(reserved - LOW + 1);
    embedded.stand(&name("x"), &a.secret).unwrap();
    assert!(embedded.state().reserved > reserved);
    let text = std::fs::read_to_string(folder.state()).unwrap();
    assert_eq!(text.lines().last().unwrap().parse(), Ok(embedded.state().reserved), "it is in the file");
}

#[test]
fn a_state_file_has_one_user_and_nothing_else_is_taken_for_one() {
    let folder = Folder::new();
    let first = Embedded::open(&folder.state(), Clock::manual()).unwrap();
    assert!(matches!(Embedded::open(&folder.state(), Clock::manual()), Err(StateError::InUse(_))));
    drop(first);
    for bad in ["[listen]\n", "12x\n", "1\n-2\n", "\u{fffd}", "rest"] {
        std::fs::write(folder.state(), bad).unwrap();
        let opened = Embedded::open(&folder.state(), Clock::manual());
        assert!(matches!(opened, Err(StateError::Strange(_))), "{bad:?}");
        assert_eq!(std::fs::read_to_string(folder.state()).unwrap(), bad, "it is left alone");
    }
    std::fs::write(folder.state(), "100\n7000000\n9000").unwrap();
    let torn = Embedded::open(&folder.state(), Clock::manual()).unwrap();
    assert_eq!(torn.memory.counter(), 7_000_000, "a line without its end was never used");
}

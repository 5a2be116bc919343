//! Single stories of the gate that the enumeration in `tests/` does not tell, or tells less plainly.

use std::sync::Arc;
use std::time::Duration;

use super::gate::{Answer, Effects, Gate, Order, Permit, Terms};
use super::token::{Claim, Epoch, Seq, SessionId};
use super::view::{Holder, Invalid, View};
use crate::clock::Moment;
use crate::code::Code;

const TERMS: Terms = Terms { patience: Duration::from_secs(10), most_in_flight: 8 };

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

fn held(term: u64) -> View {
    View::Held(Arc::new(Holder {
        seq: Seq(term),
        session: SessionId(7),
        instance: "host".into(),
        epoch: Epoch(term.cast_signed()),
        active_since: None,
    }))
}

fn claim(term: u64) -> Claim {
    Claim { seq: Seq(term), session: SessionId(7), instance: None, epoch: None }
}

fn ask(gate: &mut Gate<u32>, term: u64, proof: u64) -> Answer {
    gate.ask(&claim(term), Order(proof), TERMS, || 0)
}

fn admitted(gate: &mut Gate<u32>, term: u64, proof: u64) -> Permit {
    let answer = ask(gate, term, proof);
    let Answer::Admitted(permit, _) = answer else { panic!("not admitted: {answer:?}") };
    permit
}

#[test]
fn a_send_withdrawn_by_unbegin_stays_withdrawn_however_often_it_is_taken_back() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(1), at(0));
    let permit = admitted(&mut gate, 1, 1);
    assert!(gate.begin(&permit));
    let _ = gate.observe(held(2), at(1));
    assert!(!gate.unbegin(&permit, Order(1)).0);
    assert!(!gate.unbegin(&permit, Order(1)).0, "the second time must not bring it back");
    assert!(!gate.begin(&permit));
    assert_eq!(gate.in_flight(), 0);
    let _ = gate.end(permit, Order(1));
}

#[test]
fn a_send_withdrawn_before_it_began_is_not_brought_back_by_unbegin() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(1), at(0));
    let permit = admitted(&mut gate, 1, 1);
    assert_eq!(gate.observe(held(2), at(1)).withdrawn, [0]);
    assert!(!gate.begin(&permit));
    assert!(!gate.unbegin(&permit, Order(1)).0);
    assert!(!gate.begin(&permit), "superseded is for ever");
    let _ = gate.end(permit, Order(1));
}

#[test]
fn a_drain_that_ends_because_a_send_never_began_also_wants_a_proof_begun_after_it() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(1), at(0));
    let permit = admitted(&mut gate, 1, 1);
    assert!(gate.begin(&permit));
    let _ = gate.observe(held(2), at(1));
    assert_eq!(ask(&mut gate, 2, 2), Answer::Draining(at(11)));
    let (still, effects) = gate.unbegin(&permit, Order(3));
    assert!(!still);
    assert_eq!(effects, Effects { drained: Some(at(1)), ..Effects::default() });
    assert_eq!(ask(&mut gate, 2, 2), Answer::Unproven);
    assert_eq!(ask(&mut gate, 2, 3), Answer::Unproven, "it began before the drain ended");
    let next = admitted(&mut gate, 2, 4);
    let _ = gate.end(permit, Order(4));
    let _ = gate.end(next, Order(4));
}

#[test]
fn a_view_that_goes_back_below_an_admitted_epoch_admits_nobody() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(2), at(0));
    let permit = admitted(&mut gate, 2, 1);
    let _ = gate.end(permit, Order(1));
    let _ = gate.observe(held(1), at(1));
    assert_eq!(ask(&mut gate, 1, 2), Answer::Refused(Code::InvalidHolder), "I2");
    let _ = gate.observe(held(2), at(2));
    let permit = admitted(&mut gate, 2, 2);
    let _ = gate.end(permit, Order(2));
}

#[test]
fn after_a_new_history_is_accepted_lower_epochs_are_admitted_once_the_old_sends_have_ended() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(9), at(0));
    let begun = admitted(&mut gate, 9, 1);
    let waiting = admitted(&mut gate, 9, 1);
    assert!(gate.begin(&begun));
    assert_eq!(gate.forget(at(1)).withdrawn, [0]);
    assert_eq!(ask(&mut gate, 9, 2), Answer::Refused(Code::UnknownAccount));
    let _ = gate.observe(held(1), at(2));
    assert_eq!(ask(&mut gate, 1, 2), Answer::Draining(at(11)), "since the old history ended, not since now");
    assert!(!gate.begin(&waiting));
    let _ = gate.end(waiting, Order(2));
    assert_eq!(gate.tick(at(11)).cut, [0]);
    assert_eq!(gate.end(begun, Order(2)).drained, Some(at(1)));
    let permit = admitted(&mut gate, 1, 3);
    let _ = gate.end(permit, Order(3));
    assert!(!gate.is_busy());
}

#[test]
fn an_epoch_that_a_new_history_uses_again_still_waits_for_the_old_ones_sends() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(5), at(0));
    let begun = admitted(&mut gate, 5, 1);
    assert!(gate.begin(&begun));
    let _ = gate.forget(at(1));
    let _ = gate.observe(held(5), at(2));
    assert!(matches!(ask(&mut gate, 5, 2), Answer::Draining(_)));
    let _ = gate.end(begun, Order(2));
    let permit = admitted(&mut gate, 5, 3);
    let _ = gate.end(permit, Order(3));
}

#[test]
fn a_candidate_that_is_vacant_for_a_moment_gets_its_waiting_sends_back_as_superseded() {
    let mut gate = Gate::default();
    for between in [View::Absent, View::Vacant, View::Invalid(Invalid::NoCandidate)] {
        let _ = gate.observe(held(1), at(0));
        let permit = admitted(&mut gate, 1, 1);
        let effects = gate.observe(between, at(1));
        assert_eq!(effects, Effects { withdrawn: vec![0], cut: vec![], drained: Some(at(1)) });
        let _ = gate.observe(held(1), at(2));
        assert!(!gate.begin(&permit));
        let _ = gate.end(permit, Order(1));
    }
}

#[test]
fn patience_without_end_is_no_overflow() {
    let mut gate = Gate::default();
    let _ = gate.observe(held(1), at(0));
    let terms = Terms { patience: Duration::MAX, most_in_flight: 1 };
    let Answer::Admitted(permit, _) = gate.ask(&claim(1), Order(1), terms, || 0) else {
        panic!("admissible")
    };
    assert!(gate.begin(&permit));
    let _ = gate.observe(held(2), at(1));
    assert_eq!(gate.deadline(), Some(Moment::from_nanos(u64::MAX)));
    assert_eq!(gate.tick(at(1_000_000)), Effects::default());
    let _ = gate.end(permit, Order(1));
}

//! What a change of holder is called, reason by reason, with and without transaction ids in the events.

use std::sync::Arc;
use std::time::Duration;

use super::handover::{Chronicle, Reason, Sighting, Turn};
use super::token::{Epoch, Seq, SessionId};
use super::view::{Holder, Invalid, Marks, Reading, View};
use crate::clock::Moment;

use Sighting::{CandidateCame, CandidateGone, HolderGone, Other};

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn holder(seq: u64, epoch: i64) -> Arc<Holder> {
    Arc::new(Holder {
        seq: Seq(seq),
        session: SessionId(seq.cast_signed() + 100),
        instance: format!("host-{seq}"),
        epoch: Epoch(epoch),
        active_since: None,
    })
}

fn marks(holding: i64, standing: i64, resigning: i64) -> Marks {
    Marks { newest: holding, holding, standing, resigning }
}

fn reading(view: View, candidates: &[u64], marks: Marks) -> Reading {
    Reading { view, candidates: candidates.to_vec(), marks: Some(marks), bytes: 0 }
}

fn held(seq: u64, epoch: i64, candidates: &[u64], marks: Marks) -> Reading {
    reading(View::Held(holder(seq, epoch)), candidates, marks)
}

/// Holder 1 of epoch 10 was observed; candidate 2 stands too.
fn chronicle() -> Chronicle {
    let mut chronicle = Chronicle::default();
    let turn = chronicle.read(&held(1, 10, &[1, 2], marks(10, 9, 3)), false, at(0));
    assert_eq!(turn, Some(Turn::Observed(holder(1, 10))), "no handover");
    chronicle
}

/// The reason of the turn to `next`.
fn reason(chronicle: &mut Chronicle, next: &Reading, observed: bool) -> Reason {
    match chronicle.read(next, observed, at(50)) {
        Some(Turn::Handover { from, to, reason, .. }) => {
            assert_eq!((from, Some(&to)), (holder(1, 10), next.view.holder()));
            reason
        }
        other => panic!("no handover: {other:?}"),
    }
}

struct Case {
    name: &'static str,
    /// Events with the transaction that 3.9 tells.
    events: &'static [(Sighting, i64)],
    /// Candidates and marks of a read that shows the vacancy.
    vacancy: Option<(&'static [u64], Marks)>,
    /// Candidates and marks of the read that shows the next holder.
    next: (&'static [u64], Marks),
    /// With transaction ids in the events, and without.
    expected: (Reason, Reason),
}

const M: fn(i64, i64, i64) -> Marks = marks;

/// Everything happened in one connected stretch; the successor is holder 2 of epoch 30.
fn cases() -> Vec<Case> {
    use Reason::{ActiveDeleted, NodeDeleted, Resigned, SessionExpired};
    vec![
        Case {
            name: "expired, the vacancy seen",
            events: &[(CandidateGone(1), 20), (HolderGone, 20)],
            vacancy: Some((&[2], M(20, 20, 3))),
            next: (&[2], M(30, 20, 3)),
            expected: (SessionExpired, SessionExpired),
        },
        Case {
            name: "expired, deleted in the other order",
            events: &[(HolderGone, 20), (CandidateGone(1), 20)],
            vacancy: Some((&[2], M(20, 20, 3))),
            next: (&[2], M(30, 20, 3)),
            expected: (SessionExpired, SessionExpired),
        },
        Case {
            name: "expired, the successor too fast for a read",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (Other, 30)],
            vacancy: None,
            next: (&[2], M(30, 20, 3)),
            expected: (SessionExpired, SessionExpired),
        },
        Case {
            name: "expired, another event between the two without meaning: only transaction ids tell",
            events: &[(CandidateGone(1), 20), (CandidateGone(7), 20), (HolderGone, 20), (Other, 30)],
            vacancy: None,
            next: (&[2], M(30, 20, 3)),
            expected: (SessionExpired, NodeDeleted),
        },
        Case {
            name: "expired, a new candidate hides the mark in the vacancy",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (CandidateCame, 21)],
            vacancy: Some((&[2, 3], M(20, 21, 3))),
            next: (&[2, 3], M(30, 21, 3)),
            expected: (SessionExpired, SessionExpired),
        },
        Case {
            name: "resigned, the vacancy seen",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (Other, 20)],
            vacancy: Some((&[2], M(20, 20, 20))),
            next: (&[2], M(30, 20, 20)),
            expected: (Resigned, Resigned),
        },
        Case {
            name: "resigned, the successor too fast for a read",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (Other, 20), (Other, 30)],
            vacancy: None,
            next: (&[2], M(30, 20, 20)),
            expected: (Resigned, Resigned),
        },
        Case {
            name: "resigned and registered again before the vacancy was read",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (Other, 20), (CandidateCame, 21)],
            vacancy: Some((&[2, 3], M(20, 21, 20))),
            next: (&[2, 3], M(30, 21, 20)),
            expected: (Resigned, Resigned),
        },
        Case {
            name: "resigned, an event between: the vacancy's marks prove the one transaction",
            events: &[(CandidateGone(1), 20), (CandidateGone(7), 20), (HolderGone, 20), (CandidateCame, 21)],
            vacancy: Some((&[2, 3], M(20, 21, 20))),
            next: (&[2, 3], M(30, 21, 20)),
            expected: (Resigned, Resigned),
        },
        Case {
            name: "resigned and registered again, the successor too fast: only transaction ids tell",
            events: &[
                (CandidateGone(1), 20),
                (HolderGone, 20),
                (Other, 20),
                (CandidateCame, 21),
                (Other, 30),
            ],
            vacancy: None,
            next: (&[2, 3], M(30, 21, 20)),
            expected: (Resigned, SessionExpired),
        },
        Case {
            name: "the candidate removed, then the holding, in two transactions, the vacancy seen",
            events: &[(CandidateGone(1), 20), (HolderGone, 21)],
            vacancy: Some((&[2], M(21, 20, 3))),
            next: (&[2], M(30, 20, 3)),
            expected: (NodeDeleted, NodeDeleted),
        },
        Case {
            name: "the candidate removed, its deletion alone seen before the successor's read",
            events: &[(CandidateGone(1), 20), (CandidateCame, 21), (HolderGone, 22), (Other, 30)],
            vacancy: None,
            next: (&[2, 3], M(30, 21, 3)),
            expected: (NodeDeleted, NodeDeleted),
        },
        Case {
            name: "back to back, but in two transactions: without transaction ids it looks expired",
            events: &[(CandidateGone(1), 20), (HolderGone, 21), (Other, 30)],
            vacancy: None,
            next: (&[2], M(30, 20, 3)),
            expected: (NodeDeleted, SessionExpired),
        },
        Case {
            name: "the holding removed, the vacancy seen",
            events: &[(HolderGone, 20)],
            vacancy: Some((&[1, 2], M(20, 9, 3))),
            next: (&[1, 2], M(30, 9, 3)),
            expected: (ActiveDeleted, ActiveDeleted),
        },
        Case {
            name: "the holding removed, the successor too fast for a read",
            events: &[(HolderGone, 20), (Other, 30)],
            vacancy: None,
            next: (&[1, 2], M(30, 9, 3)),
            expected: (ActiveDeleted, ActiveDeleted),
        },
        Case {
            name: "the holding removed, the candidate leaves after the vacancy was read",
            events: &[(HolderGone, 20)],
            vacancy: Some((&[1, 2], M(20, 9, 3))),
            next: (&[2], M(30, 25, 3)),
            expected: (ActiveDeleted, ActiveDeleted),
        },
        Case {
            name: "the members are gone too: marks that are not there are not equal",
            events: &[(CandidateGone(1), 20), (HolderGone, 20), (Other, 22)],
            vacancy: Some((&[], M(22, 0, 0))),
            next: (&[2], M(30, 29, 28)),
            expected: (SessionExpired, NodeDeleted),
        },
        Case {
            name: "a recreated tree gives the number away again",
            events: &[(CandidateGone(1), 20), (Other, 21), (HolderGone, 22), (CandidateCame, 29)],
            vacancy: None,
            next: (&[1, 2], M(30, 29, 28)),
            expected: (NodeDeleted, NodeDeleted),
        },
    ]
}

#[test]
fn a_reason_is_what_the_evidence_says() {
    let mut seen = std::collections::HashSet::new();
    for case in cases() {
        for told in [true, false] {
            let mut chronicle = chronicle();
            for (number, (sighting, zxid)) in (1..).zip(case.events) {
                chronicle.sighted(*sighting, told.then_some(*zxid), at(number));
            }
            if let Some((candidates, marks)) = case.vacancy {
                let turn = chronicle.read(&reading(View::Vacant, candidates, marks), true, at(20));
                assert_eq!(turn, None, "{}", case.name);
            }
            let next = held(2, 30, case.next.0, case.next.1);
            let expected = if told { case.expected.0 } else { case.expected.1 };
            assert_eq!(reason(&mut chronicle, &next, true), expected, "{}, zxids {told}", case.name);
            seen.insert(expected);
        }
    }
    assert_eq!(seen.len(), Reason::ALL.len() - 1, "every reason but unobserved");
}

#[test]
fn what_happened_while_disconnected_is_unobserved_whatever_the_marks_say() {
    // The successor stands already.
    let next = held(2, 30, &[2], marks(30, 20, 3));
    assert_eq!(reason(&mut chronicle(), &next, false), Reason::Unobserved);
    // The vacancy is what the first read of the new link shows.
    let mut chronicle = chronicle();
    let vacant = reading(View::Vacant, &[2], marks(20, 20, 20));
    assert_eq!(chronicle.read(&vacant, false, at(10)), None);
    assert_eq!(reason(&mut chronicle, &next, true), Reason::Unobserved);
}

#[test]
fn a_vacancy_seen_before_the_link_was_lost_keeps_its_reason() {
    let mut chronicle = chronicle();
    chronicle.sighted(CandidateGone(1), None, at(1));
    chronicle.sighted(HolderGone, None, at(1));
    assert_eq!(chronicle.read(&reading(View::Vacant, &[2], marks(20, 20, 3)), true, at(2)), None);
    let next = held(2, 30, &[2], marks(30, 20, 3));
    assert_eq!(reason(&mut chronicle, &next, false), Reason::SessionExpired);
}

#[test]
fn a_holding_read_without_its_candidate_shows_that_the_two_did_not_end_together() {
    for between in [View::Invalid(Invalid::NoCandidate), View::Held(holder(1, 10))] {
        let mut chronicle = chronicle();
        chronicle.sighted(CandidateGone(1), None, at(1));
        assert_eq!(chronicle.read(&reading(between, &[2], marks(10, 20, 3)), true, at(2)), None);
        chronicle.sighted(HolderGone, None, at(3));
        let next = held(2, 30, &[2], marks(30, 20, 3));
        assert_eq!(reason(&mut chronicle, &next, true), Reason::NodeDeleted);
    }
}

#[test]
fn a_late_read_from_before_the_end_does_not_separate_the_two_deletions() {
    let mut chronicle = chronicle();
    chronicle.sighted(CandidateGone(1), None, at(1));
    assert_eq!(chronicle.read(&held(1, 10, &[1, 2], marks(10, 9, 3)), true, at(2)), None);
    chronicle.sighted(HolderGone, None, at(3));
    let next = held(2, 30, &[2], marks(30, 20, 3));
    assert_eq!(reason(&mut chronicle, &next, true), Reason::SessionExpired);
}

#[test]
fn an_account_deleted_with_its_holder_is_not_called_resigned() {
    let mut chronicle = chronicle();
    chronicle.sighted(CandidateGone(1), None, at(1));
    chronicle.sighted(HolderGone, None, at(2));
    assert_eq!(chronicle.read(&Reading::default(), true, at(3)), None);
    let next = held(2, 30, &[2], marks(30, 29, 28));
    assert_eq!(reason(&mut chronicle, &next, true), Reason::NodeDeleted);
}

#[test]
fn the_same_candidate_taking_the_holding_again_is_a_handover_to_itself() {
    let mut chronicle = chronicle();
    chronicle.sighted(HolderGone, Some(20), at(1));
    let next = held(1, 30, &[1, 2], marks(30, 9, 3));
    assert_eq!(reason(&mut chronicle, &next, true), Reason::ActiveDeleted);
}

#[test]
fn a_recreated_tree_is_a_normal_turn_to_a_lower_number() {
    let mut chronicle = chronicle();
    assert_eq!(chronicle.read(&Reading::default(), true, at(10)), None);
    let next = held(0, 99, &[0], marks(99, 98, 97));
    assert_eq!(reason(&mut chronicle, &next, true), Reason::NodeDeleted);
    assert_eq!(chronicle.last(), Some(&holder(0, 99)));
}

#[test]
fn a_vacancy_lasts_from_the_holders_end_to_the_read_of_the_next() {
    let vacancy = |chronicle: &mut Chronicle| {
        let next = held(2, 30, &[2], marks(30, 20, 3));
        match chronicle.read(&next, true, at(50)) {
            Some(Turn::Handover { vacant, .. }) => vacant,
            other => panic!("no handover: {other:?}"),
        }
    };
    let mut told = chronicle();
    told.sighted(HolderGone, None, at(10));
    assert_eq!(vacancy(&mut told), Duration::from_millis(40), "from the event");
    let mut read = chronicle();
    let _ = read.read(&reading(View::Vacant, &[2], marks(20, 20, 3)), true, at(20));
    let _ = read.read(&reading(View::Vacant, &[2, 3], marks(20, 21, 3)), true, at(30));
    assert_eq!(vacancy(&mut read), Duration::from_millis(30), "from the first read of it");
    assert_eq!(vacancy(&mut chronicle()), Duration::ZERO, "nobody saw it");
}

#[test]
fn evidence_of_one_handover_does_not_colour_the_next() {
    let mut chronicle = chronicle();
    chronicle.sighted(CandidateGone(1), None, at(1));
    chronicle.sighted(HolderGone, None, at(2));
    assert_eq!(reason(&mut chronicle, &held(2, 30, &[2, 3], marks(30, 20, 3)), true), Reason::SessionExpired);
    chronicle.sighted(HolderGone, None, at(60));
    let next = held(3, 40, &[3], marks(40, 39, 3));
    match chronicle.read(&next, true, at(61)) {
        Some(Turn::Handover { reason, from, .. }) => {
            assert_eq!((reason, from), (Reason::NodeDeleted, holder(2, 30)));
        }
        other => panic!("no handover: {other:?}"),
    }
}

#[test]
fn an_invalid_holder_is_no_turn_and_no_vacancy() {
    let mut chronicle = chronicle();
    for invalid in [Invalid::Data("not JSON"), Invalid::OtherOwner, Invalid::NoPermission] {
        assert_eq!(
            chronicle.read(&reading(View::Invalid(invalid), &[1], marks(10, 9, 3)), true, at(5)),
            None
        );
    }
    assert_eq!(chronicle.read(&held(1, 10, &[1], marks(10, 9, 3)), true, at(6)), None);
    assert_eq!(chronicle.last(), Some(&holder(1, 10)));
}

#[test]
fn reasons_are_spelled_as_the_contract_has_them() {
    let spelled: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(spelled, ["session_expired", "resigned", "node_deleted", "active_deleted", "unobserved"]);
}

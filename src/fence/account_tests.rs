//! What an account makes of reads: guards against holders that change or go back, and how long a read counts.

use std::sync::Arc;
use std::time::Duration;

use super::account::{Account, Applied, Proof, Response};
use super::gate::{Answer, Order, Terms};
use super::handover::{Reason, Sighting, Turn};
use super::token::{Claim, Epoch, Seq, SessionId};
use super::view::{Holder, Invalid, Marks, Reading, View};
use crate::clock::Moment;
use crate::code::Code;

const LINK: Order = Order(1);
const TERMS: Terms = Terms { patience: Duration::from_secs(1), most_in_flight: 8 };

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn holder(seq: u64, session: i64, instance: &str, epoch: i64) -> Holder {
    Holder {
        seq: Seq(seq),
        session: SessionId(session),
        instance: instance.into(),
        epoch: Epoch(epoch),
        active_since: None,
    }
}

fn held(seq: u64, session: i64, instance: &str, epoch: i64) -> View {
    View::Held(Arc::new(holder(seq, session, instance, epoch)))
}

fn reading(view: View, newest: i64) -> Reading {
    let marks = Marks { newest, holding: newest, standing: newest - 1, resigning: 1 };
    Reading { view, candidates: vec![], marks: Some(marks), bytes: 0 }
}

/// A read sent now, after barrier `order`, over the link that began with barrier 1.
fn apply(account: &mut Account<u32>, view: View, newest: i64, order: u64) -> Applied<u32> {
    let mark = account.freshness().mark();
    account.apply(reading(view, newest), mark, Order(order), LINK, at(order))
}

fn claim_of(holder: &Holder) -> Claim {
    Claim { seq: holder.seq, session: holder.session, instance: None, epoch: None }
}

fn proof(order: u64) -> Proof {
    Proof { order: Order(order), link: LINK }
}

#[test]
fn data_rewritten_within_a_term_taints_it_until_a_new_one() {
    for (seq, session, instance) in [(2, 7, "a"), (1, 8, "a"), (1, 7, "b")] {
        let mut account = Account::default();
        let first = apply(&mut account, held(1, 7, "a", 10), 10, 1);
        assert!(matches!(first.turn, Some(Turn::Observed(_))));
        let _ = apply(&mut account, held(seq, session, instance, 10), 11, 1);
        assert_eq!(*account.gate().view(), View::Invalid(Invalid::Rewritten));
        let back = apply(&mut account, held(1, 7, "a", 10), 12, 1);
        assert!(!back.changed && back.turn.is_none());
        assert_eq!(*account.gate().view(), View::Invalid(Invalid::Rewritten), "not even the first one again");
        let _ = apply(&mut account, View::Vacant, 13, 1);
        let _ = apply(&mut account, held(1, 7, "a", 10), 14, 1);
        assert_eq!(*account.gate().view(), View::Invalid(Invalid::Rewritten));
        let next = apply(&mut account, held(seq, session, instance, 15), 15, 1);
        assert!(matches!(next.turn, Some(Turn::Handover { .. })));
        assert_eq!(*account.gate().view(), held(seq, session, instance, 15));
    }
}

#[test]
fn data_rewritten_by_way_of_nonsense_taints_the_term_too() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    let _ = apply(&mut account, View::Invalid(Invalid::Data("not JSON")), 11, 1);
    let _ = apply(&mut account, held(1, 7, "a", 10), 12, 1);
    assert_eq!(*account.gate().view(), held(1, 7, "a", 10), "the same data again is the same term");
    let _ = apply(&mut account, View::Invalid(Invalid::Data("not JSON")), 13, 1);
    let _ = apply(&mut account, held(2, 7, "a", 10), 14, 1);
    assert_eq!(*account.gate().view(), View::Invalid(Invalid::Rewritten));
}

#[test]
fn when_a_holder_says_it_began_may_change_within_a_term() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    let later = Holder { active_since: Some(5), ..holder(1, 7, "a", 10) };
    let applied = apply(&mut account, View::Held(Arc::new(later.clone())), 11, 1);
    assert!(applied.turn.is_none());
    assert_eq!(*account.gate().view(), View::Held(Arc::new(later)));
}

#[test]
fn a_lower_epoch_makes_an_invalid_holder_of_this_account() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(2, 7, "a", 20), 20, 1);
    for between in [View::Vacant, View::Absent, View::Invalid(Invalid::NoCandidate)] {
        let _ = apply(&mut account, between, 21, 1);
        let applied = apply(&mut account, held(3, 8, "b", 19), 22, 1);
        assert!(applied.turn.is_none() && !applied.history_went_back);
        assert_eq!(*account.gate().view(), View::Invalid(Invalid::EpochWentBack));
    }
    let _ = apply(&mut account, held(4, 9, "c", 23), 23, 1);
    assert_eq!(*account.gate().view(), held(4, 9, "c", 23));
}

#[test]
fn a_number_that_goes_back_under_a_higher_epoch_is_a_normal_turn() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(9, 7, "a", 20), 20, 1);
    let _ = apply(&mut account, View::Absent, 20, 1);
    let applied = apply(&mut account, held(0, 8, "b", 30), 30, 1);
    assert!(matches!(applied.turn, Some(Turn::Handover { .. })));
    let old = account.ask(&claim_of(&holder(9, 7, "a", 20)), proof(1), TERMS, || 0);
    assert_eq!(old, Response::Judged(Answer::Refused(Code::NotHolder)));
    let new = account.ask(&claim_of(&holder(0, 8, "b", 30)), proof(1), TERMS, || 0);
    let Response::Judged(Answer::Admitted(permit, _)) = new else { panic!("{new:?}") };
    let _ = account.end(permit, Order(1));
}

#[test]
fn marks_that_went_back_report_another_history_and_change_nothing() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 20), 20, 1);
    account.sighted(Sighting::Other, None, at(1));
    let applied = apply(&mut account, held(2, 8, "b", 30), 19, 2);
    assert!(applied.history_went_back && !applied.changed && applied.turn.is_none());
    assert_eq!(*account.gate().view(), held(1, 7, "a", 20));
    assert!(account.freshness().is_dirty(), "and the read does not count");
    assert_eq!(
        account.ask(&claim_of(&holder(1, 7, "a", 20)), proof(2), TERMS, || 0),
        Response::Unread,
        "fail closed"
    );
}

#[test]
fn an_account_that_is_gone_keeps_the_marks_that_a_new_one_must_exceed() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 20), 20, 1);
    let mark = account.freshness().mark();
    let applied = account.apply(Reading::default(), mark, Order(2), LINK, at(2));
    assert!(applied.changed && !applied.history_went_back);
    assert!(apply(&mut account, View::Vacant, 19, 3).history_went_back);
    assert!(!apply(&mut account, View::Vacant, 20, 3).history_went_back);
}

#[test]
fn a_read_overtaken_by_a_later_one_is_dropped_and_is_no_other_history() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    let early = account.freshness().mark();
    account.sighted(Sighting::HolderGone, None, at(1));
    let late = account.freshness().mark();
    let applied = account.apply(reading(held(2, 8, "b", 20), 20), late, Order(1), LINK, at(2));
    assert!(applied.turn.is_some());
    let overtaken = account.apply(reading(held(1, 7, "a", 10), 10), early, Order(1), LINK, at(3));
    assert!(!overtaken.history_went_back && !overtaken.changed);
    assert_eq!(*account.gate().view(), held(2, 8, "b", 20));
    // Two reads sent without an event or a barrier between them: only their marks tell which is older.
    let overtaken = account.apply(reading(held(1, 7, "a", 10), 19), late, Order(1), LINK, at(3));
    assert!(!overtaken.history_went_back && !overtaken.changed);
    // Data changes without a mark, and an account that is gone has none.
    for old in [reading(held(1, 7, "a", 10), 20), Reading::default()] {
        let overtaken = account.apply(old, early, Order(1), LINK, at(3));
        assert!(!overtaken.history_went_back && !overtaken.changed);
    }
    // By the order of barriers, where no event was announced between the two.
    let mark = account.freshness().mark();
    let _ = account.apply(reading(View::Vacant, 30), mark, Order(4), Order(4), at(4));
    let overtaken = account.apply(reading(held(2, 8, "b", 20), 20), mark, Order(3), LINK, at(5));
    assert!(!overtaken.history_went_back && !overtaken.changed);
    assert_eq!(*account.gate().view(), View::Vacant);
}

#[test]
fn a_read_sent_before_its_links_first_barrier_does_not_count() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(2, 8, "b", 20), 20, 3);
    // A new link, to a server that lags; its first barrier will be number 4.
    let mark = account.freshness().mark();
    let applied = account.apply(reading(held(1, 7, "a", 10), 10), mark, Order(3), Order(4), at(4));
    assert!(!applied.history_went_back && !applied.changed);
    assert_eq!(*account.gate().view(), held(2, 8, "b", 20));
}

#[test]
fn a_new_history_may_use_an_epoch_again_for_somebody_else() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    assert!(apply(&mut account, held(0, 8, "b", 10), 5, 2).history_went_back);
    let _ = account.forget(at(3));
    assert!(!account.is_known());
    assert!(!account.is_surely_over(&Claim { epoch: Some(Epoch(1)), ..claim_of(&holder(1, 7, "a", 10)) }));
    let applied = apply(&mut account, held(0, 8, "b", 10), 5, 4);
    assert!(!applied.history_went_back);
    assert_eq!(*account.gate().view(), held(0, 8, "b", 10), "not a term that was rewritten");
    match applied.turn {
        Some(Turn::Handover { from, to, reason, .. }) => {
            assert_eq!((from.seq, to.seq, reason), (Seq(1), Seq(0), Reason::Unobserved));
        }
        other => panic!("no handover: {other:?}"),
    }
}

#[test]
fn a_holder_that_a_new_history_kept_is_no_handover() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(1, 7, "a", 10), 20, 1);
    let _ = account.forget(at(3));
    assert!(apply(&mut account, held(1, 7, "a", 10), 10, 4).turn.is_none());
    account.sighted(Sighting::HolderGone, None, at(5));
    let next = Reading { candidates: vec![1], ..reading(held(2, 8, "b", 30), 30) };
    let mark = account.freshness().mark();
    let applied = account.apply(next, mark, Order(4), LINK, at(6));
    assert!(matches!(applied.turn, Some(Turn::Handover { reason: Reason::ActiveDeleted, .. })));
}

#[test]
fn a_new_history_wants_a_new_read_and_admits_lower_epochs() {
    let mut account = Account::default();
    let _ = apply(&mut account, held(5, 7, "a", 50), 50, 1);
    let old = account.ask(&claim_of(&holder(5, 7, "a", 50)), proof(1), TERMS, || 0);
    let Response::Judged(Answer::Admitted(permit, _)) = old else { panic!("{old:?}") };
    let _ = account.end(permit, Order(1));
    let _ = account.forget(at(2));
    assert!(account.freshness().is_dirty());
    assert_eq!(account.ask(&claim_of(&holder(1, 8, "b", 5)), proof(1), TERMS, || 0), Response::Unread);
    let _ = apply(&mut account, held(1, 8, "b", 5), 5, 2);
    let new = account.ask(&claim_of(&holder(1, 8, "b", 5)), proof(2), TERMS, || 0);
    let Response::Judged(Answer::Admitted(permit, _)) = new else { panic!("{new:?}") };
    let _ = account.end(permit, Order(2));
}

#[test]
fn a_claim_below_a_proven_epoch_is_surely_over_and_others_are_not() {
    let mut account: Account<u32> = Account::default();
    let claimed = |epoch: Option<i64>| Claim { epoch: epoch.map(Epoch), ..claim_of(&holder(1, 7, "a", 10)) };
    assert!(!account.is_surely_over(&claimed(Some(9))));
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    let _ = apply(&mut account, View::Vacant, 11, 1);
    for (epoch, over) in [(None, false), (Some(9), true), (Some(10), false), (Some(11), false)] {
        assert_eq!(account.is_surely_over(&claimed(epoch)), over, "{epoch:?}");
    }
}

#[test]
fn a_preview_judges_as_ask_does_and_issues_nothing() {
    let mut account: Account<u32> = Account::default();
    let claim = claim_of(&holder(1, 7, "a", 10));
    assert_eq!(account.preview(&claim, Some(proof(1))), None, "nothing was read");
    assert_eq!(account.preview(&claim, None), Some(Err(Code::UnknownAccount)), "the view as it is");
    let _ = apply(&mut account, held(1, 7, "a", 10), 10, 1);
    assert!(matches!(account.preview(&claim, Some(proof(1))), Some(Ok(_))));
    account.sighted(Sighting::Other, None, at(1));
    assert!(matches!(account.preview(&claim, Some(proof(1))), Some(Ok(_))), "read after barrier 1");
    assert_eq!(account.preview(&claim, Some(proof(2))), None);
    assert!(matches!(account.preview(&claim, None), Some(Ok(_))));
    assert!(!account.gate().is_busy());
}

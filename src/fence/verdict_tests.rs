//! Every combination of a small domain against the contract's table, written out as it stands there.

use std::sync::Arc;

use super::token::{Claim, Epoch, Seq, SessionId};
use super::verdict::{Verdict, judge};
use super::view::{Holder, Invalid, View};
use crate::code::Code;

const SEQ: u64 = 5;
const SESSION: i64 = -7;
const INSTANCE: &str = "host-a";
const EPOCH: i64 = 40;

const EVERY_INVALID: [Invalid; 8] = [
    Invalid::Data("not JSON"),
    Invalid::NotEphemeral,
    Invalid::OtherOwner,
    Invalid::NoCandidate,
    Invalid::NoPermission,
    Invalid::Rewritten,
    Invalid::EpochWentBack,
    Invalid::SequenceOverflow,
];

fn holder() -> Arc<Holder> {
    Arc::new(Holder {
        seq: Seq(SEQ),
        session: SessionId(SESSION),
        instance: INSTANCE.into(),
        epoch: Epoch(EPOCH),
        active_since: Some(1),
    })
}

fn every_claim() -> Vec<Claim> {
    let mut claims = Vec::new();
    for seq in [0, SEQ - 1, SEQ, SEQ + 1, u64::MAX] {
        for session in [SESSION, -SESSION, 0, i64::MIN] {
            for instance in [None, Some(INSTANCE), Some("host-b"), Some("HOST-A"), Some("")] {
                for epoch in [None, Some(EPOCH), Some(EPOCH - 1), Some(EPOCH + 1)] {
                    claims.push(Claim {
                        seq: Seq(seq),
                        session: SessionId(session),
                        instance: instance.map(Into::into),
                        epoch: epoch.map(Epoch),
                    });
                }
            }
        }
    }
    claims
}

/// One line of the table: whether it applies, and the code it gives; none is "admit".
type Line = (fn(&View, &Claim) -> bool, Option<&'static str>);

const TABLE: [Line; 9] = [
    (|view, _| *view == View::Absent, Some("unknown_account")),
    (|view, _| *view == View::Vacant, Some("no_holder")),
    (|view, _| matches!(view, View::Invalid(_)), Some("invalid_holder")),
    (|_, claim| claim.seq.0 < SEQ, Some("stale_token")),
    (|_, claim| claim.seq.0 > SEQ, Some("not_holder")),
    (|_, claim| claim.session.0 != SESSION, Some("session_mismatch")),
    (|_, claim| claim.instance.clone().unwrap_or(INSTANCE.into()) != INSTANCE, Some("instance_mismatch")),
    (|_, claim| claim.epoch.unwrap_or(Epoch(EPOCH)).0 != EPOCH, Some("epoch_mismatch")),
    (|_, _| true, None),
];

#[test]
fn the_first_line_of_the_table_that_applies_is_the_verdict() {
    let mut views = vec![View::Absent, View::Vacant, View::Held(holder())];
    views.extend(EVERY_INVALID.map(View::Invalid));
    let mut seen = std::collections::HashMap::new();
    for view in &views {
        for claim in every_claim() {
            let (_, expected) =
                TABLE.iter().find(|(applies, _)| applies(view, &claim)).expect("the last one");
            let verdict = match judge(view, &claim) {
                Verdict::Admit(admitted) => {
                    assert_eq!(admitted, holder(), "the view's holder is who is admitted");
                    None
                }
                Verdict::Refuse(code) => {
                    assert_eq!(code.status(), if code == Code::UnknownAccount { 404 } else { 409 });
                    Some(code.as_str())
                }
            };
            assert_eq!(verdict, *expected, "{view:?} {claim:?}");
            *seen.entry(verdict).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.values().sum::<usize>(), 11 * 400);
    assert_eq!(seen.len(), TABLE.len(), "every line decides at least once");
    assert_eq!(seen[&None], 2 * 2, "instance and epoch each left out or equal");
}

#[test]
fn when_a_holder_began_is_never_compared() {
    let claim =
        Claim { seq: Seq(SEQ), session: SessionId(SESSION), instance: None, epoch: Some(Epoch(EPOCH)) };
    for active_since in [None, Some(0), Some(i64::MAX)] {
        let view = View::Held(Arc::new(Holder { active_since, ..(*holder()).clone() }));
        assert!(matches!(judge(&view, &claim), Verdict::Admit(_)));
    }
}

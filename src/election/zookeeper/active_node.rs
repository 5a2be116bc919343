//! The layout `active-node`: candidates below `members`, the holder's own znode `active`.
//!
//! Says what to read of an account and what it means. It never talks to ZooKeeper itself.

use std::sync::Arc;

use serde::Deserialize;
use zookeeper_client::{Error, EventType, MultiReadResult, MultiReader, Stat};

use crate::fence::handover::Sighting;
use crate::fence::name::AccountName;
use crate::fence::token::{self, Epoch, Seq, SessionId};
use crate::fence::view::{Holder, Invalid, Marks, Reading, View};

/// How many results one account's read has.
pub(super) const NODES: usize = 4;

/// More than any holder's data needs; above it the holder does not count.
const MOST_DATA: usize = 64 * 1024;

/// Adds one account's read to a multi-read, which sees all of it at one moment.
pub(super) fn ask(multi: &mut MultiReader<'_>, root: &str, name: &AccountName) -> Result<(), Error> {
    let account = format!("{root}/{name}");
    let members = format!("{account}/members");
    multi.add_get_data(&account)?;
    multi.add_get_data(&format!("{account}/active"))?;
    multi.add_get_data(&members)?;
    multi.add_get_children(&members)
}

/// What an event at `node`, below an account or the account itself, tells. `None`: nothing of the election.
pub(super) fn sighting(node: Option<&str>, event: EventType) -> Option<Sighting> {
    let deleted = event == EventType::NodeDeleted;
    match node {
        None | Some("members") => Some(Sighting::Other),
        Some("active") => Some(if deleted { Sighting::HolderGone } else { Sighting::Other }),
        Some(path) => {
            let candidate = path.strip_prefix("members/")?;
            Some(match candidate_number(candidate) {
                Some(number) if deleted => Sighting::CandidateGone(number),
                Some(_) if event == EventType::NodeCreated => Sighting::CandidateCame,
                Some(_) | None => Sighting::Other,
            })
        }
    }
}

/// The number of a candidate, by its name.
pub(super) fn candidate_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("m-")?;
    (digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// What one account's read says.
///
/// # Errors
/// An error of the service that says nothing about the account.
#[allow(clippy::wildcard_enum_match_arm, reason = "the client's enum is not exhaustive")]
pub(super) fn reading(results: [MultiReadResult; NODES], require_candidate: bool) -> Result<Reading, Error> {
    let mut denied = false;
    let [account, active, members, children] = results.map(|result| match result {
        MultiReadResult::Error { err: Error::NoAuth } => {
            denied = true;
            Ok(None)
        }
        MultiReadResult::Error { err: Error::NoNode } => Ok(None),
        MultiReadResult::Error { err } => Err(err),
        other => Ok(Some(other)),
    });
    let (account, active, members) = (data(account?), data(active?), data(members?));
    let names = match children? {
        Some(MultiReadResult::Children { children }) => children,
        _ => Vec::new(),
    };
    let candidates: Vec<u64> = names.iter().filter_map(|name| candidate_number(name)).collect();
    let bytes =
        active.as_ref().map_or(0, |(data, _)| data.len()) + names.iter().map(String::len).sum::<usize>();
    let marks = account.as_ref().map(|(_, own)| Marks {
        newest: own.czxid.max(own.mzxid).max(own.pzxid),
        holding: own.pzxid,
        standing: members.as_ref().map_or(0, |(_, stat)| stat.pzxid),
        resigning: members.as_ref().map_or(-1, |(_, stat)| stat.mzxid),
    });
    let view = if denied {
        View::Invalid(Invalid::NoPermission)
    } else if account.is_none() {
        View::Absent
    } else if names.iter().any(|name| name.starts_with("m--")) {
        View::Invalid(Invalid::SequenceOverflow)
    } else {
        active.map_or(View::Vacant, |(data, stat)| {
            match read_holder(&data, stat.ephemeral_owner, stat.czxid) {
                Ok(holder) if require_candidate && !candidates.contains(&holder.seq.0) => {
                    View::Invalid(Invalid::NoCandidate)
                }
                Ok(holder) => View::Held(Arc::new(holder)),
                Err(why) => View::Invalid(why),
            }
        })
    };
    Ok(Reading { view, candidates, marks, bytes })
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the client's enum is not exhaustive")]
fn data(result: Option<MultiReadResult>) -> Option<(Vec<u8>, Stat)> {
    match result {
        Some(MultiReadResult::Data { data, stat }) => Some((data, stat)),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Active {
    seq: u64,
    instance_id: String,
    session_id: serde_json::Value,
    #[serde(default)]
    active_since: serde_json::Value,
}

/// Reads the holder's data, as far as it can be judged without the candidates.
///
/// # Errors
/// Why such a holder does not count.
pub fn read_holder(data: &[u8], owner: i64, czxid: i64) -> Result<Holder, Invalid> {
    const NOT_JSON: Invalid = Invalid::Data("the holder's data is not the JSON object it must be");
    if owner == 0 {
        return Err(Invalid::NotEphemeral);
    }
    if data.len() > MOST_DATA {
        return Err(Invalid::Data("the holder's data is larger than 64 KiB"));
    }
    let text = std::str::from_utf8(data).map_err(|_| NOT_JSON)?;
    let active: Active = serde_json::from_str(text).map_err(|_| NOT_JSON)?;
    if active.seq > 2_147_483_647 {
        return Err(Invalid::Data("the holder's seq is not 0 to 2147483647"));
    }
    let session = match &active.session_id {
        serde_json::Value::Number(number) => number.as_i64().map(SessionId),
        serde_json::Value::String(text) => token::parse_session(text.as_bytes()).ok(),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_) => None,
    }
    .ok_or(Invalid::Data("the holder's sessionId is no 64-bit number"))?;
    if session.0 != owner {
        return Err(Invalid::OtherOwner);
    }
    if active.instance_id.is_empty() || token::encode_instance(&active.instance_id).len() > 256 {
        return Err(Invalid::Data("the holder's instanceId is empty or longer than 256 characters"));
    }
    Ok(Holder {
        seq: Seq(active.seq),
        session,
        instance: active.instance_id,
        epoch: Epoch(czxid),
        active_since: active.active_since.as_i64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_counts_only_if_its_data_is_exact() {
        let good = br#"{"seq":1,"instanceId":"a","sessionId":7,"activeSince":5,"other":[1]}"#;
        let holder = read_holder(good, 7, 9).unwrap();
        assert_eq!((holder.seq, holder.session, holder.epoch), (Seq(1), SessionId(7), Epoch(9)));
        assert_eq!((holder.instance.as_str(), holder.active_since), ("a", Some(5)));
        assert!(read_holder(br#"{"seq":1,"instanceId":"a","sessionId":"0x7"}"#, 7, 9).is_ok());
        assert!(read_holder(br#"{"seq":1,"instanceId":"a","sessionId":"-7"}"#, -7, 9).is_ok());
        assert_eq!(read_holder(good, 8, 9), Err(Invalid::OtherOwner));
        assert_eq!(read_holder(good, 0, 9), Err(Invalid::NotEphemeral));
        for bad in [
            "",
            "{}",
            "not json",
            "[1]",
            "\u{feff}{\"seq\":1,\"instanceId\":\"a\",\"sessionId\":7}",
            r#"{"seq":"1","instanceId":"a","sessionId":7}"#,
            r#"{"seq":1.0,"instanceId":"a","sessionId":7}"#,
            r#"{"seq":-1,"instanceId":"a","sessionId":7}"#,
            r#"{"seq":2147483648,"instanceId":"a","sessionId":7}"#,
            r#"{"seq":1,"seq":2,"instanceId":"a","sessionId":7}"#,
            r#"{"seq":1,"instanceId":"","sessionId":7}"#,
            r#"{"seq":1,"instanceId":7,"sessionId":7}"#,
            r#"{"seq":1,"instanceId":"a","sessionId":7.0}"#,
            r#"{"seq":1,"instanceId":"a","sessionId":"x"}"#,
            r#"{"seq":1,"instanceId":"a","sessionId":7} trailing"#,
        ] {
            assert!(matches!(read_holder(bad.as_bytes(), 7, 9), Err(Invalid::Data(_))), "{bad}");
        }
        assert!(read_holder(b"\xff\xfe", 7, 9).is_err());
        assert!(read_holder(&vec![b' '; MOST_DATA + 1], 7, 9).is_err());
    }

    #[test]
    fn events_say_what_happened_to_the_election() {
        use EventType::{NodeCreated, NodeDataChanged, NodeDeleted};
        assert_eq!(sighting(Some("active"), NodeDeleted), Some(Sighting::HolderGone));
        assert_eq!(sighting(Some("active"), NodeDataChanged), Some(Sighting::Other));
        assert_eq!(sighting(Some("members/m-0000000007"), NodeDeleted), Some(Sighting::CandidateGone(7)));
        assert_eq!(sighting(Some("members/m-0000000007"), NodeCreated), Some(Sighting::CandidateCame));
        assert_eq!(sighting(Some("members/x"), NodeCreated), Some(Sighting::Other));
        assert_eq!(sighting(None, NodeDeleted), Some(Sighting::Other));
        assert_eq!(sighting(Some("notes"), NodeCreated), None);
    }
}

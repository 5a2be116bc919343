//! What the elections' listener answers, read strictly.
//!
//! It asks nothing.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use crate::election::BackendError;
use crate::fence::elector::{Active, Sight};
use crate::fence::token::{Epoch, SessionId, parse_session};

/// A session that has begun. It is never printed.
pub(super) struct Begun {
    pub(super) session: SessionId,
    /// As it is shown: `Bearer …`.
    pub(super) secret: HeaderValue,
    pub(super) ttl: Duration,
}

#[derive(Deserialize)]
struct Grant {
    session: String,
    secret: String,
    ttl_ms: u64,
}

impl Begun {
    pub(super) fn read(what: &str, body: &[u8]) -> Result<Self, BackendError> {
        let grant: Grant = json(what, body)?;
        let session = parse_session(grant.session.as_bytes());
        let session = session.map_err(|why| strange(what, &why.to_string()))?;
        let secret = HeaderValue::from_str(&format!("Bearer {}", grant.secret));
        let mut secret = secret.map_err(|_| strange(what, "its secret is none"))?;
        secret.set_sensitive(true);
        Ok(Self { session, secret, ttl: Duration::from_millis(grant.ttl_ms) })
    }
}

/// The names of all accounts.
#[derive(Deserialize)]
pub(super) struct Names {
    pub(super) accounts: Vec<String>,
}

/// Accounts, each at one moment.
#[derive(Deserialize)]
pub(super) struct Elections {
    pub(super) elections: Vec<Election>,
}

/// One account at one moment.
#[derive(Debug, Deserialize)]
pub(super) struct Election {
    pub(super) account: String,
    holder: Option<Holder>,
    candidates: Vec<u64>,
    /// Of two, the one with the larger is newer.
    pub(super) newest: i64,
    /// The own session's candidate. `None`: the session is over.
    #[serde(default, deserialize_with = "told")]
    pub(super) own: Option<Option<u64>>,
}

#[derive(Debug, Deserialize)]
struct Holder {
    seq: u64,
    session: String,
    instance: String,
    epoch: String,
}

/// Null is something that was told.
fn told<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl Election {
    /// Whether anybody holds it.
    pub(super) const fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Whose it is, for the instance of a session.
    pub(super) fn active(&self, session: SessionId, instance: &str) -> Option<Active> {
        let holder = self.holder.as_ref()?;
        if parse_session(holder.session.as_bytes()) != Ok(session) {
            return Some(Active::Theirs);
        }
        match holder.epoch.parse() {
            Ok(epoch) if holder.instance == instance => {
                Some(Active::Ours { seq: holder.seq, epoch: Epoch(epoch) })
            }
            Ok(_) | Err(_) => Some(Active::Odd),
        }
    }

    /// The same with the candidates.
    pub(super) fn sight(&self, session: SessionId, instance: &str) -> Sight {
        let own = self.own.flatten();
        let before = || self.candidates.iter().filter(|seq| own.is_none_or(|own| **seq < own));
        Sight {
            own: own.into_iter().collect(),
            predecessor: before().max().copied(),
            ahead: before().count(),
            active: self.active(session, instance),
        }
    }
}

/// Reads an answer.
pub(super) fn json<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, BackendError> {
    serde_json::from_slice(body).map_err(|why| strange(what, &why.to_string()))
}

pub(super) fn strange(what: &str, why: &str) -> BackendError {
    let why = format!(
        "an answer that no gateway's elections give ({why}); [coordination] elections must lead to [listen] elections"
    );
    BackendError::Refused { what: what.to_owned(), why }
}

const ELSEWHERE: &str = "; [coordination] elections must lead to the gateway's [listen] elections";

/// What a refusal says, and what to do.
pub(super) fn refused(what: &str, status: StatusCode, body: &[u8]) -> BackendError {
    let todo = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "; what the gateway's [auth] keys say is shown to it as [agent] gateway_key"
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => ELSEWHERE,
        // A success of another kind is somebody else's.
        _ if !status.is_client_error() && !status.is_server_error() => ELSEWHERE,
        _ => "",
    };
    let why = format!("{} {}{todo}", status.as_u16(), detail(body));
    BackendError::Refused { what: what.to_owned(), why }
}

/// What a refusal says: text from outside, one line of a log at most.
pub(super) fn detail(body: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem.get("detail").and_then(serde_json::Value::as_str).unwrap_or_default();
    detail.chars().take(300).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(0xab);

    fn election(text: &str) -> Election {
        json("look", text.as_bytes()).unwrap()
    }

    #[test]
    fn an_election_is_seen_from_the_own_session() {
        let ours = r#"{"account":"a","holder":{"seq":7,"session":"0x00000000000000ab","instance":"me","epoch":"8"},
                       "candidates":[7,9],"newest":9,"own":7}"#;
        let active = Some(Active::Ours { seq: 7, epoch: Epoch(8) });
        let sight = Sight { own: vec![7], predecessor: None, ahead: 0, active };
        assert_eq!(election(ours).sight(SESSION, "me"), sight);
        assert_eq!(election(ours).active(SESSION, "other"), Some(Active::Odd));
        let theirs = election(&ours.replace("\"own\":7", "\"own\":9").replace("ab\"", "ac\""));
        let sight = Sight { own: vec![9], predecessor: Some(7), ahead: 1, active: Some(Active::Theirs) };
        assert_eq!(theirs.sight(SESSION, "me"), sight);
        let none = election(r#"{"account":"a","holder":null,"candidates":[7,9],"newest":9,"own":null}"#);
        let sight = Sight { own: Vec::new(), predecessor: Some(9), ahead: 2, active: None };
        assert_eq!((none.sight(SESSION, "me"), none.own), (sight, Some(None)));
        let over = election(r#"{"account":"a","holder":null,"candidates":[],"newest":9}"#);
        assert_eq!(over.own, None, "the session is over");
    }

    #[test]
    fn what_is_no_answer_of_elections_says_what_to_do_and_shows_no_secret() {
        for body in ["", "<html>", "{}", r#"{"session":"x","secret":"s","ttl_ms":1}"#] {
            let Err(refused) = Begun::read("begin", body.as_bytes()) else { panic!("{body}") };
            assert!(refused.to_string().contains("[listen] elections"), "{refused}");
        }
        let grant = r#"{"session":"0xab","secret":"abc","ttl_ms":2000}"#;
        let begun = Begun::read("begin", grant.as_bytes()).unwrap();
        assert_eq!((begun.session, begun.ttl), (SESSION, Duration::from_secs(2)));
        assert!(!format!("{:?}", begun.secret).contains("abc"));
        let text = |status, body: &str| refused("stand", status, body.as_bytes()).to_string();
        assert!(text(StatusCode::UNAUTHORIZED, "{\"detail\":\"no\\nkey\"}").contains("no\\nkey; what"));
        assert!(text(StatusCode::NOT_FOUND, "").contains("[listen] elections"));
        assert_eq!(text(StatusCode::SERVICE_UNAVAILABLE, "{\"detail\":\"full\"}"), "stand: 503 full");
    }
}

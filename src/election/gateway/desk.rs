//! What operations of a session need, what they send, and how what is told is understood.
//!
//! What is told is what an account is, not what happened to it: what is older than what was seen is left out, so that a look and
//! an event may pass each other. It waits for no stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use tokio::sync::{Semaphore, watch};
use tracing::warn;

use super::answer::{Begun, Election, Elections, Names, detail, json, refused, strange};
use super::client::{Ask, Client};
use super::stream::Stream;
use super::within;
use crate::election::BackendError;
use crate::election::session::Notice;
use crate::fence::elector::{Active, Sight};
use crate::fence::handover::Sighting;
use crate::fence::name::AccountName;
use crate::fence::token::{Epoch, SessionId};

/// How many calls are under way; renewals have places of their own, so that they wait for no call.
const MOST_CALLS: usize = 8;
const MOST_RENEWALS: usize = 16;

/// The pauses between attempts to open the event stream again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long the end of a session is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What was seen of an account.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    newest: i64,
    /// The own candidate, until an event tells that it is another one, or none.
    own: Option<u64>,
    /// The own term, likewise.
    epoch: Option<Epoch>,
}

/// What operations need.
pub(super) struct Desk {
    client: Client,
    pub(super) session: SessionId,
    secret: HeaderValue,
    pub(super) ttl: Duration,
    instance: Arc<str>,
    /// Of the accounts that were looked at.
    seen: Mutex<HashMap<AccountName, Seen>>,
    calls: Semaphore,
    renewals: Semaphore,
    /// Raised when the connection is lost: what was begun before has failed.
    pub(super) turn: watch::Sender<u64>,
    /// Why the session is over.
    pub(super) over: watch::Sender<Option<String>>,
}

impl Desk {
    pub(super) fn new(client: Client, begun: Begun, instance: Arc<str>) -> Self {
        Self {
            client,
            session: begun.session,
            secret: begun.secret,
            ttl: begun.ttl,
            instance,
            seen: Mutex::default(),
            calls: Semaphore::new(MOST_CALLS),
            renewals: Semaphore::new(MOST_RENEWALS),
            turn: watch::channel(0).0,
            over: watch::channel(None).0,
        }
    }

    fn ask(&self, method: Method, path: String) -> Ask {
        Ask { method, path, secret: Some(self.secret.clone()), body: Bytes::new() }
    }

    /// As it is named to operators, without the names of many accounts.
    fn what(&self, ask: &Ask) -> String {
        let path = ask.path.split('?').next().unwrap_or_default();
        format!("{} {}{path}", ask.method, self.client.place().url())
    }

    /// Asks on one of few places, and takes only one status for an answer.
    async fn call(&self, places: &Semaphore, ask: &Ask, good: StatusCode) -> Result<Bytes, BackendError> {
        let _place = places.acquire().await;
        if let Some(why) = &*self.over.borrow() {
            return Err(BackendError::Lost(why.clone()));
        }
        let (status, body) = within(self.ttl, self.client.ask(ask)).await?;
        if status == good {
            return Ok(body);
        }
        // Everything but a look is answered so where there is no such session; it never comes back.
        if status == StatusCode::NOT_FOUND {
            let why = format!("{}: 404 {}", self.what(ask), detail(&body));
            self.is_over(&why);
            return Err(BackendError::Lost(why));
        }
        Err(refused(&self.what(ask), status, &body))
    }

    fn is_over(&self, why: &str) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    pub(super) async fn renew(&self) -> Result<(), BackendError> {
        let ask = self.ask(Method::PUT, format!("/v1/sessions/{}", self.session));
        self.call(&self.renewals, &ask, StatusCode::OK).await.map(drop)
    }

    pub(super) async fn end(&self) {
        let ask = self.ask(Method::DELETE, format!("/v1/sessions/{}", self.session));
        // Unheard it ends by itself.
        let _ = tokio::time::timeout(LAST_WORDS, self.client.ask(&ask)).await;
    }

    pub(super) async fn list(&self) -> Result<Vec<AccountName>, BackendError> {
        let ask = self.ask(Method::GET, "/v1/elections".to_owned());
        let body = self.call(&self.calls, &ask, StatusCode::OK).await?;
        let names: Names = json(&self.what(&ask), &body)?;
        Ok(names.accounts.iter().filter_map(|name| AccountName::new(name)).collect())
    }

    pub(super) async fn candidate(
        &self,
        method: Method,
        name: &AccountName,
        good: StatusCode,
    ) -> Result<(), BackendError> {
        // A name has nothing that a path would read otherwise.
        let ask = self.ask(method, format!("/v1/elections/{name}/candidates"));
        self.call(&self.calls, &ask, good).await.map(drop)
    }

    pub(super) async fn look(
        &self,
        names: &[AccountName],
    ) -> Result<Vec<Result<Sight, BackendError>>, BackendError> {
        // A plus is the one character of a name that a query would read otherwise.
        let asked = names.iter().map(|name| name.as_str().replace('+', "%2B")).collect::<Vec<_>>().join(",");
        let ask = self.ask(Method::GET, format!("/v1/elections?accounts={asked}"));
        let body = self.call(&self.calls, &ask, StatusCode::OK).await?;
        let what = self.what(&ask);
        let Elections { elections } = json(&what, &body)?;
        if !elections
            .iter()
            .map(|election| election.account.as_str())
            .eq(names.iter().map(AccountName::as_str))
        {
            return Err(strange(&what, "other accounts than those that were asked for"));
        }
        names.iter().zip(&elections).map(|(name, election)| Ok(Ok(self.see(name, election)?))).collect()
    }

    /// What a look shows.
    fn see(&self, name: &AccountName, election: &Election) -> Result<Sight, BackendError> {
        let Some(own) = election.own else {
            self.is_over("the gateway does not know the session any more");
            return Err(BackendError::Lost("the session is over".to_owned()));
        };
        let sight = election.sight(self.session, &self.instance);
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.entry(name.clone()).or_default();
        if election.newest >= seen.newest {
            seen.newest = election.newest;
            // What is gone is told by its event, whoever has looked before.
            seen.own = own.or(seen.own);
            if let Some(Active::Ours { epoch, .. }) = sight.active {
                seen.epoch = Some(epoch);
            }
        }
        Ok(sight)
    }

    /// What an event tells, unless something newer was seen.
    pub(super) fn hear(&self, election: &Election) -> Option<Notice> {
        let name = AccountName::new(&election.account)?;
        let active = election.active(self.session, &self.instance);
        let epoch = match active {
            Some(Active::Ours { epoch, .. }) => Some(epoch),
            Some(Active::Odd | Active::Theirs) | None => None,
        };
        let own = election.own.flatten();
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sighting = if election.is_held() { Sighting::Other } else { Sighting::CandidateCame };
        if let Some(seen) = all.get_mut(&name) {
            if election.newest < seen.newest {
                return None;
            }
            if seen.epoch != epoch {
                // Whatever was held before it is over.
                sighting = Sighting::HolderGone;
            } else if let Some(other) = seen.own.or(own).filter(|_| seen.own != own) {
                sighting = Sighting::CandidateGone(other);
            }
            *seen = Seen { newest: election.newest, own, epoch };
        }
        Some(Notice::Account { name, sighting })
    }

    pub(super) async fn listen(&self) -> Result<Stream, BackendError> {
        let ask = self.ask(Method::GET, "/v1/events".to_owned());
        let (status, body) = within(self.ttl, self.client.listen(&ask)).await?;
        if status == StatusCode::OK {
            return Ok(Stream::new(body));
        }
        let body = within(LAST_WORDS, self.client.refusal(body)).await.unwrap_or_default();
        Err(refused(&self.what(&ask), status, &body))
    }

    /// However long it takes. The session is renewed before each attempt: it lives on as long as the gateway hears that, and
    /// where it is over there is nothing to listen for.
    pub(super) async fn listen_again(&self) -> Stream {
        let mut pause = FIRST_PAUSE;
        let mut told = false;
        loop {
            let opened = match self.renew().await {
                Ok(()) => self.listen().await,
                Err(why) => Err(why),
            };
            match opened {
                Ok(stream) => return stream,
                Err(_) if self.over.borrow().is_some() => std::future::pending().await,
                Err(why) if !std::mem::replace(&mut told, true) => warn!("{why}; trying again"),
                Err(_) => {}
            }
            // Many that lost one gateway do not come back at one moment.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::Place;
    use super::*;
    use crate::config::{Endpoint, Upstream};

    fn desk() -> Desk {
        let at =
            Upstream { authority: "g:1".to_owned(), endpoint: Endpoint::Tcp("g".to_owned(), 1), tls: false };
        let begun = Begun {
            session: SessionId(1),
            secret: HeaderValue::from_static("Bearer x"),
            ttl: Duration::from_secs(6),
        };
        Desk::new(Client::new(Place { at, tls: None, key: None }), begun, "me".into())
    }

    /// The account after its change number `newest`; `holder` is a session, and its epoch.
    fn election(newest: i64, own: Option<u64>, holder: Option<(i64, i64)>) -> Election {
        let instance = |session| if session == 1 { "me" } else { "other" };
        let holder = holder.map(|(session, epoch)| {
            let session_text = SessionId(session).to_string();
            serde_json::json!({ "seq": 1, "session": session_text, "instance": instance(session), "epoch": epoch.to_string() })
        });
        let candidates: Vec<u64> = own.into_iter().collect();
        let text = serde_json::json!({
            "account": "wxid_1", "holder": holder, "candidates": candidates, "newest": newest, "own": own
        });
        json("look", text.to_string().as_bytes()).unwrap()
    }

    fn heard(desk: &Desk, election: &Election) -> Option<Sighting> {
        let Notice::Account { sighting, .. } = desk.hear(election)? else { panic!("no account") };
        Some(sighting)
    }

    #[test]
    fn an_event_tells_what_is_new_and_what_is_older_than_a_look_takes_nothing_back() {
        let (desk, name) = (desk(), AccountName::new("wxid_1").unwrap());
        let (came, other) = (Some(Sighting::CandidateCame), Some(Sighting::Other));
        assert_eq!(heard(&desk, &election(1, None, None)), came, "of an account that nobody has looked at");
        desk.see(&name, &election(2, None, Some((2, 2)))).unwrap();
        assert_eq!(heard(&desk, &election(2, None, Some((2, 2)))), other, "held by another");
        desk.see(&name, &election(5, Some(4), Some((1, 5)))).unwrap();
        for older in [election(3, None, None), election(4, Some(4), Some((2, 2)))] {
            assert_eq!(heard(&desk, &older), None, "the own term is newer");
        }
        assert_eq!(heard(&desk, &election(5, Some(4), Some((1, 5)))), other, "nothing new");
        assert_eq!(
            heard(&desk, &election(7, Some(4), Some((1, 7)))),
            Some(Sighting::HolderGone),
            "another term"
        );
        assert_eq!(heard(&desk, &election(8, Some(4), Some((1, 7)))), other);
        assert_eq!(heard(&desk, &election(9, Some(4), None)), Some(Sighting::HolderGone));
        assert_eq!(heard(&desk, &election(10, None, None)), Some(Sighting::CandidateGone(4)));
        assert_eq!(heard(&desk, &election(11, None, None)), came);
        assert_eq!(
            heard(&desk, &election(12, Some(12), Some((1, 12)))),
            Some(Sighting::HolderGone),
            "gained"
        );
    }

    #[test]
    fn what_somebody_else_has_looked_at_is_told_by_its_event_all_the_same() {
        let (desk, name) = (desk(), AccountName::new("wxid_1").unwrap());
        desk.see(&name, &election(2, Some(1), Some((1, 2)))).unwrap();
        assert_eq!(heard(&desk, &election(2, Some(1), Some((1, 2)))), Some(Sighting::Other));
        // A look that only proves something sees the end first; who leads hears of it by the event.
        desk.see(&name, &election(6, None, Some((2, 6)))).unwrap();
        assert_eq!(heard(&desk, &election(6, None, Some((2, 6)))), Some(Sighting::HolderGone));
    }

    #[test]
    fn a_look_that_knows_no_such_session_ends_it() {
        let (desk, name) = (desk(), AccountName::new("wxid_1").unwrap());
        let text = r#"{"account":"wxid_1","holder":null,"candidates":[],"newest":3}"#;
        assert!(desk.see(&name, &json("look", text.as_bytes()).unwrap()).is_err());
        assert!(desk.over.borrow().is_some());
    }
}

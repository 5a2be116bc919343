//! One session of an instance at a gateway: its lease, its candidates, and the event stream over all accounts.
//!
//! Sends and translates. Whatever is told is what an account is, not what happened to it: what is older than what was seen is
//! left out, so that a look and an event may pass each other. A broken stream is reopened, and the session lives on; what was
//! under way may still be done, and its event tells it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::{HeaderValue, Method, StatusCode};
use tokio::sync::{Semaphore, watch};
use tracing::warn;

use super::answer::{Begun, Election, Elections, Names, detail, json, refused, strange};
use super::client::{Ask, Client};
use super::stream::{Stream, Told};
use super::within;
use crate::election::session::{Notice, Session};
use crate::election::{BackendError, Pending};
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
struct Desk {
    client: Client,
    session: SessionId,
    secret: HeaderValue,
    ttl: Duration,
    instance: Arc<str>,
    /// Of the accounts that were looked at.
    seen: Mutex<HashMap<AccountName, Seen>>,
    calls: Semaphore,
    renewals: Semaphore,
    /// Raised when the connection is lost: what was begun before has failed.
    turn: watch::Sender<u64>,
    /// Why the session is over.
    over: watch::Sender<Option<String>>,
}

type Opening = Pin<Box<dyn Future<Output = Stream> + Send>>;

/// A session and its event stream.
pub struct GatewaySession {
    desk: Arc<Desk>,
    over: watch::Receiver<Option<String>>,
    stream: Option<Stream>,
    /// The opening of a new stream, after one was lost.
    opening: OptionFuture<Opening>,
}

impl std::fmt::Debug for GatewaySession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewaySession").field("session", &self.desk.session).finish_non_exhaustive()
    }
}

impl GatewaySession {
    /// The session that has begun, with its stream. Without one it is ended again.
    pub(super) async fn open(client: Client, begun: Begun, instance: Arc<str>) -> Result<Self, BackendError> {
        let (over, is_over) = watch::channel(None);
        let desk = Arc::new(Desk {
            client,
            session: begun.session,
            secret: begun.secret,
            ttl: begun.ttl,
            instance,
            seen: Mutex::default(),
            calls: Semaphore::new(MOST_CALLS),
            renewals: Semaphore::new(MOST_RENEWALS),
            turn: watch::channel(0).0,
            over,
        });
        match desk.listen().await {
            Ok(stream) => Ok(Self { desk, over: is_over, stream: Some(stream), opening: None.into() }),
            Err(why) => {
                desk.end().await;
                Err(why)
            }
        }
    }

    fn does<T: Send + 'static>(
        &self,
        act: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Pending<T> {
        let mut turn = self.desk.turn.subscribe();
        spawned(async move {
            tokio::select! {
                biased;
                done = act => done,
                _ = turn.changed() => Err(BackendError::Lost("the connection was lost".to_owned())),
            }
        })
    }

    /// Adds nothing to what is under way.
    fn nothing() -> Pending<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn lose(&mut self, why: String) -> Notice {
        self.stream = None;
        self.desk.turn.send_modify(|turn| *turn += 1);
        let desk = Arc::clone(&self.desk);
        let opening: Opening = Box::pin(async move { desk.listen_again().await });
        self.opening = Some(opening).into();
        Notice::Disconnected(why)
    }

    fn give_up(&self, name: &AccountName) -> Pending<()> {
        let (desk, name) = (Arc::clone(&self.desk), name.clone());
        self.does(async move { desk.candidate(Method::DELETE, &name, StatusCode::NO_CONTENT).await })
    }
}

impl Session for GatewaySession {
    fn id(&self) -> SessionId {
        self.desk.session
    }

    fn timeout(&self) -> Duration {
        self.desk.ttl
    }

    fn renew(&mut self) -> Pending<()> {
        let desk = Arc::clone(&self.desk);
        spawned(async move { desk.renew().await })
    }

    fn list(&mut self) -> Pending<Vec<AccountName>> {
        let desk = Arc::clone(&self.desk);
        self.does(async move { desk.list().await })
    }

    fn look(&mut self, names: &[AccountName]) -> Pending<Vec<Result<Sight, BackendError>>> {
        let (desk, names) = (Arc::clone(&self.desk), names.to_vec());
        self.does(async move { desk.look(&names).await })
    }

    fn register(&mut self, name: &AccountName) -> Pending<()> {
        let (desk, name) = (Arc::clone(&self.desk), name.clone());
        self.does(async move { desk.candidate(Method::POST, &name, StatusCode::OK).await })
    }

    /// The gateway makes the first candidate the holder.
    fn take(&mut self, _: &AccountName, _: u64) -> Pending<()> {
        Self::nothing()
    }

    /// A session has one candidate for an account at most.
    fn withdraw(&mut self, name: &AccountName, _: u64) -> Pending<()> {
        self.give_up(name)
    }

    /// What a session holds, its candidate holds.
    fn clear(&mut self, name: &AccountName) -> Pending<()> {
        self.give_up(name)
    }

    fn resign(&mut self, name: &AccountName, _: u64) -> Pending<()> {
        self.give_up(name)
    }

    async fn next(&mut self) -> Notice {
        loop {
            let Self { desk, over, stream, opening } = self;
            let told = OptionFuture::from(stream.as_mut().map(Stream::next));
            let told = tokio::select! {
                biased;
                why = ended(over) => return Notice::Ended(why),
                Some(told) = told => told,
                Some(opened) = &mut *opening => {
                    *opening = None.into();
                    *stream = Some(opened);
                    return Notice::Connected;
                }
            };
            match told {
                Ok(Told::Account(election)) => {
                    if let Some(notice) = desk.hear(&election) {
                        return notice;
                    }
                }
                Ok(Told::Lagged) => {
                    return self.lose("more has happened than the event stream could tell".to_owned());
                }
                Err(why) => return self.lose(why),
            }
        }
    }

    async fn close(self) {
        self.desk.end().await;
    }
}

/// Runs on its own from now on, whoever waits for it.
fn spawned<T: Send + 'static>(
    act: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Pending<T> {
    let task = tokio::spawn(act);
    Box::pin(async move {
        task.await.unwrap_or_else(|_| Err(BackendError::Lost("the call ended early".to_owned())))
    })
}

/// Why the session is over, once it is.
async fn ended(over: &mut watch::Receiver<Option<String>>) -> String {
    let why = over.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
    why.unwrap_or_else(|| "the session is over".to_owned())
}

impl Desk {
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

    async fn renew(&self) -> Result<(), BackendError> {
        let ask = self.ask(Method::PUT, format!("/v1/sessions/{}", self.session));
        self.call(&self.renewals, &ask, StatusCode::OK).await.map(drop)
    }

    async fn end(&self) {
        let ask = self.ask(Method::DELETE, format!("/v1/sessions/{}", self.session));
        // Unheard it ends by itself.
        let _ = tokio::time::timeout(LAST_WORDS, self.client.ask(&ask)).await;
    }

    async fn list(&self) -> Result<Vec<AccountName>, BackendError> {
        let ask = self.ask(Method::GET, "/v1/elections".to_owned());
        let body = self.call(&self.calls, &ask, StatusCode::OK).await?;
        let names: Names = json(&self.what(&ask), &body)?;
        Ok(names.accounts.iter().filter_map(|name| AccountName::new(name)).collect())
    }

    async fn candidate(
        &self,
        method: Method,
        name: &AccountName,
        good: StatusCode,
    ) -> Result<(), BackendError> {
        // A name has nothing that a path would read otherwise.
        let ask = self.ask(method, format!("/v1/elections/{name}/candidates"));
        self.call(&self.calls, &ask, good).await.map(drop)
    }

    async fn look(&self, names: &[AccountName]) -> Result<Vec<Result<Sight, BackendError>>, BackendError> {
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
    fn hear(&self, election: &Election) -> Option<Notice> {
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

    async fn listen(&self) -> Result<Stream, BackendError> {
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
    async fn listen_again(&self) -> Stream {
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

//! One session of an instance at a gateway: its lease, its candidates, and the event stream over all accounts.
//!
//! A broken stream is reopened, and the session lives on. What was under way then may still be done; its event tells it. What is
//! sent and how answers are understood is the desk's part.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use http::{Method, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::answer::Begun;
use super::client::Client;
use super::desk::Desk;
use super::stream::{Stream, Told};
use crate::election::session::{Notice, Session};
use crate::election::{BackendError, Pending};
use crate::fence::elector::Sight;
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;

type Opening = Pin<Box<dyn Future<Output = Stream> + Send>>;

/// A session and its event stream.
pub struct GatewaySession {
    desk: Arc<Desk>,
    over: watch::Receiver<Option<String>>,
    stream: Option<Stream>,
    /// The opening of a new stream, after one was lost.
    opening: OptionFuture<Opening>,
    /// Its end was told to the gateway.
    closed: bool,
}

impl std::fmt::Debug for GatewaySession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewaySession").field("session", &self.desk.session).finish_non_exhaustive()
    }
}

impl GatewaySession {
    /// The session that has begun, with its stream.
    pub(super) async fn open(client: Client, begun: Begun, instance: Arc<str>) -> Result<Self, BackendError> {
        let desk = Arc::new(Desk::new(client, begun, instance));
        let over = desk.over.subscribe();
        // Dropped before it has a stream, it is ended again.
        let mut session = Self { desk, over, stream: None, opening: None.into(), closed: false };
        session.stream = Some(session.desk.listen().await?);
        Ok(session)
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
        Box::pin(std::future::ready(Ok(())))
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
            let Self { desk, over, stream, opening, .. } = self;
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

    async fn close(mut self) {
        self.closed = true;
        self.desk.end().await;
    }
}

/// Whoever drops a session wants none: others need not wait until it is over by itself.
impl Drop for GatewaySession {
    fn drop(&mut self) {
        let is_over = self.closed || self.desk.over.borrow().is_some();
        if let (false, Ok(runtime)) = (is_over, Handle::try_current()) {
            let desk = Arc::clone(&self.desk);
            runtime.spawn(async move { desk.end().await });
        }
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

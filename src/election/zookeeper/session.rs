//! One ZooKeeper session of an instance: its candidates, its holdings, and one watch over all accounts.
//!
//! Sends and translates, in the layout `active-node`. Unlike a link it lives on when its connection is lost: the watch, which the
//! client does not set again, is then made anew. It never decides, and never touches a node that is not the session's.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use serde::Serialize;
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, MultiReadResult, MultiWriteError, PersistentWatcher,
    SessionState,
};

use super::active_node::{candidate_number, read_holder, sighting};
use super::{Settings, connect, failed, list, locate, pass_quorum, sent, watch};
use crate::clock::wall_ms;
use crate::election::session::{Notice, Session, Sessions};
use crate::election::{BackendError, Pending};
use crate::fence::elector::{Active, Sight};
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;

/// How long the end of a session is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Opens sessions of one instance on a ZooKeeper ensemble.
#[derive(Clone, Debug)]
pub struct ZkSessions {
    settings: Settings,
    instance: String,
}

impl ZkSessions {
    /// For the instance with this id.
    #[must_use]
    pub fn new(settings: Settings, instance: &str) -> Self {
        Self { settings, instance: instance.to_owned() }
    }

    /// With sessions of this timeout.
    #[must_use]
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.settings.session_timeout = timeout;
        self.settings.connection_timeout = timeout * 2 / 5;
        self
    }
}

impl Sessions for ZkSessions {
    type Session = ZkSession;

    async fn open(&mut self) -> Result<ZkSession, BackendError> {
        let (client, watcher) = connect(&self.settings).await?;
        let desk = Desk {
            session: client.session_id().0,
            client,
            root: self.settings.root.as_str().into(),
            instance: self.instance.as_str().into(),
            own: Arc::default(),
        };
        Ok(ZkSession { desk, watcher: Some(watcher), renewal: None.into() })
    }
}

/// What the session knows of its own candidates for one account.
#[derive(Debug, Default)]
struct Own {
    numbers: Vec<u64>,
    /// The answer to a registration may have been lost: there may be one more.
    unsure: bool,
}

/// What operations need.
#[derive(Clone, Debug)]
struct Desk {
    client: Client,
    session: i64,
    root: Arc<str>,
    instance: Arc<str>,
    own: Arc<Mutex<HashMap<AccountName, Own>>>,
}

type Renewal = Pin<Box<dyn Future<Output = Result<PersistentWatcher, BackendError>> + Send>>;

/// A session and its watch.
pub struct ZkSession {
    desk: Desk,
    /// Until the session is over.
    watcher: Option<PersistentWatcher>,
    /// The making of a new watch, after the connection was lost.
    renewal: OptionFuture<Renewal>,
}

impl std::fmt::Debug for ZkSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZkSession").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl ZkSession {
    fn does<T, F>(&self, act: impl FnOnce(Desk) -> F) -> Pending<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        sent(Box::pin(act(self.desk.clone())))
    }

    fn session_event(&mut self, state: SessionState) -> Option<Notice> {
        match state {
            SessionState::Disconnected => {
                self.renewal = None.into();
                Some(Notice::Disconnected(format!("session event {state}")))
            }
            SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                let (client, root) = (self.desk.client.clone(), Arc::clone(&self.desk.root));
                let renewal: Renewal = Box::pin(async move { watch(&client, &root).await });
                self.renewal = Some(renewal).into();
                None
            }
            SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => {
                // Asked again after a terminal event the watcher would panic.
                self.watcher = None;
                self.renewal = None.into();
                Some(Notice::Ended(format!("session event {state}")))
            }
        }
    }
}

impl Session for ZkSession {
    fn id(&self) -> SessionId {
        SessionId(self.desk.session)
    }

    fn timeout(&self) -> Duration {
        self.desk.client.session_timeout()
    }

    fn renew(&mut self) -> Pending<()> {
        self.does(|desk| pass_quorum(desk.client, desk.root.as_ref().to_owned()))
    }

    fn list(&mut self) -> Pending<Vec<AccountName>> {
        self.does(|desk| async move { Ok(list(desk.client, desk.root.as_ref().to_owned()).await?.names) })
    }

    fn look(&mut self, names: &[AccountName]) -> Pending<Vec<Result<Sight, BackendError>>> {
        let names = names.to_vec();
        self.does(|desk| async move { desk.look(&names).await })
    }

    fn register(&mut self, name: &AccountName) -> Pending<()> {
        let name = name.clone();
        self.does(|desk| async move { desk.register(name).await })
    }

    fn take(&mut self, name: &AccountName, seq: u64) -> Pending<()> {
        let name = name.clone();
        self.does(|desk| async move { desk.take(&name, seq).await })
    }

    fn withdraw(&mut self, name: &AccountName, seq: u64) -> Pending<()> {
        let candidate = self.desk.candidate(name, seq);
        self.does(|desk| async move { gone(&candidate, desk.client.delete(&candidate, None).await) })
    }

    fn clear(&mut self, name: &AccountName) -> Pending<()> {
        let active = self.desk.active(name);
        self.does(|desk| async move {
            match desk.client.check_stat(&active).await {
                Ok(Some(stat)) if stat.ephemeral_owner == desk.session => {
                    gone(&active, desk.client.delete(&active, None).await)
                }
                Ok(_) => Ok(()),
                Err(e) => Err(failed("read", &active, &e)),
            }
        })
    }

    fn resign(&mut self, name: &AccountName, seq: u64) -> Pending<()> {
        let name = name.clone();
        self.does(|desk| async move { desk.resign(&name, seq).await })
    }

    async fn next(&mut self) -> Notice {
        loop {
            let Some(watcher) = &mut self.watcher else {
                return Notice::Ended("the session is over".to_owned());
            };
            let event = tokio::select! {
                biased;
                event = watcher.changed() => event,
                Some(renewed) = &mut self.renewal => {
                    self.renewal = None.into();
                    match renewed {
                        // The old one goes after the new one stands, so that the client does not take both away.
                        Ok(renewed) => {
                            self.watcher = Some(renewed);
                            return Notice::Connected;
                        }
                        // Lost again, which its own event tells; or refused, which a new session has to tell.
                        Err(BackendError::Lost(_)) => continue,
                        Err(refused) => {
                            self.watcher = None;
                            return Notice::Ended(refused.to_string());
                        }
                    }
                }
            };
            if event.event_type == EventType::Session {
                match self.session_event(event.session_state) {
                    Some(notice) => return notice,
                    None => continue,
                }
            }
            let Some((name, node)) = locate(&self.desk.root, &event.path) else { continue };
            if let Some(sighting) = sighting(node, event.event_type) {
                return Notice::Account { name, sighting };
            }
        }
    }

    async fn close(self) {
        let mut states = self.desk.client.state_watcher();
        drop(self);
        let ended = async { while !states.changed().await.is_terminated() {} };
        let _ = tokio::time::timeout(LAST_WORDS, ended).await;
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Holding<'a> {
    seq: u64,
    instance_id: &'a str,
    session_id: i64,
    active_since: u64,
}

impl Desk {
    fn active(&self, name: &AccountName) -> String {
        format!("{}/{name}/active", self.root)
    }

    fn members(&self, name: &AccountName) -> String {
        format!("{}/{name}/members", self.root)
    }

    fn candidate(&self, name: &AccountName, seq: u64) -> String {
        format!("{}/{name}/members/m-{seq:010}", self.root)
    }

    fn own(&self) -> MutexGuard<'_, HashMap<AccountName, Own>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, names: &[AccountName]) -> Result<Vec<Result<Sight, BackendError>>, BackendError> {
        let unsure: Vec<_> =
            names.iter().filter(|name| self.own().get(*name).is_some_and(|own| own.unsure)).collect();
        for found in join_all(unsure.into_iter().map(|name| self.find(name))).await {
            found?;
        }
        let mut multi = self.client.new_multi_reader();
        let mut numbers = Vec::with_capacity(names.len());
        for name in names {
            let own = self.own().get(name).map(|own| own.numbers.clone()).unwrap_or_default();
            let ask = |multi: &mut zookeeper_client::MultiReader<'_>| {
                multi.add_get_data(&self.active(name))?;
                multi.add_get_children(&self.members(name))?;
                own.iter().try_for_each(|seq| multi.add_get_data(&self.candidate(name, *seq)))
            };
            ask(&mut multi).map_err(|e| failed("read", name.as_str(), &e))?;
            numbers.push(own);
        }
        let results = multi.commit().await.map_err(|e| failed("read below", &self.root, &e))?;
        if results.len() != numbers.iter().map(|own| own.len() + 2).sum::<usize>() {
            return Err(BackendError::Lost(format!("read below {}: an incomplete answer", self.root)));
        }
        let mut results = results.into_iter();
        Ok(names.iter().zip(numbers).map(|(name, own)| self.sight(name, &own, &mut results)).collect())
    }

    /// The candidates whose registration's answer was lost, by their owner.
    async fn find(&self, name: &AccountName) -> Result<(), BackendError> {
        let members = self.members(name);
        let found =
            self.client.list_ephemerals(&members).await.map_err(|e| failed("find own", &members, &e))?;
        let mut numbers: Vec<u64> = found
            .iter()
            .filter_map(|path| candidate_number(path.strip_prefix(&members)?.strip_prefix('/')?))
            .collect();
        numbers.sort_unstable();
        self.own().insert(name.clone(), Own { numbers, unsure: false });
        Ok(())
    }

    /// What the results for one account say: `/active`, the candidates, and the own ones.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the client's enum is not exhaustive")]
    fn sight(
        &self,
        name: &AccountName,
        asked: &[u64],
        results: &mut impl Iterator<Item = MultiReadResult>,
    ) -> Result<Sight, BackendError> {
        let mut next = || match results.next() {
            Some(MultiReadResult::Error { err: Error::NoNode }) | None => Ok(None),
            Some(MultiReadResult::Error { err }) => Err(failed("read", name.as_str(), &err)),
            Some(result) => Ok(Some(result)),
        };
        let (active, children) = (next(), next());
        // All of them, so that the next account's are next.
        let own: Vec<_> = asked.iter().map(|seq| (*seq, next())).collect();
        let active = match active? {
            Some(MultiReadResult::Data { data, stat }) => {
                Some(self.whose(&data, stat.ephemeral_owner, stat.czxid))
            }
            _ => None,
        };
        let mut standing = Vec::with_capacity(own.len());
        for (seq, found) in own {
            if let Some(MultiReadResult::Data { stat, .. }) = found?
                && stat.ephemeral_owner == self.session
            {
                standing.push(seq);
            }
        }
        let mut before: Vec<u64> = match children? {
            Some(MultiReadResult::Children { children }) => {
                children.iter().filter_map(|child| candidate_number(child)).collect()
            }
            _ => Vec::new(),
        };
        before.retain(|seq| standing.first().is_none_or(|own| seq < own));
        if standing.len() < asked.len()
            && let Some(own) = self.own().get_mut(name)
        {
            own.numbers.retain(|seq| standing.contains(seq) || !asked.contains(seq));
        }
        Ok(Sight { own: standing, predecessor: before.iter().max().copied(), ahead: before.len(), active })
    }

    fn whose(&self, data: &[u8], owner: i64, czxid: i64) -> Active {
        if owner != self.session {
            return Active::Theirs;
        }
        match read_holder(data, owner, czxid) {
            Ok(holder) if holder.instance == *self.instance => {
                Active::Ours { seq: holder.seq.0, epoch: holder.epoch }
            }
            Ok(_) | Err(_) => Active::Odd,
        }
    }

    async fn register(&self, name: AccountName) -> Result<(), BackendError> {
        let members = self.members(&name);
        let path = format!("{members}/m-");
        self.own().entry(name.clone()).or_default().unsure = true;
        let data = serde_json::json!({ "instanceId": &*self.instance }).to_string();
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let mut created = self.client.create(&path, data.as_bytes(), &options).await;
        if matches!(created, Err(Error::NoNode)) {
            let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
            if let Err(e) = self.client.mkdir(&members, &parents).await {
                return Err(failed("create", &members, &e));
            }
            created = self.client.create(&path, data.as_bytes(), &options).await;
        }
        let mut all = self.own();
        let own = all.entry(name).or_default();
        match created {
            Ok((_, number)) => {
                own.unsure = false;
                // A number that overflowed is no candidate's; nobody follows this election any more.
                own.numbers.extend(u64::try_from(number.into_i64()));
                Ok(())
            }
            Err(e) => {
                let failed = failed("create a candidate in", &members, &e);
                own.unsure = matches!(failed, BackendError::Lost(_));
                Err(failed)
            }
        }
    }

    async fn take(&self, name: &AccountName, seq: u64) -> Result<(), BackendError> {
        let (active, candidate) = (self.active(name), self.candidate(name, seq));
        let holding =
            Holding { seq, instance_id: &self.instance, session_id: self.session, active_since: wall_ms() };
        // A structure of text and numbers can always be written.
        let data = serde_json::to_vec(&holding).unwrap_or_default();
        let mut multi = self.client.new_multi_writer();
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        multi
            .add_check_version(&candidate, -1)
            .and_then(|()| multi.add_create(&active, &data, &options))
            .map_err(|e| failed("take", &active, &e))?;
        committed("take", &active, multi.commit().await)
    }

    /// The owner is read again immediately before, and the candidate goes in the same step, so that a successor's node is
    /// never deleted; versions do not tell two nodes of one name apart. The data of `members` is written as it is: that
    /// tells observers that it was meant.
    async fn resign(&self, name: &AccountName, seq: u64) -> Result<(), BackendError> {
        let (active, members, candidate) = (self.active(name), self.members(name), self.candidate(name, seq));
        let mut read = self.client.new_multi_reader();
        read.add_get_data(&active)
            .and_then(|()| read.add_get_data(&members))
            .map_err(|e| failed("read", &active, &e))?;
        let results = read.commit().await.map_err(|e| failed("read", &active, &e))?;
        let mut multi = self.client.new_multi_writer();
        let mut asked = multi.add_delete(&candidate, None);
        if let [MultiReadResult::Data { stat, .. }, MultiReadResult::Data { data, .. }] = results.as_slice()
            && stat.ephemeral_owner == self.session
        {
            asked = asked
                .and_then(|()| multi.add_delete(&active, None))
                .and_then(|()| multi.add_set_data(&members, data, None));
        }
        asked.map_err(|e| failed("resign", &candidate, &e))?;
        committed("resign", &candidate, multi.commit().await)
    }
}

/// That others were faster is no failure: the next look shows it.
fn committed<T>(what: &str, path: &str, result: Result<T, MultiWriteError>) -> Result<(), BackendError> {
    match result {
        Ok(_) | Err(MultiWriteError::OperationFailed { source: Error::NoNode | Error::NodeExists, .. }) => {
            Ok(())
        }
        Err(MultiWriteError::OperationFailed { source, .. } | MultiWriteError::RequestFailed { source }) => {
            Err(failed(what, path, &source))
        }
    }
}

fn gone(path: &str, result: Result<(), Error>) -> Result<(), BackendError> {
    match result {
        Ok(()) | Err(Error::NoNode) => Ok(()),
        Err(e) => Err(failed("delete", path, &e)),
    }
}

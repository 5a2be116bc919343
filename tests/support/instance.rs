//! A bot instance on a ZooKeeper session of its own, doing by hand what an elector does.
//!
//! It never watches, decides or repeats anything: a test says what it does. The layout is `active-node`; nodes of
//! other layouts are made by [`Instance::create`]. Between it and each server is a line of its own, so that it can be
//! frozen and expired like a process of its own.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionInfo, SessionState, Stat};

use super::http1::Headers;
use super::relay::Relay;
use super::wait::{PATIENCE, run};

/// Where the elections are unless an instance is told otherwise.
pub const ROOT: &str = "/wx-accounts";

#[derive(Clone, Debug, Default)]
struct Standing {
    seq: i64,
    epoch: Option<i64>,
}

/// One bot instance. Its session is closed when it is dropped.
pub struct Instance {
    name: String,
    root: String,
    connect: String,
    session: SessionInfo,
    client: Mutex<Option<Client>>,
    lines: Vec<Relay>,
    standings: Mutex<HashMap<String, Standing>>,
}

impl Instance {
    /// Opens a session of 6 seconds. `connect` names servers or relays on loopback, and a chroot perhaps.
    #[track_caller]
    pub fn open(connect: &str, name: &str) -> Self {
        Self::open_for(connect, name, Duration::from_secs(6))
    }

    /// Opens a session with its own timeout.
    #[track_caller]
    pub fn open_for(connect: &str, name: &str, timeout: Duration) -> Self {
        let (hosts, chroot) = connect.split_at(connect.find('/').unwrap_or(connect.len()));
        let port = |host: &str| host.rsplit(':').next()?.parse().ok();
        let port = |host: &str| port(host).unwrap_or_else(|| panic!("no port in {connect}"));
        let lines: Vec<Relay> = hosts.split(',').map(|host| Relay::to(port(host))).collect();
        let cluster = lines.iter().map(Relay::connect).collect::<Vec<_>>().join(",") + chroot;
        let connector = Client::connector().with_session_timeout(timeout);
        let client = run(async move { connector.connect(&cluster).await }).expect("a ZooKeeper session");
        Self {
            name: name.to_owned(),
            root: ROOT.to_owned(),
            connect: connect.to_owned(),
            session: client.session().clone(),
            client: Mutex::new(Some(client)),
            lines,
            standings: Mutex::default(),
        }
    }

    /// With its elections below another root.
    #[must_use]
    pub fn below(mut self, root: &str) -> Self {
        root.clone_into(&mut self.root);
        self
    }

    /// Creates the account's nodes where they are missing, and this instance's candidate; returns its seq.
    #[track_caller]
    pub fn join(&self, account: &str) -> i64 {
        let members = self.path(account, "members");
        self.make_path(&members);
        let data = json!({"instanceId": self.name, "pid": 1, "startTime": 1_699_999_999_000_i64});
        let path = self.create(&format!("{members}/m-"), data.to_string(), CreateMode::EphemeralSequential).0;
        let seq = path[path.len() - 10..].parse().expect("ten digits");
        self.standings.lock().unwrap().insert(account.to_owned(), Standing { seq, epoch: None });
        seq
    }

    /// Creates `/active` for this instance; returns the epoch.
    #[track_caller]
    pub fn take(&self, account: &str) -> i64 {
        self.try_take(account).unwrap_or_else(|error| panic!("{} cannot take {account}: {error}", self.name))
    }

    /// [`Instance::take`], where another holder is an answer.
    ///
    /// # Errors
    /// `NodeExists` while somebody holds the account, and whatever else ZooKeeper says.
    pub fn try_take(&self, account: &str) -> Result<i64, Error> {
        self.try_take_with(account, self.active_data(account).to_string())
    }

    /// Creates `/active` with any data, ephemeral; returns the epoch.
    #[track_caller]
    pub fn take_with(&self, account: &str, data: impl AsRef<[u8]>) -> i64 {
        self.try_take_with(account, data).unwrap_or_else(|error| panic!("no /active for {account}: {error}"))
    }

    fn try_take_with(&self, account: &str, data: impl AsRef<[u8]>) -> Result<i64, Error> {
        let path = self.path(account, "active");
        let epoch = self.try_create(&path, data, CreateMode::Ephemeral)?.1.czxid;
        self.standings.lock().unwrap().entry(account.to_owned()).or_default().epoch = Some(epoch);
        Ok(epoch)
    }

    /// Joins and takes at once; returns the seq.
    #[track_caller]
    pub fn lead(&self, account: &str) -> i64 {
        let seq = self.join(account);
        self.take(account);
        seq
    }

    /// What this instance writes into `/active`, for tests that change some of it.
    pub fn active_data(&self, account: &str) -> Value {
        json!({
            "seq": self.seq(account),
            "instanceId": self.name,
            "sessionId": self.session_id(),
            "activeSince": 1_699_999_999_000_i64,
        })
    }

    /// Deletes `/active`, whoever made it; the candidate stays.
    #[track_caller]
    pub fn drop_active(&self, account: &str) {
        self.delete(&self.path(account, "active"));
    }

    /// Deletes the own candidate; `/active` stays.
    #[track_caller]
    pub fn delete_candidate(&self, account: &str) {
        self.delete(&self.candidate(account));
    }

    /// Gives the account up as the agent does: candidate, `/active` and the data of `members` in one transaction.
    #[track_caller]
    pub fn resign(&self, account: &str) {
        let (candidate, active) = (self.candidate(account), self.path(account, "active"));
        let members = self.path(account, "members");
        self.ask(move |client| async move {
            let mut transaction = client.new_multi_writer();
            transaction.add_delete(&candidate, None)?;
            transaction.add_delete(&active, None)?;
            transaction.add_set_data(&members, b"", None)?;
            transaction.commit().await.map_err(|error| Error::UnexpectedError(error.to_string()))
        })
        .expect("one transaction");
    }

    /// Closes the session: all of its nodes go in one transaction, and have gone when this returns.
    #[track_caller]
    pub fn leave(&self) {
        let Some(client) = self.client.lock().unwrap().take() else { return };
        close(client);
    }

    /// Ends the session behind the instance's back: all of its nodes go in one transaction, and have gone when this
    /// returns. The instance learns of it when it connects again.
    #[track_caller]
    pub fn expire(&self) {
        // cut off meanwhile, or the two clients of one session would take it from each other without end
        self.lines.iter().for_each(Relay::cut);
        let (session, cluster) = (self.session.clone(), self.connect.clone());
        let twin = run(async move { Client::connector().with_session(session).connect(&cluster).await });
        close(twin.expect("the same session once more"));
        self.lines.iter().for_each(Relay::heal);
    }

    /// From now on nothing gets through in either direction, as if its process stood still. What it is asked to do
    /// meanwhile blocks.
    pub fn freeze(&self) {
        self.lines.iter().for_each(Relay::silence);
    }

    /// Everything gets through again, first what was held.
    pub fn thaw(&self) {
        self.lines.iter().for_each(Relay::heal);
    }

    /// What its client thinks of the session.
    pub fn state(&self) -> Option<SessionState> {
        self.client.lock().unwrap().as_ref().map(Client::state)
    }

    /// The headers that a send of this instance carries: seq and session.
    pub fn token(&self, account: &str) -> Headers {
        Headers::none().with("X-Fencing-Seq", self.seq(account)).with("X-Fencing-Session", self.session_id())
    }

    /// The token with instance and epoch as well; panics before the account was taken.
    #[track_caller]
    pub fn full_token(&self, account: &str) -> Headers {
        let epoch = self.epoch(account).expect("an epoch");
        self.token(account).with("X-Fencing-Instance", &self.name).with("X-Fencing-Epoch", epoch)
    }

    /// Its instance id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its session, as Java prints it.
    pub fn session_id(&self) -> i64 {
        self.session.id().0
    }

    /// The seq of its newest candidate; panics before it joined.
    #[track_caller]
    pub fn seq(&self, account: &str) -> i64 {
        self.standings.lock().unwrap().get(account).unwrap_or_else(|| panic!("not joined: {account}")).seq
    }

    /// The czxid of the `/active` that it made last.
    pub fn epoch(&self, account: &str) -> Option<i64> {
        self.standings.lock().unwrap().get(account)?.epoch
    }

    /// The path of its newest candidate.
    #[track_caller]
    pub fn candidate(&self, account: &str) -> String {
        self.path(account, &format!("members/m-{:010}", self.seq(account)))
    }

    /// `{root}/{account}/{rest}`.
    pub fn path(&self, account: &str, rest: &str) -> String {
        format!("{}/{account}/{rest}", self.root)
    }

    /// Creates any node; returns its path (with the number of a sequential one) and stat.
    #[track_caller]
    pub fn create(&self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) -> (String, Stat) {
        self.try_create(path, data, mode).unwrap_or_else(|error| panic!("cannot create {path}: {error}"))
    }

    fn try_create(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
    ) -> Result<(String, Stat), Error> {
        let (path, data) = (path.to_owned(), data.as_ref().to_vec());
        let sequential = matches!(mode, CreateMode::EphemeralSequential | CreateMode::PersistentSequential);
        self.ask(move |client| async move {
            let (stat, number) = client.create(&path, &data, &mode.with_acls(Acls::anyone_all())).await?;
            Ok((if sequential { format!("{path}{number}") } else { path }, stat))
        })
    }

    /// Creates a persistent path with all its parents where they are missing.
    #[track_caller]
    pub fn make_path(&self, path: &str) {
        let path = path.to_owned();
        self.ask(move |client| async move {
            client.mkdir(&path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await
        })
        .expect("a path");
    }

    /// Deletes one node.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        let name = path.to_owned();
        let done = self.ask(move |client| async move { client.delete(&name, None).await });
        done.unwrap_or_else(|error| panic!("cannot delete {path}: {error}"));
    }

    /// Deletes a node with everything below it.
    #[track_caller]
    pub fn delete_tree(&self, path: &str) {
        let name = path.to_owned();
        let children = self.ask(move |client| async move { client.list_children(&name).await });
        for child in children.unwrap_or_else(|error| panic!("cannot list {path}: {error}")) {
            self.delete_tree(&format!("{path}/{child}"));
        }
        self.delete(path);
    }

    /// Overwrites a node's data.
    #[track_caller]
    pub fn set(&self, path: &str, data: impl AsRef<[u8]>) -> Stat {
        let (name, data) = (path.to_owned(), data.as_ref().to_vec());
        let done = self.ask(move |client| async move { client.set_data(&name, &data, None).await });
        done.unwrap_or_else(|error| panic!("cannot write {path}: {error}"))
    }

    /// A node's data and stat; nothing where it does not exist.
    #[track_caller]
    pub fn read(&self, path: &str) -> Option<(Vec<u8>, Stat)> {
        let name = path.to_owned();
        match self.ask(move |client| async move { client.get_data(&name).await }) {
            Ok(found) => Some(found),
            Err(Error::NoNode) => None,
            Err(error) => panic!("cannot read {path}: {error}"),
        }
    }

    /// Does anything else with the client, on the kit's runtime.
    #[track_caller]
    pub fn ask<T, F>(&self, act: impl FnOnce(Client) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let client = self.client.lock().unwrap().clone();
        run(act(client.unwrap_or_else(|| panic!("{} has left", self.name))))
    }
}

/// Gives up the last client of a session and waits until ZooKeeper has closed it.
#[track_caller]
fn close(client: Client) {
    run(async move {
        let mut states = client.state_watcher();
        drop(client);
        let closed = async { while !states.changed().await.is_terminated() {} };
        tokio::time::timeout(PATIENCE, closed).await.expect("the session is closed");
    });
}

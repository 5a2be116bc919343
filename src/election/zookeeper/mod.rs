//! Elections on ZooKeeper: one session, one persistent recursive watch, multi-reads, and a barrier.
//!
//! The only place that knows the zookeeper-client crate (0.11). Facts about it, each measured, that shape this file:
//! it does not set a persistent watch again after a reconnect, and whatever changed meanwhile is not announced; requests
//! made while disconnected queue for long and cannot be recalled; a watcher panics if it is asked again after a
//! terminal event. So a link ends with the first session event, whatever it says, and a new link is a new session.

mod active_node;
mod link;
mod session;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use zookeeper_client::{AddWatchMode, Client, Error, MultiWriteError, PersistentWatcher};

pub use active_node::read_holder;
pub use link::ZkLink;
pub use session::{ZkSession, ZkSessions};

use super::{Backend, BackendError, Listing, Pending};
use crate::fence::name::AccountName;

/// How a proof is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// A multi of one version check on the root: passes through the quorum and changes no node.
    Quorum,
    /// `sync` and a read: faster, but a deposed leader that does not know it yet still answers.
    Sync,
}

impl BarrierKind {
    /// As the configuration spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Sync => "sync",
        }
    }
}

/// What a ZooKeeper backend needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port,host:port/chroot`.
    pub connect: String,
    /// The session's timeout.
    pub session_timeout: Duration,
    /// How long a silent server is believed to be there.
    pub connection_timeout: Duration,
    /// Scheme and credential of each identity.
    pub auth: Vec<(String, Vec<u8>)>,
    /// The znode above the accounts.
    pub root: String,
    /// Whether a holder needs a standing candidate.
    pub require_candidate: bool,
    /// How a proof is had.
    pub barrier: BarrierKind,
}

/// Makes links to a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZooKeeper {
    settings: Settings,
}

impl ZooKeeper {
    /// A backend that has not connected yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }
}

impl Backend for ZooKeeper {
    type Link = ZkLink;

    fn name(&self) -> &'static str {
        "zookeeper"
    }

    async fn connect(&mut self) -> Result<ZkLink, BackendError> {
        let (client, watcher) = connect(&self.settings).await?;
        Ok(ZkLink::new(client, watcher, &self.settings))
    }
}

/// A new session with its watch.
async fn connect(settings: &Settings) -> Result<(Client, PersistentWatcher), BackendError> {
    let mut connector = Client::connector()
        .with_session_timeout(settings.session_timeout)
        .with_connection_timeout(settings.connection_timeout);
    for (scheme, credential) in &settings.auth {
        connector = connector.with_auth(scheme, credential);
    }
    let client = connector
        .connect(&settings.connect)
        .await
        .map_err(|e| BackendError::Lost(format!("cannot connect to {}: {e}", settings.connect)))?;
    let watcher = watch(&client, &settings.root).await?;
    Ok((client, watcher))
}

/// The watch may stand before the root exists. It comes before the first read, so that nothing falls between.
async fn watch(client: &Client, root: &str) -> Result<PersistentWatcher, BackendError> {
    client.watch(root, AddWatchMode::PersistentRecursive).await.map_err(|e| failed("watch", root, &e))
}

/// Sends the request now: the client queues it when its future is first polled.
fn sent<T: Send + 'static>(mut pending: Pending<T>) -> Pending<T> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Box::pin(std::future::ready(done)),
        Poll::Pending => pending,
    }
}

/// A round trip through the quorum that changes no node.
async fn pass_quorum(client: Client, root: String) -> Result<(), BackendError> {
    let mut multi = client.new_multi_writer();
    multi.add_check_version(&root, -1).map_err(|e| failed("barrier at", &root, &e))?;
    match multi.commit().await {
        // A missing root is an answer of the quorum as well. NoAuth is not: a deposed leader that checks permissions
        // eagerly gives it on its own.
        Ok(_) | Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => Ok(()),
        Err(MultiWriteError::OperationFailed { source, .. } | MultiWriteError::RequestFailed { source }) => {
            Err(failed("barrier at", &root, &source))
        }
    }
}

/// All accounts below the root.
async fn list(client: Client, root: String) -> Result<Listing, BackendError> {
    let (children, stat) = match client.get_children(&root).await {
        Ok(listed) => listed,
        Err(Error::NoNode) => return Ok(Listing::default()),
        Err(e) => return Err(failed("list", &root, &e)),
    };
    let names: Vec<_> = children.iter().filter_map(|child| AccountName::new(child)).collect();
    Ok(Listing {
        strange: children.len() - names.len(),
        names,
        newest: Some(stat.czxid.max(stat.mzxid).max(stat.pzxid)),
    })
}

/// The account that a path below the root belongs to, and the node in it.
fn locate<'a>(root: &str, path: &'a str) -> Option<(AccountName, Option<&'a str>)> {
    let below = path.strip_prefix(root)?.strip_prefix('/')?;
    let (name, node) = below.split_once('/').map_or((below, None), |(name, node)| (name, Some(node)));
    Some((AccountName::new(name)?, node))
}

/// What an error of the client means: any is a failure, some can be mended.
#[allow(clippy::wildcard_enum_match_arm, reason = "the client's enum is not exhaustive")]
fn failed(what: &str, path: &str, error: &Error) -> BackendError {
    let why = match error {
        Error::NoAuth => "not authorized; give the gateway READ permission, or [zookeeper] auth".to_owned(),
        Error::Unimplemented => {
            "the server does not know this operation; ZooKeeper 3.6 or newer is needed".to_owned()
        }
        other => return BackendError::Lost(format!("{what} {path}: {other}")),
    };
    BackendError::Refused { what: format!("{what} {path}"), why }
}

//! Elections on ZooKeeper: one session, one persistent recursive watch, multi-reads, and a barrier.
//!
//! The only place that knows the zookeeper-client crate (0.11). Facts about it, each measured, that shape this file:
//! it does not set a persistent watch again after a reconnect, and whatever changed meanwhile is not announced; requests
//! made while disconnected queue for long and cannot be recalled; a watcher panics if it is asked again after a
//! terminal event. So a link ends with the first session event, whatever it says, and a new link is a new session.

mod active_node;
mod link;

use std::time::Duration;

use zookeeper_client::{AddWatchMode, Client, Error};

pub use active_node::read_holder;
pub use link::ZkLink;

use super::{Backend, BackendError};

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
        let settings = &self.settings;
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
        // The watch may stand before the root exists. It comes before the first read, so that nothing falls between.
        let watcher = client
            .watch(&settings.root, AddWatchMode::PersistentRecursive)
            .await
            .map_err(|e| failed("watch", &settings.root, &e))?;
        Ok(ZkLink::new(client, watcher, settings))
    }
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

//! One ZooKeeper session with one watch, from its making to its first session event.
//!
//! Sends and translates. It never reconnects, and decides nothing about holders: that is the layout's part.

use std::pin::pin;

use futures_util::FutureExt;
use zookeeper_client::{Client, EventType, MultiReadResult, PersistentWatcher};

use super::active_node::{self, NODES};
use super::{BarrierKind, Settings, failed, list, locate, pass_quorum, sent};
use crate::election::{BackendError, Change, Link, Listing, Pending};
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;
use crate::fence::view::Reading;

/// A ZooKeeper session and its watch.
#[derive(Debug)]
pub struct ZkLink {
    client: Client,
    watcher: Option<PersistentWatcher>,
    root: String,
    require_candidate: bool,
    barrier: BarrierKind,
}

impl ZkLink {
    pub(super) fn new(client: Client, watcher: PersistentWatcher, settings: &Settings) -> Self {
        Self {
            client,
            watcher: Some(watcher),
            root: settings.root.clone(),
            require_candidate: settings.require_candidate,
            barrier: settings.barrier,
        }
    }

    /// What an event of the watch means. `None`: nothing to the elections.
    fn translate(&mut self, event: &zookeeper_client::WatchedEvent) -> Option<Change> {
        if event.event_type == EventType::Session {
            // Asked again after a terminal event the watcher would panic.
            self.watcher = None;
            return Some(Change::Lost(format!("session event {}", event.session_state)));
        }
        let (name, node) = locate(&self.root, &event.path)?;
        let sighting = active_node::sighting(node, event.event_type)?;
        let zxid = (event.zxid > 0).then_some(event.zxid);
        Some(Change::Account { name, sighting, zxid })
    }
}

impl Link for ZkLink {
    fn session(&self) -> SessionId {
        SessionId(self.client.session_id().0)
    }

    fn barrier(&mut self) -> Pending<()> {
        let (client, root, kind) = (self.client.clone(), self.root.clone(), self.barrier);
        match kind {
            BarrierKind::Quorum => sent(Box::pin(pass_quorum(client, root))),
            BarrierKind::Sync => sent(Box::pin(async move {
                // Both are queued at once; the read's answer comes after the sync's.
                let (synced, read) = (client.sync(&root), client.check_stat(&root));
                synced.await.map_err(|e| failed("sync at", &root, &e))?;
                read.await.map(|_| ()).map_err(|e| failed("read after sync at", &root, &e))
            })),
        }
    }

    fn list(&mut self) -> Pending<Listing> {
        sent(Box::pin(list(self.client.clone(), self.root.clone())))
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let (client, root, require) = (self.client.clone(), self.root.clone(), self.require_candidate);
        let names = names.to_vec();
        sent(Box::pin(async move {
            let mut multi = client.new_multi_reader();
            for name in &names {
                active_node::ask(&mut multi, &root, name).map_err(|e| failed("read", name.as_str(), &e))?;
            }
            let mut results = multi.commit().await.map_err(|e| failed("read below", &root, &e))?;
            if results.len() != names.len() * NODES {
                return Err(BackendError::Lost(format!("read below {root}: an incomplete answer")));
            }
            let mut readings = Vec::with_capacity(names.len());
            for (name, group) in names.iter().zip(results.chunks_exact_mut(NODES)) {
                let [account, active, members, children] = group else { continue };
                let own = [account, active, members, children].map(take);
                let reading = active_node::reading(own, require);
                readings.push(reading.map_err(|e| failed("read", name.as_str(), &e))?);
            }
            Ok(readings)
        }))
    }

    async fn next(&mut self) -> Change {
        loop {
            let Some(watcher) = &mut self.watcher else {
                return Change::Lost("the link is over".to_owned());
            };
            let event = watcher.changed().await;
            if let Some(change) = self.translate(&event) {
                return change;
            }
        }
    }

    fn try_next(&mut self) -> Option<Change> {
        loop {
            let watcher = self.watcher.as_mut()?;
            // Without `unconstrained` tokio's budget would pretend after 128 events that there are no more.
            let event = pin!(tokio::task::unconstrained(watcher.changed())).now_or_never()?;
            if let Some(change) = self.translate(&event) {
                return Some(change);
            }
        }
    }
}

fn take(result: &mut MultiReadResult) -> MultiReadResult {
    std::mem::replace(result, MultiReadResult::Children { children: Vec::new() })
}

//! Elections in memory: for simulation, and what the embedded elections keep.
//!
//! Sessions stand as candidates; the lowest number holds; a session's end removes its candidates at once. seq and epoch
//! come from one counter that never goes back. The same promises as any backend, without a network. It knows no time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use super::{Backend, BackendError, Change, Link, Listing, Pending};
use crate::fence::handover::Sighting;
use crate::fence::name::AccountName;
use crate::fence::token::{Epoch, Seq, SessionId};
use crate::fence::view::{Holder, Marks, Reading, View};

/// How many announcements a link may lag behind before it is over.
const MOST_PENDING: usize = 16 * 1024;

#[derive(Debug)]
struct Election {
    /// Candidates by number.
    candidates: BTreeMap<u64, (SessionId, String)>,
    holder: Option<Arc<Holder>>,
    marks: Marks,
}

#[derive(Debug)]
struct World {
    counter: u64,
    accounts: HashMap<AccountName, Election>,
    announce: broadcast::Sender<Change>,
}

impl World {
    fn next(&mut self) -> i64 {
        self.counter += 1;
        i64::try_from(self.counter).unwrap_or(i64::MAX)
    }

    fn announce(&self, name: &AccountName, sighting: Sighting, zxid: i64) {
        // Without a link nobody listens, and nothing is lost: a link reads everything first.
        let _ = self.announce.send(Change::Account { name: name.clone(), sighting, zxid: Some(zxid) });
    }

    /// Removes candidates in one step; whoever is then lowest holds.
    fn remove(&mut self, name: &AccountName, gone: &[u64], resigned: bool) {
        let zxid = self.next();
        let Some(election) = self.accounts.get_mut(name) else { return };
        let mut sightings = Vec::new();
        for seq in gone {
            if election.candidates.remove(seq).is_some() {
                sightings.push(Sighting::CandidateGone(*seq));
            }
        }
        election.marks.standing = zxid;
        election.marks.newest = zxid;
        if election.holder.as_ref().is_some_and(|holder| gone.contains(&holder.seq.0)) {
            election.holder = None;
            election.marks.holding = zxid;
            sightings.push(Sighting::HolderGone);
        }
        if resigned {
            election.marks.resigning = zxid;
        }
        for sighting in sightings {
            self.announce(name, sighting, zxid);
        }
        self.elect(name);
    }

    fn elect(&mut self, name: &AccountName) {
        let epoch = self.next();
        let Some(election) = self.accounts.get_mut(name) else { return };
        if election.holder.is_some() {
            return;
        }
        let Some((seq, (session, instance))) = election.candidates.first_key_value() else { return };
        election.holder = Some(Arc::new(Holder {
            seq: Seq(*seq),
            session: *session,
            instance: instance.clone(),
            epoch: Epoch(epoch),
            active_since: None,
        }));
        election.marks.holding = epoch;
        election.marks.newest = epoch;
        self.announce(name, Sighting::Other, epoch);
    }
}

/// An account as it stands at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Who holds it.
    pub holder: Option<Arc<Holder>>,
    /// The numbers of its candidates, ascending, and their sessions.
    pub candidates: Vec<(u64, SessionId)>,
    /// The number of its last change: of two looks, the one with the larger is newer.
    pub newest: i64,
}

/// An election service in this process. Clones are the same service.
#[derive(Clone, Debug)]
pub struct Memory {
    world: Arc<Mutex<World>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::beginning_after(0)
    }
}

impl Memory {
    /// A service whose counter goes on after `counter`.
    #[must_use]
    pub fn beginning_after(counter: u64) -> Self {
        let (announce, _) = broadcast::channel(MOST_PENDING);
        Self { world: Arc::new(Mutex::new(World { counter, accounts: HashMap::new(), announce })) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `instance` of `session` as a candidate for `name`; its number. Repeated: the same one.
    pub fn stand(&self, name: &AccountName, session: SessionId, instance: &str) -> Seq {
        let mut world = self.world();
        if let Some(election) = world.accounts.get(name)
            && let Some((seq, _)) = election.candidates.iter().find(|(_, (owner, _))| *owner == session)
        {
            return Seq(*seq);
        }
        let zxid = world.next();
        let seq = world.counter;
        let election = world.accounts.entry(name.clone()).or_insert_with(|| Election {
            candidates: BTreeMap::new(),
            holder: None,
            marks: Marks { resigning: -1, ..Marks::default() },
        });
        election.candidates.insert(seq, (session, instance.to_owned()));
        election.marks.standing = zxid;
        election.marks.newest = zxid;
        world.announce(name, Sighting::CandidateCame, zxid);
        world.elect(name);
        Seq(seq)
    }

    /// Ends a session: all its candidates go in one step for each account.
    pub fn end(&self, session: SessionId) {
        let mut world = self.world();
        let mine: Vec<_> = world
            .accounts
            .iter()
            .map(|(name, election)| {
                let own = election.candidates.iter().filter(|(_, (owner, _))| *owner == session);
                (name.clone(), own.map(|(seq, _)| *seq).collect::<Vec<_>>())
            })
            .filter(|(_, own)| !own.is_empty())
            .collect();
        for (name, own) in mine {
            world.remove(&name, &own, false);
        }
    }

    /// Gives one account up.
    pub fn resign(&self, name: &AccountName, session: SessionId) {
        let mut world = self.world();
        let Some(election) = world.accounts.get(name) else { return };
        let own = election.candidates.iter().filter(|(_, (owner, _))| *owner == session);
        let own: Vec<_> = own.map(|(seq, _)| *seq).collect();
        world.remove(name, &own, true);
    }

    /// The number that was given out last.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.world().counter
    }

    /// Goes on after `counter`, if that is further on.
    #[cfg(test)]
    pub(super) fn skip_to(&self, counter: u64) {
        let mut world = self.world();
        world.counter = world.counter.max(counter);
    }

    /// How many accounts there are for which somebody stood.
    #[must_use]
    pub fn size(&self) -> usize {
        self.world().accounts.len()
    }

    /// The names of all accounts for which somebody stood, in no order.
    #[must_use]
    pub fn names(&self) -> Vec<AccountName> {
        self.world().accounts.keys().cloned().collect()
    }

    /// An account as it stands; `None` if nobody ever stood for it.
    #[must_use]
    pub fn look(&self, name: &AccountName) -> Option<Standing> {
        let world = self.world();
        let election = world.accounts.get(name)?;
        let candidates = election.candidates.iter().map(|(seq, (owner, _))| (*seq, *owner)).collect();
        Some(Standing { holder: election.holder.clone(), candidates, newest: election.marks.newest })
    }

    /// What is announced from now on.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.world().announce.subscribe()
    }

    /// Who holds `name` now.
    #[must_use]
    pub fn holder(&self, name: &AccountName) -> Option<Arc<Holder>> {
        self.world().accounts.get(name)?.holder.clone()
    }
}

impl Backend for Memory {
    type Link = MemoryLink;

    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn connect(&mut self) -> Result<MemoryLink, BackendError> {
        let changes = self.changes();
        Ok(MemoryLink { memory: self.clone(), changes: Some(changes) })
    }
}

/// A link to [`Memory`].
#[derive(Debug)]
pub struct MemoryLink {
    memory: Memory,
    /// Until it is over.
    changes: Option<broadcast::Receiver<Change>>,
}

impl MemoryLink {
    fn lost(&mut self, why: &str) -> Change {
        self.changes = None;
        Change::Lost(why.to_owned())
    }
}

fn done<T: Send + 'static>(value: T) -> Pending<T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Link for MemoryLink {
    fn session(&self) -> SessionId {
        SessionId(0)
    }

    fn barrier(&mut self) -> Pending<()> {
        done(())
    }

    fn list(&mut self) -> Pending<Listing> {
        let world = self.memory.world();
        let newest = i64::try_from(world.counter).ok();
        done(Listing { names: world.accounts.keys().cloned().collect(), strange: 0, newest })
    }

    fn read(&mut self, names: &[AccountName]) -> Pending<Vec<Reading>> {
        let world = self.memory.world();
        let read = |name: &AccountName| match world.accounts.get(name) {
            None => Reading::default(),
            Some(election) => Reading {
                view: election.holder.clone().map_or(View::Vacant, View::Held),
                candidates: election.candidates.keys().copied().collect(),
                marks: Some(election.marks),
                bytes: 0,
            },
        };
        done(names.iter().map(read).collect())
    }

    async fn next(&mut self) -> Change {
        let Some(changes) = &mut self.changes else { return self.lost("the link is over") };
        match changes.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => self.lost("too far behind"),
            Err(broadcast::error::RecvError::Closed) => self.lost("the service is gone"),
        }
    }

    fn try_next(&mut self) -> Option<Change> {
        match self.changes.as_mut()?.try_recv() {
            Ok(change) => Some(change),
            Err(broadcast::error::TryRecvError::Empty) => None,
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(self.lost("too far behind")),
            Err(broadcast::error::TryRecvError::Closed) => Some(self.lost("the service is gone")),
        }
    }
}

//! The coordination service as it is: every commit in its order, and what a server that has applied so many of them shows.
//!
//! Znodes of the layout `active-node`, their transaction marks, and the sightings that a watch would bring. It knows nothing
//! of the gateway. Servers and their links are in `wire`.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencegate::clock::Moment;
use fencegate::election::Listing;
use fencegate::fence::handover::Sighting;
use fencegate::fence::name::AccountName;
use fencegate::fence::token::{Epoch, Seq, SessionId};
use fencegate::fence::view::{Holder, Invalid, Marks, Reading, View};

/// The holder's znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    pub seq: u64,
    pub session: i64,
    pub instance: String,
    pub epoch: i64,
}

/// One account's tree.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Number and session of each candidate.
    pub candidates: BTreeMap<u64, i64>,
    pub active: Option<Active>,
    next: u64,
    marks: Marks,
}

impl Tree {
    /// Who holds, by the contract: `/active` counts if its candidate stands.
    pub fn holder(&self) -> Option<&Active> {
        self.active.as_ref().filter(|active| self.candidates.get(&active.seq) == Some(&active.session))
    }
}

/// What one transaction did to one account.
#[derive(Clone, Debug)]
pub struct Commit {
    pub at: Moment,
    pub zxid: i64,
    pub account: usize,
    pub sightings: Vec<Sighting>,
    after: Option<Arc<Tree>>,
    /// It made or deleted an account's own znode.
    root: bool,
}

impl Commit {
    /// The account's tree after it.
    pub fn tree(&self) -> Option<&Tree> {
        self.after.as_deref()
    }
}

/// All commits of this history, and the state after the last.
pub struct Service {
    pub names: Vec<AccountName>,
    log: Vec<Commit>,
    trees: Vec<Option<Arc<Tree>>>,
    /// The places in `log` that touched an account.
    places: Vec<Vec<usize>>,
    zxid: i64,
}

impl Service {
    pub fn new(accounts: usize) -> Self {
        Self {
            names: (0..accounts).map(|number| AccountName::new(&format!("wx{number}")).unwrap()).collect(),
            log: Vec::new(),
            trees: vec![None; accounts],
            places: vec![Vec::new(); accounts],
            zxid: 100,
        }
    }

    pub fn log(&self) -> &[Commit] {
        &self.log
    }

    pub fn tree(&self, account: usize) -> Option<&Tree> {
        self.trees[account].as_deref()
    }

    pub fn holder(&self, account: usize) -> Option<Active> {
        self.tree(account)?.holder().cloned()
    }

    /// Registers a candidate, and makes the account where it is missing. The session's number, the same if it stands.
    pub fn register(&mut self, account: usize, session: i64, at: Moment) -> u64 {
        let missing = self.trees[account].is_none();
        let mut tree = self.trees[account].as_deref().cloned().unwrap_or_default();
        if let Some((number, _)) = tree.candidates.iter().find(|(_, owner)| **owner == session) {
            return *number;
        }
        let zxid = self.next();
        if missing {
            tree.marks = Marks { newest: zxid, holding: zxid, standing: zxid, resigning: zxid };
        }
        let number = tree.next;
        tree.next += 1;
        tree.candidates.insert(number, session);
        tree.marks.standing = zxid;
        self.commit(account, Some(tree), vec![Sighting::CandidateCame], missing, at);
        number
    }

    /// Creates `/active` for a candidate that stands, if nobody holds.
    pub fn take(&mut self, account: usize, session: i64, instance: &str, number: u64, at: Moment) -> bool {
        let Some(mut tree) = self.trees[account].as_deref().cloned() else { return false };
        if tree.active.is_some() || tree.candidates.get(&number) != Some(&session) {
            return false;
        }
        let zxid = self.next();
        tree.active = Some(Active { seq: number, session, instance: instance.to_owned(), epoch: zxid });
        (tree.marks.holding, tree.marks.newest) = (zxid, zxid);
        self.commit(account, Some(tree), vec![Sighting::Other], false, at);
        true
    }

    /// Deletes what `gone` and `active` say of one account, in one transaction.
    pub fn delete(&mut self, account: usize, gone: &[u64], active: bool, resigned: bool, at: Moment) -> bool {
        let Some(mut tree) = self.trees[account].as_deref().cloned() else { return false };
        let mut sightings = Vec::new();
        for number in gone {
            if tree.candidates.remove(number).is_some() {
                sightings.push(Sighting::CandidateGone(*number));
            }
        }
        let active = active && tree.active.take().is_some();
        if active {
            sightings.push(Sighting::HolderGone);
        }
        if sightings.is_empty() {
            return false;
        }
        let zxid = self.next();
        if !gone.is_empty() {
            tree.marks.standing = zxid;
        }
        if active {
            (tree.marks.holding, tree.marks.newest) = (zxid, zxid);
        }
        if resigned {
            tree.marks.resigning = zxid;
        }
        self.commit(account, Some(tree), sightings, false, at);
        true
    }

    /// A session ends: whatever is its own goes, in one transaction.
    pub fn expire(&mut self, session: i64, at: Moment) {
        for account in 0..self.trees.len() {
            let Some(tree) = self.tree(account) else { continue };
            let own: Vec<u64> =
                tree.candidates.iter().filter(|(_, o)| **o == session).map(|(n, _)| *n).collect();
            let active = tree.active.as_ref().is_some_and(|active| active.session == session);
            self.delete(account, &own, active, false, at);
        }
    }

    /// Somebody deletes an account's tree; numbers start over when it comes again.
    pub fn fell(&mut self, account: usize, at: Moment) {
        let Some(tree) = self.tree(account) else { return };
        let mut sightings: Vec<_> = tree.candidates.keys().copied().map(Sighting::CandidateGone).collect();
        sightings.extend(tree.active.is_some().then_some(Sighting::HolderGone));
        sightings.push(Sighting::Other);
        self.next();
        self.commit(account, None, sightings, true, at);
    }

    /// The service is restored from a copy that has only the first `kept` commits.
    pub fn restore(&mut self, kept: usize) {
        self.log.truncate(kept);
        self.zxid = self.log.last().map_or(100, |commit| commit.zxid);
        for account in 0..self.trees.len() {
            self.places[account].retain(|place| *place < kept);
            self.trees[account] =
                self.places[account].last().and_then(|place| self.log[*place].after.clone());
        }
    }

    fn next(&mut self) -> i64 {
        self.zxid += 1;
        self.zxid
    }

    fn commit(
        &mut self,
        account: usize,
        tree: Option<Tree>,
        sightings: Vec<Sighting>,
        root: bool,
        at: Moment,
    ) {
        let after = tree.map(Arc::new);
        self.trees[account].clone_from(&after);
        self.places[account].push(self.log.len());
        self.log.push(Commit { at, zxid: self.zxid, account, sightings, after, root });
    }

    /// What a server shows that has applied the first `applied` commits.
    pub fn read(&self, name: &AccountName, applied: usize) -> Reading {
        let Some(account) = self.names.iter().position(|known| known == name) else {
            return Reading::default();
        };
        let places = &self.places[account];
        let known = places.partition_point(|place| *place < applied);
        let Some(tree) = known.checked_sub(1).and_then(|last| self.log[places[last]].after.as_deref()) else {
            return Reading::default();
        };
        let view = match &tree.active {
            None => View::Vacant,
            Some(_) if tree.holder().is_none() => View::Invalid(Invalid::NoCandidate),
            Some(active) => View::Held(Arc::new(Holder {
                seq: Seq(active.seq),
                session: SessionId(active.session),
                instance: active.instance.clone(),
                epoch: Epoch(active.epoch),
                active_since: None,
            })),
        };
        let candidates = tree.candidates.keys().copied().collect();
        Reading { view, candidates, marks: Some(tree.marks), bytes: 100 }
    }

    /// The same for the names of all accounts.
    pub fn list(&self, applied: usize) -> Listing {
        let mut names = Vec::new();
        for (account, places) in self.places.iter().enumerate() {
            let known = places.partition_point(|place| *place < applied);
            if known.checked_sub(1).is_some_and(|last| self.log[places[last]].after.is_some()) {
                names.push(self.names[account].clone());
            }
        }
        let newest = self.log[..applied].iter().rev().find(|commit| commit.root).map(|commit| commit.zxid);
        Listing { names, strange: 0, newest }
    }
}

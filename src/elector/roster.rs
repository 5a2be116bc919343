//! Which account is on which session: assigns accounts to shards, and opens a new one where all are full.
//!
//! Passes orders on to the shard that has the account. It knows no roles.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::board::Board;
use super::lease::Lease;
use super::shard::{self, Errand};
use super::{Accounts, NotLeader, Settings};
use crate::election::session::Sessions;
use crate::fence::elector::Term;
use crate::fence::name::AccountName;

/// How many orders wait at most; further ones wait before they are given.
const MOST_ORDERS: usize = 1024;

/// What an elector is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Prove that an account is held.
    Check(AccountName, oneshot::Sender<Result<Term, NotLeader>>),
    /// Give one up.
    Resign(AccountName, oneshot::Sender<()>),
    /// Take part again.
    Stand(AccountName),
    /// Give everything up.
    Stop(oneshot::Sender<()>),
}

struct Shard {
    errands: mpsc::Sender<Errand>,
    lease: Arc<Lease>,
    accounts: usize,
    task: JoinHandle<()>,
}

struct Roster<S> {
    sessions: S,
    settings: Arc<Settings>,
    board: Arc<Board>,
    shards: Vec<Shard>,
    place: HashMap<AccountName, usize>,
    /// Where the first shard tells of accounts that exist.
    found: Option<mpsc::Sender<Vec<AccountName>>>,
}

/// Starts the roster and its first shards.
pub(super) fn start<S: Sessions + Clone>(
    sessions: S,
    settings: Settings,
    board: Arc<Board>,
) -> (mpsc::Sender<Order>, JoinHandle<()>) {
    let (orders, given) = mpsc::channel(MOST_ORDERS);
    let (found, appearing) = mpsc::channel(MOST_ORDERS);
    let (found, names) = match &settings.accounts {
        Accounts::These(names) => (None, names.clone()),
        Accounts::All => (Some(found), Vec::new()),
    };
    let settings = Arc::new(settings);
    let roster = Roster { sessions, settings, board, shards: Vec::new(), place: HashMap::new(), found };
    (orders, tokio::spawn(roster.run(names, given, appearing)))
}

impl<S: Sessions + Clone> Roster<S> {
    async fn run(
        mut self,
        names: Vec<AccountName>,
        mut given: mpsc::Receiver<Order>,
        mut appearing: mpsc::Receiver<Vec<AccountName>>,
    ) {
        if self.found.is_some() {
            self.open_shard();
        } else {
            self.add(names).await;
            self.board.listed();
        }
        loop {
            tokio::select! {
                order = given.recv() => match order {
                    Some(Order::Stop(done)) => {
                        self.stop().await;
                        let _ = done.send(());
                        return;
                    }
                    Some(order) => self.pass_on(order).await,
                    None => return,
                },
                Some(names) = appearing.recv() => {
                    self.add(names).await;
                    self.board.listed();
                }
            }
        }
    }

    async fn pass_on(&mut self, order: Order) {
        let (name, errand) = match order {
            Order::Check(name, reply) => (name.clone(), Errand::Check(name, reply)),
            Order::Resign(name, reply) => (name.clone(), Errand::Resign(name, reply)),
            Order::Stand(name) => (name.clone(), Errand::Stand(name)),
            Order::Stop(_) => return,
        };
        if let Some(shard) = self.place.get(&name).and_then(|place| self.shards.get(*place)) {
            let _ = shard.errands.send(errand).await;
        }
    }

    async fn add(&mut self, names: Vec<AccountName>) {
        for name in names {
            let most = self.settings.accounts_per_session;
            let free = self.shards.iter().position(|shard| shard.accounts < most);
            let place = match self.place.entry(name.clone()) {
                Entry::Occupied(_) => continue,
                Entry::Vacant(vacant) => *vacant.insert(free.unwrap_or(self.shards.len())),
            };
            if free.is_none() {
                self.open_shard();
            }
            let Some(shard) = self.shards.get_mut(place) else { continue };
            shard.accounts += 1;
            self.board.add(name.clone(), Arc::clone(&shard.lease));
            let _ = shard.errands.send(Errand::Add(name)).await;
        }
    }

    fn open_shard(&mut self) {
        let number = self.shards.len();
        // One that tells of accounts is enough: each session's watch sees all.
        let found = self.found.clone().filter(|_| number == 0);
        let (errands, given) = mpsc::channel(MOST_ORDERS);
        let lease = Arc::<Lease>::default();
        self.board.connected(number, None);
        let task = tokio::spawn(shard::run(
            self.sessions.clone(),
            shard::Place {
                number,
                settings: Arc::clone(&self.settings),
                board: Arc::clone(&self.board),
                lease: Arc::clone(&lease),
                found,
            },
            given,
        ));
        self.shards.push(Shard { errands, lease, accounts: 0, task });
    }

    /// All shards at once; each takes a few seconds at most.
    async fn stop(&mut self) {
        let ends = self.shards.drain(..).map(|shard| async move {
            let _ = shard.errands.send(Errand::Stop).await;
            // One that panicked has ended as well.
            let _ = shard.task.await;
        });
        join_all(ends).await;
    }
}

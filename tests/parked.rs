//! Floods of requests that wait, while ZooKeeper does not answer: what one account, or many made-up ones, can take of the places,
//! and that each ends by its deadline (I4).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::collections::BTreeMap;

use support::{
    Connection, Ensemble, Gateway, Headers, Instance, PATIENCE, Response, Sender, Setup, now, wait_until,
};

/// Places for waiting: in all, and for one account. Half of the latter are for its holder alone.
const ALL: usize = 24;
const EACH: usize = 8;

const ACCOUNTS: [&str; 3] = ["wxid_flooded", "wxid_other", "wxid_third"];

struct World {
    gateway: Gateway,
    holder: Instance,
    zombie: Headers,
    sender: Sender,
    ensemble: Ensemble,
}

impl World {
    #[track_caller]
    fn new(park_timeout: &str) -> Self {
        let (ensemble, sender) = (Ensemble::start(1), Sender::new());
        let holder = Instance::open(&ensemble.connect(), "host-b");
        let zombie = Instance::open(&ensemble.connect(), "host-a");
        let freshness =
            format!("park_timeout = \"{park_timeout}\"\nmax_parked = {ALL}\nmax_parked_per_account = {EACH}");
        let gateway = Setup::new(&ensemble.connect(), &sender.url()).section("freshness", &freshness).start();
        zombie.lead(ACCOUNTS[0]);
        let stale = zombie.token(ACCOUNTS[0]);
        zombie.leave();
        for account in ACCOUNTS {
            let seq = holder.lead(account);
            gateway.wait_for_holder(account, seq);
            assert_eq!(gateway.send(account, &holder.token(account), "x").status, 200);
        }
        Self { gateway, holder, zombie: stale, sender, ensemble }
    }

    fn count(&self, name: &str, labels: &[(&str, &str)]) -> usize {
        self.gateway.metrics().sum(name, labels) as usize
    }

    fn overloaded(&self) -> usize {
        self.count("fencegate_requests_total", &[("verdict", "overloaded")])
    }

    /// Asks often at once, each on a connection of its own, and returns when so many wait and all others are refused.
    #[track_caller]
    fn flood(&self, what: &str, accounts: &[&str], token: &Headers, waiting: usize) -> Vec<Connection> {
        let (parked, refused) = (self.count("fencegate_parked", &[]), self.overloaded());
        let ask = |account: &&str| {
            let mut connection = Connection::open(self.gateway.proxy());
            connection.request("POST", &format!("/wx/{account}/send"), token, b"x").unwrap();
            connection
        };
        let connections: Vec<_> = accounts.iter().map(ask).collect();
        let more = accounts.len() - waiting;
        wait_until(what, || {
            self.count("fencegate_parked", &[]) + self.overloaded() >= parked + refused + accounts.len()
        });
        assert_eq!(self.count("fencegate_parked", &[]), parked + waiting, "{what}: waiting");
        assert_eq!(self.overloaded(), refused + more, "{what}: refused");
        connections
    }

    /// Every account floods, and so do many that do not exist; by whose they are.
    #[track_caller]
    fn flood_all(&self) -> BTreeMap<&'static str, Vec<Connection>> {
        let made_up: Vec<String> = (0..20).map(|number| format!("wxid_made_up_{number}")).collect();
        let made_up: Vec<&str> = made_up.iter().map(String::as_str).collect();
        let [flooded, other, third] = ACCOUNTS;
        let own = |account: &str| self.holder.token(account);
        BTreeMap::from([
            ("zombie", self.flood("a zombie", &[flooded; 20], &self.zombie, EACH / 2)),
            ("holder", self.flood("its holder", &[flooded; 6], &own(flooded), EACH / 2)),
            ("made up", self.flood("names of nobody", &made_up, &own(flooded), EACH / 2)),
            ("other", self.flood("another account", &[other; EACH], &own(other), EACH)),
            (
                "third",
                self.flood("more than all places", &[third; EACH], &own(third), ALL - EACH - EACH / 2 - EACH),
            ),
        ])
    }

    #[track_caller]
    fn assert_at_rest(&self) {
        wait_until("nothing waits", || {
            self.count("fencegate_parked", &[]) == 0 && self.count("fencegate_in_flight", &[]) == 0
        });
        for account in ACCOUNTS {
            let seen = self.gateway.account(account).unwrap();
            assert_eq!((&seen["parked"], &seen["in_flight"]), (&0.into(), &0.into()), "{account}");
        }
        let received = self.count("fencegate_requests_received_total", &[]);
        wait_until("each has its verdict", || self.count("fencegate_requests_total", &[]) == received);
    }
}

/// How many were answered with which code.
#[track_caller]
fn codes(connections: Vec<Connection>) -> BTreeMap<String, usize> {
    let mut codes = BTreeMap::new();
    for mut connection in connections {
        let answer: Response = connection.read_within(PATIENCE).unwrap();
        let verdict = answer.header("x-fencing-verdict").unwrap().to_owned();
        assert_eq!(answer.status == 503, answer.header("retry-after").is_some(), "{verdict}");
        *codes.entry(verdict).or_insert(0) += 1;
    }
    codes
}

fn counted<const N: usize>(pairs: [(&str, usize); N]) -> BTreeMap<String, usize> {
    pairs.into_iter().map(|(code, count)| (code.to_owned(), count)).collect()
}

#[test]
fn a_flood_of_one_account_or_of_names_of_nobody_leaves_places_for_its_holder_and_for_others() {
    let world = World::new("20s");
    let before = world.sender.count();
    world.ensemble.server(0).freeze();
    let mut flood = world.flood_all();
    world.ensemble.server(0).thaw();
    let mut told = |whose: &str| codes(flood.remove(whose).unwrap());
    assert_eq!(told("holder"), counted([("admitted", 4), ("overloaded", 2)]));
    assert_eq!(told("other"), counted([("admitted", 8)]));
    assert_eq!(told("third"), counted([("admitted", 4), ("overloaded", 4)]));
    assert_eq!(told("made up"), counted([("overloaded", 16), ("unknown_account", 4)]));
    assert_eq!(told("zombie"), counted([("overloaded", 16), ("stale_token", 4)]));
    assert_eq!(world.sender.count(), before + 16);
    world.assert_at_rest();
}

#[test]
fn i4_while_zookeeper_is_gone_everything_that_waits_ends_by_its_deadline_and_gives_its_place_back() {
    let world = World::new("2s");
    let before = world.sender.count();
    world.ensemble.server(0).freeze();
    for _ in 0..2 {
        let mut zombies = world.flood("a zombie", &[ACCOUNTS[0]; 10], &world.zombie, EACH / 2);
        zombies.extend(world.flood("names of nobody", &["wxid_nobody"; 10], &world.zombie, EACH / 2));
        let holders =
            world.flood("another account", &[ACCOUNTS[1]; EACH], &world.holder.token(ACCOUNTS[1]), EACH);
        let asked_at = now();
        assert_eq!(codes(zombies), counted([("overloaded", 12), ("view_unproven", 8)]));
        assert_eq!(codes(holders), counted([("view_unproven", 8)]));
        assert!(now() - asked_at < PATIENCE);
        world.assert_at_rest();
    }
    assert_eq!(world.sender.count(), before);
    world.ensemble.server(0).thaw();
    for account in ACCOUNTS {
        wait_until("it is served again", || {
            world.gateway.send(account, &world.holder.token(account), "x").status == 200
        });
    }
    world.assert_at_rest();
}

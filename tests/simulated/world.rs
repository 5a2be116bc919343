//! One world: drawn from its seed, lived through step by step, and brought to rest.
//!
//! The follower, the registry, the proofs, the gate and the electors are the real ones. What is played is what surrounds them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use fencegate::clock::{Clock, Moment};
use fencegate::config;
use fencegate::fence::elector::Event;
use fencegate::fence::token::{Claim, Epoch, SessionId};
use fencegate::gateway::admission::Rules;
use fencegate::gateway::follower::{Follower, Pace};
use fencegate::gateway::parking::Bounds;
use fencegate::gateway::proofs::Relay;
use fencegate::gateway::registry::Registry;
use fencegate::gateway::service::Gateway;
use fencegate::gateway::status::Status;
use fencegate::telemetry::Telemetry;

use super::executor::{self, Tasks};
use super::instance::{self, Instance};
use super::oracle::{LONGEST_PATIENCE, Oracle, Promises};
use super::service::Service;
use super::traffic::{self, Ask};
use super::wire::{self, Line, Weather};

/// A world, shared by everybody in it.
pub struct World {
    pub clock: Clock,
    pub tasks: Tasks,
    pub gateway: Arc<Gateway>,
    pub rules: Rules,
    relay: OnceLock<Relay>,
    state: Mutex<State>,
}

/// What happens in it.
pub struct State {
    pub service: Service,
    pub oracle: Oracle,
    pub instances: Vec<Instance>,
    /// The last session.
    pub sessions: i64,
    weather: Weather,
    line: Weak<Line>,
    links: u64,
    rng: fastrand::Rng,
    /// Commits that were announced.
    announced: usize,
    /// Every token that ever led.
    tokens: Vec<Vec<Claim>>,
    last_ask: u64,
}

/// What a run gives.
#[derive(Debug)]
pub struct Outcome {
    pub wrong: Option<String>,
    pub digest: u64,
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    pub story: Vec<String>,
}

/// Runs the world of `seed` for `steps` steps.
pub fn run(seed: u64, steps: u64, tell: bool) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let clock = Clock::manual();
    clock.advance(Duration::from_secs(1000));
    let tasks = Tasks::default();
    let world = World::draw(&mut rng, &clock, &tasks, tell);
    let pace = world.draw_pace(&mut rng);
    let order = rng.u64(..);
    executor::run(order, &clock, &tasks, live(Arc::clone(&world), rng, pace, steps));
    let mut state = world.state();
    let oracle = &mut state.oracle;
    Outcome {
        wrong: oracle.wrong().map(str::to_owned),
        digest: oracle.digest(),
        counts: std::mem::take(&mut oracle.counts),
        story: oracle.story.take().unwrap_or_default(),
    }
}

impl World {
    fn draw(rng: &mut fastrand::Rng, clock: &Clock, tasks: &Tasks, tell: bool) -> Arc<Self> {
        let accounts = rng.usize(1..=3);
        let millis = |range| Duration::from_millis(range);
        let rules = Rules {
            max_staleness: millis(if rng.u8(..4) > 0 { 0 } else { rng.u64(20..400) }),
            park_timeout: millis(rng.u64(300..3000)),
            parking: Bounds { most: 10_000, most_per_account: 2500 },
            most_in_flight_per_account: if rng.bool() { 64 } else { rng.usize(1..6) },
        };
        let promises = Promises {
            max_staleness: rules.max_staleness,
            park_timeout: rules.park_timeout,
            most_in_flight: rules.most_in_flight_per_account,
        };
        let text = "[zookeeper]\nconnect = \"127.0.0.1:1\"\n[[route]]\npath = \"/{account}\"\naccount = \"path:account\"\nupstream = \"http://127.0.0.1:1\"\n";
        let config = config::parse("simulated", text, []).unwrap();
        let registry = Arc::new(Registry::new(clock.clone(), Arc::new(Telemetry::new())));
        let gateway = Arc::new(Gateway::new(&config, registry, Arc::default(), None).unwrap());
        let timeout = millis(rng.u64(400..1500));
        let now = clock.now();
        let instances = (0..rng.usize(2..=4))
            .map(|number| Instance::new(number, accounts, timeout, now, rng.fork()))
            .collect();
        let mut oracle = Oracle::new(clock.clone(), accounts, promises);
        oracle.story = tell.then(Vec::new);
        oracle.tell(format_args!("{rules:?}"));
        let state = State {
            service: Service::new(accounts),
            oracle,
            instances,
            sessions: 0,
            weather: draw_weather(rng),
            line: Weak::new(),
            links: 0,
            rng: rng.fork(),
            announced: 0,
            tokens: vec![Vec::new(); accounts],
            last_ask: 0,
        };
        Arc::new(Self {
            clock: clock.clone(),
            tasks: tasks.clone(),
            gateway,
            rules,
            relay: OnceLock::new(),
            state: Mutex::new(state),
        })
    }

    fn draw_pace(&self, rng: &mut fastrand::Rng) -> Pace {
        Pace {
            max_staleness: self.rules.max_staleness,
            min_barrier_interval: Duration::from_millis(if rng.bool() { 0 } else { rng.u64(1..50) }),
            barrier_timeout: Duration::from_millis(rng.u64(200..1500)),
            accept_history: rng.u8(..4) == 0,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn weather(&self) -> Weather {
        self.state().weather
    }

    /// What hands proofs on to requests.
    pub fn relay(&self) -> &Relay {
        self.relay.get_or_init(|| Relay::start(&self.gateway.registry.proofs))
    }

    /// A source of draws for a new link, and the link's number.
    pub fn fork(&self) -> (fastrand::Rng, u64) {
        let mut state = self.state();
        state.links += 1;
        (state.rng.fork(), state.links)
    }

    pub fn connected(&self, line: &Arc<Line>) {
        self.state().line = Arc::downgrade(line);
    }

    fn later(self: &Arc<Self>, wait: Duration, what: impl FnOnce(&mut State, Moment) + Send + 'static) {
        let world = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            let now = world.clock.now();
            let mut state = world.state();
            what(&mut state, now);
            state.settle(now);
        });
    }
}

fn draw_weather(rng: &mut fastrand::Rng) -> Weather {
    let pick = |rng: &mut fastrand::Rng, from: &[u64]| from[rng.usize(..from.len())];
    Weather { way: pick(rng, &[1, 5, 20, 60]), lag: pick(rng, &[0, 10, 100, 500]), away: false }
}

impl State {
    /// Tells everybody what was committed.
    pub fn settle(&mut self, now: Moment) {
        let news = self.announced < self.service.log().len();
        while let Some(commit) = self.service.log().get(self.announced) {
            self.announced += 1;
            for instance in &mut self.instances {
                for sighting in &commit.sightings {
                    instance.announce(commit.account, *sighting, now);
                }
            }
            self.oracle.stands(commit.account, commit.tree());
        }
        if news && let Some(line) = self.line.upgrade() {
            line.work.notify_one();
        }
        for instance in &self.instances {
            for (account, tokens) in self.tokens.iter_mut().enumerate() {
                if let Some(token) = instance.token(account)
                    && !tokens.contains(&token)
                {
                    tokens.push(token);
                }
            }
        }
    }
}

async fn live(world: Arc<World>, mut rng: fastrand::Rng, pace: Pace, steps: u64) {
    let registry = Arc::clone(&world.gateway.registry);
    let status = Arc::new(Status::default());
    let follower = Follower::new(wire::Service(Arc::clone(&world)), registry, status, pace);
    world.tasks.spawn(follower.run());
    for number in 0..world.state().instances.len() {
        world.tasks.spawn(instance::live(Arc::clone(&world), number));
    }
    let may_restore = rng.u8(..8) == 0;
    for _ in 0..steps {
        let pause = if rng.u8(..30) == 0 { rng.u64(..2000) } else { rng.u64(..40) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        step(&world, &mut rng, may_restore);
        world.check();
        let oracle = &mut world.state().oracle;
        oracle.tidy();
        if oracle.wrong().is_some() {
            return;
        }
    }
    world.come_to_rest(&mut rng).await;
}

/// Something happens.
fn step(world: &Arc<World>, rng: &mut fastrand::Rng, may_restore: bool) {
    let now = world.clock.now();
    let mut state = world.state();
    let account = rng.usize(..state.service.names.len());
    let instance = rng.usize(..state.instances.len());
    let while_ms = Duration::from_millis(rng.u64(50..4000));
    match rng.u32(..1000) {
        0..700 => {
            for _ in 0..rng.u8(1..4) {
                let ask = state.draw_ask(account, rng);
                world.tasks.spawn(traffic::request(Arc::clone(world), ask));
            }
        }
        700..760 => {
            state.instances[instance].freeze(true);
            state.oracle.tell(format_args!("host-{instance} freezes for {while_ms:?}"));
            world.later(while_ms, move |state, _| state.instances[instance].freeze(false));
        }
        760..790 => {
            state.instances[instance].cut_off(true);
            state.oracle.tell(format_args!("host-{instance} is cut off for {while_ms:?}"));
            world.later(while_ms, move |state, _| state.instances[instance].cut_off(false));
        }
        790..830 => {
            state.oracle.tell(format_args!("host-{instance} gives wx{account} up for {while_ms:?}"));
            state.instances[instance].order(account, Event::Resign, now);
            world.later(while_ms, move |state, now| {
                state.instances[instance].order(account, Event::Stand, now)
            });
        }
        830..860 => {
            state.oracle.tell(format_args!("somebody deletes the holder of wx{account}"));
            state.service.delete(account, &[], true, false, now);
        }
        860..880 => {
            let first = state.service.tree(account).and_then(|tree| tree.candidates.keys().next().copied());
            state.oracle.tell(format_args!("somebody deletes candidate {first:?} of wx{account}"));
            state.service.delete(account, first.as_slice(), false, false, now);
        }
        880..910 => {
            state.oracle.tell(format_args!("somebody deletes wx{account}"));
            state.service.fell(account, now);
        }
        910..950 => {
            state.oracle.tell(format_args!("the gateway's link breaks"));
            if let Some(line) = state.line.upgrade() {
                line.cut("cut");
            }
        }
        950..960 => {
            state.oracle.tell(format_args!("the gateway's link falls silent"));
            if let Some(line) = state.line.upgrade() {
                line.fall_silent();
            }
        }
        960..985 => {
            state.weather = draw_weather(rng);
            let weather = state.weather;
            state.oracle.tell(format_args!("{weather:?}"));
        }
        985..995 => {
            state.oracle.tell(format_args!("nobody can connect for {while_ms:?}"));
            state.weather.away = true;
            if let Some(line) = state.line.upgrade() {
                line.cut("away");
            }
            world.later(while_ms, |state, _| state.weather.away = false);
        }
        _ if world.gateway.registry.accept_history() => {
            state.oracle.tell(format_args!("the new history is accepted"))
        }
        _ if may_restore => state.restore(rng, world, now),
        _ => {}
    }
    state.settle(now);
}

impl State {
    fn draw_ask(&mut self, account: usize, rng: &mut fastrand::Rng) -> Ask {
        self.last_ask += 1;
        let millis = Duration::from_millis;
        let service = match rng.u8(..10) {
            0 => 60_000,
            1..4 => rng.u64(..3000),
            _ => rng.u64(..60),
        };
        Ask {
            number: self.last_ask,
            account,
            claim: self.draw_claim(account, rng),
            body: millis(if rng.bool() { 0 } else { rng.u64(..100) }),
            leaves: (rng.u8(..5) == 0).then(|| millis(rng.u64(..600))),
            patience: if rng.bool() { millis(rng.u64(..500)) } else { LONGEST_PATIENCE.mul_f64(rng.f64()) },
            connect: millis(if rng.bool() { 0 } else { rng.u64(..50) }),
            idle_close: rng.u8(..8) == 0,
            service: millis(service),
            fails: rng.u8(..10) == 0,
            close: millis(rng.u64(..50)),
        }
    }

    /// A token: of whoever leads or believes to, of whoever led, of whoever stands by, or none of these.
    fn draw_claim(&self, account: usize, rng: &mut fastrand::Rng) -> Claim {
        let led = &self.tokens[account];
        let leading: Vec<Claim> =
            self.instances.iter().filter_map(|instance| instance.token(account)).collect();
        let pick =
            |rng: &mut fastrand::Rng, from: &[Claim]| from.get(rng.usize(..from.len().max(1))).cloned();
        let candidates: Vec<Claim> = self
            .service
            .tree(account)
            .map(|tree| {
                tree.candidates.iter().map(|(number, session)| instance::candidate(*number, *session))
            })
            .into_iter()
            .flatten()
            .collect();
        let drawn = match rng.u8(..10) {
            0..5 => pick(rng, &leading).or_else(|| pick(rng, led)),
            5..8 => pick(rng, &led[led.len().saturating_sub(3)..]),
            _ => pick(rng, &candidates),
        };
        let mut claim = drawn.unwrap_or_else(|| instance::candidate(rng.u64(..3), rng.i64(1..5)));
        if rng.bool() {
            claim.instance = None;
        }
        if rng.u8(..3) > 0 {
            claim.epoch = None;
        }
        match rng.u8(..40) {
            0 => claim.seq.0 += 1,
            1 => claim.seq.0 = claim.seq.0.saturating_sub(1),
            2 => claim.session = SessionId(claim.session.0 + 1),
            3 => claim.instance = Some("host-x".to_owned()),
            4 => claim.epoch = claim.epoch.map(|epoch| Epoch(epoch.0 + 1)),
            _ => {}
        }
        claim
    }

    /// The service loses its newest commits. All sessions are over; what they left ends after a while.
    fn restore(&mut self, rng: &mut fastrand::Rng, world: &Arc<World>, now: Moment) {
        let commits = self.service.log().len();
        self.settle(now);
        self.service.restore(commits.saturating_sub(rng.usize(1..20)));
        self.announced = self.service.log().len();
        self.oracle.restored();
        for account in 0..self.service.names.len() {
            self.oracle.stands(account, self.service.tree(account));
        }
        if let Some(line) = self.line.upgrade() {
            line.cut("restored");
        }
        let old = self.sessions;
        for instance in &mut self.instances {
            instance.end_session();
        }
        world.later(Duration::from_millis(rng.u64(..1000)), move |state, now| {
            for session in 0..=old {
                state.service.expire(session, now);
            }
        });
    }
}

impl World {
    /// I5, as far as it can be seen from outside at any moment.
    fn check(&self) {
        let mut state = self.state();
        for account in 0..state.service.names.len() {
            let name = state.service.names[account].clone();
            let entry = self.gateway.registry.get(name.as_str());
            let counted = entry.map_or(0, |entry| entry.state().account.gate().in_flight());
            let (least, most) = (state.oracle.under_way(account), state.oracle.permitted(account));
            if !(least..=most).contains(&counted) {
                state.oracle.fail(format_args!(
                    "I5: {counted} permits of {name} are counted; {most} are out, and {least} were sent"
                ));
            }
        }
    }

    /// Everything heals. Then nothing is left of anything (I5, I7), and every account's holder may send.
    async fn come_to_rest(self: &Arc<Self>, rng: &mut fastrand::Rng) {
        {
            let mut state = self.state();
            state.oracle.tell(format_args!("everything heals"));
            state.weather = Weather { way: 1, lag: 0, away: false };
            for instance in &mut state.instances {
                instance.freeze(false);
                instance.cut_off(false);
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.gateway.registry.accept_history();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let mut last = Vec::new();
        {
            let mut state = self.state();
            for account in 0..state.service.names.len() {
                let Some(held) = state.service.holder(account) else {
                    state
                        .oracle
                        .fail(format_args!("nobody leads wx{account}, and nothing is wrong any more"));
                    continue;
                };
                let mut ask = state.draw_ask(account, rng);
                ask.claim = instance::candidate(held.seq, held.session);
                (ask.leaves, ask.service, ask.fails) = (None, Duration::ZERO, false);
                last.push(ask.number);
                self.tasks.spawn(traffic::request(Arc::clone(self), ask));
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.check();
        let mut state = self.state();
        for number in last {
            if !state.oracle.was_answered(number) {
                state
                    .oracle
                    .fail(format_args!("{number} is the holder's, nothing is wrong, and it is not answered"));
            }
        }
        let (open, parked) = (state.oracle.open(), self.gateway.registry.places.taken());
        let busy = self.gateway.registry.entries().iter().any(|entry| entry.state().account.gate().is_busy());
        if open > 0 || parked > 0 || busy {
            state
                .oracle
                .fail(format_args!("I4, I5: at rest {open} are open, {parked} parked, permits left: {busy}"));
        }
        self.check_books(&mut state.oracle);
    }

    /// I7: whatever was received was admitted, refused or withdrawn.
    fn check_books(&self, oracle: &mut Oracle) {
        let text = self.gateway.registry.telemetry.render();
        let sum = |name: &str| -> u64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let (received, judged) = (sum("fencegate_requests_received_total"), sum("fencegate_requests_total{"));
        let reading = self.gateway.being_read();
        if received == 0 || received != judged || reading > 0 {
            oracle.fail(format_args!(
                "I7: {received} were received, {judged} judged, {reading} are being read"
            ));
        }
    }
}

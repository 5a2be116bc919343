//! What all requests share: the accounts, the routes, the limits; and what the requests of one worker share.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use slab::Slab;

use super::admission::Rules;
use super::body::BodyBounds;
use super::entry::Send;
use super::parking::Bounds;
use super::proofs::Relay;
use super::registry::Registry;
use super::status::Status;
use crate::config::{self, Config, Limits, Protocol};
use crate::forward::memory::Memory;
use crate::forward::pool::Pool;
use crate::forward::target::{Target, Targets};
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use crate::tls::{Acceptor, SenderTls, TlsError};

/// A route, ready to be used.
#[derive(Debug)]
pub struct Route {
    /// As it was configured.
    pub config: config::Route,
    /// Its sender.
    pub targets: Targets,
    /// What a body may be.
    pub body_bounds: BodyBounds,
    /// What bounds its answers that are read ahead.
    pub memory: Memory,
    in_flight: Arc<AtomicUsize>,
    most_in_flight: usize,
    pub(super) buffered: Arc<AtomicU64>,
}

/// What all workers share.
#[derive(Debug)]
pub struct Gateway {
    /// The accounts.
    pub registry: Arc<Registry>,
    /// Whether the process is stopping.
    pub status: Arc<Status>,
    /// The routes, in order.
    pub routes: Vec<Arc<Route>>,
    /// How requests are judged.
    pub rules: Rules,
    /// What bounds requests and connections.
    pub limits: Limits,
    /// Who may send. Empty: whoever can reach the listener.
    pub keys: Vec<Key>,
    /// How callers are spoken to; `None`: without TLS.
    pub tls: Option<Acceptor>,
    /// How senders are spoken to over TLS.
    pub senders: Vec<Arc<SenderTls>>,
    pub(super) being_read: AtomicUsize,
    pub(super) buffered: Arc<AtomicU64>,
    pub(super) unknown_buffered: Arc<AtomicU64>,
    in_flight: Arc<AtomicUsize>,
    /// Open connections.
    pub(super) connections: AtomicUsize,
}

impl Gateway {
    /// A gateway after `config`.
    ///
    /// # Errors
    /// What is wrong with the certificates for the way to a sender.
    pub fn new(
        config: &Config,
        registry: Arc<Registry>,
        status: Arc<Status>,
        tls: Option<Acceptor>,
    ) -> Result<Self, TlsError> {
        let limits = config.limits.clone();
        let several = config.routes.len() > 1;
        let mut senders = Senders::default();
        let targets: Vec<_> =
            config.routes.iter().map(|route| senders.of(route)).collect::<Result<_, _>>()?;
        let route = |(route, targets): (&config::Route, Targets)| {
            let share = if several { limits.max_in_flight.div_ceil(4) } else { limits.max_in_flight };
            Arc::new(Route {
                targets,
                body_bounds: BodyBounds {
                    buffer: route.buffer,
                    most: route.max_body,
                    pause: limits.body_read_timeout,
                },
                memory: Memory::new(limits.max_buffered.div_ceil(4)),
                in_flight: Arc::default(),
                most_in_flight: route.max_in_flight.unwrap_or(share),
                buffered: Arc::default(),
                config: route.clone(),
            })
        };
        Ok(Self {
            routes: config.routes.iter().zip(targets).map(route).collect(),
            rules: Rules {
                max_staleness: config.freshness.max_staleness,
                park_timeout: config.freshness.park_timeout,
                parking: Bounds {
                    most: config.freshness.max_parked,
                    most_per_account: config.freshness.max_parked_per_account,
                },
                most_in_flight_per_account: limits.max_in_flight_per_account,
            },
            limits,
            keys: config.auth.keys.clone(),
            tls,
            senders: senders.tls,
            registry,
            status,
            being_read: AtomicUsize::new(0),
            buffered: Arc::default(),
            unknown_buffered: Arc::default(),
            in_flight: Arc::default(),
            connections: AtomicUsize::new(0),
        })
    }

    /// Sends under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// Requests whose body is being read.
    #[must_use]
    pub fn being_read(&self) -> usize {
        self.being_read.load(SeqCst)
    }

    /// Bytes of bodies that are kept.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.buffered.load(SeqCst)
    }

    /// Room for one more send; `None` where a limit is reached.
    #[must_use]
    pub fn room(&self, route: &Route) -> Option<Room> {
        let room = Room { all: Arc::clone(&self.in_flight), route: Arc::clone(&route.in_flight) };
        // Counted first, judged then: two that come at once never both take the last room.
        let all = room.all.fetch_add(1, SeqCst);
        let own = room.route.fetch_add(1, SeqCst);
        (all < self.limits.max_in_flight && own < route.most_in_flight).then_some(room)
    }
}

/// The addresses of all routes. Those to one sender share its connections, if they speak to it alike.
#[derive(Default)]
struct Senders {
    known: Vec<(config::Upstream, Protocol, Arc<Target>)>,
    tls: Vec<Arc<SenderTls>>,
}

impl Senders {
    fn of(&mut self, route: &config::Route) -> Result<Targets, TlsError> {
        let mut own = Vec::new();
        for upstream in &route.upstreams {
            let alike = |other: &config::Upstream, protocol: &Protocol| {
                other == upstream
                    && protocol.http == route.protocol.http
                    && (!upstream.tls || *protocol == route.protocol)
            };
            if let Some((_, _, target)) =
                self.known.iter().find(|(other, protocol, _)| alike(other, protocol))
            {
                own.push(Arc::clone(target));
                continue;
            }
            let number = self.known.len();
            let target = Target::of(number, upstream, route.protocol.http, || self.tls(&route.protocol))?;
            let target = Arc::new(target);
            self.known.push((upstream.clone(), route.protocol.clone(), Arc::clone(&target)));
            own.push(target);
        }
        let mut own = own.into_iter();
        let first = own.next().ok_or_else(|| TlsError::Unfit("a route without an upstream".to_owned()))?;
        Ok(Targets::new(first, own.collect()))
    }

    fn tls(&mut self, protocol: &Protocol) -> Result<Arc<SenderTls>, TlsError> {
        if let Some(known) = self.tls.iter().find(|known| known.protocol() == protocol) {
            return Ok(Arc::clone(known));
        }
        let tls = SenderTls::load(protocol)?;
        self.tls.push(Arc::clone(&tls));
        Ok(tls)
    }
}

/// Room for one send; given back when dropped.
#[derive(Debug)]
pub struct Room {
    all: Arc<AtomicUsize>,
    route: Arc<AtomicUsize>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(1, SeqCst);
        self.route.fetch_sub(1, SeqCst);
    }
}

/// How often a worker looks at its requests' deadlines: the exactness of the timeouts of bodies and exchanges.
pub(super) const LOOK: Duration = Duration::from_millis(25);

/// One thread of the data plane.
#[derive(Debug)]
pub struct Worker {
    /// What it shares with the others.
    pub gateway: Arc<Gateway>,
    /// Its connections to senders.
    pub pool: Arc<Pool>,
    /// Hands proofs on to its requests.
    pub relay: Relay,
    /// Its requests.
    under_way: Arc<Mutex<UnderWay>>,
}

#[derive(Debug, Default)]
struct UnderWay {
    sends: Slab<Arc<Send>>,
    /// The process has to end: whoever comes now is told at once.
    cut: bool,
}

impl Worker {
    /// A worker without requests; to be made on its thread, inside of its runtime.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>) -> Self {
        let pool = Arc::new(Pool::new(gateway.registry.clock.clone()));
        let relay = Relay::start(&gateway.registry.proofs);
        Self { gateway, pool, relay, under_way: Arc::default() }
    }

    /// Notes a request, so that it can be told when the process has to end.
    pub(super) fn enlist(&self, request_id: HeaderValue) -> Enlisted {
        let send = Arc::new(Send::new(request_id));
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.cut {
            send.shut_down();
        }
        let key = under_way.sends.insert(Arc::clone(&send));
        drop(under_way);
        Enlisted { under_way: Arc::clone(&self.under_way), key, send }
    }

    /// The process has to end: whatever is under way is answered now.
    pub(super) fn cut_all(&self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.cut = true;
        under_way.sends.iter().for_each(|(_, send)| send.shut_down());
    }

    /// Tells requests whose deadline has passed; to be called every [`LOOK`].
    pub(super) fn check_deadlines(&self) {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if !under_way.sends.is_empty() {
            let now = self.gateway.registry.clock.now();
            under_way.sends.iter().for_each(|(_, send)| send.check_deadline(now));
        }
    }

    /// How many requests are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).sends.len()
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Enlisted {
    under_way: Arc<Mutex<UnderWay>>,
    key: usize,
    /// How it is told.
    pub(super) send: Arc<Send>,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).sends.try_remove(self.key);
    }
}

//! `fencegate serve`: puts the rooms together, and takes them down in order.
//!
//! The control plane is the thread that calls [`run`]; the workers are threads of their own, and so are operators and elections.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tracing::{error, info, warn};

use crate::admin::{self, Admin};
use crate::agent::{self, AgentError};
use crate::ballot;
use crate::clock::{Clock, wall_ms};
use crate::config::{
    self, AgentConfig, AgentCoordination, Barrier, Config, Coordination, OnHistoryReset, TlsListener,
    is_local,
};
use crate::descriptors;
use crate::election::Backend;
use crate::election::embedded::{Embedded, StateError};
use crate::election::gateway::GatewaySessions;
use crate::election::zookeeper::{BarrierKind, Settings, ZkSessions, ZooKeeper};
use crate::gateway::follower::{Follower, Pace};
use crate::gateway::registry::Registry;
use crate::gateway::server::{Workers, bind_alone, bind_shared};
use crate::gateway::service::Gateway;
use crate::gateway::status::Status;
use crate::telemetry::{Listener, Telemetry, name};
use crate::tls::{Tls, TlsError};
use crate::web::aside::Aside;
use crate::web::pages::Room;
use crate::web::reload::reload_on_hangup;
use crate::web::server;

/// Why the gateway does not serve.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A listener cannot be bound.
    #[error("cannot listen on {address} ([listen] {key}): {why}")]
    Bind {
        /// Which address.
        address: SocketAddr,
        /// Its key in the configuration.
        key: &'static str,
        /// What the system says.
        why: std::io::Error,
    },
    /// The file of embedded elections cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread or a runtime cannot be made.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// A worker ended that was not told to.
    #[error("a worker ended unexpectedly; see the log")]
    Worker,
}

/// Listeners that are bound and not served yet.
#[derive(Debug)]
pub struct Bound {
    telemetry: Arc<Telemetry>,
    tls: Option<Arc<Tls>>,
    admin: StdListener,
    elections: Option<StdListener>,
    proxies: Vec<StdListener>,
}

impl Bound {
    /// Reads the certificates and binds all listeners, the admin one first and alone: a second gateway by mistake fails
    /// here.
    ///
    /// # Errors
    /// Which address cannot be bound, or what is wrong with the certificates.
    pub fn new(config: &Config, workers: usize) -> Result<Self, ServeError> {
        let (admin, proxy, elections) = (config.listen.admin, config.listen.proxy, config.listen.elections);
        let embedded = matches!(config.coordination, Coordination::Embedded(_));
        let failed = |address, key| move |why| ServeError::Bind { address, key, why };
        Ok(Self {
            telemetry: Arc::new(Telemetry::new()),
            tls: config.listen.tls.as_ref().map(Tls::load).transpose()?,
            admin: bind_alone(admin).map_err(failed(admin, "admin"))?,
            elections: embedded
                .then(|| bind_alone(elections).map_err(failed(elections, "elections")))
                .transpose()?,
            proxies: bind_shared(proxy, workers).map_err(failed(proxy, "proxy"))?,
        })
    }

    /// Where bots send to.
    #[must_use]
    pub fn proxy_address(&self) -> Option<SocketAddr> {
        self.proxies.first()?.local_addr().ok()
    }

    /// Where elections are held, if the gateway keeps them itself.
    #[must_use]
    pub fn elections_address(&self) -> Option<SocketAddr> {
        self.elections.as_ref()?.local_addr().ok()
    }

    /// Where operators look.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.local_addr().ok()
    }
}

/// Serves with the backend that the configuration asks for until `stop` is ready, then drains.
///
/// # Errors
/// What keeps it from serving.
pub async fn serve(config: Config, bound: Bound, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    match config.coordination.clone() {
        Coordination::ZooKeeper(ensemble) => {
            let backend = zookeeper(&config, &ensemble);
            Box::pin(run(config, backend, bound, stop)).await
        }
        Coordination::Embedded(state) => {
            let embedded = Embedded::open(&state, Clock::default())?;
            Box::pin(with_elections(config, embedded, bound, stop)).await
        }
    }
}

/// Serves these elections on their listener, and sends by them, until `stop` is ready. The elections go on until the last
/// send is over.
///
/// # Errors
/// What keeps it from serving.
pub async fn with_elections(
    config: Config,
    embedded: Embedded,
    mut bound: Bound,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let keeping = tokio::spawn(embedded.clone().keep());
    let mut serving = None;
    if let Some(listener) = bound.elections.take() {
        info!("elections on {}", listener.local_addr()?);
        let tls = bound.tls.as_ref().and_then(|tls| tls.acceptor(TlsListener::Elections));
        let keys = config.auth.keys.clone();
        let guarded = !keys.is_empty() || tls.is_some() || !is_local(config.listen.elections);
        let router = ballot::router(embedded.clone(), keys, Room::guarded(guarded));
        let counts = Arc::clone(&bound.telemetry);
        serving = Some(Aside::start("elections", listener, move |listener, closes| {
            let most = descriptors::for_elections();
            server::serve_at_most(most, Listener::Elections, listener, tls, router, counts, closes.wait())
        })?);
    }
    let ended = run(config, embedded, bound, stop).await;
    keeping.abort();
    if let Some(serving) = serving {
        serving.close(Duration::ZERO).await;
    }
    ended
}

fn zookeeper(config: &Config, ensemble: &config::ZooKeeper) -> ZooKeeper {
    let session_timeout = ensemble.session_timeout;
    ZooKeeper::new(Settings {
        connect: ensemble.connect.clone(),
        session_timeout,
        // A silent server is noticed early enough that another one can answer before parked requests have to go.
        connection_timeout: (session_timeout * 2 / 5).min(config.freshness.park_timeout / 2),
        auth: auth(ensemble),
        root: config.election.root.clone(),
        require_candidate: config.election.require_candidate,
        barrier: barrier_kind(config),
    })
}

/// Runs an agent with the elections that its configuration names, until `stop` is ready.
///
/// # Errors
/// What keeps it from serving.
pub async fn agent(
    config: AgentConfig,
    bound: agent::Bound,
    stop: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let instance = &config.agent.instance_id;
    match &config.coordination {
        AgentCoordination::ZooKeeper { service, election } => {
            let settings = Settings {
                connect: service.connect.clone(),
                session_timeout: service.session_timeout,
                connection_timeout: service.session_timeout * 2 / 5,
                auth: auth(service),
                root: election.root.clone(),
                require_candidate: true,
                barrier: BarrierKind::Quorum,
            };
            let sessions = ZkSessions::new(settings, instance);
            agent::run(config, sessions, bound, stop).await
        }
        AgentCoordination::Gateway(elections) => {
            let key = config.agent.gateway_key.as_ref();
            let sessions = GatewaySessions::new(elections, key, instance)?;
            let bound = bound.showing(sessions.tls().cloned());
            agent::run(config, sessions, bound, stop).await
        }
    }
}

fn auth(zookeeper: &config::ZooKeeper) -> Vec<(String, Vec<u8>)> {
    let pair = |auth: &config::ZkAuth| (auth.scheme.clone(), auth.credential.expose().as_bytes().to_vec());
    zookeeper.auth.iter().map(pair).collect()
}

fn barrier_kind(config: &Config) -> BarrierKind {
    match config.freshness.barrier {
        Barrier::Quorum => BarrierKind::Quorum,
        Barrier::Sync => BarrierKind::Sync,
    }
}

/// Serves until `stop` is ready, then drains.
///
/// # Errors
/// What keeps it from serving.
#[allow(clippy::cast_precision_loss, reason = "gauges are floating-point numbers")]
pub async fn run<B: Backend>(
    config: Config,
    backend: B,
    bound: Bound,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let clock = Clock::default();
    let telemetry = Arc::clone(&bound.telemetry);
    let registry = Arc::new(Registry::new(clock, Arc::clone(&telemetry)));
    let status = Arc::new(Status::default());
    let acceptor = |listener| bound.tls.as_ref().and_then(|tls| tls.acceptor(listener));
    let (proxy_tls, admin_tls) = (acceptor(TlsListener::Proxy), acceptor(TlsListener::Admin));
    let gateway = Arc::new(Gateway::new(&config, Arc::clone(&registry), Arc::clone(&status), proxy_tls)?);
    let (proxy, admin_at) = (bound.proxy_address(), bound.admin_address());

    let owned = Arc::clone(&gateway);
    let admin = Arc::new(Admin {
        registry: Arc::clone(&registry),
        status: Arc::clone(&status),
        keys: config.auth.admin_keys.clone(),
        exposed: !is_local(config.listen.admin),
        tls: admin_tls.is_some(),
        backend: backend.name(),
        barrier: barrier_kind(&config).as_str(),
        per_account: config.metrics.per_account,
        max_accounts: config.metrics.max_accounts,
        started_at_ms: wall_ms(),
        gauges: Arc::new(move || {
            vec![
                (name::IN_FLIGHT, owned.in_flight() as f64),
                (name::READING, owned.being_read() as f64),
                (name::BUFFERED, owned.buffered() as f64),
            ]
        }),
    });
    let (router, counts) = (admin::router(admin), Arc::clone(&telemetry));
    let serving_admin = Aside::start("admin", bound.admin, move |listener, closes| async move {
        let upkeep = tokio::spawn(admin::upkeep(Arc::clone(&counts)));
        admin::serve(listener, admin_tls, router, counts, closes.wait()).await;
        upkeep.abort();
    })?;
    let reloading =
        tokio::spawn(reload_on_hangup(bound.tls.clone(), gateway.senders.clone(), Arc::clone(&telemetry)));
    let pace = Pace {
        max_staleness: config.freshness.max_staleness,
        min_barrier_interval: config.freshness.min_barrier_interval,
        barrier_timeout: match &config.coordination {
            Coordination::ZooKeeper(ensemble) => ensemble.session_timeout.max(config.freshness.park_timeout),
            Coordination::Embedded(_) => config.freshness.park_timeout,
        },
        accept_history: config.election.on_history_reset == OnHistoryReset::Accept,
    };
    let following = tokio::spawn(Follower::new(backend, registry, Arc::clone(&status), pace).run());
    let mut workers = Workers::start(&gateway, bound.proxies, config.shutdown.drain)?;
    if let (Some(proxy), Some(admin_at)) = (proxy, admin_at) {
        info!("serving bots on {proxy}, operators on {admin_at}");
    }
    if config.listen.insecure {
        warn!("`insecure = true`: listeners without keys serve whoever can reach them");
    }

    let ended = tokio::select! {
        () = stop => Ok(()),
        () = workers.failed() => Err(ServeError::Worker),
        end = following => {
            error!("the follower ended: {end:?}");
            Err(ServeError::Worker)
        }
    };
    status.stop();
    info!("shutting down: not ready from now on");
    if ended.is_ok() {
        tokio::time::sleep(config.shutdown.delay).await;
        workers.drain().await;
    }
    reloading.abort();
    serving_admin.close(Duration::from_secs(2)).await;
    info!("ended");
    ended
}

//! The agent: a sidecar that takes part in elections for bots in any language, and forwards what they send.
//!
//! Bots POST to it without a token. It forwards only for accounts that it leads, with its token, to the gateway, over the
//! same `forward/` as the gateway's: at most once. In any other role it answers `not_leader`. It judges nothing: what it
//! believes of itself the gateway checks.

mod admin;
mod bots;
mod hooks;
mod ingress;
mod leading;
mod metrics;
mod reply;
mod room;

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use http::HeaderValue;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::{info, warn};

use self::hooks::HookRunner;
use self::metrics::Counts;
use self::room::Rooms;
use crate::clock::Clock;
use crate::config::{self, AgentAccounts, AgentConfig, AgentLimits, TlsListener, is_local};
use crate::election::session::Sessions;
use crate::elector::{Accounts, Elector, Settings};
use crate::forward::memory::Memory;
use crate::forward::pool::Pool;
use crate::forward::target::Target;
use crate::telemetry::{Listener, Telemetry};
use crate::tls::{SenderTls, Tls, TlsError};
use crate::web::pages::Room;
use crate::web::reload::reload_on_hangup;
use crate::web::server::{self, Bounds};

/// After giving everything up, what was sent before may take this much longer than the gateway is given.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Why the agent does not serve.
#[derive(Debug, Error)]
pub enum AgentError {
    /// A listener cannot be bound.
    #[error("cannot listen on {address} ([agent] {key}): {why}")]
    Bind {
        /// Which address.
        address: SocketAddr,
        /// Its key in the configuration.
        key: &'static str,
        /// What the system says.
        why: std::io::Error,
    },
    /// The gateway's certificate cannot be checked, or our own cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A listener cannot be used.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
}

/// Listeners that are bound and not served yet.
#[derive(Debug)]
pub struct Bound {
    tls: Option<Arc<Tls>>,
    /// What is shown elsewhere than at the gateway.
    shown: Option<Arc<SenderTls>>,
    bots: StdListener,
    admin: StdListener,
}

impl Bound {
    /// Reads the certificates and binds both listeners.
    ///
    /// # Errors
    /// Which address cannot be bound, or what is wrong with the certificates.
    pub fn new(config: &AgentConfig) -> Result<Self, AgentError> {
        let bind = |address: SocketAddr, key| {
            let bound = StdListener::bind(address);
            let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            bound.map_err(|why| AgentError::Bind { address, key, why })
        };
        Ok(Self {
            tls: config.agent.tls.as_ref().map(Tls::load).transpose()?,
            shown: None,
            admin: bind(config.agent.admin, "admin")?,
            bots: bind(config.agent.listen, "listen")?,
        })
    }

    /// The same, and these certificates are read again on SIGHUP as well.
    #[must_use]
    pub fn showing(self, shown: Option<Arc<SenderTls>>) -> Self {
        Self { shown, ..self }
    }
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Agent {
    elector: Elector,
    routes: Vec<config::Route>,
    limits: AgentLimits,
    pool: Arc<Pool>,
    target: Arc<Target>,
    key: Option<HeaderValue>,
    memory: Memory,
    rooms: Rooms,
    counts: Arc<Counts>,
    telemetry: Arc<Telemetry>,
    stopping: AtomicBool,
}

impl Agent {
    fn new(config: &AgentConfig, elector: Elector, clock: Clock) -> Result<Self, TlsError> {
        let AgentConfig { agent, routes, limits, .. } = config;
        let key = agent.gateway_key.as_ref().and_then(|key| {
            let mut key = HeaderValue::from_str(key.expose()).ok()?;
            key.set_sensitive(true);
            Some(key)
        });
        Ok(Self {
            elector,
            routes: routes.clone(),
            limits: limits.clone(),
            pool: Arc::new(Pool::new(clock)),
            target: Arc::new(Target::of(0, &agent.gateway, agent.protocol.http, || {
                SenderTls::load(&agent.protocol)
            })?),
            key,
            memory: Memory::new(limits.max_buffered.div_ceil(4)),
            rooms: Rooms::new(limits, routes),
            counts: Arc::default(),
            telemetry: Arc::new(Telemetry::new()),
            stopping: AtomicBool::new(false),
        })
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }
}

/// Takes part and forwards until `stop` is ready; then gives everything up and ends what was begun.
///
/// # Errors
/// What keeps it from serving.
pub async fn run<S: Sessions + Clone>(
    config: AgentConfig,
    sessions: S,
    bound: Bound,
    stop: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let (bots, admin_listener) = (TcpListener::from_std(bound.bots)?, TcpListener::from_std(bound.admin)?);
    let (bots_at, admin_at) = (bots.local_addr()?, admin_listener.local_addr()?);
    let accounts = match &config.agent.accounts {
        AgentAccounts::All => Accounts::All,
        AgentAccounts::These(names) => Accounts::These(names.clone()),
    };
    let settings = Settings::new(&config.agent.instance_id, accounts);
    let clock = settings.clock.clone();
    let elector = Elector::start(sessions, settings);
    let agent = Arc::new(Agent::new(&config, elector.clone(), clock)?);
    let hooks = HookRunner::start(config.hooks, elector.clone(), Arc::clone(&agent.counts));

    let (close_admin, admin_closes) = oneshot::channel::<()>();
    let acceptor = |listener| bound.tls.as_ref().and_then(|tls| tls.acceptor(listener));
    let (bots_tls, admin_tls) = (acceptor(TlsListener::Bots), acceptor(TlsListener::Admin));
    let to_pages = Room::guarded(admin_tls.is_some() || !is_local(config.agent.admin));
    let serving_admin = tokio::spawn(server::serve(
        admin_listener,
        admin_tls,
        admin::router(Arc::clone(&agent), to_pages),
        Arc::clone(&agent.telemetry),
        async move { drop(admin_closes.await) },
    ));
    let (close_bots, bots_close) = oneshot::channel::<()>();
    let bounds =
        Bounds { most: config.limits.max_connections, last_words: config.agent.gateway_timeout + LAST_WORDS };
    let own = Arc::clone(&agent);
    let serving_bots = tokio::spawn(async move {
        let telemetry = Arc::clone(&own.telemetry);
        let closing = async move { drop(bots_close.await) };
        server::accept(bounds, bots, &telemetry, Listener::Proxy, closing, |stream, peer, closing| {
            bots::converse(Arc::clone(&own), bots_tls.clone(), stream, peer.ip(), closing)
        })
        .await;
    });
    let sweeping = tokio::spawn(sweep(Arc::clone(&agent.pool)));
    let shown = agent.target.tls.iter().map(|(tls, _)| Arc::clone(tls)).chain(bound.shown).collect();
    let reloading = tokio::spawn(reload_on_hangup(bound.tls.clone(), shown, Arc::clone(&agent.telemetry)));
    let instance = &config.agent.instance_id;
    info!("serving bots on {bots_at}, operators on {admin_at}, as instance {}", instance.escape_debug());

    stop.await;
    info!("shutting down: giving everything up");
    agent.stopping.store(true, SeqCst);
    elector.stop().await;
    let _ = close_bots.send(());
    if serving_bots.await.is_err() {
        warn!("the listener for bots ended unexpectedly");
    }
    hooks.finish().await;
    sweeping.abort();
    reloading.abort();
    let _ = close_admin.send(());
    let _ = tokio::time::timeout(Duration::from_secs(2), serving_admin).await;
    info!("ended");
    Ok(())
}

/// Closes connections to the gateway that were idle for too long, for ever.
async fn sweep(pool: Arc<Pool>) {
    let mut due = tokio::time::interval(Duration::from_secs(1));
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        pool.sweep();
    }
}

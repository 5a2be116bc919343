//! Certificates that are read again when the process is told to.
//!
//! It closes no connection.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::telemetry::Telemetry;
use crate::tls::{self, SenderTls, Tls};

/// Reads the certificates again on each SIGHUP, for ever. Bad ones change nothing but the log and a counter.
pub async fn reload_on_hangup(
    listeners: Option<Arc<Tls>>,
    senders: Vec<Arc<SenderTls>>,
    telemetry: Arc<Telemetry>,
) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => return warn!("cannot listen for SIGHUP: {error}"),
    };
    while hangups.recv().await.is_some() {
        if listeners.is_none() && senders.is_empty() {
            info!("SIGHUP: there are no certificates to read again");
            continue;
        }
        let read = tls::reload(listeners.as_deref(), &senders);
        telemetry.certificate_reload(read.is_err());
        match read {
            Ok(()) => info!("SIGHUP: the certificates are read again; new connections get them"),
            Err(error) => error!("SIGHUP: the certificates stay as they were: {error}"),
        }
    }
}

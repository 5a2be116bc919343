//! One connection of a bot: HTTP/1.1, over TLS where the agent has certificates, with hyper's own deadlines.
//!
//! Carries requests to [`ingress`]. It reads no request itself.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::service::service_fn;
use tokio::net::TcpStream;
use tracing::debug;

use super::{Agent, ingress};
use crate::tls::Acceptor;
use crate::web::server::{Closing, Manners, prepare, shake_hands, speak};

/// Serves a connection to its end. When the listener closes, what is under way is answered and nothing more is read.
pub(super) async fn converse(
    agent: Arc<Agent>,
    tls: Option<Acceptor>,
    stream: TcpStream,
    peer: IpAddr,
    closing: Closing,
) {
    if let Err(why) = prepare(&stream) {
        debug!("a bot's connection keeps its defaults: {why}");
    }
    let idle = agent.limits.idle_timeout;
    let manners = Manners { patience: idle, most_head: 2 * agent.limits.max_header_bytes, half_close: true };
    let telemetry = Arc::clone(&agent.telemetry);
    let service = service_fn(move |request| {
        let served = ingress::serve(Arc::clone(&agent), peer, request);
        async move { Ok::<_, Infallible>(served.await) }
    });
    let Some(tls) = tls else { return speak(stream, service, manners, closing).await };
    if let Some(stream) = shake_hands(&tls, stream, idle, &telemetry, closing.clone()).await {
        Box::pin(speak(stream, service, manners, closing)).await;
    }
}

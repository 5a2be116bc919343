//! One connection of a bot: HTTP/1.1, with hyper's own deadlines.
//!
//! Carries requests to [`ingress`]. It reads no request itself.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::service::service_fn;
use tokio::net::TcpStream;
use tracing::debug;

use super::{Agent, ingress};
use crate::web::server::{Closing, prepare, speak};

/// Serves a connection to its end. When the listener closes, what is under way is answered and nothing more is read.
pub(super) async fn converse(agent: Arc<Agent>, stream: TcpStream, peer: IpAddr, closing: Closing) {
    if let Err(why) = prepare(&stream) {
        debug!("a bot's connection keeps its defaults: {why}");
    }
    let idle = agent.limits.idle_timeout;
    let service = service_fn(move |request| {
        let served = ingress::serve(Arc::clone(&agent), peer, request);
        async move { Ok::<_, Infallible>(served.await) }
    });
    speak(stream, service, idle, true, closing).await;
}

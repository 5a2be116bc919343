//! One connection of a bot: HTTP/1.1, with hyper's own deadlines.
//!
//! Carries requests to [`ingress`]. It reads no request itself.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tracing::debug;

use super::{Agent, ingress};
use crate::web::server::{Closing, prepare};

/// Serves a connection to its end. When the listener closes, what is under way is answered and nothing more is read.
pub(super) async fn converse(agent: Arc<Agent>, stream: TcpStream, peer: IpAddr, mut closing: Closing) {
    if let Err(why) = prepare(&stream) {
        debug!("a bot's connection keeps its defaults: {why}");
    }
    let idle = agent.limits.idle_timeout;
    let service = service_fn(move |request| {
        let served = ingress::serve(Arc::clone(&agent), peer, request);
        async move { Ok::<_, Infallible>(served.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = closing.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        debug!("a bot's connection ended early: {why}");
    }
}

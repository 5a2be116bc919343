//! The sender of the demo: says yes to everything, and remembers what it was given.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::routing::any;
use tokio::net::TcpListener;

/// How many texts it remembers: the story's; of the traffic that follows none is asked for.
const MOST: usize = 1000;

/// The texts that were sent, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded(Arc<Mutex<Vec<String>>>);

impl Recorded {
    /// How many texts that begin so came more than once.
    pub(super) fn doubles(&self, prefix: &str) -> usize {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own: Vec<_> = texts.iter().filter(|text| text.starts_with(prefix)).collect();
        let all = own.len();
        own.sort_unstable();
        own.dedup();
        all - own.len()
    }
}

/// Serves on a port of the system's choice as long as the runtime lives.
pub(super) async fn start() -> std::io::Result<(SocketAddr, Recorded)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let recorded = Recorded::default();
    let record = recorded.clone();
    let router = Router::new().fallback(any(move |body: String| async move {
        let mut texts = record.0.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() < MOST {
            texts.push(body);
        }
        "{\"sent\":true}\n"
    }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((at, recorded))
}

//! The instance's side of elections that a gateway keeps itself: over HTTP, to its elections' listener.
//!
//! A session is a lease that is renewed by its secret. One connection tells what happens, a few others carry calls, and
//! renewals wait for none of them. It decides nothing, repeats nothing that may have been sent, and never shows a secret.

mod answer;
mod client;
mod desk;
mod session;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use serde_json::json;

use self::answer::{Begun, refused};
use self::client::{Ask, Client, Place};
pub use self::session::GatewaySession;
use super::BackendError;
use super::session::Sessions;
use crate::config::{Endpoint, GatewayElections, Secret};
use crate::tls::{SenderTls, TlsError};

/// Opens sessions of one instance at a gateway.
#[derive(Clone)]
pub struct GatewaySessions {
    place: Place,
    session_timeout: Duration,
    instance: Arc<str>,
}

impl std::fmt::Debug for GatewaySessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewaySessions").field("at", &self.place.url()).finish_non_exhaustive()
    }
}

impl GatewaySessions {
    /// For the instance with this id. `key` is what a gateway that wants keys is shown.
    ///
    /// # Errors
    /// What is wrong with a file of certificates.
    pub fn new(elections: &GatewayElections, key: Option<&Secret>, instance: &str) -> Result<Self, TlsError> {
        let GatewayElections { elections: at, protocol, session_timeout } = elections;
        let tls = match &at.endpoint {
            Endpoint::Tcp(host, _) if at.tls => {
                let tls = SenderTls::load(protocol)?;
                let name = tls.name(host)?;
                Some((tls, name))
            }
            Endpoint::Tcp(..) | Endpoint::Unix(_) => None,
        };
        let key = key.and_then(|key| {
            let mut key = HeaderValue::from_str(key.expose()).ok()?;
            key.set_sensitive(true);
            Some(key)
        });
        let place = Place { at: at.clone(), tls, key };
        Ok(Self { place, session_timeout: *session_timeout, instance: instance.into() })
    }

    /// What is shown to the gateway, and trusted of it.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<SenderTls>> {
        self.place.tls.as_ref().map(|(tls, _)| tls)
    }
}

impl Sessions for GatewaySessions {
    type Session = GatewaySession;

    async fn open(&mut self) -> Result<GatewaySession, BackendError> {
        let client = Client::new(self.place.clone());
        let what = format!("POST {}/v1/sessions", self.place.url());
        let ttl = format!("{}ms", self.session_timeout.as_millis());
        let wish = json!({ "instance_id": &*self.instance, "ttl": ttl }).to_string();
        let ask = Ask {
            method: Method::POST,
            path: "/v1/sessions".to_owned(),
            secret: None,
            body: Bytes::from(wish),
        };
        let (status, body) = within(self.session_timeout, client.ask(&ask)).await?;
        if status != StatusCode::CREATED {
            return Err(refused(&what, status, &body));
        }
        GatewaySession::open(client, Begun::read(&what, &body)?, Arc::clone(&self.instance)).await
    }
}

/// The same, for as long as it helps.
async fn within<T>(
    patience: Duration,
    call: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let late = || BackendError::Lost(format!("no answer within {} ms", patience.as_millis()));
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| Err(late()))
}

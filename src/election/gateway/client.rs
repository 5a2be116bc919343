//! HTTP/1.1 to the elections' listener of one gateway: one request, one answer, both bounded.
//!
//! It repeats nothing that a byte may have been written of, and never shows a secret. It knows no elections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::{Endpoint, Upstream};
use crate::election::BackendError;
use crate::key::HEADER;
use crate::tls::SenderTls;

/// How many idle connections are kept.
const MOST_IDLE: usize = 8;

/// The names of 100,000 accounts with the longest names are shorter.
const LONGEST_ANSWER: usize = 16 << 20;
const LONGEST_REFUSAL: usize = 64 << 10;

/// Where the listener is, and how it is spoken to.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) at: Upstream,
    pub(super) tls: Option<(Arc<SenderTls>, ServerName<'static>)>,
    /// What a gateway that wants keys is shown.
    pub(super) key: Option<HeaderValue>,
}

impl Place {
    /// As an operator knows it.
    pub(super) fn url(&self) -> String {
        format!("http{}://{}", if self.at.tls { "s" } else { "" }, self.at.authority)
    }

    /// It cannot be reached, or an answer was broken off.
    fn lost(&self, why: impl std::fmt::Display) -> BackendError {
        BackendError::Lost(format!(
            "{} ([coordination] elections) does not answer: {why}; is the gateway running, with [listen] elections there?",
            self.url()
        ))
    }
}

/// One request.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) secret: Option<HeaderValue>,
    pub(super) body: Bytes,
}

/// The connections of one session.
pub(super) struct Client {
    place: Place,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    pub(super) fn new(place: Place) -> Self {
        Self { place, idle: Mutex::default() }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Asks, and reads the answer whole. It waits for it as long as it takes: bound it. Dropping the future closes the
    /// connection; what was asked may be done all the same.
    ///
    /// # Errors
    /// [`BackendError::Lost`].
    pub(super) async fn ask(&self, ask: &Ask) -> Result<(StatusCode, Bytes), BackendError> {
        let (sender, answer) = self.send(ask, true).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|why| self.place.lost(why))?.to_bytes();
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE {
            idle.push(sender);
        }
        Ok((status, body))
    }

    /// Asks on a connection of its own for an answer that has no end.
    ///
    /// # Errors
    /// [`BackendError::Lost`].
    pub(super) async fn listen(&self, ask: &Ask) -> Result<(StatusCode, Incoming), BackendError> {
        let (_, answer) = self.send(ask, false).await?;
        Ok((answer.status(), answer.into_body()))
    }

    /// What an answer without an end says instead, at most so much of it.
    ///
    /// # Errors
    /// [`BackendError::Lost`].
    pub(super) async fn refusal(&self, body: Incoming) -> Result<Bytes, BackendError> {
        let body = Limited::new(body, LONGEST_REFUSAL).collect().await;
        Ok(body.map_err(|why| self.place.lost(why))?.to_bytes())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Full<Bytes>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(
        &self,
        ask: &Ask,
        pooled: bool,
    ) -> Result<(SendRequest<Full<Bytes>>, http::Response<Incoming>), BackendError> {
        let mut request = self.request(ask)?;
        loop {
            let idle = if pooled { self.idle().pop() } else { None };
            let is_new = idle.is_none();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            // Closed while it was idle.
            if sender.ready().await.is_err() && !is_new {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok((sender, answer)),
                Err(mut failed) => match failed.take_message() {
                    // Nothing of it was written. Each idle connection is tried once, then a new one.
                    Some(unsent) if !is_new => request = unsent,
                    Some(_) | None => return Err(self.place.lost(failed.error())),
                },
            }
        }
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, BackendError> {
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(ask.path.as_str())
            .header(header::HOST, self.place.at.authority.as_str());
        if let Some(key) = &self.place.key {
            request = request.header(HEADER, key);
        }
        if let Some(secret) = &ask.secret {
            request = request.header(header::AUTHORIZATION, secret);
        }
        request.body(Full::new(ask.body.clone())).map_err(|why| self.place.lost(why))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, BackendError> {
        let Endpoint::Tcp(host, port) = &self.place.at.endpoint else {
            return Err(self.place.lost("it is a socket"));
        };
        let connected = async {
            // A name is asked for anew each time: connections go where it leads now.
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            match &self.place.tls {
                None => shake_hands(stream).await,
                Some((tls, name)) => shake_hands(Box::pin(tls.handshake(name, stream)).await?).await,
            }
        };
        connected.await.map_err(|why| self.place.lost(why))
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    // Whoever asked learns of a failure by its own answer.
    tokio::spawn(connection);
    Ok(sender)
}

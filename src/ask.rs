//! Commands that ask a running gateway through its admin listener.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::{Listen, TlsListener};
use crate::key::HEADER;
use crate::tls::own_client;

/// Why there is no answer, or none that helps.
#[derive(Debug, Error)]
pub enum AskError {
    /// The admin listener cannot be reached.
    #[error("no gateway answers on {0} ([listen] admin): {1}")]
    Unreachable(SocketAddr, String),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

/// The admin listener that an address without TLS names.
///
/// # Errors
/// What is wrong with the address.
pub fn admin_at(url: &str) -> Result<Listen, String> {
    let form = "it must be http://host:port";
    let authority = url.strip_prefix("http://").ok_or(form)?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let mut found = authority.to_socket_addrs().map_err(|why| format!("{form}: {why}"))?;
    let admin = found.next().ok_or("its host has no address")?;
    Ok(Listen { proxy: admin, admin, elections: admin, insecure: false, tls: None })
}

/// A page of a thousand accounts with the longest names is shorter.
const LONGEST_ANSWER: usize = 8 * 1024 * 1024;

/// Asks the admin listener; its status and its body.
///
/// # Errors
/// Nobody answers within ten seconds.
pub(crate) async fn ask(
    listen: &Listen,
    key: Option<&str>,
    method: Method,
    path: &str,
) -> Result<(http::StatusCode, Bytes), AskError> {
    let admin = listen.admin;
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, admin.to_string());
    if let Some(key) = key {
        request = request.header(HEADER, key);
    }
    let exchange = async {
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(admin).await.map_err(|error| error.to_string())?;
        match listen.tls.as_ref().filter(|tls| tls.is_on(TlsListener::Admin)) {
            None => converse(stream, request).await,
            Some(tls) => {
                let client = own_client(tls).map_err(|error| error.to_string())?;
                let name = ServerName::from(admin.ip());
                let stream = client.connect(name, stream).await.map_err(|error| error.to_string())?;
                converse(stream, request).await
            }
        }
    };
    match tokio::time::timeout(Duration::from_secs(10), exchange).await {
        Ok(answer) => answer.map_err(|why: String| AskError::Unreachable(admin, why)),
        Err(_) => Err(AskError::Unreachable(admin, "no answer within 10 s".to_owned())),
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<(http::StatusCode, Bytes), String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}

/// Accepts ZooKeeper's history as it is now, with a key where the admin listener wants one.
///
/// # Errors
/// There is nothing to accept, or nobody answers.
pub async fn accept_history(listen: &Listen, key: Option<&str>) -> Result<String, AskError> {
    let (status, body) = ask(listen, key, Method::POST, "/v1/history/accept").await?;
    if status.is_success() {
        return Ok("the new history is accepted; all accounts are read again".to_owned());
    }
    Err(refused(status, &body))
}

/// What a refusal says.
pub(crate) fn refused(status: http::StatusCode, body: &[u8]) -> AskError {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem.get("detail").and_then(serde_json::Value::as_str);
    AskError::Refused(detail.map_or_else(|| format!("the gateway answered {status}"), str::to_owned))
}

/// What a running gateway shows of one account; `None` where it does not know it.
///
/// # Errors
/// Nobody answers, or not with an account.
pub async fn account(
    listen: &Listen,
    key: Option<&str>,
    account: &str,
) -> Result<Option<serde_json::Value>, AskError> {
    // A name has nothing that a path would read otherwise.
    let (status, body) = ask(listen, key, Method::GET, &format!("/v1/accounts/{account}")).await?;
    match status {
        http::StatusCode::NOT_FOUND => Ok(None),
        http::StatusCode::OK => serde_json::from_slice(&body)
            .map(Some)
            .map_err(|why| AskError::Refused(format!("the gateway's answer is no account: {why}"))),
        other => Err(AskError::Refused(format!("the gateway answered {other}"))),
    }
}

//! What an instance needs: HTTP, and its part in the elections.
//!
//! As plain as a bot in any language would have it: one request, one connection.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::DemoError;

/// One request; its status and its JSON, if it is any.
pub(super) async fn call(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<(u16, Value), DemoError> {
    let failed = |why: &dyn std::fmt::Display| DemoError::Story(format!("{method} http://{at}{path}: {why}"));
    let stream = TcpStream::connect(at).await?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut requests, connection) = shaken.map_err(|why| failed(&why))?;
    tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(path).header("host", at.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|why| failed(&why))?;
    let answer = requests.send_request(request).await.map_err(|why| failed(&why))?;
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.map_err(|why| failed(&why))?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

/// An instance with a session.
pub(super) struct Instance {
    pub(super) name: &'static str,
    pub(super) session: String,
    elections: SocketAddr,
    bearer: String,
}

impl Instance {
    pub(super) async fn begin(
        elections: SocketAddr,
        name: &'static str,
        ttl: &str,
    ) -> Result<Self, DemoError> {
        let wish = json!({ "instance_id": name, "ttl": ttl }).to_string();
        let (_, told) = call(elections, "POST", "/v1/sessions", &[], wish).await?;
        let text = |key: &str| match told.get(key).and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => Err(DemoError::Story(format!("no session: {told}"))),
        };
        Ok(Self { name, session: text("session")?, elections, bearer: format!("Bearer {}", text("secret")?) })
    }

    async fn ask(&self, method: &str, path: &str) -> Result<(u16, Value), DemoError> {
        call(self.elections, method, path, &[("authorization", &self.bearer)], String::new()).await
    }

    pub(super) async fn renew(&self) -> Result<u16, DemoError> {
        Ok(self.ask("PUT", &format!("/v1/sessions/{}", self.session)).await?.0)
    }

    /// Its number, and whether it holds.
    pub(super) async fn stand(&self, account: &str) -> Result<(u64, bool), DemoError> {
        let (_, told) = self.ask("POST", &format!("/v1/elections/{account}/candidates")).await?;
        let seq = told.get("seq").and_then(Value::as_u64);
        let seq = seq.ok_or_else(|| DemoError::Story(format!("no candidate: {told}")))?;
        Ok((seq, told.get("holder") == Some(&Value::Bool(true))))
    }

    pub(super) async fn resign(&self, account: &str) -> Result<(), DemoError> {
        self.ask("DELETE", &format!("/v1/elections/{account}/candidates")).await.map(drop)
    }

    /// Sends a text with its token: the status and, of a refusal, the code.
    pub(super) async fn send(
        &self,
        to: SocketAddr,
        account: &str,
        seq: u64,
        text: &str,
    ) -> Result<(u16, String), DemoError> {
        let seq = seq.to_string();
        let token = [("x-fencing-seq", seq.as_str()), ("x-fencing-session", self.session.as_str())];
        let (status, told) =
            call(to, "POST", &format!("/wx/{account}/send"), &token, text.to_owned()).await?;
        Ok((status, told.get("code").and_then(Value::as_str).unwrap_or_default().to_owned()))
    }
}

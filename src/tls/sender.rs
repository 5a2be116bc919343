//! TLS on the way to senders: whom we trust, what we show, and the version of HTTP that is agreed on.
//!
//! What is read of files is exchanged as a whole, and connections that are open keep what they began with. It never speaks to
//! a sender whose certificate is not trusted.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{TlsError, bad_file, certificates};
use crate::config::{Http, Protocol};

/// How senders are spoken to over TLS that are spoken to alike.
#[derive(Debug)]
pub struct SenderTls {
    protocol: Protocol,
    current: RwLock<Arc<ClientConfig>>,
}

impl SenderTls {
    /// Reads all files.
    ///
    /// # Errors
    /// What is wrong with which file, or that nobody is trusted.
    pub fn load(protocol: &Protocol) -> Result<Arc<Self>, TlsError> {
        let current = RwLock::new(read(protocol)?);
        Ok(Arc::new(Self { protocol: protocol.clone(), current }))
    }

    /// What it was made of.
    #[must_use]
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// What the files say now; nothing has changed yet.
    pub(super) fn read(&self) -> Result<Arc<ClientConfig>, TlsError> {
        read(&self.protocol)
    }

    pub(super) fn put(&self, read: Arc<ClientConfig>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
    }

    /// The name that the certificate of a host must be for.
    ///
    /// # Errors
    /// The host is no name of one.
    pub fn name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        if let Some(name) = &self.protocol.name {
            return Ok(name.clone());
        }
        ServerName::try_from(host.to_owned()).map_err(|why| TlsError::Unfit(format!("{host}: {why}")))
    }

    /// Shakes hands on a connection. It waits for the sender as long as it takes: bound it.
    ///
    /// # Errors
    /// The sender speaks no TLS, is not trusted or does not trust us, or speaks no HTTP/2 where it has to.
    pub async fn handshake(
        &self,
        name: &ServerName<'static>,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let stream = TlsConnector::from(current).connect(name.clone(), stream).await?;
        if self.protocol.http == Http::Two && !is_http2(&stream) {
            return Err(std::io::Error::other("it does not agree on HTTP/2"));
        }
        Ok(stream)
    }
}

/// Whether a sender has agreed on HTTP/2.
#[must_use]
pub fn is_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

fn read(protocol: &Protocol) -> Result<Arc<ClientConfig>, TlsError> {
    let Protocol { keys, ca, identity, http, .. } = protocol;
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates(keys.ca, path)? {
                roots.add(certificate).map_err(|why| bad_file(keys.ca, path, why))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why =
                    found.errors.first().map_or("install ca-certificates".to_owned(), ToString::to_string);
                return Err(TlsError::Nobody(why));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| TlsError::Nobody(why.to_string()))?
        .with_root_certificates(roots);
    let mut client = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, cert_key)) => {
            let chain = certificates(keys.cert, cert)?;
            let key = PrivateKeyDer::from_pem_file(cert_key)
                .map_err(|why| bad_file(keys.cert_key, cert_key, why))?;
            // A key that belongs to another certificate is refused here.
            builder.with_client_auth_cert(chain, key).map_err(|why| bad_file(keys.cert_key, cert_key, why))?
        }
    };
    let offered: &[&[u8]] = match http {
        Http::One => &[b"http/1.1"],
        Http::Two => &[b"h2"],
        Http::Agreed => &[b"h2", b"http/1.1"],
    };
    client.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(client))
}

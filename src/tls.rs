//! TLS on our listeners: certificates, who may come with which, and the handshake. [`sender`] is the same on the way to
//! senders.
//!
//! What is read of files is exchanged as a whole, or not at all; connections that are open keep what they began with.
//! It never asks for client certificates that nobody named.

pub mod sender;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::{error, info, warn};

pub use self::sender::SenderTls;
use crate::config::{self, TlsListener};
use crate::telemetry::Telemetry;

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or not as what it should be.
    #[error("{key} = {path:?}: {why}")]
    File {
        /// Its key in the configuration.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The files do not fit together.
    #[error("{0}")]
    Unfit(String),
    /// Nobody is trusted.
    #[error("there are no authorities that could vouch for a sender: {0}")]
    Nobody(String),
}

/// The TLS of all listeners.
#[derive(Debug)]
pub struct Tls {
    config: config::Tls,
    current: RwLock<Arc<Current>>,
}

#[derive(Debug)]
struct Current {
    proxy: Arc<ServerConfig>,
    admin: Arc<ServerConfig>,
}

impl Tls {
    /// Reads all files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(config: &config::Tls) -> Result<Arc<Self>, TlsError> {
        let current = RwLock::new(Arc::new(read(config)?));
        Ok(Arc::new(Self { config: config.clone(), current }))
    }

    /// What a listener accepts with; `None`: it speaks without TLS.
    #[must_use]
    pub fn acceptor(self: &Arc<Self>, listener: TlsListener) -> Option<Acceptor> {
        self.config.listeners.contains(&listener).then(|| Acceptor { tls: Arc::clone(self), listener })
    }
}

/// Reads all files again, of listeners and of senders. New connections begin with what they say, open ones go on as they are.
///
/// # Errors
/// What is wrong with which file; then nothing has changed.
pub fn reload(listeners: Option<&Tls>, senders: &[Arc<SenderTls>]) -> Result<(), TlsError> {
    let ours = listeners.map(|tls| read(&tls.config)).transpose()?;
    let theirs = senders.iter().map(|sender| sender.read()).collect::<Result<Vec<_>, _>>()?;
    if let (Some(tls), Some(read)) = (listeners, ours) {
        *tls.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
    }
    for (sender, read) in senders.iter().zip(theirs) {
        sender.put(read);
    }
    Ok(())
}

/// Does so on each SIGHUP, for ever. Bad files change nothing but the log and a counter.
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
        let read = reload(listeners.as_deref(), &senders);
        telemetry.certificate_reload(read.is_err());
        match read {
            Ok(()) => info!("SIGHUP: the certificates are read again; new connections get them"),
            Err(error) => error!("SIGHUP: the certificates stay as they were: {error}"),
        }
    }
}

/// How one listener accepts.
#[derive(Clone, Debug)]
pub struct Acceptor {
    tls: Arc<Tls>,
    listener: TlsListener,
}

impl Acceptor {
    /// Shakes hands on a connection. It waits for the caller as long as it takes: bound it.
    ///
    /// # Errors
    /// The caller speaks no TLS, or not one that is accepted, or has no certificate that may come.
    pub async fn handshake(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let current = Arc::clone(&self.tls.current.read().unwrap_or_else(PoisonError::into_inner));
        let config = match self.listener {
            TlsListener::Proxy => &current.proxy,
            TlsListener::Admin => &current.admin,
        };
        TlsAcceptor::from(Arc::clone(config)).accept(stream).await
    }
}

/// Whether a caller has agreed on HTTP/2.
#[must_use]
pub fn is_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// For our own commands: a client that takes the certificate of `[listen.tls]` and no other, and shows it as its own.
///
/// # Errors
/// What is wrong with which file.
pub fn own_client(config: &config::Tls) -> Result<TlsConnector, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let (chain, key) = identity(config)?;
    let own = Own { certificate: first(&chain)?, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(own));
    let client = match config.client_ca {
        Some(_) => builder.with_client_auth_cert(chain, key).map_err(unfit)?,
        None => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(client)))
}

fn read(config: &config::Tls) -> Result<Current, TlsError> {
    let (chain, key) = identity(config)?;
    let own = first(&chain)?;
    let provider = Arc::new(ring::default_provider());
    let verifier = |names: &[ServerName<'static>], own: Option<CertificateDer<'static>>| {
        let Some(path) = &config.client_ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("[listen.tls] client_ca", path)? {
            roots.add(certificate).map_err(|why| bad_file("[listen.tls] client_ca", path, why))?;
        }
        let known = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|why| bad_file("[listen.tls] client_ca", path, why))?;
        Ok(Some(Arc::new(Named { known, names: names.to_vec(), own })))
    };
    let server = |verifier: Option<Arc<Named>>, protocols: &[&[u8]]| {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(unfit)?;
        server.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        server.ignore_client_order = true;
        // Nobody comes in on a handshake from before a reload.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok::<_, TlsError>(Arc::new(server))
    };
    Ok(Current {
        proxy: server(verifier(&config.client_names, None)?, &[b"h2", b"http/1.1"])?,
        admin: server(verifier(&config.admin_names, Some(own))?, &[b"http/1.1"])?,
    })
}

fn identity(
    config: &config::Tls,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates("[listen.tls] cert", &config.cert)?;
    let key = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|why| bad_file("[listen.tls] key", &config.key, why))?;
    Ok((chain, key))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    match read() {
        Ok(none) if none.is_empty() => Err(bad_file(key, path, "there is no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(why) => Err(bad_file(key, path, why)),
    }
}

fn first(chain: &[CertificateDer<'static>]) -> Result<CertificateDer<'static>, TlsError> {
    chain.first().cloned().ok_or_else(|| TlsError::Unfit("there is no certificate".to_owned()))
}

fn bad_file(key: &'static str, path: &Path, why: impl std::fmt::Display) -> TlsError {
    TlsError::File { key, path: path.to_owned(), why: why.to_string() }
}

fn unfit(why: Error) -> TlsError {
    TlsError::Unfit(format!("[listen.tls]: {why}"))
}

/// Takes certificates of known authorities, if they are for one of certain names.
#[derive(Debug)]
struct Named {
    known: Arc<dyn ClientCertVerifier>,
    /// Empty: any.
    names: Vec<ServerName<'static>>,
    /// Our own commands come with our own certificate.
    own: Option<CertificateDer<'static>>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.known.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.own.as_ref() == Some(end_entity) {
            return Ok(ClientCertVerified::assertion());
        }
        let known = self.known.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = webpki::EndEntityCert::try_from(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let is_for = |name: &ServerName<'_>| certificate.verify_is_valid_for_subject_name(name).is_ok();
        if self.names.is_empty() || self.names.iter().any(is_for) {
            return Ok(known);
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.known.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.known.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.known.supported_verify_schemes()
    }
}

/// Takes one certificate, whoever signed it, and whatever it is called.
#[derive(Debug)]
struct Own {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Own {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

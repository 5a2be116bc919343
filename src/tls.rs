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
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use self::sender::SenderTls;
use crate::config::{self, TlsListener};

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or not as what it should be.
    #[error("{key} = {path:?}: {why}")]
    File {
        /// Its key in the configuration.
        key: String,
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
    acceptors: Vec<(TlsListener, Acceptor)>,
}

impl Tls {
    /// Reads all files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(config: &config::Tls) -> Result<Arc<Self>, TlsError> {
        let acceptors = read(config)?
            .into_iter()
            .map(|(listener, server)| (listener, Acceptor { current: Arc::new(RwLock::new(server)) }));
        Ok(Arc::new(Self { config: config.clone(), acceptors: acceptors.collect() }))
    }

    /// What a listener accepts with; `None`: it speaks without TLS.
    #[must_use]
    pub fn acceptor(&self, listener: TlsListener) -> Option<Acceptor> {
        self.acceptors.iter().find(|(one, _)| *one == listener).map(|(_, acceptor)| acceptor.clone())
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
        for ((_, acceptor), (_, server)) in tls.acceptors.iter().zip(read) {
            *acceptor.current.write().unwrap_or_else(PoisonError::into_inner) = server;
        }
    }
    for (sender, read) in senders.iter().zip(theirs) {
        sender.put(read);
    }
    Ok(())
}

/// How one listener accepts.
#[derive(Clone, Debug)]
pub struct Acceptor {
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Acceptor {
    /// Shakes hands on a connection. It waits for the caller as long as it takes: bound it.
    ///
    /// # Errors
    /// The caller speaks no TLS, or not one that is accepted, or has no certificate that may come.
    pub async fn handshake(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let server = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(server).accept(stream).await
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
        .map_err(|why| unfit(config, why))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(own));
    let client = match config.client_ca {
        Some(_) => builder.with_client_auth_cert(chain, key).map_err(|why| unfit(config, why))?,
        None => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(client)))
}

/// What each listener accepts with, in the order of the configuration.
fn read(config: &config::Tls) -> Result<Vec<(TlsListener, Arc<ServerConfig>)>, TlsError> {
    let (chain, key) = identity(config)?;
    let own = first(&chain)?;
    let provider = Arc::new(ring::default_provider());
    let known = match &config.client_ca {
        None => None,
        Some(path) => Some(authorities(&format!("{} client_ca", config.section), path, &provider)?),
    };
    let server = |listener: TlsListener, names: &[ServerName<'static>]| {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|why| unfit(config, why))?;
        let builder = match &known {
            Some(known) => builder.with_client_cert_verifier(Arc::new(Named {
                known: Arc::clone(known),
                names: names.to_vec(),
                own: (listener == TlsListener::Admin).then(|| own.clone()),
                provider: Arc::clone(&provider),
            })),
            None => builder.with_no_client_auth(),
        };
        let mut server =
            builder.with_single_cert(chain.clone(), key.clone_key()).map_err(|why| unfit(config, why))?;
        let protocols: &[&[u8]] = match listener {
            TlsListener::Proxy => &[b"h2", b"http/1.1"],
            TlsListener::Admin | TlsListener::Elections | TlsListener::Bots => &[b"http/1.1"],
        };
        server.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        server.ignore_client_order = true;
        // Nobody comes in on a handshake from before a reload.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok((listener, Arc::new(server)))
    };
    config.listeners.iter().map(|(listener, names)| server(*listener, names)).collect()
}

fn authorities(
    key: &str,
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(key, path)? {
        roots.add(certificate).map_err(|why| bad_file(key, path, why))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|why| bad_file(key, path, why))
}

fn identity(
    config: &config::Tls,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let section = config.section;
    let chain = certificates(&format!("{section} cert"), &config.cert)?;
    let key = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|why| bad_file(&format!("{section} key"), &config.key, why))?;
    Ok((chain, key))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
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

fn bad_file(key: &str, path: &Path, why: impl std::fmt::Display) -> TlsError {
    TlsError::File { key: key.to_owned(), path: path.to_owned(), why: why.to_string() }
}

fn unfit(config: &config::Tls, why: Error) -> TlsError {
    TlsError::Unfit(format!("{}: {why}", config.section))
}

/// Whatever certificates are taken, signatures are looked at in the one way there is.
macro_rules! signatures {
    () => {
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
    };
}

/// Takes certificates of known authorities, if they are for one of certain names.
#[derive(Debug)]
struct Named {
    known: Arc<dyn ClientCertVerifier>,
    /// Empty: any.
    names: Vec<ServerName<'static>>,
    /// Our own commands come with our own certificate.
    own: Option<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
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
        // Not by a wildcard: many have such a certificate, and one name means one of them.
        let is_for = |name: &ServerName<'_>| {
            if let ServerName::DnsName(dns) = name {
                certificate.valid_dns_names().any(|one| one.eq_ignore_ascii_case(dns.as_ref()))
            } else {
                certificate.verify_is_valid_for_subject_name(name).is_ok()
            }
        };
        if self.names.is_empty() || self.names.iter().any(is_for) {
            return Ok(known);
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    signatures!();
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

    signatures!();
}

//! Mutual TLS between hosts: each host has a certificate, and believes those of one authority.
//!
//! TLS 1.3 only, without tickets and early data: each connection begins with a handshake of its own, so nothing of an
//! earlier one can be replayed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, ServerConfig};
use zbmd_pem::{PemError, authorities, certificates, private_key};

use crate::token::shared_mode;

/// Files of a host's key and certificates, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of this host, and those of its authorities up to the one that all hosts believe. It names the
    /// addresses by which other hosts reach this one.
    pub certificate: PathBuf,
    /// The key of the certificate. Only its owner can use the file.
    pub key: PathBuf,
    /// The authority, or authorities, whose certificates are believed.
    pub ca: PathBuf,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or holds something else.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// Others can read or write the key.
    #[error("{}: its mode is {found:03o}, so others than its owner can use the key; run `chmod 600` on it", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        found: u32,
    },
    /// Certificates of authorities that cannot be used as such.
    #[error("{}: no authority whose certificates could be believed: {why}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate and a key that do not belong together.
    #[error("the certificate {} does not go with the key {}: {why}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong with them.
        why: String,
    },
}

/// A host's certificate, and which ones it believes.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Reads a host's key and certificates.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else, a key that others can use, or a pair that is none.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let roots = Arc::new(authorities(&files.ca)?);
        let chain = certificates(&files.certificate)?;
        let key = own_key(&files.key)?;
        let pair = |error: Error| TlsError::Pair {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            why: error.to_string(),
        };
        let refused = |why: String| TlsError::Authorities {
            path: files.ca.clone(),
            why,
        };

        let provider = Arc::new(ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(pair)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key());
        let mut client = client.map_err(pair)?;
        client.resumption = Resumption::disabled();
        // Records are sealed and opened by the session, which allocates nothing.
        client.enable_secret_extraction = true;

        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = verifier
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(pair)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key);
        let mut server = server.map_err(pair)?;
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self {
            files: Arc::new(files.clone()),
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// What it was read from, for another process of this host.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// How connections are dialed, for programs that speak TLS without wires: benchmarks and tests.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// How connections are accepted, for the same.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// What a certificate must name to be that of an address.
    pub fn name_of(address: IpAddr) -> ServerName<'static> {
        ServerName::from(address)
    }
}

/// The key of a file that nobody but its owner can use.
fn own_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |error: std::io::Error| PemError::no_key(path, error);
    let file = std::fs::File::open(path).map_err(unreadable)?;
    if let Some(found) = shared_mode(&file).map_err(unreadable)? {
        return Err(TlsError::Mode {
            path: path.to_owned(),
            found,
        });
    }
    Ok(private_key(path, file)?)
}

/// What a failure of TLS means to who runs the hosts, and what to do about it.
pub(crate) fn advice(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(refusal) => match refusal {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: give it a new one"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: set the clocks of both hosts"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is not for the address that was dialed: give it one that names this address"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is not of an authority in --tls-ca: give both hosts certificates of one authority"
            }
            _ => "its certificate is refused",
        },
        Error::NoCertificatesPresented => {
            "it shows no certificate: give it --tls-certificate and --tls-key"
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "our certificate has expired, it says: give this host a new one"
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError,
        ) => "it does not believe our certificate: give both hosts certificates of one authority",
        Error::AlertReceived(_) => "it has ended TLS",
        Error::InvalidMessage(_) => {
            "it does not speak TLS: start it with --tls-certificate, --tls-key and --tls-ca, or all hosts with --plain-wires"
        }
        Error::DecryptError => "its bytes were changed on the way",
        _ => "TLS has failed",
    }
}

//! Encryption: the server's certificate, and whose certificates clients have to show.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use zbmd_pem::{PemError, authorities, certificates, private_key};

/// Why there is no encryption.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("{}: the certificates of clients' authorities are not used: {why}", path.display())]
    Authorities { path: PathBuf, why: String },
    #[error("the certificate {} does not go with the key {}: {why}", certificate.display(), key.display())]
    Pair {
        certificate: PathBuf,
        key: PathBuf,
        why: String,
    },
}

/// Files of keys and certificates, as PEM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsFiles<'a> {
    /// The server's, and those of its authorities up to one that clients know.
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
    /// Clients have to show a certificate of one of these.
    pub(crate) client_authorities: Option<&'a Path>,
}

impl TlsFiles<'_> {
    /// How connections are encrypted that speak a protocol, by its name in ALPN.
    ///
    /// # Errors
    /// A file that cannot be read, or holds something else.
    pub(crate) fn config(self, protocol: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions();
        let pair = |error: rustls::Error| TlsError::Pair {
            certificate: self.certificate.to_owned(),
            key: self.key.to_owned(),
            why: error.to_string(),
        };
        let builder = builder.map_err(pair)?;
        let builder = match self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refused = |why: String| TlsError::Authorities {
                    path: path.to_owned(),
                    why,
                };
                let roots = Arc::new(authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| refused(e.to_string()))?)
            }
        };
        let key_file = File::open(self.key).map_err(|error| PemError::no_key(self.key, error))?;
        let key = private_key(self.key, key_file)?;
        let chain = certificates(self.certificate)?;
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    }
}

//! What every command that talks to other hosts has in its command line: the token, and how connections are protected.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::connection::{Credentials, Protection};
use crate::find_ucx;
use crate::tls::{Tls, TlsFiles};
use crate::token::Token;

/// Why a command line gives no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Options that do not go together, or cannot be had here.
    #[error("{0}")]
    Usage(String),
    /// A file of the token, or of TLS, that cannot be used.
    #[error("{0}")]
    File(String),
}

/// A host and where its agent listens, from `NAME=ADDRESS:PORT`.
///
/// # Errors
/// How to write it.
pub fn host(text: &str) -> Result<(String, SocketAddr), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let read = parts.and_then(|(name, address)| Some((name.to_owned(), address.parse().ok()?)));
    read.ok_or_else(|| "write it as NAME=ADDRESS:PORT, such as right=10.0.0.2:7000".to_owned())
}

/// How connections between hosts are protected.
#[derive(Debug, clap::Args)]
pub struct ProtectionArgs {
    /// Protect connections between hosts by TLS: the certificate of this host, as PEM, which names the address by which the
    /// others reach it.
    #[arg(long, value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate: a file that only its owner can read.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// The authority that has signed the certificates of all hosts.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Let connections to other computers be neither encrypted nor signed: the network must be trusted, and all hosts must be
    /// started with this.
    #[arg(long, conflicts_with = "tls_certificate")]
    plain_wires: bool,
    /// Carry tokens between hosts over UCX: RDMA, shared memory or TCP, as UCX_TLS and the computers have it. Connections are plain as with
    /// --plain-wires, and all hosts must be started with this.
    #[arg(long, conflicts_with_all = ["tls_certificate", "plain_wires"])]
    ucx_wires: bool,
}

impl ProtectionArgs {
    fn protection(&self) -> Result<Protection, CredentialsError> {
        let files = match (&self.tls_certificate, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(ca)) => TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                ca: ca.clone(),
            },
            (None, None, None) if self.ucx_wires => {
                find_ucx().map_err(|error| CredentialsError::Usage(error.to_string()))?;
                return Ok(Protection::Ucx);
            }
            (None, None, None) if self.plain_wires => return Ok(Protection::Plain),
            (None, None, None) => return Ok(Protection::Loopback),
            _ => {
                let text =
                    "TLS between hosts needs all of --tls-certificate, --tls-key and --tls-ca";
                return Err(CredentialsError::Usage(text.to_owned()));
            }
        };
        let tls = Tls::read(&files).map_err(|error| CredentialsError::File(error.to_string()))?;
        Ok(Protection::Tls(tls))
    }

    /// Whether connections stay in this computer.
    pub fn is_loopback(&self) -> bool {
        self.tls_certificate.is_none() && !self.plain_wires && !self.ucx_wires
    }

    /// What this host shows to others at these addresses, with the token in a file.
    ///
    /// # Errors
    /// Options that do not go together, addresses that may not be reached without protection, or files that cannot be used.
    pub fn credentials(
        &self,
        token_file: &Path,
        addresses: &mut dyn Iterator<Item = SocketAddr>,
    ) -> Result<Credentials, CredentialsError> {
        let protection = self.protection()?;
        for address in addresses {
            let checked = protection.check(address);
            checked.map_err(|error| CredentialsError::Usage(error.to_string()))?;
        }
        let token = Token::read(token_file);
        Ok(Credentials {
            token: token.map_err(|error| CredentialsError::File(error.to_string()))?,
            protection,
        })
    }
}

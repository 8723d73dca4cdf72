//! Certificates, authorities and keys from PEM files. Knows no protocol: what they are for is its callers' business.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// A file that cannot be read, or holds something else.
    #[error("{}: it has no {what} as PEM: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it must hold.
        what: &'static str,
        /// What was found.
        why: String,
    },
    /// A certificate that cannot be that of an authority.
    #[error("{}: no authority whose certificates could be believed: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl PemError {
    /// A file that has no private key.
    pub fn no_key(path: &Path, why: impl ToString) -> Self {
        Self::Content {
            path: path.to_owned(),
            what: "private key",
            why: why.to_string(),
        }
    }

    fn no_certificate(path: &Path, why: impl ToString) -> Self {
        Self::Content {
            path: path.to_owned(),
            what: "certificate",
            why: why.to_string(),
        }
    }
}

/// The certificates of a file, in its order; at least one.
///
/// # Errors
/// A file that cannot be read, or has none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let unreadable = |error| PemError::no_certificate(path, error);
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let certificates: Result<Vec<_>, _> = found.collect();
    let certificates = certificates.map_err(unreadable)?;
    match certificates.is_empty() {
        true => Err(PemError::no_certificate(path, "there is none in it")),
        false => Ok(certificates),
    }
}

/// The authorities whose certificates a file has.
///
/// # Errors
/// As [`certificates`], or one that cannot be that of an authority.
pub fn authorities(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| PemError::Authority {
                path: path.to_owned(),
                why: error.to_string(),
            })?;
    }
    Ok(roots)
}

/// The private key of an open file, which `path` is the name of.
///
/// # Errors
/// A file that cannot be read, or has none.
pub fn private_key(path: &Path, file: File) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_reader(file).map_err(|error| PemError::no_key(path, error))
}

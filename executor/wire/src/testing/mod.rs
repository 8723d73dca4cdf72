//! Certificates for tests and benchmarks, made on the spot, and a second network namespace for them.

mod namespace;
mod relay;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType, date_time_ymd};

use crate::connection::{Credentials, Protection};
use crate::tls::{Tls, TlsFiles};
use crate::token::Token;

pub use namespace::Namespace;
pub use relay::LongLink;

/// Somebody who signs certificates.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// How a certificate differs from one that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It does not.
    None,
    /// It was valid until 2020.
    Expired,
    /// It names another address.
    OtherAddress,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Another one each time.
    ///
    /// # Panics
    /// The system has no random numbers.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Files of a host at loopback and at `addresses`, in a folder.
    ///
    /// # Panics
    /// The folder cannot be written to.
    pub fn write(&self, folder: &Path, addresses: &[IpAddr], flaw: Flaw) -> TlsFiles {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        let own_address = match flaw {
            Flaw::OtherAddress => Ipv4Addr::new(192, 0, 2, 1),
            _ => Ipv4Addr::LOCALHOST,
        };
        let own_address = [IpAddr::from(own_address)];
        let names = own_address.iter().chain(addresses);
        params.subject_alt_names = names.map(|address| SanType::IpAddress(*address)).collect();
        if flaw == Flaw::Expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");

        let write = |name: &str, text: &str| -> PathBuf {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            let owner_only = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, owner_only).expect("its owner may");
            path
        };
        TlsFiles {
            certificate: write("host.pem", &certificate.pem()),
            key: write("host.key", &key.serialize_pem()),
            ca: write("ca.pem", &self.certificate),
        }
    }

    /// What a host at loopback shows.
    ///
    /// # Panics
    /// There is no folder for temporary files.
    pub fn tls(&self, flaw: Flaw) -> Tls {
        let number = crate::handshake::new_run().expect("random numbers");
        let folder = std::env::temp_dir().join(format!("zbmd-certificates-{number:032x}"));
        std::fs::create_dir(&folder).expect("a folder");
        let tls = Tls::read(&self.write(&folder, &[], flaw)).expect("a pair");
        std::fs::remove_dir_all(&folder).expect("it is ours");
        tls
    }
}

/// What a host with this secret shows, without TLS.
pub fn plain(secret: &[u8]) -> Credentials {
    Credentials {
        token: Token::of(secret),
        protection: Protection::Loopback,
    }
}

//! How a worker that is a process of its own takes part in the network of a run: what it is told, over the socket between it and
//! the process that has started it.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use zbmd_wire::connection::{Credentials, Protection};
use zbmd_wire::find_ucx;
use zbmd_wire::tls::{Tls, TlsFiles};
use zbmd_wire::token::Token;

use crate::transport::switchboard::Switchboard;
use crate::worker::wired::Network;

/// What a worker's process needs to reach those of other hosts, and to be reached.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct NetworkTerms {
    run: u128,
    /// The address of this host that it listens at, at a port of its own.
    listen_at: IpAddr,
    secret: Vec<u8>,
    protection: ProtectionTerms,
}

/// A [`Protection`], with files where that has what was read from them.
#[derive(Clone, Serialize, Deserialize)]
enum ProtectionTerms {
    Tls {
        certificate: OsString,
        key: OsString,
        ca: OsString,
    },
    Loopback,
    Plain,
    Ucx,
}

impl std::fmt::Debug for NetworkTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NetworkTerms(..)")
    }
}

impl NetworkTerms {
    pub(super) fn new(run: u128, listen_at: IpAddr, credentials: &Credentials) -> Self {
        let protection = match &credentials.protection {
            Protection::Tls(tls) => {
                let TlsFiles {
                    certificate,
                    key,
                    ca,
                } = tls.files().clone();
                ProtectionTerms::Tls {
                    certificate: certificate.into(),
                    key: key.into(),
                    ca: ca.into(),
                }
            }
            Protection::Loopback => ProtectionTerms::Loopback,
            Protection::Plain => ProtectionTerms::Plain,
            Protection::Ucx => ProtectionTerms::Ucx,
        };
        Self {
            run,
            listen_at,
            secret: credentials.token.secret().to_vec(),
            protection,
        }
    }

    /// Begins to listen for wires.
    ///
    /// # Errors
    /// What the system says, or files of certificates that cannot be used any more.
    pub(crate) fn open(self) -> Result<Network, String> {
        let protection = match self.protection {
            ProtectionTerms::Tls {
                certificate,
                key,
                ca,
            } => {
                let files = TlsFiles {
                    certificate: certificate.into(),
                    key: key.into(),
                    ca: ca.into(),
                };
                Protection::Tls(Tls::read(&files).map_err(|error| error.to_string())?)
            }
            ProtectionTerms::Loopback => Protection::Loopback,
            ProtectionTerms::Plain => Protection::Plain,
            ProtectionTerms::Ucx => {
                find_ucx().map_err(|error| error.to_string())?;
                Protection::Ucx
            }
        };
        let credentials = Credentials {
            token: Token::of(&self.secret),
            protection,
        };
        let address = SocketAddr::new(self.listen_at, 0);
        let switchboard = Switchboard::listen(address, &credentials, Vec::new())
            .map_err(|error| format!("{address}: {error}"))?;
        // Those of its first epoch may come before that is known here.
        switchboard.begin(self.run, 0, None);
        Ok(Network {
            run: self.run,
            credentials,
            switchboard,
        })
    }
}

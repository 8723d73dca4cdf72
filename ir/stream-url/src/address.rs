//! Addresses of sockets, as URLs have them.

use std::fmt;
use std::str::FromStr;

use super::UrlError;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddress {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for StreamAddress {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let error = || UrlError::Address {
            found: text.to_owned(),
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(error)?,
            None => text.rsplit_once(':').ok_or_else(error)?,
        };
        let is_bracketed = text.starts_with('[');
        let is_wrong =
            |c: char| c.is_whitespace() || "/@[]".contains(c) || (c == ':' && !is_bracketed);
        if host.is_empty() || host.contains(is_wrong) {
            return Err(error());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().map_err(|_| error())?,
        })
    }
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

//! Where spans are sent to: a URL, as OpenTelemetry's programs take it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use hyper::Uri;

/// Collectors listen at this port.
const DEFAULT_PORT: u16 = 4318;
const DEFAULT_PATH: &str = "/v1/traces";

/// Why spans cannot be sent to a URL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error(
        "--otlp {url}: write it as http://127.0.0.1:{DEFAULT_PORT}; traces are sent without encryption"
    )]
    Scheme { url: String },
    #[error("--otlp {url}: {source}")]
    Resolve { url: String, source: io::Error },
    #[error(
        "--otlp {url}: {address} is not a loopback address, and traces are sent without encryption: send them to a collector on this \
         computer, which forwards them, or add --allow-remote if you trust the network between"
    )]
    Remote { url: String, address: SocketAddr },
}

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// Host and port, as the URL has them.
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl Endpoint {
    /// Reads a URL and looks its host up.
    ///
    /// # Errors
    /// Another scheme than `http`, a host that is unknown, or one that is not this computer without `allow_remote`.
    pub(crate) fn of(url: &str, allow_remote: bool) -> Result<Self, EndpointError> {
        let refused = || EndpointError::Scheme {
            url: url.to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http"));
        let host = host.ok_or_else(refused)?;
        let authority = uri.authority().filter(|a| !a.as_str().contains('@'));
        let authority = authority.ok_or_else(refused)?.to_string();

        let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
        let failed = |source| EndpointError::Resolve {
            url: url.to_owned(),
            source,
        };
        let bare_host = host.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = (bare_host, port).to_socket_addrs().map_err(failed)?;
        let unknown = || failed(io::ErrorKind::NotFound.into());
        let address = addresses.next().ok_or_else(unknown)?;
        if !address.ip().is_loopback() && !allow_remote {
            let url = url.to_owned();
            return Err(EndpointError::Remote { url, address });
        }
        // A URL without a path is that of the collector, as its programs have it.
        let path = match uri.path_and_query().map(|path| path.as_str()) {
            None | Some("" | "/") => DEFAULT_PATH,
            Some(path) => path,
        };
        Ok(Self {
            address,
            authority,
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_port_and_a_path() {
        for (url, address, path) in [
            ("http://127.0.0.1:4000", "127.0.0.1:4000", "/v1/traces"),
            ("http://127.0.0.1", "127.0.0.1:4318", "/v1/traces"),
            ("http://127.0.0.1:4000/", "127.0.0.1:4000", "/v1/traces"),
            ("http://[::1]:4000/a/b?c", "[::1]:4000", "/a/b?c"),
        ] {
            let endpoint = Endpoint::of(url, false).expect(url);
            assert_eq!(endpoint.address.to_string(), address, "{url}");
            assert_eq!(endpoint.path, path, "{url}");
        }
    }

    #[test]
    fn what_others_could_read_is_refused() {
        for url in [
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://",
            "http://user:word@127.0.0.1:4318",
            "grpc://127.0.0.1:4317",
        ] {
            let error = Endpoint::of(url, true).expect_err(url);
            assert!(matches!(error, EndpointError::Scheme { .. }), "{error}");
        }
        let remote = "http://192.0.2.1:4318";
        let error = Endpoint::of(remote, false).expect_err(remote);
        assert!(error.to_string().contains("--allow-remote"), "{error}");
        assert!(Endpoint::of(remote, true).is_ok());
    }
}

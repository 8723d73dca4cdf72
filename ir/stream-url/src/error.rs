//! What is wrong with a URL.

/// Why a text is not the URL of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No scheme of that name.
    #[error("unknown scheme `{scheme}`; allowed for {direction}: {allowed}")]
    Scheme {
        /// What stands before the colon.
        scheme: String,
        /// `sources` or `sinks`.
        direction: &'static str,
        /// The schemes there are.
        allowed: String,
    },
    /// What follows the scheme is not an address.
    #[error("`{found}` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000")]
    Address {
        /// What stands there.
        found: String,
    },
    /// A file without a name.
    #[error("`{scheme}:` needs a file: write {scheme}:{example}")]
    NoPath {
        /// The scheme.
        scheme: String,
        /// What may follow it.
        example: &'static str,
    },
    /// A key that this scheme does not have.
    #[error("`{scheme}` has no key `{key}` for {direction}; allowed: {allowed}")]
    UnknownKey {
        /// The scheme.
        scheme: String,
        /// The key.
        key: String,
        /// `sources` or `sinks`.
        direction: &'static str,
        /// The keys there are.
        allowed: String,
    },
    /// A key that is given twice.
    #[error("the key `{key}` is given twice; give it once")]
    Repeated {
        /// The key.
        key: String,
    },
    /// A value that its key does not have.
    #[error("`{key}={value}` is wrong; allowed: {allowed}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A key that cannot be left out here.
    #[error("the key `{key}` is missing: {why}; allowed: {allowed}")]
    Missing {
        /// The key.
        key: &'static str,
        /// Why it is needed.
        why: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
}

//! Bearer tokens that let clients in. The server knows only their hashes.

use std::path::{Path, PathBuf};

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Tokens of a file, at most.
const MAX_TOKENS: usize = 4096;

type Hash = [u8; 32];

/// Why a file of tokens is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokensError {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{}:{line}: a line begins with the SHA-256 hash of a token in 64 hexadecimal digits; `head -c 32 /dev/urandom | base64 -w0` makes a \
         token, and `printf %s TOKEN | sha256sum` such a line",
        path.display()
    )]
    Line { path: PathBuf, line: usize },
    #[error("{}: it has {found} tokens; it must have 1 to {MAX_TOKENS}", path.display())]
    Count { path: PathBuf, found: usize },
}

/// Who may ask: whoever shows one of some tokens, or everybody.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    hashes: Option<Vec<Hash>>,
}

impl Tokens {
    /// Reads a file with a hash in each line; what follows it is for people. Empty lines and those that begin with `#` do not count.
    ///
    /// # Errors
    /// A file that cannot be read, or has another line, or no token.
    pub(crate) fn read(path: &Path) -> Result<Self, TokensError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokensError::Io {
            path: path.to_owned(),
            source,
        })?;
        let mut hashes = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let Some(digits) = line.split_whitespace().next() else {
                continue;
            };
            if digits.starts_with('#') {
                continue;
            }
            hashes.push(hash_of_digits(digits).ok_or_else(|| TokensError::Line {
                path: path.to_owned(),
                line: number,
            })?);
        }
        if !(1..=MAX_TOKENS).contains(&hashes.len()) {
            return Err(TokensError::Count {
                path: path.to_owned(),
                found: hashes.len(),
            });
        }
        Ok(Self {
            hashes: Some(hashes),
        })
    }

    /// Whether a request with these headers is let in.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(hashes) = &self.hashes else {
            return true;
        };
        let Some(token) = bearer_token(headers) else {
            return false;
        };
        let shown: Hash = Sha256::digest(token).into();
        // All of them are compared, so that the time says nothing about which of them it is like.
        let is_known = hashes.iter().fold(subtle::Choice::from(0), |known, hash| {
            known | hash.ct_eq(&shown)
        });
        is_known.into()
    }
}

/// What a client shows, if it shows one thing.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ") && values.next().is_none();
    is_bearer.then_some(token)
}

fn hash_of_digits(digits: &str) -> Option<Hash> {
    let digits = digits.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |place: usize| char::from(pair[place]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    /// As `sha256sum` writes it, of `open sesame` and `hello`.
    const FILE: &str = "# people\n\
        41ef4bb0b23661e66301aac36066912dac037827b4ae63a7b1165a5aa93ed4eb  -\n\n\
        2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824 of the second\n";

    fn tokens(text: &str) -> Result<Tokens, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, text).expect("written");
        Tokens::read(&path).map_err(|error| {
            let shown = error.to_string();
            shown.replace(&path.display().to_string(), "tokens")
        })
    }

    fn headers(values: &[&'static str]) -> HeaderMap {
        let values = values.iter().map(|value| HeaderValue::from_static(value));
        values.map(|value| (AUTHORIZATION, value)).collect()
    }

    #[test]
    fn whoever_shows_a_token_is_let_in() {
        let tokens = tokens(FILE).expect("two tokens");
        for (shown, is_in) in [
            (&["Bearer open sesame"][..], true),
            (&["bearer hello"], true),
            (&["Bearer hello "], false),
            (&["Bearer "], false),
            (&["Basic hello"], false),
            (&["hello"], false),
            (&["Bearer hello", "Bearer hello"], false),
            (&[], false),
        ] {
            assert_eq!(tokens.admit(&headers(shown)), is_in, "{shown:?}");
        }
        assert!(Tokens::default().admit(&headers(&[])), "everybody");
    }

    #[test]
    fn a_file_without_tokens_lets_nobody_start() {
        let count = "tokens: it has 0 tokens; it must have 1 to 4096";
        assert_eq!(tokens("# nobody\n").expect_err("none"), count);
        for wrong in ["hello", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            let error = tokens(&format!("# one\n{wrong}")).expect_err(wrong);
            assert!(error.starts_with("tokens:2: a line begins with"), "{error}");
        }
    }
}

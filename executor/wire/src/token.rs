//! The secret that all hosts of a run share, and codes made with it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ring::hmac;

/// Bytes of a code.
pub(crate) const CODE_BYTES: usize = 32;
/// The shortest secret.
const MIN_BYTES: usize = 16;
/// The longest secret.
const MAX_BYTES: usize = 4096;

/// The secret. Never shown.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a file is no token file.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// What the system says.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Others can read or write it.
    #[error("{}: its mode is {found:03o}, so others than its owner can use it; run `chmod 600` on it", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        found: u32,
    },
    /// Too short to be a secret, or too long.
    #[error("{}: a token of {found} bytes; it must have {MIN_BYTES} to {MAX_BYTES}: `head -c 32 /dev/urandom | base64` makes one", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Without white space at its ends.
        found: usize,
    },
}

/// The permissions of a file if others than its owner can use it.
pub(crate) fn shared_mode(file: &File) -> std::io::Result<Option<u32>> {
    let mode = file.metadata()?.permissions().mode() & 0o777;
    Ok((mode & 0o077 != 0).then_some(mode))
}

impl Token {
    /// The secret in a file, without white space at its ends.
    ///
    /// # Errors
    /// It cannot be read, others than its owner can use it, or it is too short or too long.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        if let Some(found) = shared_mode(&file).map_err(failed)? {
            return Err(TokenError::Mode {
                path: path.to_owned(),
                found,
            });
        }

        let mut bytes = Vec::new();
        let most = MAX_BYTES as u64 + 64;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        let secret = bytes.trim_ascii();
        if !(MIN_BYTES..=MAX_BYTES).contains(&secret.len()) {
            return Err(TokenError::Length {
                path: path.to_owned(),
                found: secret.len(),
            });
        }
        Ok(Self(secret.to_vec()))
    }

    /// A secret from memory.
    pub fn of(secret: &[u8]) -> Self {
        Self(secret.to_vec())
    }

    /// The secret itself, for another process of this host.
    pub fn secret(&self) -> &[u8] {
        &self.0
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// A code over these parts that only who knows the secret can make.
    pub(crate) fn code(&self, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
        let tag = hmac::sign(&self.key(), &parts.concat());
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(tag.as_ref());
        code
    }

    /// Whether a code was made with this secret. Takes the same time wherever the two differ.
    pub(crate) fn is_code(&self, parts: &[&[u8]], code: &[u8]) -> bool {
        hmac::verify(&self.key(), &parts.concat(), code).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, text).expect("written");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, permissions).expect("its owner may");
        (folder, path)
    }

    #[test]
    fn a_secret_is_read_without_white_space() {
        let (_folder, path) = token_file("  0123456789abcdef\n", 0o600);
        let token = Token::read(&path).expect("a token");
        assert_eq!(token.0, b"0123456789abcdef");
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn files_that_others_can_read_and_short_secrets_are_refused() {
        let (_folder, path) = token_file("0123456789abcdef", 0o644);
        let error = Token::read(&path).expect_err("others can read it");
        assert!(error.to_string().contains("its mode is 644"), "{error}");
        let (_folder, path) = token_file("short\n", 0o600);
        let error = Token::read(&path).expect_err("too short");
        assert!(error.to_string().contains("a token of 5 bytes"), "{error}");
    }

    #[test]
    fn a_code_is_of_its_secret_and_its_parts() {
        let token = Token::of(b"a secret of ours");
        let code = token.code(&[b"one", b"two"]);
        assert!(token.is_code(&[b"one", b"two"], &code));
        assert!(!token.is_code(&[b"one", b"too"], &code));
        assert!(!token.is_code(&[b"one", b"two"], &code[..31]));
        assert!(!Token::of(b"another secret..").is_code(&[b"one", b"two"], &code));
    }
}

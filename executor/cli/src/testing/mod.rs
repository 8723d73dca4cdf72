//! Files of tokens and recordings, for those that try them with any bytes.

pub mod recordings;

use std::io::Read;
use std::path::Path;

use zbmd_ir::TokenType;

use crate::io::{FileError, PreparedSink, open_source, port_of};

/// The bytes of the tokens that a file has, `max_bytes` at most; or what a user is told of it.
pub fn read_tokens(path: &Path, token: &TokenType, max_bytes: u64) -> Result<Vec<u8>, String> {
    let source = open_source(path, port_of(token)).map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    match source.take(max_bytes).read_to_end(&mut tokens) {
        Ok(_) => Ok(tokens),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes a file of these tokens; or what a user is told of it.
pub fn write_tokens(path: &Path, token: &TokenType, tokens: &[u8]) -> Result<(), String> {
    let sink = PreparedSink::open(path, port_of(token)).and_then(PreparedSink::begin);
    let mut sink = sink.map_err(|error: FileError| error.to_string())?;
    sink.write_tokens(tokens).map_err(|error| error.to_string())
}

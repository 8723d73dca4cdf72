//! Files of tokens that strangers made: whatever a header or a record says, reading ends in tokens or an error; what was
//! read can be written, and is read again the same.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use zbmd_ir::burst::BurstLayout;
use zbmd_ir::{DType, TokenType};
use zbmd_run::testing::{read_tokens, write_tokens};

/// More is not read: a record may stand for 2^32 empty bursts.
const MAX_BYTES: u64 = 1 << 20;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

fuzz_target!(|bytes: &[u8]| {
    let Some(([format, dtype, shape], content)) = bytes.split_first_chunk() else {
        return;
    };
    let dtype = DType::ALL[usize::from(*dtype) % DType::ALL.len()];
    let dims: &[u32] = match shape % 4 {
        0 => &[],
        1 => &[1],
        2 => &[3],
        _ => &[5, 2],
    };
    match format % 4 {
        0 => samples("npy", &TokenType::new(dtype, dims), content, true),
        // Other formats of samples than the one that is written lose digits.
        1 => samples("wav", &TokenType::new(dtype, dims), content, false),
        format => {
            let dims = if dims.is_empty() { &[300] } else { dims };
            let token = TokenType::burst(dtype, dims);
            match format {
                2 => samples("bursts", &token, content, true),
                _ => bursts(&token, content),
            }
        }
    }
});

fn samples(extension: &str, token: &TokenType, content: &[u8], is_exact: bool) {
    let path = FOLDER.path().join("in").with_extension(extension);
    std::fs::write(&path, content).expect("written");
    let Ok(mut read) = read_tokens(&path, token, MAX_BYTES) else {
        return;
    };

    read.truncate(read.len() - read.len() % token.bytes() as usize);
    if is_exact {
        let again = path.with_file_name("again").with_extension(extension);
        write_and_read(&again, token, &read);
    }
}

fn write_and_read(path: &Path, token: &TokenType, tokens: &[u8]) {
    write_tokens(path, token, tokens).expect("what was read can be written");
    let again = read_tokens(path, token, 2 * MAX_BYTES).expect("our own");
    assert!(again == tokens);
}

/// The bytes of tokens, as a program may give them.
fn bursts(token: &TokenType, content: &[u8]) {
    let layout = BurstLayout::of(token).expect("a burst");
    let whole = content.len() - content.len() % layout.token_bytes;
    let tokens = &content[..whole];
    let path = FOLDER.path().join("given.bursts");
    match layout.with_zeros(tokens) {
        Ok(with_zeros) => {
            assert!(layout.read_all(tokens).eq(layout.read_all(&with_zeros)));
            let has_gaps = |burst: zbmd_ir::burst::Burst<'_>| burst.length == 0 && burst.first != 0;
            // An empty burst is nowhere: files do not keep its index.
            if !layout.read_all(tokens).any(|burst| burst.is_ok_and(has_gaps)) {
                write_and_read(&path, token, &with_zeros);
            }
        }
        Err((index, _)) => {
            assert!(layout.read_all(tokens).nth(index).expect("there").is_err());
            let error = write_tokens(&path, token, tokens).expect_err("too long");
            assert!(error.contains(&format!("token {index} ")), "{error}");
        }
    }
}

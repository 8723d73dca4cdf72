//! Recorded sources as SigMF recordings.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbmd_live::sigmf::{self, Capture, RecordingSettings};

use super::{ExportedSource, file_error};
use crate::CliError;
use crate::flight::{Recording, TokenRange};
use crate::recordings::replace;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Writes a recording of each source.
pub(super) fn write(
    prefix: &Path,
    recording: &Recording,
    sources: &[ExportedSource<'_>],
) -> Result<Vec<String>, CliError> {
    let mut plans = Vec::new();
    let mut paths = BTreeSet::new();
    for source in sources {
        let path = path_of(prefix, source.name);
        let refused = |text: String| CliError::Refused {
            path: path.clone(),
            text,
        };
        let settings = RecordingSettings::new(source.token, source.rate);
        let settings = settings.ok_or_else(|| {
            refused(format!(
                "SigMF has no type for tokens of {}, which source `{}` has",
                source.token, source.name
            ))
        })?;
        source.check_outside(&path)?;
        if !paths.insert(path.clone()) {
            let name = source.name;
            return Err(refused(format!("would be the file of source `{name}` too")));
        }
        plans.push((source, settings, path));
    }
    let written = plans
        .into_iter()
        .map(|(source, settings, path)| write_source(recording, source, &settings, &path));
    written.collect()
}

/// The file of a source's samples. A recording may be a stranger's: names do not choose folders.
fn path_of(prefix: &Path, source: &str) -> PathBuf {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let plain_name: String = source
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect();
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("-{plain_name}.sigmf-data"));
    path.into()
}

fn write_source(
    recording: &Recording,
    source: &ExportedSource<'_>,
    settings: &RecordingSettings,
    path: &Path,
) -> Result<String, CliError> {
    let meta_path = sigmf::meta_path(path);
    // A description of other samples would be wrong as long as these are written.
    match fs::remove_file(&meta_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file_error(&meta_path)(error));
        }
        _ => {}
    }
    let mut file = File::create(path).map_err(file_error(path))?;
    let mut captures = Vec::new();
    let mut total = 0;
    let mut piece = vec![0; PIECE_BYTES];
    for &TokenRange { first, end } in recording.token_ranges(source.index) {
        captures.push(Capture {
            first,
            tokens: end - first,
            unix_ns: source.time_of(first),
        });
        let mut tokens = recording.tokens(source.index, first);
        let mut left_bytes = (end - first) * source.token.bytes();
        while left_bytes > 0 {
            let wanted_bytes = left_bytes.min(PIECE_BYTES as u64) as usize;
            let bytes = &mut piece[..wanted_bytes];
            source.read(&mut tokens, bytes)?;
            file.write_all(bytes).map_err(file_error(path))?;
            left_bytes -= bytes.len() as u64;
        }
        total += end - first;
    }
    let gaps = &recording.gaps[source.index];
    let text = sigmf::describe_captures(settings, &captures, gaps);
    replace(&meta_path, &text).map_err(file_error(&meta_path))?;
    Ok(format!(
        "{}: {total} tokens of `{}` in {} pieces, {} gaps",
        meta_path.display(),
        source.name,
        captures.len(),
        gaps.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_choose_folders() {
        let path = path_of(Path::new("out/rec"), "../../etc/a b");
        assert_eq!(path, Path::new("out/rec-.._.._etc_a_b.sigmf-data"));
        let path = path_of(Path::new("rec.1"), "iq");
        assert_eq!(sigmf::meta_path(&path), Path::new("rec.1-iq.sigmf-meta"));
    }
}

//! `zbmdc watch`: compiles whenever a file of the model is saved, and says what changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use zbmd_compiler::diff::{self, Diff};
use zbmd_compiler::view::View;
use zbmd_compiler::{Compiled, compile_file};

use crate::args::Compile;
use crate::compile::{compile_options, headline, write_bundle};
use crate::model_input::is_stdin;
use crate::output::{Exit, Voice, print, say};

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Changes when a file is saved: when it was modified, and its size. `None` for a file that does not exist.
type FileStamp = Option<(SystemTime, u64)>;

/// What was compiled last, which the next change is compared with.
struct LastCompiled {
    compiled: Compiled,
    view: View,
}

pub(crate) fn watch(args: &Compile, voice: Voice) -> Exit {
    if is_stdin(&args.model) {
        say("zbmdc: only a file can be watched\n");
        return Exit::Usage;
    }

    let default_output = || args.model.with_extension("zbmd");
    let output = args.output.clone().unwrap_or_else(default_output);
    let mut watched_files = vec![args.model.clone()];
    watched_files.extend(args.machine.clone());

    let mut last_compiled: Option<LastCompiled> = None;
    loop {
        // Taken before the files are read: what is saved meanwhile is seen the next time.
        let stamps_before = stamp_files(&watched_files);
        let options = compile_options(args, voice);
        match options.and_then(|options| compile_file(&args.model, &options)) {
            Ok(compiled) => {
                voice.report(&compiled.warnings);
                watched_files.extend(existing_sources(&compiled));
                watched_files.sort();
                watched_files.dedup();

                let view = View::of(&compiled.program, &BTreeMap::new());
                let changes = describe_changes(&compiled, &view, last_compiled.as_ref());
                let written = write_bundle(&compiled, &output, voice);
                if written != Exit::Ok || print(&changes) != Exit::Ok {
                    return Exit::File;
                }
                last_compiled = Some(LastCompiled { compiled, view });
            }
            Err(diagnostics) => {
                voice.report(&diagnostics);
            }
        }

        wait_for_change(&watched_files, &stamps_before);
    }
}

/// Returns once a file is not what it was before the compilation.
fn wait_for_change(files: &[PathBuf], stamps_before: &BTreeMap<PathBuf, FileStamp>) {
    let stamps = stamp_files(files);

    // Files that are new to the list have not been missed: they were read just now.
    for (path, stamp) in &stamps {
        if stamps_before
            .get(path)
            .is_some_and(|before| before != stamp)
        {
            return;
        }
    }

    while stamp_files(files) == stamps {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The first time what was compiled, then what changed.
fn describe_changes(compiled: &Compiled, view: &View, last: Option<&LastCompiled>) -> String {
    let Some(last) = last else {
        return format!("{}\n", headline(compiled));
    };
    let before = (&last.compiled.program, &last.view);
    let found = Diff::of(before, (&compiled.program, view));
    if found.equal {
        "the same\n".to_owned()
    } else {
        diff::text(&found) + "\n"
    }
}

/// The files of a model that exist.
fn existing_sources(compiled: &Compiled) -> Vec<PathBuf> {
    let names = compiled.warnings.sources.names();
    names
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .collect()
}

fn stamp_files(files: &[PathBuf]) -> BTreeMap<PathBuf, FileStamp> {
    let stamps = files.iter().map(|path| (path.clone(), stamp_file(path)));
    stamps.collect()
}

fn stamp_file(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

//! `zbmdc watch`: compiles whenever a file of the model is saved, and says what changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use zbmd_compiler::diff::{self, Diff};
use zbmd_compiler::view::View;
use zbmd_compiler::{Compiled, compile_files};
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;

use crate::args::Compile;
use crate::compile::{compile_options, default_output, headline, write_bundle};
use crate::model_input::is_stdin;
use crate::output::{Exit, Voice, print, say};

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Changes when a file is saved: when it was modified, and its size. `None` for a file that does not exist.
type FileStamp = Option<(SystemTime, u64)>;

pub(crate) fn watch(args: &Compile, voice: Voice) -> Exit {
    if args.models.iter().any(|path| is_stdin(path)) {
        say("zbmdc: only a file can be watched\n");
        return Exit::Usage;
    }

    let output = args.output.clone();
    let Some(output) = output.or_else(|| default_output(&args.models)) else {
        return Exit::Usage;
    };
    let mut watched_files = args.models.clone();
    watched_files.extend(args.machine.clone());

    let mut last_compiled: Option<Compiled> = None;
    loop {
        // Taken before the files are read: what is saved meanwhile is seen the next time.
        let stamps_before = stamp_files(&watched_files);
        let options = compile_options(args, voice);
        match options.and_then(|options| compile_files(&args.models, &options)) {
            Ok(compiled) => {
                voice.report(&compiled.warnings);
                watched_files.extend(existing_sources(&compiled));
                watched_files.sort();
                watched_files.dedup();

                let changes = describe_changes(&compiled, last_compiled.as_ref());
                let written = write_bundle(&compiled, &output, voice);
                if written != Exit::Ok || print(&changes) != Exit::Ok {
                    return Exit::File;
                }
                last_compiled = Some(compiled);
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
fn describe_changes(compiled: &Compiled, last: Option<&Compiled>) -> String {
    let Some(last) = last else {
        return format!("{}\n", headline(compiled));
    };
    let mut programs_before = programs_of(last);
    let mut text = String::new();
    for (mode, program) in programs_of(compiled) {
        let changes = match programs_before.remove(mode) {
            None => "new".to_owned(),
            Some(before) => describe_difference(before, program),
        };
        text += &line_of_mode(mode, &changes);
    }
    for mode in programs_before.keys() {
        text += &line_of_mode(mode, "no longer there");
    }
    text
}

/// The programs of a model by mode; one without a name where there are no modes.
fn programs_of(compiled: &Compiled) -> BTreeMap<&str, &Verified<Program>> {
    match &compiled.modes {
        None => BTreeMap::from([("", &compiled.program)]),
        Some(modes) => {
            let names = modes.verified.names().iter().map(String::as_str);
            let programs = modes.verified.programs().iter();
            names.zip(programs.map(|program| &**program)).collect()
        }
    }
}

fn line_of_mode(mode: &str, text: &str) -> String {
    match mode {
        "" => format!("{text}\n"),
        mode => format!("mode {mode}: {text}\n"),
    }
}

fn describe_difference(before: &Verified<Program>, after: &Verified<Program>) -> String {
    let views = [before, after].map(|program| View::of(program, &BTreeMap::new()));
    let found = Diff::of((before, &views[0]), (after, &views[1]));
    match found.equal {
        true => "the same".to_owned(),
        false => diff::text(&found),
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

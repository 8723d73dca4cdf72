//! `zbmdc watch`: compiles whenever a file of the model is saved, and says what changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use zbmd_compiler::diff::{self, Diff};
use zbmd_compiler::view::View;
use zbmd_compiler::{Compiled, compile_file};

use crate::args::Compile;
use crate::commands::{headline, is_stdin, options, write};
use crate::output::{Exit, Voice, print, say};

/// Between two looks at the files.
const PAUSE: Duration = Duration::from_millis(200);

/// What tells that a file was saved; none if it is not there.
type Stamp = Option<(SystemTime, u64)>;

pub(crate) fn watch(args: &Compile, voice: Voice) -> Exit {
    if is_stdin(&args.model) {
        say("zbmdc: only a file can be watched\n");
        return Exit::Usage;
    }
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| args.model.with_extension("zbmd"));
    let mut files: Vec<PathBuf> = [Some(args.model.clone()), args.machine.clone()]
        .into_iter()
        .flatten()
        .collect();
    let mut last: Option<(Compiled, View)> = None;
    loop {
        // Taken before the files are read: what is saved meanwhile is seen the next time.
        let before = stamps(&files);
        match options(args, voice).and_then(|options| compile_file(&args.model, &options)) {
            Ok(compiled) => {
                voice.report(&compiled.warnings);
                files.extend(sources(&compiled));
                files.sort();
                files.dedup();
                let view = View::of(&compiled.program, &BTreeMap::new());
                let told = tell(&compiled, &view, last.as_ref());
                if write(&compiled, &output, voice) != Exit::Ok || print(&told) != Exit::Ok {
                    return Exit::File;
                }
                last = Some((compiled, view));
            }
            Err(diagnostics) => {
                voice.report(&diagnostics);
            }
        }
        let grown = stamps(&files);
        // Files that are new to the list have not been missed: they were read just now.
        let old = |(path, stamp): (&PathBuf, &Stamp)| before.get(path).is_none_or(|b| b == stamp);
        if grown.iter().all(old) {
            while stamps(&files) == grown {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// The first time what was compiled, then what changed.
fn tell(compiled: &Compiled, view: &View, last: Option<&(Compiled, View)>) -> String {
    match last {
        None => format!("{}\n", headline(compiled)),
        Some((before, shown)) => {
            let found = Diff::of((&before.program, shown), (&compiled.program, view));
            if found.equal {
                "the same\n".to_owned()
            } else {
                diff::text(&found) + "\n"
            }
        }
    }
}

/// The files of a model that are there.
fn sources(compiled: &Compiled) -> Vec<PathBuf> {
    let names = compiled.warnings.sources.names();
    names
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .collect()
}

fn stamps(files: &[PathBuf]) -> BTreeMap<PathBuf, Stamp> {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    files
        .iter()
        .map(|path| (path.clone(), stamp(path)))
        .collect()
}

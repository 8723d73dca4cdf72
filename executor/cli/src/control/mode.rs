//! `zbmd-run mode`: the mode of a run that is on.

use clap::Args;
use zbmd_ir::text::printable;

use super::ask::{Failure, ask, code_of, show};
use super::message::{Reply, Request};
use crate::top::the_only_run;

/// Which mode, of which run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Mode {
    /// The run's process, which may be left out where one run is on; then the mode. Without one, the modes are listed.
    #[arg(value_name = "[PID] NAME", num_args = 0..=2)]
    words: Vec<String>,
}

/// Changes the mode, or lists the modes; the exit code.
pub(crate) fn mode(args: &Mode) -> u8 {
    let (pid, name) = read_words(&args.words);
    let pid = match pid {
        Some(pid) => Ok(pid),
        None => the_only_run().map_err(|(code, text)| Failure::new(code, text)),
    };
    let shown = pid.and_then(|pid| {
        let request = match name {
            None => Request::Modes,
            Some(name) => Request::Mode(name.to_owned()),
        };
        match ask(pid, &request)? {
            Reply::Modes {
                names,
                present,
                since,
            } => Ok(list_text(&names, &present, since)),
            Reply::Mode { name, since } => {
                let name = printable(&name);
                Ok(format!("{name} from iteration {since} on\n"))
            }
            Reply::Refused { kind, text } => Err(Failure::new(code_of(kind), text)),
            _ => Err(Failure::unasked()),
        }
    });
    show(shown)
}

/// The process, if the first word is one and not the only one, or there is no other; and the mode.
fn read_words(words: &[String]) -> (Option<u32>, Option<&str>) {
    let pid = words.first().and_then(|word| word.parse().ok());
    let name = words.get(usize::from(pid.is_some()));
    (pid, name.map(String::as_str))
}

fn list_text(names: &[String], present: &str, since: u64) -> String {
    let lines = names.iter().map(|name| {
        let note = match name == present {
            true => format!("   since iteration {since}"),
            false => String::new(),
        };
        format!("{}{note}\n", printable(name))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_process_and_a_mode() {
        let words = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        assert_eq!(read_words(&[]), (None, None));
        assert_eq!(read_words(&words(&["12"])), (Some(12), None));
        assert_eq!(read_words(&words(&["track"])), (None, Some("track")));
        assert_eq!(
            read_words(&words(&["12", "track"])),
            (Some(12), Some("track"))
        );
        assert_eq!(read_words(&words(&["12", "7"])), (Some(12), Some("7")));
    }

    #[test]
    fn the_present_mode_is_marked() {
        let names = ["scan".to_owned(), "track".to_owned()];
        let text = list_text(&names, "track", 960);
        assert_eq!(text, "scan\ntrack   since iteration 960\n");
    }
}

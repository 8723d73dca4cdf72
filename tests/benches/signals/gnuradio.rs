//! GNU Radio in a Python process: the FM receiver of `graphs/fm` from its blocks.

use std::path::Path;
use std::process::{Command, Stdio};

use zbmd_tests::rival_process::RivalProcess;

use crate::Side;

/// The receiver, which takes so many samples a piece of work.
pub(crate) fn fm(samples: usize) -> Result<Side, String> {
    let python = python().ok_or("no Python here has gnuradio: ZBMD_PYTHON may name one")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/signals/fm_gnuradio.py");
    let mut command = Command::new(python);
    command.arg(script).stderr(Stdio::null());
    let mut rival = RivalProcess::start(&mut command).map_err(|error| error.to_string())?;
    if rival.answer() != "ready" {
        return Err("its blocks are not those of GNU Radio 3.10".to_owned());
    }
    Ok(Box::new(move |times| {
        let question = (times * samples as u64).to_string();
        let seconds = rival.ask(&question).expect("it runs");
        seconds.parse().expect("seconds of CPU time")
    }))
}

/// A Python with GNU Radio.
fn python() -> Option<String> {
    let chosen = std::env::var("ZBMD_PYTHON").ok().into_iter();
    let mut candidates = chosen.chain(["python3", "/usr/bin/python3"].map(str::to_owned));
    candidates.find(|python| {
        let mut command = Command::new(python);
        command
            .args(["-c", "import gnuradio"])
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

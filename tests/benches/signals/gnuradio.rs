//! GNU Radio in a Python process: the FM receiver of `graphs/fm` from its blocks.

use std::path::Path;
use std::process::{Command, Stdio};

use zbmd_tests::rival_process::RivalProcess;

use crate::Side;

/// The receiver, which takes so many samples a piece of work.
pub(crate) fn fm(samples: usize) -> Result<Side, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/signals/fm_gnuradio.py");
    let mut command = Command::new("python3");
    command.arg(script).stderr(Stdio::null());
    let mut rival =
        RivalProcess::start(&mut command).map_err(|error| format!("python3: {error}"))?;
    if rival.answer() != "ready" {
        return Err("python3 has no gnuradio".to_owned());
    }
    Ok(Box::new(move |times| {
        let question = (times * samples as u64).to_string();
        let seconds = rival.ask(&question).expect("it runs");
        seconds.parse().expect("seconds of CPU time")
    }))
}

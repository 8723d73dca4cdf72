//! Peers in Python, which are there only where their packages are.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::common::text;
use super::live_peers::LIMIT;

/// A Python that can run a statement such as `import zmq`; `None`, and a line that says so and what to do, where there is none.
pub(crate) fn python_with(import: &str, remedy: &str) -> Option<String> {
    let chosen = std::env::var("ZBMD_PYTHON").ok();
    let candidates = chosen
        .into_iter()
        .chain(["python3".to_owned(), "/usr/bin/python3".to_owned()]);
    for python in candidates {
        let output = Command::new(&python).args(["-c", import]).output();
        if output.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    eprintln!("SKIPPED: `{import}` fails in Python here ({remedy})");
    None
}

/// A peer as a process, which is killed if the test fails.
pub(crate) struct PythonPeer {
    child: Option<Child>,
}

impl PythonPeer {
    /// Starts a script in a folder.
    pub(crate) fn start(python: &str, script: &str, folder: &Path, args: &[&str]) -> Self {
        let child = Command::new(python)
            .args(["-c", script])
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        Self { child: Some(child) }
    }

    /// Waits for its end, which is without an error.
    #[track_caller]
    pub(crate) fn end(mut self) {
        let begun = Instant::now();
        let mut child = self.child.take().expect("not ended");
        let mut is_late = false;
        while child.try_wait().expect("a child").is_none() && !is_late {
            is_late = begun.elapsed() > LIMIT;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = child.kill();
        let output = child.wait_with_output().expect("ended");
        let said = text(&output.stderr);
        assert!(!is_late, "it does not end: {said}");
        assert!(output.status.success(), "{said}");
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for PythonPeer {
    fn drop(&mut self) {
        self.stop();
    }
}

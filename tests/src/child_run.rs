//! Runs beside a test that is its own `zbmd-run`: started with a bundle of a folder, ended, and asked what they did.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Set in the environment of a child.
const RUNNER: &str = "ZBMD_TEST_RUNNER";
/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(120);

/// The `main` of a test that is its own `zbmd-run`: that command in a child, else the test.
pub fn run_or_test(run: impl FnOnce() -> ExitCode, test: impl FnOnce()) -> ExitCode {
    if std::env::var_os(RUNNER).is_some() {
        return run();
    }
    test();
    ExitCode::SUCCESS
}

/// The `main` of a test that is its own `zbmd-run`, with the standard ops: the test is a path, and why it is skipped
/// elsewhere than on Linux a text.
#[macro_export]
macro_rules! own_zbmd_run {
    ($skipped:literal, $test:path) => {
        #[cfg(not(target_os = "linux"))]
        fn main() {
            println!("skipped: {}", $skipped);
        }

        #[cfg(target_os = "linux")]
        fn main() -> std::process::ExitCode {
            let run = || zbmd_run::main_with(zbmd_backends::standard_registry());
            $crate::child_run::run_or_test(run, $test)
        }
    };
}

/// What `zbmd-run` with these words says.
pub fn output(words: &[&str]) -> Output {
    command().args(words).output().expect("started")
}

/// The same in a folder.
pub fn output_in(folder: &Path, words: &[&str]) -> Output {
    let mut command = command();
    command.current_dir(folder).args(words);
    command.output().expect("started")
}

/// The test itself as `zbmd-run`, without arguments yet.
pub fn command() -> Command {
    command_by(|program| Command::new(program))
}

/// The same by a command that starts the program it is given, such as in a network namespace.
pub fn command_by(starter: impl FnOnce(&Path) -> Command) -> Command {
    let mut command = starter(&std::env::current_exe().expect("a path"));
    command.env(RUNNER, "1");
    command
}

/// A run that was started; killed if the test fails.
pub struct ChildRun {
    name: String,
    folder: PathBuf,
    child: Child,
}

impl ChildRun {
    /// Runs `NAME.zbmd` of a folder, with this input, this output and these other options.
    pub fn start(folder: &Path, name: &str, input: &str, output: &str, options: &[&str]) -> Self {
        let child = command()
            .args([&format!("{name}.zbmd"), "-i", input, "-o", output])
            .args(["--report", "json", "--report-file", &report_name(name)])
            .args(options)
            .env("ALSA_CONFIG_PATH", folder.join("asound.conf"))
            .current_dir(folder)
            .stdin(Stdio::null())
            .spawn()
            .expect("started");
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            child,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something is so, while the run goes on.
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let status = self.child.try_wait().expect("a child");
            assert!(status.is_none(), "{} has ended: {status:?}", self.name);
            assert!(begun.elapsed() < LIMIT, "{}: not {what}", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the run answers a command, such as `zbmd-run set PID`; what that prints.
    pub fn wait_for_answer(&mut self, mut command: impl FnMut() -> Output) -> String {
        let mut answer = Vec::new();
        self.wait_until("it takes commands", || {
            let output = command();
            answer = output.stdout;
            output.status.success()
        });
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Waits for the end, which must be a success; the report.
    pub fn end(self) -> Value {
        self.end_within(LIMIT)
    }

    /// The same of a run that takes longer than others.
    pub fn end_within(mut self, limit: Duration) -> Value {
        let status = self.wait_within(limit);
        assert!(status.success(), "{}: {status}", self.name);
        self.report()
    }

    /// Interrupts the run, as Ctrl-C does, and waits for its end; the report.
    #[cfg(target_os = "linux")]
    pub fn interrupt(mut self) -> Value {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a child");
        assert_eq!(self.wait().code(), Some(130), "{}", self.name);
        self.report()
    }

    /// Kills the run, as a lack of memory does: it leaves no report.
    pub fn kill(mut self) {
        self.child.kill().expect("a child");
        let status = self.wait();
        assert!(!status.success(), "{} had ended already", self.name);
    }

    fn wait(&mut self) -> ExitStatus {
        self.wait_within(LIMIT)
    }

    fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < limit, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn report(&self) -> Value {
        let report = std::fs::read(self.folder.join(report_name(&self.name)));
        serde_json::from_slice(&report.expect("a report")).expect("JSON")
    }
}

impl Drop for ChildRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report_name(run: &str) -> String {
    format!("{run}.json")
}

/// What a report says of a live stream.
pub fn live<'a>(report: &'a Value, stream: &str) -> &'a Value {
    let all = report["live"].as_array().expect("live streams");
    let found = all.iter().find(|live| live["stream"] == stream);
    found.unwrap_or_else(|| panic!("{stream} in {report}"))
}

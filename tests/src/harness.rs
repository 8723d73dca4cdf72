//! What cargo's harness does, for test programs that are their own worker processes, and so have a `main` of their own.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sample::cases;

/// Longer than any test takes, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(240);
/// Set in the environment of a process that is one test of [`run_apart`]: the test's name.
const ALONE: &str = "ZBMD_TEST_ALONE";

/// A test's name, and the test.
pub type Test = (&'static str, fn());

/// Runs the tests whose names hold one of the words of the command line (all without any) one after the other, or lists
/// them with `--list`. Where `ready` says that what they need is not here, none runs. A test that hangs ends the
/// program.
///
/// # Panics
/// As the tests do.
pub fn run(tests: &[Test], ready: impl FnOnce() -> bool) {
    for test in asked_for(tests, ready) {
        run_one(test);
    }
}

/// The same with each test in a process of its own, as many at once as there are cores: for tests that change the environment or count
/// what their process does, and that do not mind others beside them.
///
/// # Panics
/// If tests fail, with their names, once all have ended.
pub fn run_apart(tests: &[Test], ready: impl FnOnce() -> bool) {
    if let Ok(alone) = std::env::var(ALONE) {
        let test = tests.iter().find(|(name, _)| *name == alone);
        // There may be other lists of the program.
        test.copied().into_iter().for_each(run_one);
        return;
    }

    let left = Mutex::new(asked_for(tests, ready).into_iter());
    let failed = Mutex::new(Vec::new());
    let next = || left.lock().expect("no panic").next();
    let at_once = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((name, _)) = next() {
                    let output = run_alone(name);
                    // What one test says stays together.
                    let mut stdout = std::io::stdout().lock();
                    let said = [&output.stdout[..], &output.stderr].concat();
                    stdout.write_all(&said).expect("written");
                    if !output.status.success() {
                        failed.lock().expect("no panic").push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

/// The tests that the command line asks for. With `--list`, which lists them, it is none.
fn asked_for(tests: &[Test], ready: impl FnOnce() -> bool) -> Vec<Test> {
    if std::env::args().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return Vec::new();
    }
    if !ready() {
        return Vec::new();
    }
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let is_asked_for = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w));
    let asked_for = tests.iter().filter(|(name, _)| is_asked_for(name));
    asked_for.copied().collect()
}

fn run_one((name, test): Test) {
    let begun = Instant::now();
    let watch = std::thread::spawn(move || {
        // A larger sample takes longer.
        let limit = LIMIT * cases(1) as u32;
        std::thread::park_timeout(limit);
        if begun.elapsed() >= limit {
            eprintln!("test {name} ... hangs");
            std::process::exit(101);
        }
    });
    test();
    watch.thread().unpark();
    watch.join().expect("no panic");
    println!(
        "test {name} ... ok ({:.1} s)",
        begun.elapsed().as_secs_f64()
    );
}

/// This program, as one of its tests.
fn run_alone(name: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(ALONE, name).stdin(Stdio::null());
    command.output().expect("started")
}

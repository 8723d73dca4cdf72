//! What cargo's harness does, for test programs that are their own worker processes, and so have a `main` of their own.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sample::cases;

/// Longer than any test takes, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(240);
/// Set in the environment of a process that is one test of [`run_apart`]: the test's name.
const ALONE: &str = "ZBMD_TEST_ALONE";
/// Whether the test at hand ends the program when it takes longer than [`LIMIT`].
static IS_WATCHED: AtomicBool = AtomicBool::new(true);

/// A test's name, and the test.
pub type Test = (&'static str, fn());

/// A module's name, and its tests.
pub type Module = (&'static str, &'static [Test]);

/// The tests of modules, each named `module::test`, as by cargo's harness.
pub fn of_modules(modules: &[Module]) -> Vec<Test> {
    let mut tests = Vec::new();
    for (module, its_tests) in modules {
        for (name, test) in *its_tests {
            let name: &str = format!("{module}::{name}").leak();
            tests.push((name, *test));
        }
    }
    tests
}

/// Runs the tests whose names hold one of the words of the command line (all without any) one after the other, or lists
/// them with `--list`. Where `ready` says that what they need is not here, none runs. A test that hangs ends the
/// program.
///
/// # Panics
/// If tests fail, with their names, once all have ended.
pub fn run(tests: &[Test], ready: impl FnOnce() -> bool) {
    run_all(asked_for(tests, ready));
}

/// The same with each test in a process of its own, as many at once as there are cores: for tests that change the environment or count
/// what their process does, and that do not mind others beside them.
///
/// # Panics
/// If tests fail, with their names, once all have ended.
pub fn run_apart(tests: &[Test], ready: impl FnOnce() -> bool) {
    if let Ok(alone) = std::env::var(ALONE) {
        // There may be other lists of the program.
        let test = tests.iter().filter(|(name, _)| *name == alone);
        run_all(test.copied().collect());
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
    check_none(&failed.into_inner().expect("no panic"));
}

/// For a test that takes as long as its caller asks for, and sees itself that nothing hangs: it is not ended.
pub fn take_any_time() {
    IS_WATCHED.store(false, Ordering::Relaxed);
}

/// Runs tests one after the other.
fn run_all(tests: Vec<Test>) {
    let mut failed = Vec::new();
    for test in tests {
        if !passes(test) {
            failed.push(test.0);
        }
    }
    check_none(&failed);
}

#[track_caller]
fn check_none(failed: &[&str]) {
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

/// Runs a test; whether it did not panic.
fn passes((name, test): Test) -> bool {
    IS_WATCHED.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let watch = std::thread::spawn(move || {
        // A larger sample takes longer.
        let limit = LIMIT * cases(1) as u32;
        std::thread::park_timeout(limit);
        if begun.elapsed() >= limit && IS_WATCHED.load(Ordering::Relaxed) {
            eprintln!("test {name} ... hangs");
            std::process::exit(101);
        }
    });
    let passes = std::panic::catch_unwind(test).is_ok();
    watch.thread().unpark();
    watch.join().expect("no panic");
    let outcome = if passes { "ok" } else { "FAILED" };
    let took_s = begun.elapsed().as_secs_f64();
    println!("test {name} ... {outcome} ({took_s:.1} s)");
    passes
}

/// This program, as one of its tests.
fn run_alone(name: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(ALONE, name).stdin(Stdio::null());
    command.output().expect("started")
}

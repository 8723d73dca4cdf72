//! What cargo's harness does, for test programs that are their own worker processes, and so have a `main` of their own.

use std::time::{Duration, Instant};

/// Longer than any test takes, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(240);

/// A test's name, and the test.
pub type Test = (&'static str, fn());

/// Runs the tests whose names hold one of the words of the command line (all without any) one after the other, or lists
/// them with `--list`. Where `ready` says that what they need is not here, none runs. A test that hangs ends the
/// program.
///
/// # Panics
/// As the tests do.
pub fn run(tests: &[Test], ready: impl FnOnce() -> bool) {
    if std::env::args().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    if !ready() {
        return;
    }
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    for &(name, test) in tests {
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let begun = Instant::now();
        let watch = std::thread::spawn(move || {
            std::thread::park_timeout(LIMIT);
            if begun.elapsed() >= LIMIT {
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
}

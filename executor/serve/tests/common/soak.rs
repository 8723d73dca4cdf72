//! Losses again and again, for minutes: `ZBMD_SERVE_SOAK_S` says how long, in seconds, and `ZBMD_SERVE_LOSS_EVERY_MS` (2000) how often.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Server, signal};

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name}={text} is no whole number")))
}

/// A soak that somebody wants.
pub struct Soak {
    pub time: Duration,
    /// Between two losses.
    pub every: Duration,
}

impl Soak {
    /// `None`, said aloud, if nobody wants one.
    pub fn wanted() -> Option<Self> {
        let seconds = number("ZBMD_SERVE_SOAK_S");
        if seconds.is_none() {
            eprintln!("SKIPPED: a soak of minutes; set ZBMD_SERVE_SOAK_S=300");
        }
        Some(Self {
            time: Duration::from_secs(seconds?),
            every: Duration::from_millis(number("ZBMD_SERVE_LOSS_EVERY_MS").unwrap_or(2000)),
        })
    }
}

/// Prints how long answers took, ascending.
pub fn print_times(what: &str, times: &[Duration]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: {} answers, median {:?}, 99 % {:?}, 99.9 % {:?}, longest {:?}",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Kills a process of the server's every so often; how many.
pub fn kill_now_and_then(server: &Server, every: Duration, time: Duration) -> u32 {
    let begun = Instant::now();
    let mut losses = 0;
    let mut random = 1_u64;
    while begun.elapsed() + every < time {
        std::thread::sleep(every);
        let processes = server.children();
        // Knuth's MMIX generator; its upper bits.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if let Some(process) = processes.get((random >> 33) as usize % processes.len().max(1)) {
            signal(*process, Signal::KILL);
            losses += 1;
        }
    }
    losses
}

//! Workers die again and again under load: how many requests fail, and how much longer answers take.
//!
//! `ZBMD_SERVE_LOSSES_S=300 cargo bench -p zbmd-serve --bench serving -- losses [wide|pipeline|speakers]`; 20 s a case without the
//! variable. Of a case, turns without losses and turns with them alternate, each as long in all, so that whatever else the machine does
//! meets both.
//!
//! | case | what asks |
//! |---|---|
//! | `wide` | four clients, of a model of four functions of 4,096 floats with one worker |
//! | `pipeline` | the same of two workers |
//! | `speakers` | 16 sequences of the voice detector at once (with the shared data, `ZBMD_DATA`) |
//!
//! Every two seconds the worker that computed most since the last loss is killed; processes that only stand by are spared. Answers
//! are compared with those of a run without a server, bit by bit; an answer that is an error or has other bits counts as failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::common::exchange::{Exchange, Speakers, wide_exchanges};
use super::common::{Connection, Models, Server, WIDE, compiled, signal};
use super::figures::{load, quantiles};
use super::shared::{cpu_ms, seconds, words};

const LOSS_EVERY: Duration = Duration::from_secs(2);
/// Of a turn without losses, and of one with them.
const TURN: Duration = Duration::from_secs(10);
const CLIENTS: usize = 4;

pub(crate) fn run() {
    let seconds = seconds("ZBMD_SERVE_LOSSES_S", 20);
    let turns = seconds.div_ceil(TURN.as_secs()).max(1);
    let chosen = words().nth(1);
    let is_chosen = |case: &str| chosen.as_ref().is_none_or(|chosen| chosen == case);

    println!("case       losses   answers  failed   p50 ms   p99 ms  p99.9 ms  longest ms  load");
    for (case, devices) in [("wide", 1), ("pipeline", 2)] {
        if is_chosen(case) {
            let model = compiled(WIDE, devices, 1);
            let server = Models::new().with("wide", &model).serve(&[]);
            let clients = (0..CLIENTS).map(|_| wide_exchanges(&model)).collect();
            Case {
                name: case,
                model: "wide",
                server,
                clients,
            }
            .measure(turns);
        }
    }
    if is_chosen("speakers")
        && let Some(speakers) = Speakers::find()
    {
        Case {
            name: "speakers",
            model: "vad",
            server: speakers.serve(),
            clients: speakers.exchanges(),
        }
        .measure(turns);
    }
}

/// A server, and what each of its clients asks over and over.
struct Case {
    name: &'static str,
    model: &'static str,
    server: Server,
    clients: Vec<Vec<Exchange>>,
}

impl Case {
    fn measure(&self, turns: u64) {
        let mut calm = Seen::default();
        let mut lossy = Seen::default();
        let mut killed = 0;
        for _ in 0..turns {
            calm.add(self.under_load(|| std::thread::sleep(TURN)));
            lossy.add(self.under_load(|| killed += kill_workers(&self.server)));
        }
        calm.print(self.name, 0);
        lossy.print(self.name, killed);

        let more_ms = lossy.longest_ms() - calm.longest_ms();
        let recoveries = self.metric("zbmd_recoveries_total");
        let recovery_ms = 1e3 * self.metric("zbmd_recovery_seconds_total") / recoveries;
        println!(
            "           longest answer {more_ms:+.1} ms; a recovery takes {recovery_ms:.1} ms on average; \
             {} runs were begun anew",
            self.metric("zbmd_run_restarts_total")
        );
        // More than were killed are false alarms.
        let metrics = self.server.get("/metrics").text();
        for line in metrics.lines() {
            if line.starts_with("zbmd_worker_losses_total{") {
                println!("           {line}");
            }
        }
    }

    fn metric(&self, name: &str) -> f64 {
        let labelled = format!("{name}{{model=\"{}\"}}", self.model);
        self.server.metric(&labelled)
    }

    /// Lets the clients ask while something else goes on.
    fn under_load(&self, meanwhile: impl FnOnce()) -> Seen {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asking = self.clients.iter().map(|exchanges| {
                let connection = self.server.connect();
                let is_over = &is_over;
                scope.spawn(move || ask(connection, exchanges, is_over))
            });
            let asking: Vec<_> = asking.collect();
            meanwhile();
            is_over.store(true, Ordering::Relaxed);

            let mut seen = Seen::default();
            for client in asking {
                seen.add(client.join().expect("no panic"));
            }
            seen
        })
    }
}

/// Asks one request after the other, over and over, and the last round to its end.
fn ask(mut connection: Connection, exchanges: &[Exchange], is_over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !is_over.load(Ordering::Relaxed) {
        for exchange in exchanges {
            let begun = Instant::now();
            match exchange.ask(&mut connection) {
                Ok(()) => seen.times_ms.push(begun.elapsed().as_secs_f64() * 1e3),
                Err(why) => seen.failures.push(why),
            }
        }
    }
    seen
}

/// Kills a worker every so often, for a turn; how many.
fn kill_workers(server: &Server) -> u32 {
    let end = Instant::now() + TURN;
    let mut killed = 0;
    let mut before = computed_ms(server);
    while Instant::now() + LOSS_EVERY <= end {
        std::thread::sleep(LOSS_EVERY);
        let now = computed_ms(server);
        let lately_ms = now.iter().map(|(process, ms)| {
            let before_ms = before.get(process).copied().unwrap_or_default();
            (*process, ms - before_ms)
        });
        if let Some((process, _)) = lately_ms.max_by(|(_, one), (_, other)| one.total_cmp(other)) {
            signal(process, Signal::KILL);
            killed += 1;
        }
        before = now;
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    killed
}

/// What each process that a server started has computed so far, in milliseconds.
fn computed_ms(server: &Server) -> BTreeMap<u32, f64> {
    let processes = server.children().into_iter();
    processes
        .map(|process| (process, cpu_ms(process)))
        .collect()
}

/// What clients saw.
#[derive(Default)]
struct Seen {
    /// Of right answers.
    times_ms: Vec<f64>,
    /// Why others were none.
    failures: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.times_ms.extend(other.times_ms);
        self.failures.extend(other.failures);
    }

    fn longest_ms(&self) -> f64 {
        self.times_ms.iter().copied().fold(0.0, f64::max)
    }

    fn print(&self, case: &str, losses: u32) {
        let [p50, p99, p999, longest] = quantiles(&self.times_ms, [0.5, 0.99, 0.999, 1.0]);
        println!(
            "{case:10} {losses:6} {:9} {:7} {p50:8.2} {p99:8.2} {p999:9.2} {longest:11.2}  {}",
            self.times_ms.len(),
            self.failures.len(),
            load()
        );
        if let Some(why) = self.failures.first() {
            println!("           the first that failed: {why}");
        }
    }
}

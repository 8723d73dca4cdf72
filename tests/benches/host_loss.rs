//! How soon the loss of a whole host is known: its agent killed, its agent stopped, its network cut. From then until the
//! supervisor has decided on a new epoch, as a distribution over many losses.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench host_loss                    20 of each, with the default lease of 100 ms
//! cargo bench -p zbmd-tests --bench host_loss -- 100 20          100 of each, with a lease of 20 ms
//! cargo bench -p zbmd-tests --bench host_loss -- large 20 2048 250
//!     an agent with 2 GiB resident is killed, with its sentinel and without, over a link on which each packet takes 250 us
//! cargo bench -p zbmd-tests --bench host_loss -- 100 100 cut     100 cuts alone, with a lease of 100 ms
//! cargo bench -p zbmd-tests --bench host_loss -- calm 600 20 10
//!     false alarms of an undisturbed run of 10 minutes, with a lease of 20 ms, while 10 of 1,000 packets are lost in each direction
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: runs over several hosts need Linux");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == "agent") {
        zbmd_tests::witness::be_large_if_told();
    }
    let run = || zbmd_run::main_with(zbmd_backends::standard_registry());
    zbmd_tests::child_run::run_or_test(run, linux::main)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::net::{IpAddr, Ipv4Addr};
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};
    use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
    use zbmd_executor::supervise::What;
    use zbmd_executor::{
        Credentials, Engine, Hosts, Isolation, Protection, RunOptions, Tls, TlsFiles, Token,
    };
    use zbmd_tests::agents::{AgentProcess, TWO_HOSTS, token_file};
    use zbmd_tests::child_run;
    use zbmd_tests::figures::{load, quantiles};
    use zbmd_tests::losses::{Feed, HARDY, Told, live_with, options, supervised};
    use zbmd_tests::other_processes::children_of;
    use zbmd_tests::witness::{self, Witness, times_text};
    use zbmd_wire::monotonic_ns;
    use zbmd_wire::testing::{Authority, Flaw, LongLink, Namespace};

    const MODEL: &str = r#"Model(
        name: "host_loss",
        sources: { "in": Stream(dtype: f32) },
        actors: {
            "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
            "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
        },
        channels: [(from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["out"])],
        sinks: { "out": Stream() },
        pins: { "in": "left:0", "out": "left:0" },
    )"#;
    const SECRET: &str = "a token of the benchmark";
    const RATE_PER_S: f64 = 400_000.0;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Loss {
        Killed,
        Stopped,
        Cut,
    }

    impl Loss {
        fn name(self) -> &'static str {
            match self {
                Self::Killed => "agent killed",
                Self::Stopped => "agent stopped",
                Self::Cut => "network cut",
            }
        }
    }

    /// What every run needs.
    struct Bench {
        engine: Engine,
        token_file: PathBuf,
        files: TlsFiles,
        namespace: Option<Namespace>,
        lease: Duration,
        folder: tempfile::TempDir,
    }

    pub(super) fn main() {
        let args: Vec<String> = std::env::args()
            .skip(1)
            .filter(|argument| argument != "--bench")
            .collect();
        let is_calm = args.first().is_some_and(|word| word == "calm");
        let is_large = args.first().is_some_and(|word| word == "large");
        let numbers: Vec<u64> = args.iter().filter_map(|text| text.parse().ok()).collect();
        let lease_ms = match is_large {
            // Nothing but the end of a process is to be seen.
            true => 5_000,
            false => numbers.get(1).copied().unwrap_or(100),
        };
        let link = match numbers.get(2) {
            Some(&delay_us) if is_large => Some(LongLink {
                delay: Duration::from_micros(delay_us),
                lost_per_mille: 0,
            }),
            Some(&lost_per_mille) if is_calm => Some(LongLink {
                delay: Duration::ZERO,
                lost_per_mille: lost_per_mille as u32,
            }),
            _ => None,
        };
        let bench = Bench::new(Duration::from_millis(lease_ms), link);
        if link.is_some() && bench.namespace.is_none() {
            return;
        }
        println!("load {}", load());
        if is_large {
            let count = numbers.first().copied().unwrap_or(20);
            let mib = numbers.get(1).copied().unwrap_or(2048) as usize;
            for has_sentinel in [true, false] {
                bench.measure_large(count, mib, has_sentinel);
            }
        } else if is_calm {
            let lost_per_mille = link.map_or(0, |link| link.lost_per_mille);
            bench.calm(numbers.first().copied().unwrap_or(60), lost_per_mille);
        } else {
            let losses = numbers.first().copied().unwrap_or(20);
            let all = [Loss::Killed, Loss::Stopped, Loss::Cut];
            let is_asked_for =
                |loss: &&Loss| args.iter().any(|word| loss.name().ends_with(word.as_str()));
            let asked_for: Vec<&Loss> = all.iter().filter(is_asked_for).collect();
            for loss in all {
                if asked_for.is_empty() || asked_for.contains(&&loss) {
                    bench.measure(loss, losses);
                }
            }
        }
        println!("load {}", load());
    }

    fn engine(folder: &Path) -> Engine {
        let machine = folder.join("cluster.ron");
        std::fs::write(&machine, TWO_HOSTS).expect("written");
        let options = CompileOptions {
            machine: MachineChoice::File(machine),
            contingencies: Losses::Hosts,
            ..CompileOptions::default()
        };
        let compiled = compile_str("host_loss.ron", MODEL, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        let registry = zbmd_backends::standard_registry();
        Engine::new(compiled.program, &registry).expect("an engine")
    }

    impl Bench {
        fn new(lease: Duration, link: Option<LongLink>) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let namespace = match link {
                Some(link) => Namespace::make_far(link),
                None => Namespace::make(),
            };
            let addresses = [Namespace::HERE, Namespace::THERE].map(IpAddr::from);
            Self {
                engine: engine(folder.path()),
                token_file: token_file(folder.path(), SECRET),
                files: Authority::new().write(folder.path(), &addresses, Flaw::None),
                namespace,
                lease,
                folder,
            }
        }

        /// An agent, in the namespace if there is one.
        fn start_agent(&self) -> AgentProcess {
            self.start_agent_with(|_| ())
        }

        fn start_agent_with(&self, prepare: impl FnOnce(&mut Command)) -> AgentProcess {
            let (mut command, ip) = match &self.namespace {
                Some(namespace) => {
                    let command = child_run::command_by(|program| namespace.command(program));
                    (command, Namespace::THERE)
                }
                None => (child_run::command(), Ipv4Addr::LOCALHOST),
            };
            command
                .args(["agent", "--listen", &format!("{ip}:0"), "--token-file"])
                .arg(&self.token_file)
                .arg("--tls-certificate")
                .arg(&self.files.certificate)
                .arg("--tls-key")
                .arg(&self.files.key)
                .arg("--tls-ca")
                .arg(&self.files.ca);
            prepare(&mut command);
            AgentProcess::spawn(command)
        }

        fn options(&self, agent: &AgentProcess) -> RunOptions {
            let mut options = options(Isolation::Threads);
            options.supervised = Some(supervised(&self.engine, HARDY, None));
            options.hosts = Some(Hosts {
                agents: vec![("right".to_owned(), agent.address)],
                credentials: Credentials {
                    token: Token::of(SECRET.as_bytes()),
                    protection: Protection::Tls(Tls::read(&self.files).expect("a certificate")),
                },
                lease: self.lease,
                council: None,
                gather: None,
                own: None,
            });
            options
        }

        fn feed(seconds: f64) -> Feed {
            Feed {
                seed: 1,
                iterations: (RATE_PER_S * seconds) as u64,
                per_s: Some(RATE_PER_S),
            }
        }

        /// Nanoseconds from one loss to the decision for a new epoch; `None` if the host was given up before.
        fn lose(&self, loss: Loss, after: Duration) -> Option<u64> {
            let agent = self.start_agent();
            let lost_ns = AtomicU64::new(0);
            let seconds = (after + self.lease).as_secs_f64() + 0.3;
            let told = live_with(
                &self.engine,
                Self::feed(seconds),
                self.options(&agent),
                |_, _| {
                    std::thread::sleep(after);
                    lost_ns.store(monotonic_ns(), Ordering::Relaxed);
                    match loss {
                        Loss::Killed => agent.signal(Signal::KILL),
                        Loss::Stopped => agent.signal(Signal::STOP),
                        Loss::Cut => self.namespace.as_ref().expect("checked").cut(),
                    }
                },
            );
            if loss == Loss::Cut {
                self.namespace.as_ref().expect("checked").join();
            }
            told.outcome.as_ref().expect("it goes on without the host");
            decision_ns(&told).checked_sub(lost_ns.load(Ordering::Relaxed))
        }

        fn measure(&self, loss: Loss, losses: u64) {
            let name = loss.name();
            if loss == Loss::Cut && self.namespace.is_none() {
                println!("{name}: not measured, there is no second network namespace");
                return;
            }
            let mut false_alarms = 0;
            let mut times_ms = Vec::new();
            for number in 0..losses {
                // Heartbeats are in another state each time.
                let after = Duration::from_millis(150 + number * 37 % 100);
                match self.lose(loss, after) {
                    Some(ns) => times_ms.push(ns as f64 / 1e6),
                    None => false_alarms += 1,
                }
            }
            let [min, p50, p95, p99, max] = quantiles(&times_ms, [0.0, 0.5, 0.95, 0.99, 1.0]);
            let within = |limit_ms: f64| times_ms.iter().filter(|ms| **ms <= limit_ms).count();
            println!(
                "{name}, lease {} ms: a new epoch is decided after min {min:.1}, p50 {p50:.1}, p95 {p95:.1}, p99 {p99:.1}, max {max:.1} ms, in {} of {losses} within two leases; {false_alarms} false alarms before",
                self.lease.as_millis(),
                within(2e3 * self.lease.as_secs_f64()),
            );
        }

        /// Kills agents with so much memory.
        fn measure_large(&self, count: u64, mib: usize, has_sentinel: bool) {
            let folder = self.folder.path().join(format!("large.{has_sentinel}"));
            std::fs::create_dir(&folder).expect("a folder");
            let witness = Witness::listen(&folder);
            let environment = Witness::environment(&folder, mib);
            let mut known_ns = Vec::new();
            let mut eof_ns = Vec::new();
            let mut pidfd_ns = Vec::new();
            for number in 0..count {
                let agent = self.start_agent_with(|command| {
                    command.env(witness::LARGE, &environment);
                });
                let large = witness.next();
                let mut death = None;
                let feed = Self::feed(1.5);
                let told = live_with(&self.engine, feed, self.options(&agent), |stopper, _| {
                    if !has_sentinel {
                        kill_children_of(large.pid());
                    }
                    stopper.wait_for_workers();
                    std::thread::sleep(Duration::from_millis(150 + number * 37 % 100));
                    death = Some(large.kill());
                });
                told.outcome.as_ref().expect("it goes on without the host");
                let death = death.expect("it was killed");
                let known = first_loss_ns(&told, death.killed_ns);
                known_ns.push(known - death.killed_ns);
                eof_ns.push(death.eof_ns - death.killed_ns);
                pidfd_ns.push(death.pidfd_ns - death.killed_ns);
            }
            let with = match has_sentinel {
                true => "with its sentinel",
                false => "without a sentinel",
            };
            println!(
                "agent with {mib} MiB resident killed {count} times, {with}\n{:<36}{:>9} {:>9} {:>9}",
                "until it is known, ms", "p50", "p99", "max"
            );
            for (what, times_ns) in [
                ("conductor", known_ns),
                ("there: end of another socket", eof_ns),
                ("there: process descriptor", pidfd_ns),
            ] {
                println!("  {what:<34}{}", times_text(&times_ns));
            }
        }

        fn calm(&self, seconds: u64, lost_per_mille: u32) {
            let agent = self.start_agent();
            let feed = Self::feed(seconds as f64);
            let told = live_with(&self.engine, feed, self.options(&agent), |_, _| {});
            let mut events = told.events.iter();
            let is_alarm = events.any(|event| matches!(event.what, What::Lost { .. }));
            println!(
                "undisturbed, {seconds} s, lease {} ms, {lost_per_mille} of 1,000 packets lost: {}",
                self.lease.as_millis(),
                if is_alarm {
                    "a false alarm"
                } else {
                    "no false alarm"
                }
            );
        }
    }

    /// When the first worker was lost since then.
    fn first_loss_ns(told: &Told, since_ns: u64) -> u64 {
        let mut events = told.events.iter().filter(|event| event.at_ns >= since_ns);
        let lost = events.find(|event| matches!(event.what, What::Lost { .. }));
        lost.expect("the host is lost").at_ns
    }

    /// Kills what a process has started, and waits until it has seen that.
    fn kill_children_of(parent: Pid) {
        let mut has_been_seen = false;
        loop {
            let found = children_of(parent);
            has_been_seen |= !found.is_empty();
            if has_been_seen && found.is_empty() {
                return;
            }
            for child in found {
                let _ = kill_process(child, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// When the epoch without the host was decided on.
    fn decision_ns(told: &Told) -> u64 {
        let mut events = told.events.iter();
        let decided = events
            .find(|event| matches!(&event.what, What::Begin { lost, .. } if !lost.is_empty()));
        decided.expect("the host is lost").at_ns
    }
}

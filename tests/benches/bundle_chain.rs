//! How long a bundle takes to all agents, beside one plain copy of it by TCP in the same run, by turns; and how much of it is sent
//! again to an agent that was killed in the middle. The run and four agents are hosts of their own, each behind a link of 100 MB/s in
//! both directions.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench bundle_chain                 1 GiB, 3 turns
//! cargo bench -p zbmd-tests --bench bundle_chain -- 256 5        256 MiB, 5 turns
//! cargo bench -p zbmd-tests --bench bundle_chain -- cut 256 3    256 MiB, to one that is killed and to one that is not, 3 turns
//! ```

zbmd_tests::own_zbmd_run!("runs over several hosts need Linux", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
    use zbmd_tests::agents::{AgentProcess, token_file};
    use zbmd_tests::child_run;
    use zbmd_tests::figures::{load, median};
    use zbmd_tests::host_net::HostNet;
    use zbmd_tests::run_process::RunProcess;
    use zbmd_tests::tiers::Layers;

    const AGENTS: usize = 4;
    /// The run's own host; agents have those behind it.
    const RUN: usize = 0;
    /// 16 MiB a matrix.
    const WIDTH: usize = 2048;
    const LAYER_MIB: usize = (WIDTH * WIDTH * 4) >> 20;
    const RATE: &str = "800mbit";
    /// Set in the environment of a process that is one end of a plain copy: which one.
    const COPY_END: &str = "ZBMD_BENCH_COPY_END";
    const COPY_PORT: u16 = 7100;
    const LISTEN_LIMIT: Duration = Duration::from_secs(10);

    /// The hosts, and the folder with the bundle.
    struct Bench {
        net: HostNet,
        folder: tempfile::TempDir,
        bundle_bytes: u64,
    }

    pub(super) fn main() {
        match std::env::var(COPY_END).as_deref() {
            Ok("receives") => return receive_copy(),
            Ok(_) => return send_copy(),
            Err(_) => {}
        }
        let words: Vec<String> = std::env::args().collect();
        let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let mebibytes = numbers.first().copied().unwrap_or(1024);
        let turns = numbers.get(1).copied().unwrap_or(3);
        let Some(bench) = Bench::new(mebibytes) else {
            return;
        };
        println!(
            "a bundle of {} MiB to {AGENTS} agents over links of {RATE}; load {}",
            bench.bundle_bytes >> 20,
            load()
        );
        match words.iter().any(|word| word == "cut") {
            true => bench.measure_cuts(turns),
            false => bench.measure_times(turns),
        }
    }

    impl Bench {
        fn new(mebibytes: usize) -> Option<Self> {
            let net = HostNet::make(1 + AGENTS)?;
            for host in 0..=AGENTS {
                if let Err(why) = net.limit_rate(host, RATE) {
                    println!("SKIPPED: no links of {RATE}: {why}");
                    return None;
                }
            }
            let folder = tempfile::tempdir().expect("a folder");
            write_bundle(folder.path(), mebibytes);
            token_file(folder.path(), "a token of the benchmark");
            let bundle = std::fs::metadata(folder.path().join("layers.zbmd"));
            Some(Self {
                net,
                folder,
                bundle_bytes: bundle.expect("written").len(),
            })
        }

        /// One copy and the way to all agents, by turns.
        fn measure_times(&self, turns: usize) {
            let mut ratios = Vec::new();
            for _ in 0..turns {
                let copy = self.copy();
                let chain = self.distribute().as_secs_f64();
                println!(
                    "one copy {copy:.2} s, to all agents {chain:.2} s: {:.2}",
                    chain / copy
                );
                ratios.push(chain / copy);
            }
            println!("median ratio {:.2}; load {}", median(ratios), load());
        }

        /// What comes to an agent that is killed when it has half of the bundle, and started anew, beside one that is not killed.
        fn measure_cuts(&self, turns: usize) {
            let mut ratios = Vec::new();
            for _ in 0..turns {
                let [whole, cut] = [false, true].map(|is_killed| self.received_by_last(is_killed));
                let ratio = cut as f64 / whole as f64;
                println!(
                    "bytes over the link of the last agent: {whole}, killed in the middle {cut}: {ratio:.3}"
                );
                ratios.push(ratio);
            }
            println!("median ratio {:.3}; load {}", median(ratios), load());
        }

        /// Bytes over the link to the last agent until it has the bundle.
        fn received_by_last(&self, is_killed: bool) -> u64 {
            let before = self.net.received_bytes(AGENTS);
            let mut agents = self.start_agents();
            if is_killed {
                let mut run = self.start_run(&agents);
                run.wait_until("half of it has come", || {
                    self.net.received_bytes(AGENTS) - before > self.bundle_bytes / 2
                });
                agents[AGENTS - 1].signal(Signal::KILL);
                run.signal(Signal::KILL);
                drop(run.end());
                agents[AGENTS - 1] = self.start_agent(AGENTS);
            }
            finish(self.start_run(&agents));
            let received = self.net.received_bytes(AGENTS) - before;
            drop(agents);
            self.forget_bundles();
            received
        }

        /// From the run's first byte of the bundle until all agents have it.
        fn distribute(&self) -> Duration {
            let agents = self.start_agents();
            let mut run = self.start_run(&agents);
            let first = self.bundle_folder(1);
            run.wait_until("the bundle comes", || has_begun(&first));
            let begun = Instant::now();
            run.wait_until("all agents have it", || {
                let mut said = agents.iter().map(AgentProcess::said);
                said.all(|said| said.contains("the bundle has"))
            });
            let taken = begun.elapsed();

            for (number, agent) in agents.iter().enumerate().skip(1) {
                let said = agent.said();
                assert!(said.contains(" 0 from the run"), "agent {number}: {said}");
            }
            finish(run);
            drop(agents);
            self.forget_bundles();
            taken
        }

        fn start_run(&self, agents: &[AgentProcess]) -> RunProcess {
            let mut command = child_run::command_by(|program| self.net.command(RUN, program));
            command
                .args(["layers.zbmd", "-q", "-i", "in=in.f32", "-o", "out=out.f32"])
                .args(["--token-file", "token", "--plain-wires"])
                .args(["--host-lease", "10s"])
                .current_dir(self.folder.path());
            for (agent, started) in agents.iter().enumerate() {
                command.args(["--host", &format!("h{}={}", agent + 1, started.address)]);
            }
            RunProcess::start(command)
        }

        fn start_agents(&self) -> Vec<AgentProcess> {
            (1..=AGENTS).map(|host| self.start_agent(host)).collect()
        }

        fn start_agent(&self, host: usize) -> AgentProcess {
            let mut command = child_run::command_by(|program| self.net.command(host, program));
            command
                .args(["agent", "--plain-wires", "--token-file", "token"])
                .args(["--listen", &format!("{}:0", HostNet::address(host))])
                .arg("--bundle-folder")
                .arg(self.bundle_folder(host))
                .stdin(Stdio::null())
                .current_dir(self.folder.path());
            AgentProcess::spawn(command)
        }

        fn bundle_folder(&self, host: usize) -> std::path::PathBuf {
            self.folder.path().join(format!("bundles{host}"))
        }

        fn forget_bundles(&self) {
            for host in 1..=AGENTS {
                std::fs::remove_dir_all(self.bundle_folder(host)).expect("its folder");
            }
        }

        /// Seconds that one connection takes for the bundle, from the run's host to the first agent's.
        fn copy(&self) -> f64 {
            let end = |host, name| {
                let program = std::env::current_exe().expect("a path");
                let mut command: Command = self.net.command(host, &program);
                command.env(COPY_END, name).current_dir(self.folder.path());
                command
            };
            let mut receiver = end(1, "receives").spawn().expect("started");
            let sent = end(RUN, "sends").output().expect("started");
            assert!(receiver.wait().expect("a child").success());
            let seconds = String::from_utf8_lossy(&sent.stdout);
            seconds.trim().parse().expect("a number")
        }
    }

    fn copy_address() -> SocketAddr {
        SocketAddr::from((HostNet::address(1), COPY_PORT))
    }

    fn receive_copy() {
        let listener = TcpListener::bind(copy_address()).expect("bound");
        let (mut socket, _) = listener.accept().expect("a connection");
        let mut piece = vec![0; 1 << 20];
        while socket.read(&mut piece).expect("it comes") > 0 {}
        socket.write_all(&[0]).expect("sent");
    }

    /// Prints the seconds until the other end has all of it.
    fn send_copy() {
        let bundle = std::fs::read("layers.zbmd").expect("written");
        let begun = Instant::now();
        let mut socket = loop {
            // The other end may not listen yet.
            match TcpStream::connect(copy_address()) {
                Ok(socket) => break socket,
                Err(error) => assert!(begun.elapsed() < LISTEN_LIMIT, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let begun = Instant::now();
        socket.write_all(&bundle).expect("sent");
        socket.shutdown(Shutdown::Write).expect("it is there");
        socket.read_exact(&mut [0]).expect("it has all of it");
        println!("{}", begun.elapsed().as_secs_f64());
    }

    fn finish(run: RunProcess) {
        let (status, said) = run.end();
        assert!(status.success(), "{said}");
    }

    fn write_bundle(folder: &Path, mebibytes: usize) {
        let layers = Layers {
            rows: 1,
            width: WIDTH,
            count: mebibytes.div_ceil(LAYER_MIB),
            quantised: false,
        };
        let text = layers.write(folder);
        let pins = "pins: { \"in\": \"h0:0\", \"out\": \"h0:0\" }, sinks:";
        let options = CompileOptions {
            machine: MachineChoice::UniformHosts {
                hosts: AGENTS + 1,
                devices: 1,
            },
            ..CompileOptions::default()
        };
        let text = text.replace("sinks:", pins);
        let compiled = compile_str("layers.ron", &text, folder, &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        zbmd_ir::bundle::write(&folder.join("layers.zbmd"), &compiled.program).expect("written");
        std::fs::write(folder.join("in.f32"), vec![0; WIDTH * 4]).expect("written");
    }

    fn has_begun(folder: &Path) -> bool {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut lengths = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        lengths.any(|length| length > 0)
    }
}

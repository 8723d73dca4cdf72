//! How long a bundle takes to all agents, beside one plain copy of it by TCP in the same run, by turns: four agents in network
//! namespaces, each behind a link of 100 MB/s in both directions.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench bundle_chain                 1 GiB, 3 turns
//! cargo bench -p zbmd-tests --bench bundle_chain -- 256 5        256 MiB, 5 turns
//! ```

zbmd_tests::own_zbmd_run!("runs over several hosts need Linux", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
    use zbmd_tests::agents::token_file;
    use zbmd_tests::child_run;
    use zbmd_tests::figures::{load, median};
    use zbmd_tests::run_process::RunProcess;
    use zbmd_tests::tiers::Layers;

    const AGENTS: usize = 4;
    /// 16 MiB a matrix.
    const WIDTH: usize = 2048;
    const LAYER_MIB: usize = (WIDTH * WIDTH * 4) >> 20;
    const RATE: &str = "800mbit";
    const LIMIT: Duration = Duration::from_secs(300);
    const HERE: Ipv4Addr = Ipv4Addr::new(10, 231, 9, 254);

    pub(super) fn main() {
        let numbers: Vec<usize> = std::env::args()
            .filter_map(|argument| argument.parse().ok())
            .collect();
        let mebibytes = numbers.first().copied().unwrap_or(1024);
        let turns = numbers.get(1).copied().unwrap_or(3);
        let Some(network) = Network::make() else {
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        write_bundle(folder.path(), mebibytes);
        token_file(folder.path(), "a token of the benchmark");
        let bundle = std::fs::read(folder.path().join("layers.zbmd")).expect("written");
        println!(
            "a bundle of {} MiB to {AGENTS} agents over links of {RATE}; load {}",
            bundle.len() >> 20,
            load()
        );

        let mut ratios = Vec::new();
        for _ in 0..turns {
            let copy = network.copy(&bundle).as_secs_f64();
            let chain = network.distribute(folder.path()).as_secs_f64();
            println!(
                "one copy {copy:.2} s, to all agents {chain:.2} s: {:.2}",
                chain / copy
            );
            ratios.push(chain / copy);
        }
        println!("median ratio {:.2}; load {}", median(ratios), load());
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

    /// Namespaces, each behind a link of its own to one bridge. They end with this.
    struct Network {
        process: u32,
    }

    impl Network {
        fn make() -> Option<Self> {
            let network = Self {
                process: std::process::id(),
            };
            let bridge = network.bridge();
            let mut steps = vec![
                format!("ip link add {bridge} type bridge"),
                format!("ip addr add {HERE}/24 dev {bridge}"),
                format!("ip link set {bridge} up"),
            ];
            for agent in 0..AGENTS {
                let (name, link) = (network.namespace(agent), network.link(agent));
                let address = Self::address(agent);
                let limit = format!("root tbf rate {RATE} burst 1mb latency 50ms");
                steps.extend([
                    format!("ip netns add {name}"),
                    format!("ip link add {link} type veth peer name uplink netns {name}"),
                    format!("ip link set {link} master {bridge} up"),
                    format!("ip -n {name} addr add {address}/24 dev uplink"),
                    format!("ip -n {name} link set uplink up"),
                    format!("tc qdisc add dev {link} {limit}"),
                    format!("tc -n {name} qdisc add dev uplink {limit}"),
                ]);
            }
            for step in steps {
                let mut words = step.split(' ');
                let program = words.next().expect("a word");
                let done = Command::new(program).args(words).output();
                if !done.as_ref().is_ok_and(|output| output.status.success()) {
                    println!("SKIPPED: `{step}` is not possible here: {done:?}");
                    return None;
                }
            }
            Some(network)
        }

        fn bridge(&self) -> String {
            format!("zb{}", self.process)
        }

        fn namespace(&self, agent: usize) -> String {
            format!("zbmd{}n{agent}", self.process)
        }

        fn link(&self, agent: usize) -> String {
            format!("zl{}n{agent}", self.process)
        }

        fn address(agent: usize) -> Ipv4Addr {
            Ipv4Addr::new(10, 231, 9, 1 + agent as u8)
        }

        fn command(&self, agent: usize, program: &Path) -> Command {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &self.namespace(agent)])
                .arg(program);
            command
        }

        /// Sends the bytes to the first namespace over one connection.
        fn copy(&self, bytes: &[u8]) -> Duration {
            let listener = TcpListener::bind((HERE, 0)).expect("bound");
            let port = listener.local_addr().expect("an address").port();
            let script = format!("exec 3<>/dev/tcp/{HERE}/{port}; cat <&3 >/dev/null");
            let mut receiver = self.command(0, Path::new("bash"));
            let mut receiver = receiver.args(["-c", &script]).spawn().expect("started");
            let (mut socket, _) = listener.accept().expect("a connection");
            let begun = Instant::now();
            socket.write_all(bytes).expect("sent");
            drop(socket);
            assert!(receiver.wait().expect("a child").success());
            begun.elapsed()
        }

        /// From the run's first byte of the bundle until all agents have it.
        fn distribute(&self, folder: &Path) -> Duration {
            let agents: Vec<RunningAgent> = (0..AGENTS)
                .map(|agent| self.start_agent(agent, folder))
                .collect();
            let mut command = child_run::command();
            command
                .args(["layers.zbmd", "-q", "-i", "in=in.f32", "-o", "out=out.f32"])
                .args([
                    "--token-file",
                    "token",
                    "--host-lease",
                    "10s",
                    "--plain-wires",
                ])
                .current_dir(folder);
            for (agent, started) in agents.iter().enumerate() {
                command.args(["--host", &format!("h{}={}", agent + 1, started.address)]);
            }
            let mut run = RunProcess::start(command);
            let first = folder.join("bundles0");
            run.wait_until("the bundle comes", || has_begun(&first));
            let begun = Instant::now();
            run.wait_until("all agents have it", || {
                agents
                    .iter()
                    .all(|agent| agent.said().contains("the bundle has"))
            });
            let taken = begun.elapsed();
            for (agent, started) in agents.iter().enumerate().skip(1) {
                let said = started.said();
                assert!(said.contains(" 0 from the run"), "agent {agent}: {said}");
            }
            let (status, said) = run.end();
            assert!(status.success(), "{said}");
            drop(agents);
            for agent in 0..AGENTS {
                std::fs::remove_dir_all(folder.join(format!("bundles{agent}")))
                    .expect("its folder");
            }
            taken
        }

        fn start_agent(&self, agent: usize, folder: &Path) -> RunningAgent {
            let said = folder.join(format!("agent{agent}"));
            let mut command = child_run::command_by(|program| self.command(agent, program));
            command
                .args(["agent", "--plain-wires", "--listen"])
                .arg(format!("{}:0", Self::address(agent)))
                .arg("--token-file")
                .arg(folder.join("token"))
                .arg("--bundle-folder")
                .arg(folder.join(format!("bundles{agent}")))
                .stdin(Stdio::null())
                .stderr(File::create(&said).expect("a file"));
            let child = command.spawn().expect("started");
            let mut agent = RunningAgent {
                child,
                said,
                address: SocketAddr::from((HERE, 0)),
            };
            let begun = Instant::now();
            while agent.address.port() == 0 {
                let said = agent.said();
                let line = said
                    .lines()
                    .find_map(|line| line.split_once("listening at "));
                if let Some((_, address)) = line {
                    agent.address = address.parse().unwrap_or(agent.address);
                }
                assert!(begun.elapsed() < LIMIT, "{said}");
                std::thread::sleep(Duration::from_millis(1));
            }
            agent
        }
    }

    impl Drop for Network {
        fn drop(&mut self) {
            let run = |program: &str, words: &[&str]| {
                // What is not there need not be removed.
                let _ = Command::new(program).args(words).output();
            };
            for agent in 0..AGENTS {
                run("ip", &["netns", "del", &self.namespace(agent)]);
            }
            run("ip", &["link", "del", &self.bridge()]);
        }
    }

    fn has_begun(folder: &Path) -> bool {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut lengths = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        lengths.any(|length| length > 0)
    }

    struct RunningAgent {
        child: std::process::Child,
        said: PathBuf,
        address: SocketAddr,
    }

    impl RunningAgent {
        fn said(&self) -> String {
            std::fs::read_to_string(&self.said).unwrap_or_default()
        }
    }

    impl Drop for RunningAgent {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

//! Runs over two hosts: this process is the conductor, agents are processes of their own, and what goes between them goes
//! over loopback. Outputs are those of a run on one host, bit for bit, whatever becomes of the agents.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_executor::supervise::What;
use zbmd_executor::{
    Credentials, Engine, Gather, Hosts, Isolation, Protection, RunOptions, Tls, TlsFiles, Token,
};
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;
use zbmd_tests::agents::{self, AgentProcess};
use zbmd_tests::child_run;
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::Test;
use zbmd_tests::losses::{Feed, HARDY, Told, live, live_with, options, supervised};
use zbmd_tests::other_processes::{hold_sockets_of, threads_of};
use zbmd_tests::run_process::RunProcess;
use zbmd_tests::sample::cases;
use zbmd_wire::find_ucx;
use zbmd_wire::testing::{Authority, Flaw, Namespace};

pub(super) const TESTS: &[Test] = &[
    (
        "two_hosts_give_what_one_gives",
        two_hosts_give_what_one_gives,
    ),
    (
        "workers_that_send_to_each_other",
        workers_that_send_to_each_other,
    ),
    ("killed_agents", killed_agents),
    (
        "killed_agents_whose_connections_stay_open",
        killed_agents_whose_connections_stay_open,
    ),
    ("a_stopped_agent", a_stopped_agent),
    ("a_host_that_is_cut_off", a_host_that_is_cut_off),
    ("a_host_that_comes_back", a_host_that_comes_back),
    ("a_wrong_token", a_wrong_token),
    ("two_hosts_in_tls", two_hosts_in_tls),
    ("two_hosts_over_ucx", two_hosts_over_ucx),
    ("two_hosts_over_ipv6", two_hosts_over_ipv6),
    ("unprotected_agents", unprotected_agents),
    ("a_real_time_run", a_real_time_run),
];

const MACHINE: &str = r#"Machine(
        devices: [
            Device(name: "left:0", backend: cpu),
            Device(name: "right:0", backend: cpu), Device(name: "right:1", backend: cpu),
        ],
        hosts: { "left": ["left:0"], "right": ["right:0", "right:1"] },
        links: [
            Link(from: "right", to: "right"),
            Link(from: "left", to: "right", both: true, bandwidth: "10GB/s", latency: "1us"),
        ],
    )"#;

const MODEL: &str = r#"Model(
        name: "hosts",
        sources: { "in": Stream(dtype: f32) },
        actors: {
            "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
            "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
            "c": Fir(design: { "kind": "lowpass", "cutoff": 0.1, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
        },
        channels: [
            (from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["c"]), (from: "c", to: ["out"]),
        ],
        sinks: { "out": Stream() },
        pins: { "in": "left:0", "out": "left:0" },
    )"#;

/// Where the system has a port for an agent.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SECRET: &str = "a token of the test";
const FEED: Feed = Feed {
    seed: 5,
    iterations: 400_000,
    per_s: Some(400_000.0),
};
const UNPACED: Feed = Feed {
    per_s: None,
    ..FEED
};

pub(super) fn engine(folder: &Path) -> Engine {
    engine_of(folder, MODEL)
}

fn compile(folder: &Path, model: &str) -> Verified<Program> {
    let machine = folder.join("cluster.ron");
    std::fs::write(&machine, MACHINE).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::File(machine),
        contingencies: Losses::Hosts,
        ..CompileOptions::default()
    };
    let compiled = compile_str("hosts.ron", model, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.program
}

fn engine_of(folder: &Path, model: &str) -> Engine {
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::new(compile(folder, model), &registry).expect("an engine");
    let program = engine.program();
    let hosts_used = program.plans[zbmd_ir::PlanId(0)].calendars.iter();
    let devices: Vec<u32> = hosts_used.map(|calendar| calendar.device.0).collect();
    assert!(
        devices.contains(&0) && devices.len() > 1,
        "both hosts work: {devices:?}"
    );
    engine
}

pub(super) fn start_agent(token_file: &Path) -> AgentProcess {
    start_agent_with(token_file, &[])
}

/// Where another one was.
pub(super) fn start_agent_at(token_file: &Path, address: SocketAddr) -> AgentProcess {
    AgentProcess::spawn(agent_command(token_file, address))
}

pub(super) fn start_agent_with(token_file: &Path, more: &[&OsStr]) -> AgentProcess {
    let mut command = agent_command(token_file, ANYWHERE);
    command.args(more);
    AgentProcess::spawn(command)
}

/// An agent in whose environment these variables are set.
pub(super) fn start_agent_in(token_file: &Path, variables: &[(&str, &OsStr)]) -> AgentProcess {
    let mut command = agent_command(token_file, ANYWHERE);
    command.envs(variables.iter().copied());
    AgentProcess::spawn(command)
}

fn agent_command(token_file: &Path, address: SocketAddr) -> Command {
    let mut command = child_run::command();
    command.args(["agent", "--listen", &address.to_string(), "--token-file"]);
    command.arg(token_file);
    command
}

/// How many devices were lost in each epoch.
pub(super) fn lost_counts(told: &Told) -> Vec<usize> {
    let counts = told.events.iter().filter_map(|event| match &event.what {
        What::Begin { lost, .. } => Some(lost.len()),
        _ => None,
    });
    counts.collect()
}

pub(super) fn token_file(folder: &Path) -> PathBuf {
    agents::token_file(folder, SECRET)
}

pub(super) fn host_options(engine: &Engine, agent: &AgentProcess, lease: Duration) -> RunOptions {
    let mut options = options(Isolation::Threads);
    options.supervised = Some(supervised(engine, HARDY, None));
    options.hosts = Some(Hosts {
        agents: vec![("right".to_owned(), agent.address)],
        credentials: Credentials {
            token: Token::of(SECRET.as_bytes()),
            protection: Protection::Loopback,
        },
        lease,
        council: None,
        gather: None,
        own: None,
    });
    options
}

/// What a run on this host alone gives.
fn on_one_host(engine: &Engine) -> Told {
    let told = live(engine, UNPACED, options(Isolation::Threads));
    told.outcome.as_ref().expect("it runs");
    told
}

pub(super) const LONG_LEASE: Duration = Duration::from_secs(5);

fn two_hosts_give_what_one_gives() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    // One agent serves one run after the other; with checksums, payloads are checked on the way.
    for checksums in [false, true] {
        let mut options = host_options(&engine, &agent, LONG_LEASE);
        options.checksums = checksums;
        let told = live(&engine, UNPACED, options);
        let outcome = told.outcome.expect("it runs");
        let events = &told.events;
        assert_eq!(outcome.report.recoveries, 0, "nothing is lost: {events:?}");
        assert_eq!(told.sinks, expected.sinks);
    }
}

/// Threads and processes of both hosts find each other by addresses of IPv6 as by others.
fn two_hosts_over_ipv6() {
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        return println!("SKIPPED: this computer has no IPv6: {error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let any_port = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let agent = start_agent_at(&token_file(folder.path()), any_port);
    for isolation in [Isolation::Threads, Isolation::Processes { program: None }] {
        let options = RunOptions {
            isolation,
            ..host_options(&engine, &agent, LONG_LEASE)
        };
        let told = live(&engine, UNPACED, options);
        let outcome = told.outcome.expect("it runs");
        assert_eq!(outcome.report.recoveries, 0, "{:?}", told.events);
        assert_eq!(told.sinks, expected.sinks);
    }
}

/// The agent's threads have real-time priorities while the run lasts, and its memory is locked; an agent without the right to that is
/// named with what it lacks.
fn a_real_time_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = token_file(folder.path());
    let input: Vec<u8> = (0..8_000u32)
        .flat_map(|n| (n as f32).to_le_bytes())
        .collect();
    std::fs::write(folder.path().join("in.f32"), input).expect("written");
    let program = compile(folder.path(), MODEL);
    zbmd_ir::bundle::write(&folder.path().join("model.zbmd"), &program).expect("written");
    let alone = [
        "model.zbmd",
        "-q",
        "--realtime",
        "-i",
        "in=in.f32",
        "-o",
        "out=alone.f32",
    ];
    let alone = child_run::output_in(folder.path(), &alone);
    if alone.status.code() == Some(6) {
        let said = String::from_utf8_lossy(&alone.stderr);
        println!("SKIPPED: no right to real-time priorities here: {said}");
        return;
    }
    assert!(alone.status.success());

    let run = |agent: &AgentProcess| {
        let host = format!("right={}", agent.address);
        let mut command = child_run::command();
        command
            .args(["model.zbmd", "-q", "--realtime", "--token-file", "token"])
            .args(["--host-lease", "5s", "--host", &host])
            .args(["-i", "in=paced:in.f32?rate=8000", "-o", "out=out.f32"])
            .current_dir(folder.path());
        RunProcess::start(command)
    };
    let agent = start_agent(&token);
    let mut running = run(&agent);
    running.wait_until("a worker of the agent with real-time priority", || {
        let mut threads = threads_of(agent.pid()).into_iter();
        threads.any(|thread| {
            thread.name.starts_with("zbmd calendar") && thread.fifo_priority.is_some()
        })
    });
    let (status, said) = running.end();
    assert!(status.success(), "{status}: {said}");
    let read = |name| std::fs::read(folder.path().join(name)).expect("written");
    assert!(read("out.f32") == read("alone.f32"), "other output");

    let mut command = child_run::command_by(|program| {
        let mut command = std::process::Command::new("setpriv");
        command
            .args([
                "--bounding-set=-sys_nice",
                "--inh-caps=-sys_nice",
                "prlimit",
            ])
            .args(["--rtprio=0:0", "--"])
            .arg(program);
        command
    });
    command
        .args(["agent", "--listen", "127.0.0.1:0", "--token-file"])
        .arg(&token);
    let unfit = AgentProcess::spawn(command);
    let (status, said) = run(&unfit).end();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(
        said.contains("host right") && said.contains("refuses real-time priority 50"),
        "{said}"
    );
}

/// Each of two workers has a wire to and one from the other.
fn workers_that_send_to_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let pins = r#""a": "right:0", "b": "left:0", "c": "right:0", "out": "left:0""#;
    let model = MODEL.replace(r#""out": "left:0""#, pins);
    let engine = engine_of(folder.path(), &model);
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let told = live(&engine, UNPACED, host_options(&engine, &agent, LONG_LEASE));
    let outcome = told.outcome.expect("it runs");
    assert_eq!(outcome.report.recoveries, 0, "{:?}", told.events);
    assert_eq!(told.sinks, expected.sinks);
}

/// Whether the loss of the host was one event, and the run went on without it.
fn check_loss(told: &Told, expected: &Told, what: &str) {
    let text = format!("{:?}", told.events);
    assert!(told.outcome.is_ok(), "{what}: {:?}", told.outcome);
    assert!(text.contains("host right is gone"), "{what}: {text}");
    assert_eq!(told.sinks, expected.sinks, "{what}");
}

fn killed_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let token_file = token_file(folder.path());
    for seed in 0..cases(5) {
        let agent = start_agent(&token_file);
        let options = host_options(&engine, &agent, LONG_LEASE);
        let after = Duration::from_millis(50 + (seed * 7919) % 700);
        let told = live_with(&engine, FEED, options, |_, _| {
            std::thread::sleep(after);
            agent.signal(Signal::KILL);
        });
        check_loss(&told, &expected, &format!("killed after {after:?}"));
    }
}

/// Somebody else has the sockets of an agent open when it is killed: its own connection does not end, and heartbeats would be
/// missed only after a long lease.
fn killed_agents_whose_connections_stay_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let options = host_options(&engine, &agent, LONG_LEASE);
    let mut held = None;
    let told = live_with(&engine, FEED, options, |_, _| {
        std::thread::sleep(Duration::from_millis(300));
        held = hold_sockets_of(agent.pid());
        agent.signal(Signal::KILL);
    });
    if held.is_none() {
        return println!("SKIPPED: sockets of other processes cannot be held open here");
    }
    check_loss(&told, &expected, "killed, and its sockets stay open");
    let text = format!("{:?}", told.events);
    assert!(
        text.contains("its agent has ended the connection"),
        "{text}"
    );
}

fn a_stopped_agent() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let options = host_options(&engine, &agent, Duration::from_millis(300));
    let told = live_with(&engine, FEED, options, |_, _| {
        std::thread::sleep(Duration::from_millis(200));
        agent.signal(Signal::STOP);
        // It goes on when it has been given up, in the middle of the run.
        std::thread::sleep(Duration::from_millis(500));
        agent.signal(Signal::CONT);
    });
    check_loss(&told, &expected, "stopped");
    let text = format!("{:?}", told.events);
    assert!(text.contains("it has been silent for 300 ms"), "{text}");
}

/// The network is cut between the hosts: no end of a connection says so, heartbeats do.
fn a_host_that_is_cut_off() {
    let Some(namespace) = Namespace::make() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let addresses = [Namespace::HERE, Namespace::THERE].map(IpAddr::from);
    let files = Authority::new().write(folder.path(), &addresses, Flaw::None);
    let mut command = child_run::command_by(|program| namespace.command(program));
    command
        .args(["agent", "--listen"])
        .arg(format!("{}:0", Namespace::THERE))
        .arg("--token-file")
        .arg(token_file(folder.path()))
        .args(tls_arguments(&files));
    let agent = AgentProcess::spawn(command);

    let mut options = host_options(&engine, &agent, Duration::from_millis(300));
    if let Some(hosts) = &mut options.hosts {
        let tls = Tls::read(&files).expect("a certificate");
        hosts.credentials.protection = Protection::Tls(tls);
    }
    let told = live_with(&engine, FEED, options, |_, _| {
        std::thread::sleep(Duration::from_millis(300));
        namespace.cut();
    });
    check_loss(&told, &expected, "cut off");
    let text = format!("{:?}", told.events);
    assert!(text.contains("it has been silent for 300 ms"), "{text}");
}

/// How a host that was lost is there again.
#[derive(Clone, Copy, PartialEq)]
enum Back {
    /// Its agent is started anew.
    WhereItWas,
    /// The same at another address, which the agent tells the run by joining it.
    Elsewhere,
    AfterAStop,
}

/// An agent that is started again takes part again, from a border on, and so does one that was stopped for a while.
fn a_host_that_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let token_file = token_file(folder.path());
    let feed = Feed {
        iterations: 1_200_000,
        ..FEED
    };
    let expected = live(
        &engine,
        Feed {
            per_s: None,
            ..feed
        },
        options(Isolation::Threads),
    );
    for back in [Back::WhereItWas, Back::Elsewhere, Back::AfterAStop] {
        let gather = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let join = gather.to_string();
        let join = ["--join", &join, "--as", "right"].map(OsStr::new);
        let start_anywhere = || match back {
            Back::Elsewhere => start_agent_with(&token_file, &join),
            _ => start_agent(&token_file),
        };
        let agent = start_anywhere();
        let address = agent.address;
        let mut options = host_options(&engine, &agent, Duration::from_millis(300));
        if let (Some(hosts), Back::Elsewhere) = (&mut options.hosts, back) {
            hosts.agents.clear();
            hosts.gather = Some(Gather {
                address: gather,
                limit: LONG_LEASE,
                processes: Some(2),
            });
        }
        let told = live_with(&engine, feed, options, |_, is_over| {
            let wait_for_end = || {
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            };
            std::thread::sleep(Duration::from_millis(300));
            if back == Back::AfterAStop {
                agent.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(500));
                agent.signal(Signal::CONT);
                return wait_for_end();
            }
            drop(agent);
            let _again = match back {
                Back::Elsewhere => start_anywhere(),
                _ => start_agent_at(&token_file, address),
            };
            wait_for_end();
        });
        check_loss(&told, &expected, "lost and back");
        let lost_counts = lost_counts(&told);
        let first_loss = lost_counts.iter().position(|lost| *lost == 2);
        let returned = first_loss.map(|first| lost_counts[first..].contains(&0));
        assert_eq!(returned, Some(true), "{lost_counts:?}");
    }
}

fn a_wrong_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let agent = start_agent(&token_file(folder.path()));
    let mut options = host_options(&engine, &agent, LONG_LEASE);
    if let Some(hosts) = &mut options.hosts {
        hosts.credentials.token = Token::of(b"another token of the test");
    }
    let error = engine.start(options).expect_err("refused").to_string();
    assert!(
        error.contains("host right") && error.contains("--token-file"),
        "{error}"
    );

    // A host that the machine does not have, and one too few.
    for agents in [vec![("middle".to_owned(), agent.address)], Vec::new()] {
        let mut options = host_options(&engine, &agent, LONG_LEASE);
        if let Some(hosts) = &mut options.hosts {
            hosts.agents = agents;
        }
        let error = engine.start(options).expect_err("refused").to_string();
        assert!(error.contains("hosts"), "{error}");
    }
}

pub(super) fn tls_arguments(files: &TlsFiles) -> [&OsStr; 6] {
    [
        OsStr::new("--tls-certificate"),
        files.certificate.as_os_str(),
        OsStr::new("--tls-key"),
        files.key.as_os_str(),
        OsStr::new("--tls-ca"),
        files.ca.as_os_str(),
    ]
}

fn two_hosts_in_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let token_file = token_file(folder.path());
    let authority = Authority::new();
    for flaw in [Flaw::None, Flaw::Expired] {
        let files = authority.write(folder.path(), &[], flaw);
        let agent = start_agent_with(&token_file, &tls_arguments(&files));
        let own_files = authority.write(folder.path(), &[], Flaw::None);
        let tls = Tls::read(&own_files).expect("a certificate");
        let mut options = host_options(&engine, &agent, LONG_LEASE);
        if let Some(hosts) = &mut options.hosts {
            hosts.credentials.protection = Protection::Tls(tls);
        }
        if flaw == Flaw::Expired {
            let error = engine.start(options).expect_err("refused").to_string();
            assert!(error.contains("its certificate has expired"), "{error}");
            continue;
        }
        let told = live_with(&engine, FEED, options, |_, _| {
            std::thread::sleep(Duration::from_millis(400));
            agent.signal(Signal::KILL);
        });
        check_loss(&told, &expected, "in TLS");
    }
}

/// Tokens go over UCX, also of the epochs that follow a loss.
fn two_hosts_over_ucx() {
    if let Err(why) = find_ucx() {
        println!("SKIPPED: {why}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let token_file = token_file(folder.path());
    let agent = start_agent_with(&token_file, &[OsStr::new("--ucx-wires")]);
    let over_ucx = || {
        let mut options = host_options(&engine, &agent, LONG_LEASE);
        if let Some(hosts) = &mut options.hosts {
            hosts.credentials.protection = Protection::Ucx;
        }
        options
    };

    let told = live(&engine, UNPACED, over_ucx());
    let outcome = told.outcome.expect("it runs");
    assert_eq!(outcome.report.recoveries, 0, "{:?}", told.events);
    assert_eq!(told.sinks, expected.sinks);

    let told = live_with(&engine, FEED, over_ucx(), |_, _| {
        std::thread::sleep(Duration::from_millis(400));
        agent.signal(Signal::KILL);
    });
    check_loss(&told, &expected, "over UCX");
}

fn unprotected_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let token_file = token_file(folder.path());
    let agent = start_agent(&token_file);
    let mut options = host_options(&engine, &agent, LONG_LEASE);
    if let Some(hosts) = &mut options.hosts {
        hosts.agents = vec![("right".to_owned(), SocketAddr::from(([192, 0, 2, 1], 7171)))];
    }
    let error = engine.start(options).expect_err("refused").to_string();
    assert!(error.contains("--plain-wires"), "{error}");

    let refused = child_run::command()
        .args(["agent", "--listen", "0.0.0.0:0", "--token-file"])
        .arg(&token_file)
        .output()
        .expect("started");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("need TLS"), "{text}");
    assert_eq!(refused.status.code(), Some(2), "{text}");
}

//! Runs over hosts whose processes are started by launchers, which say each its number, and by `ssh`: agents find their run,
//! and the output is that of a run on one host.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::Test;
use zbmd_tests::launched_runs::{LaunchedRuns, STREAMS};
use zbmd_tests::run_process::{RunProcess, processes_with};

pub(super) const TESTS: &[Test] = &[
    ("agents_that_join", agents_that_join),
    ("agents_that_cannot_join", agents_that_cannot_join),
    ("processes_of_slurm", processes_of_slurm),
    ("processes_of_mpirun", processes_of_mpirun),
    ("a_preempted_run", a_preempted_run),
    ("up_by_a_stand_in_for_ssh", up_by_a_stand_in_for_ssh),
    ("hosts_that_are_not_there", hosts_that_are_not_there),
    ("up_by_ssh", up_by_ssh),
];

const TOKENS: u64 = 100_000;

/// Whether this ended well; what it said is shown if not.
#[track_caller]
fn check_success(launched: RunProcess) {
    let (status, said) = launched.end();
    assert!(status.success(), "{status}: {said}");
}

#[track_caller]
fn check_refusal(launched: RunProcess, code: i32, text: &str) {
    let (status, said) = launched.end();
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(said.contains(text), "{said}");
}

/// Starts a run whose agents join at this port.
fn start_run(runs: &LaunchedRuns, port: u16, more: &[&str]) -> RunProcess {
    let words = LaunchedRuns::gathering_words(port);
    let mut command = runs.command(&[]);
    command.args(words).args(more);
    RunProcess::start(command)
}

/// In any order; those that join one run end with it, the others serve the next one.
fn agents_that_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    let port = free_port();
    let _lasting = runs.agent(port, "third", &[]);
    for host in ["second", "1"] {
        let once = runs.agent(port, host, &["--once"]);
        check_success(start_run(&runs, port, &[]));
        runs.check_output();
        check_success(once);
    }
}

fn agents_that_cannot_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    let port = free_port();
    let run = start_run(&runs, port, &[]);
    let outside = runs.agent(port, "3", &[]);
    let outside_text =
        "it is host 3, counted from 0, and the bundle's machine has 3 hosts (first, second, third)";
    check_refusal(outside, 5, outside_text);
    check_refusal(runs.agent(port, "fourth", &[]), 5, "it is host `fourth`");
    check_refusal(
        runs.agent(port, "first", &[]),
        5,
        "host first is the run's own",
    );
    drop(run);
    let _second = runs.agent(port, "second", &[]);
    let alone = start_run(&runs, port, &["--gather-limit", "800ms"]);
    check_refusal(alone, 5, "no agent of third has joined");

    // Nobody is there any more.
    let late = runs.agent(port, "third", &["--join-limit", "100ms"]);
    check_refusal(late, 5, "no run has taken this agent within 100ms");
    let unnamed = format!("127.0.0.1:{port}");
    let unnamed = runs.command(&["agent", "--join", &unnamed, "--token-file", "token"]);
    check_refusal(
        RunProcess::start(unnamed),
        2,
        "--join needs --as HOST or --launcher",
    );
}

/// One process of a job of Slurm's.
fn start_in_job(
    runs: &LaunchedRuns,
    port: u16,
    number: usize,
    count: usize,
    more: &[&str],
) -> RunProcess {
    let mut command = runs.command(&[]);
    command
        .args(LaunchedRuns::gathering_words(port))
        .args(["--launcher", "slurm"])
        .args(more)
        .env("SLURM_PROCID", number.to_string())
        .env("SLURM_NTASKS", count.to_string())
        .env("SLURM_STEP_NODELIST", "localhost,elsewhere[1-2]");
    RunProcess::start(command)
}

fn processes_of_slurm() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    let port = free_port();
    let processes = [2, 1, 0].map(|number| start_in_job(&runs, port, number, 3, &[]));
    processes.into_iter().for_each(check_success);
    runs.check_output();

    let one_of_two = start_in_job(&runs, port, 0, 2, &[]);
    let text = "2 processes were started, and the bundle's machine has 3 hosts (first, second, third): start 3";
    check_refusal(one_of_two, 5, text);
    let outside = start_in_job(&runs, port, 3, 3, &[]);
    check_refusal(outside, 2, "SLURM_PROCID is 3 and SLURM_NTASKS is 3");
    let mut alone = runs.command(&[]);
    alone
        .args(LaunchedRuns::gathering_words(port))
        .args(["--launcher", "auto"])
        .env_remove("KUBERNETES_SERVICE_HOST");
    check_refusal(RunProcess::start(alone), 2, "none of OMPI_COMM_WORLD_RANK");
}

fn processes_of_mpirun() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("SKIPPED: no mpirun here: `apt-get install openmpi-bin` brings it");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    let port = free_port();
    let itself = runs.command(&[]);
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "3"])
        .arg(itself.get_program())
        .args(LaunchedRuns::gathering_words(port))
        .args([
            "--launcher",
            "open-mpi",
            "--join",
            &format!("127.0.0.1:{port}"),
        ])
        .envs(
            itself
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(folder.path());
    check_success(RunProcess::start(command));
    runs.check_output();
}

/// All processes are told to end at once, and started again later: the output is that of a run which was left alone.
fn a_preempted_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), 20 * TOKENS);
    let checkpoints = ["--checkpoint", "checkpoints", "--resume"];
    let port = free_port();
    let start = |number| start_in_job(&runs, port, number, 3, &checkpoints);
    let mut processes = [0, 1, 2].map(start);
    processes[0].wait_until("output", || runs.output_tokens() > 0);
    processes
        .iter()
        .for_each(|process| process.signal(Signal::TERM));
    for process in processes {
        check_refusal(process, 130, "");
    }
    let so_far = runs.output_tokens();
    assert!(so_far > 0 && so_far < 20 * TOKENS, "{so_far} tokens");

    [0, 1, 2].map(start).into_iter().for_each(check_success);
    runs.check_output();
}

fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("it is ours");
}

/// What `ssh` does once it is connected: options, the host, and a command for the shell there.
const STAND_IN: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ "$2" = nowhere ]; then
    echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2
    exit 255
fi
echo "$2: $3" >> ssh.log
sh -c "$3"
status=$?
echo "$2 has ended" >> ssh.log
exit $status
"#;

fn up(runs: &LaunchedRuns, more: &[&str]) -> Command {
    let mut command = runs.command(&["up", "launch.ron"]);
    command.args(STREAMS).args(more);
    command
}

/// The same with the stand-in for `ssh`.
fn up_by_stand_in(runs: &LaunchedRuns, more: &[&str]) -> RunProcess {
    write_script(&runs.folder().join("ssh"), STAND_IN);
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = up(runs, more);
    command.env("PATH", format!("{}:{path}", runs.folder().display()));
    RunProcess::start(command)
}

fn ssh_log(runs: &LaunchedRuns) -> String {
    std::fs::read_to_string(runs.folder().join("ssh.log")).unwrap_or_default()
}

fn program() -> PathBuf {
    std::env::current_exe().expect("a path")
}

fn up_by_a_stand_in_for_ssh() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), 20 * TOKENS);
    let token = folder.path().join("token").display().to_string();
    runs.write_launch_file(["radio@two", "three"], &program(), "");
    check_success(up_by_stand_in(&runs, &[]));
    runs.check_output();
    let log = ssh_log(&runs);
    for text in [
        "radio@two: ",
        "--end-with-input",
        "radio@two has ended\n",
        "three has ended\n",
    ] {
        assert!(log.contains(text), "{log}");
    }
    assert!(processes_with(&token).is_empty(), "no agent is left");

    // Told to end, and killed: agents end either way.
    for (signal, code) in [(Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let mut run = up_by_stand_in(&runs, &[]);
        run.wait_until("output", || runs.output_tokens() > 0);
        run.signal(signal);
        let (status, said) = run.end();
        assert_eq!(status.code(), code, "{said}");
        std::fs::remove_file(folder.path().join("out.f32")).expect("there is some");
        let begun = std::time::Instant::now();
        while !processes_with(&token).is_empty() {
            assert!(begun.elapsed().as_secs() < 20, "agents are left");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn hosts_that_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    runs.write_launch_file(["two", "nowhere"], &program(), "");
    let text = "host third: `ssh nowhere` has ended with exit status: 255 before its agent was there: ssh: Could not resolve hostname";
    check_refusal(up_by_stand_in(&runs, &[]), 5, text);
    assert!(
        ssh_log(&runs).contains("two has ended"),
        "{}",
        ssh_log(&runs)
    );

    runs.write_launch_file(["two", "three"], Path::new("no/such program"), "");
    let text = "host second: `ssh two` has ended with exit status: 127";
    check_refusal(up_by_stand_in(&runs, &[]), 5, text);
    runs.write_launch_file(
        ["two", "three"],
        &program(),
        "agent_options: [\"--nonsense\"],",
    );
    check_refusal(
        up_by_stand_in(&runs, &[]),
        5,
        "unexpected argument '--nonsense'",
    );
    // Before anything is started.
    std::fs::remove_file(folder.path().join("ssh.log")).expect("it is ours");
    check_refusal(
        up_by_stand_in(&runs, &["--nonsense"]),
        2,
        "unexpected argument '--nonsense'",
    );
    assert_eq!(ssh_log(&runs), "");
}

/// A server of OpenSSH's on this computer, with keys of its own.
struct SshServer {
    server: RunProcess,
    port: u16,
}

impl SshServer {
    /// `None`, with a line that says why, where there is none.
    fn start(folder: &Path) -> Option<Self> {
        let program = Path::new("/usr/sbin/sshd");
        if !program.exists() {
            println!("SKIPPED: no sshd here: `apt-get install openssh-server` brings it");
            return None;
        }
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.join(key))
                .status();
            assert!(made.expect("started").success());
        }
        let port = free_port();
        std::fs::copy(folder.join("user_key.pub"), folder.join("authorized")).expect("copied");
        let known = std::fs::read_to_string(folder.join("host_key.pub")).expect("a key");
        let known = format!("[127.0.0.1]:{port} {known}");
        std::fs::write(folder.join("known"), known).expect("written");
        // Where the server puts those who are not known yet; it insists on the folder.
        let _ = std::fs::create_dir_all("/run/sshd");
        let mut command = Command::new(program);
        command
            .args([
                "-D",
                "-e",
                "-f",
                "/dev/null",
                "-o",
                "ListenAddress=127.0.0.1",
            ])
            .args([
                "-o",
                &format!("Port={port}"),
                "-o",
                "PidFile=none",
                "-o",
                "StrictModes=no",
            ])
            .args([
                "-o",
                &format!("HostKey={}", folder.join("host_key").display()),
            ])
            .args([
                "-o",
                &format!("AuthorizedKeysFile={}", folder.join("authorized").display()),
            ])
            .stdout(Stdio::null());
        Some(Self {
            server: RunProcess::start(command),
            port,
        })
    }

    /// Waits until somebody can log in.
    fn wait_until_it_answers(&mut self) {
        let address = (std::net::Ipv4Addr::LOCALHOST, self.port);
        self.server.wait_until("listening", || {
            std::net::TcpStream::connect(address).is_ok()
        });
    }
}

fn up_by_ssh() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = SshServer::start(folder.path()) else {
        return;
    };
    server.wait_until_it_answers();
    let runs = LaunchedRuns::prepare(folder.path(), TOKENS);
    // The environment of a test does not go over.
    let script = folder.path().join("it's a program");
    let exports: String = runs
        .command(&[])
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={} ", name.display(), value?.display())))
        .collect();
    let text = format!(
        "#!/bin/sh\n{exports}exec '{}' \"$@\"\n",
        program().display()
    );
    write_script(&script, &text);

    let here = |name: &str| folder.path().join(name).display().to_string();
    let options = format!(
        "ssh_options: [\"-F\", \"none\", \"-p\", \"{}\", \"-i\", {:?}, \"-o\", \"UserKnownHostsFile={}\"],",
        server.port,
        here("user_key"),
        here("known")
    );
    runs.write_launch_file(["127.0.0.1", "127.0.0.1"], &script, &options);
    check_success(RunProcess::start(up(&runs, &[])));
    runs.check_output();
    assert!(
        processes_with(&here("token")).is_empty(),
        "no agent is left"
    );

    let nobody = options.replace("user_key", "no_key");
    runs.write_launch_file(["127.0.0.1", "127.0.0.1"], &script, &nobody);
    check_refusal(
        RunProcess::start(up(&runs, &[])),
        5,
        "Permission denied (publickey",
    );
}

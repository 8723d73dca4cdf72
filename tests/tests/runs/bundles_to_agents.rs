//! Bundles on their way to agents, each a process of its own: passed on from one to the next, kept in a folder, cut off in the
//! middle, and without room.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use zbmd_compiler::Losses;
use zbmd_tests::agents::token_file;
use zbmd_tests::child_run;
use zbmd_tests::cluster_models::Cluster;
use zbmd_tests::harness::Test;
use zbmd_tests::run_process::RunProcess;
use zbmd_tests::tiers::Layers;
use zbmd_tests::virtual_cluster::{ClusterRuns, LONG_LEASE};

pub(super) const TESTS: &[Test] = &[
    (
        "passed_on_from_agent_to_agent",
        passed_on_from_agent_to_agent,
    ),
    ("cut_off_in_the_middle", cut_off_in_the_middle),
    ("without_room", without_room),
];

const CLUSTER: Cluster = Cluster {
    hosts: 4,
    devices: 2,
};
/// 1 MiB a layer: their weights make a bundle of several parts.
const LAYERS: Layers = Layers {
    rows: 1,
    width: 512,
    count: 5,
    quantised: false,
};
const INPUT_BYTES: usize = 20 * 4 * LAYERS.width;
const LIMIT: Duration = Duration::from_secs(60);
const PART_BYTES: u64 = 1 << 20;

/// A folder with a bundle, an input and a token.
struct Setting {
    folder: tempfile::TempDir,
    parts: u64,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = ClusterRuns {
            folder: folder.path(),
            cluster: CLUSTER,
        };
        runs.compile("layers", &model(folder.path()), Losses::None, None);
        std::fs::write(folder.path().join("in.f32"), [0; INPUT_BYTES]).expect("written");
        token_file(folder.path(), "a token of the test");
        let bundle = std::fs::metadata(folder.path().join("layers.zbmd"));
        let parts = bundle.expect("written").len().div_ceil(PART_BYTES);
        assert!(parts > 3, "{parts} parts");
        Self { folder, parts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts an agent that keeps bundles in a folder.
    fn start_agent(&self, name: &str) -> Agent {
        self.start_agent_by(name, child_run::command())
    }

    fn start_agent_by(&self, name: &str, mut command: Command) -> Agent {
        let said = self.path(&format!("{name}.said"));
        command
            .args(["agent", "--listen", "127.0.0.1:0", "--token-file"])
            .arg(self.path("token"))
            .arg("--bundle-folder")
            .arg(self.path(name))
            .stderr(File::create(&said).expect("a file"));
        let child = command.stdin(Stdio::null()).spawn().expect("started");
        let mut agent = Agent {
            child,
            said,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let line = agent.wait_for("listening at ");
        agent.address = line.trim().parse().unwrap_or_else(|_| panic!("{line}"));
        agent
    }

    /// A run over these agents, the hosts after the first.
    fn run(&self, agents: &[&Agent]) -> RunProcess {
        let mut command = child_run::command();
        command
            .args(["layers.zbmd", "-i", "in=in.f32", "-o", "out=out.f32"])
            .args(["--token-file", "token", "--host-lease", LONG_LEASE])
            .current_dir(self.folder.path());
        for (number, agent) in agents.iter().enumerate() {
            command.arg("--host");
            command.arg(format!("h{}={}", number + 1, agent.address));
        }
        RunProcess::start(command)
    }

    #[track_caller]
    fn check_run(&self, agents: &[&Agent]) {
        let (status, said) = self.run(agents).end();
        assert!(status.success(), "{said}");
    }
}

/// The layers, with source and sink on the run's own host.
fn model(folder: &Path) -> String {
    let weights = format!("Npy(\"{}/", folder.display());
    let pins = r#"pins: { "in": "h0:0", "out": "h0:0" }, sinks:"#;
    let text = LAYERS.write(folder).replace("Npy(\"", &weights);
    text.replace("sinks:", pins)
}

/// An agent, which ends with this.
struct Agent {
    child: Child,
    said: PathBuf,
    address: SocketAddr,
}

impl Agent {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("a file")
    }

    /// Waits until the agent has said this in a whole line; what follows it.
    fn wait_for(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let said = self.said();
            if let Some((_, after)) = said.rsplit_once(text)
                && let Some((line, _)) = after.split_once('\n')
            {
                return line.to_owned();
            }
            assert!(begun.elapsed() < LIMIT, "not `{text}`: {said}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn check_parts(&self, all: u64, held: u64, passed_on: u64) {
        let expected = format!(
            "the bundle has {all} parts: {held} were here, {passed_on} came from another agent, {} from the run",
            all - held - passed_on
        );
        self.wait_for(&expected);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The run sends one copy; agents that are started anew have what is in their folders.
fn passed_on_from_agent_to_agent() {
    let setting = Setting::new();
    let all = setting.parts;
    {
        let [one, two, three] = ["one", "two", "three"].map(|name| setting.start_agent(name));
        setting.check_run(&[&one, &two, &three]);
        one.check_parts(all, 0, 0);
        two.check_parts(all, 0, all);
        three.check_parts(all, 0, all);
    }
    std::fs::remove_dir_all(setting.path("two")).expect("its folder");
    let [one, two, three] = ["one", "two", "three"].map(|name| setting.start_agent(name));
    setting.check_run(&[&one, &two, &three]);
    one.check_parts(all, all, 0);
    two.check_parts(all, 0, all);
    three.check_parts(all, all, 0);
}

fn file_in(folder: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder).ok()?;
    Some(entries.next()?.ok()?.path())
}

/// What had come before an agent was killed is not sent again, but for the part that was under way.
fn cut_off_in_the_middle() {
    let setting = Setting::new();
    let all = setting.parts;
    let others = ["two", "three"].map(|name| setting.start_agent(name));
    let one = setting.start_agent("one");
    let mut run = setting.run(&[&one, &others[0], &others[1]]);
    let mut come = 0;
    run.wait_until("some parts have come", || {
        let file = file_in(&setting.path("one"));
        come = file.map_or(0, |file| {
            std::fs::metadata(file).map_or(0, |file| file.len())
        });
        come >= 2 * PART_BYTES
    });
    drop(one);
    // It may have had all of it.
    drop(run.end());

    let one = setting.start_agent("one");
    setting.check_run(&[&one, &others[0], &others[1]]);
    let line = one.wait_for(&format!("the bundle has {all} parts: "));
    let held: u64 = line
        .split(' ')
        .next()
        .expect("a word")
        .parse()
        .expect("a number");
    assert!(
        held + 1 >= come / PART_BYTES && held <= all,
        "{line}, {come} bytes had come"
    );
    one.check_parts(all, held, 0);
}

/// The host, and what there is no room for, are named.
fn without_room() {
    let setting = Setting::new();
    // A limit in KiB: the second part has no room.
    let limited = child_run::command_by(|program| {
        let mut command = Command::new("bash");
        let words = [
            OsStr::new("-c"),
            OsStr::new("ulimit -f 1500; exec \"$0\" \"$@\""),
        ];
        command.args(words).arg(program);
        command
    });
    let one = setting.start_agent_by("one", limited);
    let others = ["two", "three"].map(|name| setting.start_agent(name));
    let (status, said) = setting.run(&[&one, &others[0], &others[1]]).end();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(
        said.contains("host h1") && said.contains("no room for the bundle's"),
        "{said}"
    );
}

//! Runs over several hosts that go over to another program while tokens flow: on all hosts at one border, with the output of one host,
//! also where a host is lost meanwhile; and what cannot take the program's place, which changes nothing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, SearchOptions, compile_str};
use zbmd_council::decision::Decided;
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{
    CouncilSeat, Engine, Hosts, Isolation, RunOptions, Session, SinkHandle, SourceHandle,
    SwapError, Takeover,
};
use zbmd_scheduler::assign::Objective;
use zbmd_tests::agents::{AgentProcess, TWO_HOSTS};
use zbmd_tests::council_runs::{LEASE, decided_on_disk, seat_arguments};
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::Test;

use super::hosts::{
    LONG_LEASE, host_options, start_agent, start_agent_at, start_agent_with, token_file,
};

pub(super) const TESTS: &[Test] = &[
    (
        "both_hosts_go_over_at_one_border",
        both_hosts_go_over_at_one_border,
    ),
    (
        "a_host_is_lost_and_comes_back",
        a_host_is_lost_and_comes_back,
    ),
    ("what_cannot_take_its_place", what_cannot_take_its_place),
    (
        "a_council_goes_on_with_the_new_program",
        a_council_goes_on_with_the_new_program,
    ),
    (
        "the_new_program_is_taken_over",
        the_new_program_is_taken_over,
    ),
    (
        "a_conductor_is_lost_while_it_goes_over",
        a_conductor_is_lost_while_it_goes_over,
    ),
    ("who_stands_by_lacks_an_op", who_stands_by_lacks_an_op),
    (
        "a_run_of_other_streams_is_not_stood_by_for",
        a_run_of_other_streams_is_not_stood_by_for,
    ),
];

const PROCESSES: Isolation = Isolation::Processes { program: None };
const BLOCK: u64 = 16;
/// From one push to the next.
const PIECE: usize = 480;
/// A program that has had so many is at work.
const SOME_PUSHES: usize = 200;

/// Sums that go on from token to token, on the other host: the first is 0, and each is the one before it and `step`.
fn model(step: u32, pins: &str) -> String {
    format!(
        r#"Model(
            name: "steps",
            sources: {{ "in": Stream(dtype: f64) }},
            actors: {{
                "scale": Expr("{step}.0 * x", inputs: {{ "x": f64 }}),
                "sum": Expr("s + x", inputs: {{ "x": f64, "s": f64 }}),
            }},
            channels: [
                (from: "in", to: ["scale"]), (from: "scale", to: ["sum.x"]), (from: "sum", to: ["sum.s", "out"], initial: [0.0]),
            ],
            sinks: {{ "out": Stream() }},
            pins: {{ {pins} }},
        )"#
    )
}

const PINS: &str = r#""in": "left:0", "scale": "left:0", "sum": "right:0", "out": "left:0""#;

fn engine_of(folder: &Path, machine: &str, model: &str) -> Engine {
    engine_for(folder, machine, model, CompileOptions::default())
}

fn engine_for(folder: &Path, machine: &str, model: &str, options: CompileOptions) -> Engine {
    let file = folder.join("cluster.ron");
    std::fs::write(&file, machine).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::File(file),
        block: Some(BLOCK),
        ..options
    };
    let compiled = compile_str("steps.ron", model, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    Engine::new(compiled.program, &zbmd_backends::standard_registry()).expect("an engine")
}

fn engine(folder: &Path, step: u32) -> Engine {
    engine_of(folder, TWO_HOSTS, &model(step, PINS))
}

/// Runs it while ones are pushed, until `disturb`, which is called after each push, says that it is done. All sums, one for each of
/// them.
fn run(
    engine: &Engine,
    options: RunOptions,
    mut disturb: impl FnMut(&Session, usize) -> bool,
) -> Vec<f64> {
    let mut session = engine.start(options).expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let mut pushes = 0;
    let sums = std::thread::scope(|scope| {
        let pulled = scope.spawn(move || {
            let mut sums = Vec::new();
            let mut part = vec![0f64; 4096];
            loop {
                match sink.pull(&mut part).expect("tokens") as usize {
                    0 => return sums,
                    tokens => sums.extend_from_slice(&part[..tokens]),
                }
            }
        });
        loop {
            source.push(&[1f64; PIECE]).expect("taken");
            pushes += 1;
            if disturb(&session, pushes) {
                break;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        drop(source);
        pulled.join().expect("no panic")
    });
    session.join().expect("it ends well");
    assert_eq!(sums.len(), pushes * PIECE);
    sums
}

/// The token that each program adds first: `steps` are theirs, in order, and none is lost or comes twice.
fn check_steps(sums: &[f64], steps: &[f64]) -> Vec<usize> {
    assert_eq!(sums[0], 0.0);
    let mut firsts = vec![0];
    let mut present = 0;
    for (index, pair) in sums.windows(2).enumerate() {
        let step = pair[1] - pair[0];
        if step != steps[present] {
            present += 1;
            assert_eq!(Some(&step), steps.get(present), "token {index}");
            firsts.push(index);
        }
    }
    assert_eq!(firsts.len(), steps.len(), "all programs have run");
    firsts
}

fn with_isolation(engine: &Engine, agent: &AgentProcess, isolation: &Isolation) -> RunOptions {
    RunOptions {
        isolation: isolation.clone(),
        ..host_options(engine, agent, LONG_LEASE)
    }
}

/// Epochs as they begin, and pushes since then.
struct Epochs {
    begun: Arc<AtomicUsize>,
    /// What was seen of that.
    seen: usize,
    seen_at: usize,
}

impl Epochs {
    fn count(options: &mut RunOptions) -> Self {
        let begun = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&begun);
        if let Some(supervised) = &mut options.supervised {
            supervised.listener = Some(Arc::new(move |event: &Event| {
                if matches!(event.what, What::Begin { .. }) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        Self {
            begun,
            seen: 0,
            seen_at: 0,
        }
    }

    /// Whether so many have begun, and the last one has had something to do.
    fn are(&mut self, wanted: usize, pushes: usize) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        if begun > self.seen {
            (self.seen, self.seen_at) = (begun, pushes);
        }
        self.seen >= wanted && pushes >= self.seen_at + SOME_PUSHES
    }
}

fn both_hosts_go_over_at_one_border() {
    let folder = tempfile::tempdir().expect("a folder");
    let programs = PROGRAMS.map(|step| engine(folder.path(), step));
    let agent = start_agent(&token_file(folder.path()));
    for isolation in [Isolation::Threads, PROCESSES] {
        let options = with_isolation(&programs[0], &agent, &isolation);
        go_through(&programs, options);
    }
}

const PROGRAMS: [u32; 4] = [2, 3, 5, 2];

/// Runs these programs, each in the place of the one before it as soon as that is at work.
fn go_through(programs: &[Engine; PROGRAMS.len()], mut options: RunOptions) {
    let mut epochs = Epochs::count(&mut options);
    let mut next = 1;
    let sums = run(&programs[0], options, |session, pushes| {
        if !epochs.are(next, pushes) {
            return false;
        }
        let program = programs.get(next);
        if let Some(program) = program {
            session.swap(program).expect("it can");
            next += 1;
        }
        program.is_none()
    });
    let firsts = check_steps(&sums, &PROGRAMS.map(f64::from));
    for first in firsts {
        assert!(first.is_multiple_of(BLOCK as usize), "at a border: {first}");
    }
}

/// A council of three, whose first voter is a run of this process.
struct Council {
    folder: PathBuf,
    token_file: PathBuf,
    voters: Vec<SocketAddr>,
    witnesses: Vec<u64>,
}

impl Council {
    fn new(folder: &Path, witnesses: &[u64]) -> Self {
        let voters = (0..3).map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        Self {
            folder: folder.to_owned(),
            token_file: token_file(folder),
            voters: voters.collect(),
            witnesses: witnesses.to_vec(),
        }
    }

    fn folder_of(&self, voter: u64) -> PathBuf {
        self.folder.join(format!("voter.{voter}"))
    }

    /// An agent that is this voter.
    fn agent(&self, voter: u64) -> AgentProcess {
        let witnesses: Vec<String> = self.witnesses.iter().map(ToString::to_string).collect();
        let place = (voter, self.folder_of(voter).display().to_string());
        let arguments = seat_arguments(&self.voters, &witnesses.join(","), place, LEASE);
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        start_agent_with(&self.token_file, &arguments)
    }

    /// Options of a run that is this voter, with an agent for its other host.
    fn options(&self, engine: &Engine, agent: &AgentProcess, voter: u64) -> RunOptions {
        let mut options = host_options(engine, agent, LONG_LEASE);
        if let Some(hosts) = &mut options.hosts {
            hosts.council = Some(CouncilSeat {
                voters: self.voters.clone(),
                own: voter,
                witnesses: self.witnesses.clone(),
                folder: self.folder_of(voter),
                lease: LEASE,
                mirrored: BTreeSet::new(),
            });
        }
        options
    }

    /// Of voter 2, which stands by as the other host.
    fn hosts_of_standby(&self, engine: &Engine, agent: &AgentProcess) -> Hosts {
        let hosts = self.options(engine, agent, 2).hosts;
        Hosts {
            agents: Vec::new(),
            own: Some("right".to_owned()),
            ..hosts.expect("there are some")
        }
    }
}

fn a_council_goes_on_with_the_new_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let programs = PROGRAMS.map(|step| engine(folder.path(), step));
    let council = Council::new(folder.path(), &[2, 3]);
    let (right, _witness) = (council.agent(2), council.agent(3));
    go_through(&programs, council.options(&programs[0], &right, 1));
}

/// Who stands by with the old program goes on with the new one where the conductor has ended: it was sent it while the run went over to
/// that, or when it came, after that.
fn the_new_program_is_taken_over() {
    for comes_before in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        take_over_new_program(folder.path(), comes_before);
    }
}

/// One program for each step, which each of two hosts can do all of: nothing is pinned, and without a pipeline one host does.
fn programs_of_either_host(folder: &Path) -> [Engine; 2] {
    [2, 3].map(|step| engine_of_either_host(folder, &model(step, "")))
}

fn engine_of_either_host(folder: &Path, model: &str) -> Engine {
    let options = CompileOptions {
        contingencies: Losses::Hosts,
        search: SearchOptions {
            objective: Some(Objective::LATENCY),
            ..SearchOptions::default()
        },
        ..CompileOptions::default()
    };
    engine_for(folder, TWO_HOSTS, model, options)
}

fn take_over_new_program(folder: &Path, comes_before: bool) {
    let [old, new] = programs_of_either_host(folder);
    let mut conducted = Conducted::start(folder, &old);
    let is_swapped = |decided: &Decided| decided.bundle_since > 0;
    let standby = match comes_before {
        true => {
            let standby = conducted.stand_by(&old);
            conducted.feed_until(&is_held);
            conducted.session.swap(&new).expect("all can go over");
            conducted.feed_until(&is_swapped);
            standby
        }
        false => {
            conducted.session.swap(&new).expect("nobody stands by");
            conducted.feed_until(&is_swapped);
            conducted.stand_by(&old)
        }
    };
    // Everything up to the border at which the run has gone over has been taken, and more.
    let first = conducted.feed_until(&is_held);
    conducted.feed_until(&|decided| is_held(decided) && decided.border.given_out > first);
    conducted.feed(SOME_PUSHES);

    let (sums, token, rest) = conducted.end_and_take_over(standby);
    check_steps(&sums, &[2.0, 3.0]);
    assert_eq!(rest[0] - sums[token - 1], 3.0);
    assert!(rest.windows(2).all(|pair| pair[1] - pair[0] == 3.0));
}

/// The conductor is lost soon after another program was asked for: whoever stands by goes on with the old one or the new one, and what
/// both have given out is one run.
fn a_conductor_is_lost_while_it_goes_over() {
    for pushes in [0, 2, 5, 10, 20, 40] {
        let folder = tempfile::tempdir().expect("a folder");
        let [old, new] = programs_of_either_host(folder.path());
        let mut conducted = Conducted::start(folder.path(), &old);
        let standby = conducted.stand_by(&old);
        conducted.feed_until(&|decided| is_held(decided) && decided.border.given_out > 0);
        conducted.session.swap(&new).expect("all can go over");
        conducted.feed(pushes);

        let (sums, token, rest) = conducted.end_and_take_over(standby);
        let all = [&sums[..token], &rest].concat();
        let mut steps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.dedup();
        assert!([2.0, 3.0].starts_with(&steps), "{pushes} pushes: {steps:?}");
    }
}

fn is_held(decided: &Decided) -> bool {
    !decided.holders.is_empty()
}

/// A run that conducts as voter 1, whose source is fed and whose sink is emptied.
struct Conducted {
    council: Council,
    agent: AgentProcess,
    options_of_standby: RunOptions,
    session: Session,
    source: SourceHandle,
    pulled: JoinHandle<Vec<f64>>,
}

impl Conducted {
    fn start(folder: &Path, program: &Engine) -> Self {
        let council = Council::new(folder, &[3]);
        let agent = council.agent(3);
        let options_of_standby = RunOptions {
            hosts: Some(council.hosts_of_standby(program, &agent)),
            ..council.options(program, &agent, 2)
        };
        let session = program.start(council.options(program, &agent, 1));
        let mut session = session.expect("a session");
        let source = session.source("in").expect("a source");
        let sink = session.sink("out").expect("a sink");
        let mut conducted = Self {
            council,
            agent,
            options_of_standby,
            session,
            source,
            pulled: std::thread::spawn(move || all_sums(sink)),
        };
        conducted.feed(SOME_PUSHES);
        conducted
    }

    fn feed(&mut self, pushes: usize) {
        for _ in 0..pushes {
            self.source.push(&[1f64; PIECE]).expect("taken");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// The iterations of the last border by then.
    fn feed_until(&mut self, is_decided: &dyn Fn(&Decided) -> bool) -> u64 {
        loop {
            let decided = decided_on_disk(&self.council.folder, 3, 3);
            if let Some(decided) = decided.filter(is_decided) {
                return decided.border.iterations;
            }
            self.feed(SOME_PUSHES);
        }
    }

    /// Stands by with this program.
    fn stand_by(&self, program: &Engine) -> JoinHandle<Takeover> {
        let (program, hosts) = (program.clone(), self.options_of_standby.hosts.clone());
        let hosts = hosts.expect("there are some");
        std::thread::spawn(move || {
            let takeover = program.stand_by(&hosts, &zbmd_backends::standard_registry());
            takeover.expect("it can").expect("a run that has not ended")
        })
    }

    /// Gives the run up, as if its host were lost, and goes on with what stands by. What the first one has given out, how much of
    /// that is gone on behind, and what the second one gives out.
    fn end_and_take_over(self, standby: JoinHandle<Takeover>) -> (Vec<f64>, usize, Vec<f64>) {
        drop(self.session);
        let sums = self.pulled.join().expect("no panic");
        let takeover = standby.join().expect("no panic");
        let token = takeover.outputs[0] as usize;
        assert!(
            token > 0 && token <= sums.len(),
            "{token} of {}",
            sums.len()
        );

        let session = takeover.start(self.options_of_standby);
        let mut session = session.expect("a session");
        let mut source = session.source("in").expect("a source");
        let sink = session.sink("out").expect("a sink");
        let pulled = std::thread::spawn(move || all_sums(sink));
        source.push(&[1f64; 100 * PIECE]).expect("taken");
        drop(source);
        session.join().expect("it ends well");
        let rest = pulled.join().expect("no panic");
        assert_eq!(rest.len(), 100 * PIECE);
        // What was given out twice is the same.
        let both = rest.len().min(sums.len() - token);
        assert_eq!(sums[token..][..both], rest[..both]);
        drop(self.agent);
        (sums, token, rest)
    }
}

/// Who stands by with a program of other streams is told so, and ends.
fn a_run_of_other_streams_is_not_stood_by_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = engine_of_either_host(folder.path(), &model(2, ""));
    let other_model = model(2, "").replace("\"in\"", "\"feed\"");
    let other = engine_of_either_host(folder.path(), &other_model);
    let council = Council::new(folder.path(), &[3]);
    let agent = council.agent(3);
    let session = program.start(council.options(&program, &agent, 1));
    let _session = session.expect("a session");

    let hosts = council.hosts_of_standby(&other, &agent);
    let refusal = other.stand_by(&hosts, &zbmd_backends::standard_registry());
    let refusal = refusal.expect_err("other streams").to_string();
    let expected = "source `in` of f64, sink `out` of f64, the program here has source `feed`";
    assert!(refusal.contains(expected), "{refusal}");
}

/// Where one that stands by lacks an op of the new program, nothing takes the program's place, and it is named.
fn who_stands_by_lacks_an_op() {
    let folder = tempfile::tempdir().expect("a folder");
    let [old, new] = programs_of_either_host(folder.path());
    let voters = Council::new(folder.path(), &[3]);
    let agent = voters.agent(3);
    let session = old.start(voters.options(&old, &agent, 1));
    let mut session = session.expect("a session");
    let mut source = session.source("in").expect("a source");
    let sink = session.sink("out").expect("a sink");
    let pulled = std::thread::spawn(move || all_sums(sink));

    let hosts = voters.hosts_of_standby(&old, &agent);
    let standby = std::thread::spawn(move || old.stand_by(&hosts, &Registry::empty()));
    let mut pushes = 0;
    let stopper = session.stopper();
    let council = || {
        stopper
            .progress()
            .council
            .map(|council| council.to_string())
    };
    let is_held = "council of 3 voters   voter 1 conducts   voter 2 stands by";
    while council().as_deref() != Some(is_held) {
        source.push(&[1f64; PIECE]).expect("taken");
        pushes += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let refusal = session.swap(&new).expect_err("it has no ops").to_string();
    assert!(refusal.contains("voter 2, which stands by: "), "{refusal}");
    assert!(refusal.contains("Expr"), "{refusal}");

    drop(source);
    session.join().expect("it ends well");
    let sums = pulled.join().expect("no panic");
    assert_eq!(sums.len(), pushes * PIECE);
    check_steps(&sums, &[2.0]);
    let outcome = standby.join().expect("no panic").expect("no error");
    assert!(outcome.is_none(), "the run has ended: {outcome:?}");
}

/// What a sink gives, until its run is over.
fn all_sums(mut sink: SinkHandle) -> Vec<f64> {
    let mut sums = Vec::new();
    let mut part = vec![0; 8 * 4096];
    while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut part) {
        let tokens = part[..8 * tokens as usize].as_chunks::<8>().0.iter();
        sums.extend(tokens.map(|token| f64::from_ne_bytes(*token)));
    }
    sums
}

/// The agent is killed as soon as it has loaded the new program, and another one takes its place, which has neither.
fn a_host_is_lost_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (engine(folder.path(), 2), engine(folder.path(), 3));
    let token_file = token_file(folder.path());
    for isolation in [Isolation::Threads, PROCESSES] {
        let mut agent = Some(start_agent(&token_file));
        let options = agent
            .as_ref()
            .map(|agent| with_isolation(&old, agent, &isolation));
        let sums = run(&old, options.expect("an agent"), |session, pushes| {
            if pushes == 500 {
                session.swap(&new).expect("it can");
            }
            // Before it has gone over, or after that; and long after.
            if pushes == 500 || pushes == 1_200 {
                let killed = agent.take().expect("an agent");
                let address = killed.address;
                drop(killed);
                agent = Some(start_agent_at(&token_file, address));
            }
            pushes == 2_000
        });
        check_steps(&sums, &[2.0, 3.0]);
    }
}

fn what_cannot_take_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (engine(folder.path(), 2), engine(folder.path(), 3));
    let elsewhere = PINS.replace(r#""out": "left:0""#, r#""out": "right:0""#);
    let elsewhere = engine_of(folder.path(), TWO_HOSTS, &model(3, &elsewhere));
    let renamed = |text: &str| text.replace("right:0", "right:7");
    let renamed = engine_of(
        folder.path(),
        &renamed(TWO_HOSTS),
        &model(3, &renamed(PINS)),
    );

    // An agent that has no place for another bundle.
    let bundles = folder.path().join("bundles");
    let arguments = [OsStr::new("--bundle-folder"), bundles.as_os_str()];
    let agent = start_agent_with(&token_file(folder.path()), &arguments);
    let mut options = host_options(&old, &agent, LONG_LEASE);
    let mut epochs = Epochs::count(&mut options);
    let sums = run(&old, options, |session, pushes| {
        if pushes != SOME_PUSHES {
            return epochs.are(2, pushes);
        }
        std::fs::remove_dir_all(&bundles).expect("it is there");
        std::fs::write(&bundles, "no folder").expect("written");
        for (engine, expected) in [
            (&elsewhere, "host right: plan `main` has `out` on this host"),
            (&renamed, "left:0, right:7"),
            (&new, "host right: the bundle in "),
        ] {
            let error = session.swap(engine).expect_err(expected);
            assert!(matches!(error, SwapError::Hosts { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        std::fs::remove_file(&bundles).expect("it is there");
        session.swap(&new).expect("now it can");
        false
    });
    check_steps(&sums, &[2.0, 3.0]);
}

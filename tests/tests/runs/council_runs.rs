//! Runs in the name of a council, over two hosts with a witness: the run and both agents are processes that are killed, and
//! stopped and continued. The output is that of a run on one host, as far as a majority has decided it, and not a token further.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zbmd_tests::agents::AgentProcess;
use zbmd_tests::child_run;
use zbmd_tests::council_runs::{CouncilRuns, LEASE, TOKENS, connect, number_after};
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::Test;
use zbmd_tests::run_process::RunProcess;

pub(super) const TESTS: &[Test] = &[
    ("one_run_after_another", one_run_after_another),
    ("a_killed_agent", a_killed_agent),
    ("two_killed_agents", two_killed_agents),
    ("two_of_five_killed", two_of_five_killed),
    ("three_of_five_killed", three_of_five_killed),
    ("a_stopped_conductor", a_stopped_conductor),
    ("a_killed_conductor", a_killed_conductor),
    ("a_conductor_that_is_replaced", a_conductor_that_is_replaced),
    ("a_paced_file_is_gone_on_with", a_paced_file_is_gone_on_with),
    ("sources_are_mirrored", sources_are_mirrored),
    ("a_run_that_needs_no_standby", a_run_that_needs_no_standby),
    (
        "changes_outlive_their_conductor",
        changes_outlive_their_conductor,
    ),
];

/// Agents vote for one run after the other; each begins with its own first border.
fn one_run_after_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare(folder.path());
    let (right, _witness) = (runs.agent(2), runs.agent(3));
    for _ in 0..2 {
        let (status, said) = runs.run(&right).end();
        assert!(status.success(), "{status}: {said}");
        assert_eq!(runs.check_output(), runs.expected_tokens());
        // The end of the run is a border too.
        let border = runs.last_border_of(&[2, 3]);
        assert_eq!(border.outputs, [runs.expected_tokens()]);
    }
}

/// Two of three voters go on, without the host that is lost.
fn a_killed_agent() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare(folder.path());
    let (right, _witness) = (runs.agent(2), runs.agent(3));
    let mut run = runs.run(&right);
    run.wait_until("output", || runs.output_tokens() > 100_000);
    right.signal(Signal::KILL);
    let (status, said) = run.end();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(runs.check_output(), runs.expected_tokens());
    assert!(runs.events().contains("host right is gone"));
    // The first; then by the two voters that are left one without the host, and the one for single iterations at the end.
    assert_eq!(runs.epoch_terms_of(3).len(), 3);
}

/// One of three voters stops, where the majority has decided last.
fn two_killed_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare(folder.path());
    let (right, witness) = (runs.agent(2), runs.agent(3));
    let mut run = runs.run(&right);
    run.wait_until("output", || runs.output_tokens() > 100_000);
    for agent in [right, witness] {
        agent.signal(Signal::KILL);
    }
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(
        said.contains("this run may conduct no more: voter 1 has not had the answers of 2"),
        "{said}"
    );
    let given_out = runs.check_output();
    assert!(given_out > 100_000 && given_out < runs.expected_tokens());
    let border = runs.last_border_of(&[2, 3]);
    assert!(given_out <= border.outputs[0], "{given_out} and {border:?}");
}

/// A run and four agents that vote; the first one works for it too.
fn run_of_five(folder: &Path) -> (CouncilRuns, RunProcess, Vec<AgentProcess>) {
    let runs = CouncilRuns::prepare_for(folder, 5);
    let agents: Vec<AgentProcess> = (2..=5).map(|voter| runs.agent(voter)).collect();
    let mut run = runs.run(&agents[0]);
    run.wait_until("output", || runs.output_tokens() > 100_000);
    (runs, run, agents)
}

/// Three of five go on, also without the host that works.
fn two_of_five_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runs, run, agents) = run_of_five(folder.path());
    agents[0].signal(Signal::KILL);
    agents[3].signal(Signal::KILL);
    let (status, said) = run.end();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(runs.check_output(), runs.expected_tokens());
    assert!(runs.events().contains("host right is gone"));
    // The end of the run is on a majority of the disks.
    let border = runs.last_border_of(&[3, 4]);
    assert_eq!(border.outputs, [runs.expected_tokens()]);
}

/// Two of five stop, where three have decided last.
fn three_of_five_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runs, run, agents) = run_of_five(folder.path());
    for agent in &agents[1..] {
        agent.signal(Signal::KILL);
    }
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(
            said.contains(
                "this run may conduct no more: voter 1 has not had the answers of 3 of the council's 5 voters"
            ),
            "{said}"
        );
    let given_out = runs.check_output();
    assert!(given_out > 100_000 && given_out < runs.expected_tokens());
    let border = runs.last_border_of(&[2, 3, 4, 5]);
    assert!(given_out <= border.outputs[0], "{given_out} and {border:?}");
}

/// A conductor that stands still for longer than its lease gives out nothing that no majority has, then or later. It is
/// elected again, and goes on.
fn a_stopped_conductor() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare(folder.path());
    let (right, _witness) = (runs.agent(2), runs.agent(3));
    let mut run = runs.run(&right);
    run.wait_until("output", || runs.output_tokens() > 100_000);
    run.signal(Signal::STOP);
    // What was on its way has come.
    std::thread::sleep(LEASE / 2);
    let border = runs.last_border_of(&[2, 3]);
    std::thread::sleep(8 * LEASE);
    assert_eq!(runs.last_border_of(&[2, 3]), border, "nobody conducts");
    assert!(runs.output_tokens() <= border.outputs[0]);

    run.signal(Signal::CONT);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        // First the output: what is decided meanwhile may be given out.
        let given_out = runs.output_tokens();
        let decided = runs.last_border_of(&[2, 3]).outputs[0];
        assert!(given_out <= decided, "{given_out} of {decided} tokens");
    }
    let (status, said) = run.end();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(runs.check_output(), runs.expected_tokens());
    let terms = runs.epoch_terms_of(3);
    assert!(terms.last() > terms.first(), "{terms:?}");
}
/// A run, its agent on the other host, and a run that stands by there.
struct Trio {
    runs: CouncilRuns,
    run: RunProcess,
    standby: RunProcess,
    _agent: AgentProcess,
}

impl Trio {
    /// Starts all three, and waits until the state of each border is held by two.
    fn start(folder: &Path) -> Self {
        Self::start_with(CouncilRuns::prepare_with_standby(folder, LEASE))
    }

    fn start_with(runs: CouncilRuns) -> Self {
        Self::start_beside(runs, CouncilRuns::standby)
    }

    fn start_beside(runs: CouncilRuns, standby: fn(&CouncilRuns) -> RunProcess) -> Self {
        let agent = runs.agent(3);
        let mut run = runs.run(&agent);
        run.wait_until("output", || runs.output_tokens() > 50_000);
        let standby = standby(&runs);
        run.wait_until("a holder", || runs.is_held(3));
        let begin = runs.output_tokens();
        run.wait_until("more output", || runs.output_tokens() > begin + 50_000);
        Self {
            runs,
            run,
            standby,
            _agent: agent,
        }
    }
}

/// The run goes on elsewhere, from a border that everything was given out up to.
fn a_killed_conductor() {
    let folder = tempfile::tempdir().expect("a folder");
    let trio = Trio::start(folder.path());
    trio.run.signal(Signal::KILL);
    let (status, said) = trio.standby.end();
    assert!(status.success(), "{status}: {said}");
    trio.runs.check_both_outputs(&said);
}

/// A file that is played by the clock is played from where the run is, not from its beginning.
fn a_paced_file_is_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare_with_standby(folder.path(), LEASE);
    let trio = Trio::start_beside(runs, |runs| runs.standby_with("in=paced:in.f32?rate=1e6"));
    trio.run.signal(Signal::KILL);
    let (status, said) = trio.standby.end();
    assert!(status.success(), "{status}: {said}");
    trio.runs.check_both_outputs(&said);
}

/// What a live source was given behind the last border is fed by whoever takes over: nothing is lost of what had come.
fn sources_are_mirrored() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare_with_standby(folder.path(), LEASE);
    let port = free_port();
    let agent = runs.agent(3);
    let mut run = runs.live_run(&agent, port);
    let mut standby = runs.live_standby(port);
    let input = connect(port);
    runs.send(&input, 0..50_000);
    run.wait_until("a holder", || runs.is_held(3));
    // More than up to the first border, and not whole blocks: the last tokens wait for more.
    let end_token = 600_003;
    runs.send(&input, 50_000..end_token);
    run.wait_until("output", || runs.output_tokens() > 50_000);
    std::thread::sleep(Duration::from_millis(200));
    run.signal(Signal::KILL);
    run.end();
    drop(input);

    let input = connect(port);
    runs.send(&input, end_token..TOKENS);
    let (mut taken, mut taken_at) = (0, Instant::now());
    standby.wait_until("the rest", || {
        if runs.taken_tokens() > taken {
            (taken, taken_at) = (runs.taken_tokens(), Instant::now());
        }
        taken > 0 && taken_at.elapsed() > Duration::from_secs(1)
    });
    standby.signal(Signal::INT);
    let (_, said) = standby.end();
    let words = " tokens that `in` had been given come first";
    assert!(said.contains(words), "{said}");
    let outputs = runs.joined_outputs(&said);
    assert!(outputs.len() as u64 > end_token, "{said}");
    runs.check_beginning(&outputs);
}

/// A conductor that stood still while another took over gives out nothing that was not decided before that, and ends.
fn a_conductor_that_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trio = Trio::start(folder.path());
    trio.run.signal(Signal::STOP);
    let runs = &trio.runs;
    trio.standby
        .wait_until("output of the next", || runs.taken_tokens() > 0);
    std::thread::sleep(Duration::from_secs(2));
    trio.run.signal(Signal::CONT);
    let (status, said) = trio.run.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(
        said.contains("voter 2 has conducted it since term"),
        "{said}"
    );

    let (status, said) = trio.standby.end();
    assert!(status.success(), "{status}: {said}");
    trio.runs.check_both_outputs(&said);
    let decided = trio.runs.last_border_before_takeover(3).outputs[0];
    let given_out = trio.runs.output_tokens();
    assert!(given_out <= decided, "{given_out} of {decided} tokens");
}

/// What was set is set for whoever takes over too, from the same token on: the last change is made just before the conductor is
/// killed, and was in no state that was copied. There it can be set again.
fn changes_outlive_their_conductor() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = CouncilRuns::prepare_levels_with_standby(folder.path(), LEASE);
    let mut trio = Trio::start_with(runs);
    let mut changes: Vec<(u64, f32)> = (1..=20).map(|level| set_level(&trio.run, level)).collect();
    trio.run.signal(Signal::KILL);

    let runs = &trio.runs;
    trio.standby
        .wait_until("output of the next", || runs.taken_tokens() > 0);
    changes.extend((21..=25).map(|level| set_level(&trio.standby, level)));
    let (status, said) = trio.standby.end();
    assert!(status.success(), "{status}: {said}");

    let levels = trio.runs.joined_outputs(&said);
    assert_eq!(levels.len() as u64, trio.runs.expected_tokens());
    let mut changes_left = changes.into_iter().peekable();
    let mut expected = 0.0;
    for (token, level) in (0..).zip(levels) {
        while let Some((_, next)) = changes_left.next_if(|(from, _)| *from <= token) {
            expected = next;
        }
        assert_eq!(level, expected, "token {token}");
    }
    assert_eq!(changes_left.next(), None, "all have taken effect");
}

/// Sets the level of a run; the first token that has it.
fn set_level(run: &RunProcess, level: u16) -> (u64, f32) {
    let assignment = format!("level={level}");
    let pid = run.pid().to_string();
    let output = child_run::output(&["set", &pid, &assignment]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    (number_after(&said, "iteration "), f32::from(level))
}

/// Whoever stands by for a run that comes to its end ends too, and writes nothing.
fn a_run_that_needs_no_standby() {
    let folder = tempfile::tempdir().expect("a folder");
    let trio = Trio::start(folder.path());
    let (status, said) = trio.run.end();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(trio.runs.check_output(), trio.runs.expected_tokens());
    let (status, said) = trio.standby.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("the run has come to its end"), "{said}");
    assert_eq!(trio.runs.taken_tokens(), 0);
}

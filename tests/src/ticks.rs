//! Machines that keep time, drawn by seed; plans for them, runs beside the interpreter, and changes to plans.

use std::collections::BTreeMap;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_ir::{Graph, Program, TiSlice};
use zbmd_tick_scheduler::{TickScheduleError, contingencies, schedule, schedule_with_copies};
use zbmd_tick_sim::machine::{Injection, RunError, RunInput, RunOutcome, Stepping, run};
use zbmd_ticks::{
    Clocks, FrameRun, LinkId, NodeId, Oscillators, TickContingencies, TickMachine, TickPlan,
    Topology, VerifiedPlan, verify,
};

use crate::random::{self, Shape};
use crate::run::random_inputs;

/// The seed's topology: every shape comes up, from one node to sixteen.
pub fn topology(seed: u64) -> Topology {
    let size = 1 + (seed / 10 % 4) as u32;
    match seed % 10 {
        0 => Topology::Line { nodes: size },
        1 => Topology::Ring { nodes: size + 2 },
        2 => Topology::Mesh {
            rows: size,
            columns: 3,
        },
        3 => Topology::Torus {
            rows: size,
            columns: 4,
        },
        4 => Topology::Star { nodes: size + 1 },
        5 => Topology::Tree {
            levels: size.min(3),
            fan_out: 2,
        },
        6 => Topology::Hypercube { dimensions: size },
        7 => Topology::Complete { nodes: size + 1 },
        _ => Topology::Random {
            nodes: 2 * size,
            extra_links: size,
            seed,
        },
    }
}

/// The seed's machine, whose clocks drift within 100 ppm.
pub fn machine(seed: u64) -> TickMachine {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x71c5);
    let latency_ticks = rng.u64(1..9);
    let mut machine = TickMachine {
        topology: topology(seed),
        frame_bits: 8 << rng.u32(0..5),
        latency_ticks,
        memory_bytes: 1 << 24,
        op_ticks: BTreeMap::from([("Mix".to_owned(), rng.u64(1..9))]),
        default_ticks: 1,
        clocks: None,
    };
    let oscillators = Oscillators {
        wander_ppm: 3.0,
        seed,
        ..Oscillators::default()
    };
    machine.clocks = Some(Clocks {
        oscillators,
        ..machine.clocks()
    });
    machine
}

/// A graph small enough to be run tick by tick.
pub fn graph(seed: u64) -> Graph {
    let shape = Shape {
        actors: 14,
        max_rate: 4,
        max_overlap: 3,
        ..Shape::default()
    };
    random::graph(seed, shape)
}

/// A graph on a machine, with a verified plan, inputs and what the interpreter makes of them.
pub struct Case {
    /// The graph.
    pub graph: Graph,
    /// The machine.
    pub machine: TickMachine,
    /// The plan.
    pub plan: VerifiedPlan,
    /// A period below which no plan can go.
    pub bound: u64,
    /// Tokens of the sources.
    pub inputs: BTreeMap<String, Vec<u8>>,
    /// Iterations that are run.
    pub iterations: u64,
    /// Tokens of the sinks.
    pub expected: BTreeMap<String, Vec<u8>>,
}

impl Case {
    /// The seed's graph on the seed's machine.
    ///
    /// # Panics
    /// If there is no plan, it is refused, or the interpreter fails.
    pub fn new(seed: u64, registry: &Registry) -> Self {
        let (graph, machine) = (graph(seed), machine(seed));
        let scheduled = schedule(&graph, &machine).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let plan = verify(&graph, &machine, scheduled.plan);
        let plan = plan.unwrap_or_else(|errors| panic!("seed {seed}: {errors:#?}"));

        let iterations = 4;
        let program = Program {
            graph,
            ..Program::default()
        };
        let inputs = random_inputs(&program, iterations, seed);
        let graph = program.graph;
        let mut interpreter = Interpreter::new(&graph, TiSlice::from_ref(&[]), registry)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let outcome = interpreter.run(&inputs, Some(iterations));
        let outcome = outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        Self {
            graph,
            machine,
            plan,
            bound: scheduled.bound,
            inputs,
            iterations,
            expected: outcome.outputs,
        }
    }

    /// Runs a plan, which need not be the case's own.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn run(
        &self,
        plan: &VerifiedPlan,
        registry: &Registry,
        stepping: Stepping,
        injections: &[Injection],
    ) -> RunOutcome {
        let input = RunInput {
            injections,
            stepping,
            ..self.input(plan, registry)
        };
        run(&input).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs the plan of the whole machine frame by frame, and goes on after losses with other plans.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn run_through_losses(
        &self,
        contingencies: &TickContingencies,
        registry: &Registry,
        injections: &[Injection],
    ) -> RunOutcome {
        self.try_run_through_losses(contingencies, registry, injections)
            .unwrap_or_else(|e| panic!("{injections:?}: {e}"))
    }

    /// Like [`Self::run_through_losses`].
    ///
    /// # Errors
    /// Why it cannot be run.
    pub fn try_run_through_losses(
        &self,
        contingencies: &TickContingencies,
        registry: &Registry,
        injections: &[Injection],
    ) -> Result<RunOutcome, RunError> {
        run(&RunInput {
            contingencies: Some(contingencies),
            injections,
            ..self.input(contingencies.main(), registry)
        })
    }

    fn input<'a>(&'a self, plan: &'a VerifiedPlan, registry: &'a Registry) -> RunInput<'a> {
        RunInput {
            graph: &self.graph,
            blobs: TiSlice::from_ref(&[]),
            registry,
            machine: &self.machine,
            plan,
            contingencies: None,
            inputs: &self.inputs,
            iterations: Some(self.iterations),
            max_ticks: None,
            injections: &[],
            stepping: Stepping::EveryFrame,
        }
    }

    /// Plans for the loss of each node and link that the plan uses, verified.
    ///
    /// # Panics
    /// If there is none for a loss that leaves a node, or one is refused.
    pub fn contingencies(&self) -> TickContingencies {
        let main = self.plan_with_copies();
        let schedules = contingencies(&self.graph, &self.machine, &main);
        let schedules = schedules.unwrap_or_else(|e| panic!("{e}"));
        let plans = schedules.into_iter().filter_map(|schedule| {
            let lost = schedule.lost;
            match schedule.result {
                Ok(scheduled) => Some((lost, scheduled.plan)),
                Err(error) => {
                    assert_eq!(error, TickScheduleError::NoNode, "without {lost}");
                    None
                }
            }
        });
        let table = TickContingencies::verify(&self.graph, &self.machine, main, plans.collect());
        table.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A plan of the whole machine that keeps borders on two nodes.
    ///
    /// # Panics
    /// If there is none, or it is refused.
    pub fn plan_with_copies(&self) -> VerifiedPlan {
        let scheduled = schedule_with_copies(&self.graph, &self.machine);
        let scheduled = scheduled.unwrap_or_else(|e| panic!("{e}"));
        let plan = verify(&self.graph, &self.machine, scheduled.plan);
        plan.unwrap_or_else(|errors| panic!("{errors:#?}"))
    }
}

/// Changes one value of a plan.
pub fn mutate(plan: &mut TickPlan, rng: &mut fastrand::Rng) -> &'static str {
    match rng.u8(0..12) {
        0 => {
            plan.period = nearby(plan.period, rng);
            "period"
        }
        1 => {
            let nodes = plan.waiting_frames.len();
            if let Some(place) = choose(&mut plan.placement.raw, rng) {
                *place = NodeId(rng.u32(0..nodes as u32 + 1));
            }
            "placement"
        }
        2 | 3 => {
            if let Some(start) = choose(&mut plan.starts.raw, rng).and_then(|s| choose(s, rng)) {
                *start = nearby(*start, rng);
            }
            "start"
        }
        4 => {
            if !plan.messages.is_empty() {
                let index = rng.usize(0..plan.messages.len());
                let message = plan.messages.swap_remove(index);
                if rng.bool() {
                    plan.messages.push(message.clone());
                    plan.messages.push(message);
                }
            }
            "number of messages"
        }
        5 => {
            let buffers = &mut plan.buffers;
            if let Some(buffer) = choose(buffers, rng) {
                buffer.tokens = nearby(buffer.tokens, rng);
            }
            "buffer"
        }
        6 => {
            if let Some(frames) = choose(&mut plan.waiting_frames.raw, rng) {
                *frames = nearby(*frames, rng);
            }
            "waiting frames"
        }
        7 => {
            let nodes = plan.waiting_frames.len() as u32;
            if rng.bool() {
                plan.copies.pop();
            } else if let Some(copy) = choose(&mut plan.copies, rng) {
                copy.node = NodeId(rng.u32(0..nodes + 1));
            }
            "copies"
        }
        _ => mutate_message(plan, rng),
    }
}

fn mutate_message(plan: &mut TickPlan, rng: &mut fastrand::Rng) -> &'static str {
    let nodes = plan.waiting_frames.len() as u32;
    let Some(message) = choose(&mut plan.messages, rng) else {
        return "nothing";
    };
    match rng.u8(0..6) {
        0 => {
            message.firing = nearby(message.firing, rng);
            "firing of a message"
        }
        1 => {
            message.to = NodeId(rng.u32(0..nodes + 1));
            "destination"
        }
        2 => {
            if let Some(hop) = choose(&mut message.hops, rng) {
                hop.link = LinkId(rng.u32(0..4 * nodes));
            }
            "link"
        }
        3 => {
            if rng.bool() {
                message.hops.pop();
            } else if let Some(hop) = message.hops.first().cloned() {
                message.hops.push(hop);
            }
            "number of hops"
        }
        4 => {
            if let Some(run) = choose(&mut message.hops, rng).and_then(|h| choose(&mut h.runs, rng))
            {
                run.frames = nearby(run.frames, rng);
            }
            "frames of a run"
        }
        _ => {
            if let Some(FrameRun { start, .. }) =
                choose(&mut message.hops, rng).and_then(|h| choose(&mut h.runs, rng))
            {
                *start = nearby(*start, rng);
            }
            "tick of a run"
        }
    }
}

fn choose<'a, T>(items: &'a mut [T], rng: &mut fastrand::Rng) -> Option<&'a mut T> {
    if items.is_empty() {
        return None;
    }
    let index = rng.usize(0..items.len());
    items.get_mut(index)
}

/// A number near another, and sometimes one far away.
fn nearby(number: u64, rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(0..20) {
        0 => 0,
        1 => u64::MAX - rng.u64(0..3),
        2 => rng.u64(0..1 << 20),
        step => number.saturating_add_signed(i64::from(step % 7) - 3),
    }
}

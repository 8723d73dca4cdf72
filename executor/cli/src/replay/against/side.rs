//! One of two models that are compared: what it runs, in which modes, and what its sinks are given there.

use std::path::PathBuf;

use zbmd_executor::Engine;
use zbmd_ir::Graph;
use zbmd_ir::verify::graph::repetition;

use crate::flight::ReplayStart;

/// One of two models that are compared.
pub(in crate::replay) struct Side {
    pub(in crate::replay) engine: Engine,
    pub(in crate::replay) path: PathBuf,
    /// Where it begins, and the changes of mode that follow.
    pub(in crate::replay) start: ReplayStart,
    /// How far it goes.
    pub(in crate::replay) iterations: u64,
}

/// Iterations in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leg {
    mode: usize,
    begin: u64,
    end: u64,
}

impl Side {
    /// The graph of a mode.
    pub(super) fn graph(&self, mode: usize) -> &Graph {
        &self.engine.verified_modes().programs()[mode].graph
    }

    /// The graph of the mode that it begins in. Sources and sinks are those of all modes.
    pub(super) fn first_graph(&self) -> &Graph {
        self.graph(self.start.present_mode.mode as usize)
    }

    /// The modes of its iterations.
    fn legs(&self) -> Vec<Leg> {
        let end = self.start.state.iterations + self.iterations;
        let mut leg = Leg {
            mode: self.start.present_mode.mode as usize,
            begin: self.start.state.iterations,
            end,
        };
        let mut legs = Vec::new();
        for change in &self.start.scheduled_modes {
            let change_iteration = change.iteration.min(end);
            legs.push(Leg {
                end: change_iteration,
                ..leg
            });
            leg.mode = change.mode as usize;
            leg.begin = change_iteration;
        }
        legs.push(leg);
        legs
    }

    /// Tokens that a sink is given in an iteration of a mode.
    pub(super) fn sink_tokens(&self, mode: usize, name: &str) -> u64 {
        let graph = self.graph(mode);
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let mut sinks = graph.sinks().filter(|(_, sink)| sink.name == name);
        sinks
            .next()
            .map_or(1, |(id, sink)| repetition[id] * sink.inputs[0].rate)
    }

    /// The iteration with a token of a sink, both counted from where the run begins; all of them where it does not get there.
    pub(super) fn iteration_of(&self, name: &str, index: u64) -> u64 {
        let mut tokens_before = 0;
        for leg in self.legs() {
            let per_iteration = self.sink_tokens(leg.mode, name);
            let iterations = (index - tokens_before) / per_iteration;
            let leg_iterations = leg.end - leg.begin;
            if iterations < leg_iterations {
                return leg.begin + iterations - self.start.state.iterations;
            }
            tokens_before += leg_iterations * per_iteration;
        }
        self.iterations
    }
}

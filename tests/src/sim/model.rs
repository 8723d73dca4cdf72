//! What is computed: a pipeline of stateful actors whose last one feeds back to the first; and the oracle, which runs
//! it in plain loops and knows every output and every state. Must not know devices.

use std::collections::VecDeque;

/// The model of one history.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub seed: u64,
    pub actors: usize,
    /// Blocks by which the feedback is late; 0 for no feedback.
    pub delay: usize,
    /// Output tokens, and input tokens, of a block.
    pub tokens: u64,
    /// Blocks in the whole input.
    pub blocks: u64,
}

/// All state of a run at a border.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub blocks: u64,
    pub actors: Vec<u64>,
    pub feedback: VecDeque<u64>,
    /// The bundle that goes on from here.
    pub bundle: u64,
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.rotate_left(32))
        .wrapping_add(0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Model {
    pub(crate) fn initial(&self) -> State {
        State {
            blocks: 0,
            actors: (0..self.actors as u64).map(|a| mix(self.seed, a)).collect(),
            feedback: (0..self.delay as u64)
                .map(|d| mix(self.seed, d + 1000))
                .collect(),
            bundle: 0,
        }
    }

    /// What a block's input tokens come to.
    pub(crate) fn input(&self, block: u64) -> u64 {
        let first = block * self.tokens;
        (first..first + self.tokens).fold(self.seed, mix)
    }

    /// Whether an actor is behind a gate: every third.
    pub(crate) fn is_gated(actor: usize) -> bool {
        actor % 3 == 2
    }

    /// Whether a gated actor's firing is open: the token itself says so, one in three.
    pub(crate) fn is_open(&self, actor: usize, x: u64) -> bool {
        !Self::is_gated(actor) || mix(self.seed, x).is_multiple_of(3)
    }

    /// One firing of an actor. The state of a gated one is what it gave last, which it gives again while it is closed.
    pub(crate) fn fire(&self, bundle: u64, actor: usize, state: &mut u64, x: u64) -> u64 {
        if !self.is_open(actor, x) {
            return *state;
        }
        let y = mix(*state, mix(x, bundle ^ (actor as u64) << 40));
        *state = match Self::is_gated(actor) {
            true => y,
            false => mix(*state ^ 0x5555, x),
        };
        y
    }

    /// The how-manieth output token of a block whose last actor gave `y`.
    pub(crate) fn output(&self, y: u64, token: u64) -> u64 {
        mix(y, token ^ 0xabcd)
    }
}

/// Knows what must come out.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    model: Model,
    /// The state at every border up to the last one computed.
    states: Vec<State>,
    outputs: Vec<u64>,
}

impl Oracle {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            states: vec![model.initial()],
            model,
            outputs: Vec::new(),
        }
    }

    /// The state after so many blocks.
    pub(crate) fn state(&mut self, blocks: u64) -> &State {
        self.compute(blocks);
        &self.states[blocks as usize]
    }

    /// An output token, counted from the start of the run.
    pub(crate) fn output(&mut self, token: u64) -> u64 {
        self.compute(token / self.model.tokens + 1);
        self.outputs[token as usize]
    }

    /// From this border on, another bundle reigns.
    pub(crate) fn swap(&mut self, blocks: u64, bundle: u64) {
        self.compute(blocks);
        self.states.truncate(blocks as usize + 1);
        self.outputs.truncate((blocks * self.model.tokens) as usize);
        self.states[blocks as usize].bundle = bundle;
    }

    fn compute(&mut self, blocks: u64) {
        while self.states.len() as u64 <= blocks {
            let mut state = self.states[self.states.len() - 1].clone();
            let mut x = self.model.input(state.blocks);
            if let Some(late) = state.feedback.pop_front() {
                x = mix(x, late);
            }
            for actor in 0..self.model.actors {
                x = self
                    .model
                    .fire(state.bundle, actor, &mut state.actors[actor], x);
            }
            if self.model.delay > 0 {
                state.feedback.push_back(x);
            }
            self.outputs
                .extend((0..self.model.tokens).map(|t| self.model.output(x, t)));
            state.blocks += 1;
            self.states.push(state);
        }
    }
}

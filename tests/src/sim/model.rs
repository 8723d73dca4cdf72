//! What is computed: a pipeline of stateful actors whose last one feeds back to the first, in several modes and with a
//! value that is set; and the oracle, which runs it in plain loops and knows every output and every state. Must not know
//! devices.

use std::collections::{BTreeMap, VecDeque};

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
    /// How many changes of mode there were. Each is to a mode of its own, which an actor's firings depend on.
    pub mode: u64,
    /// The value that the block before this border was computed with.
    pub value: u64,
}

/// What was set, and from which block on it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values(BTreeMap<u64, u64>);

impl Values {
    /// Nothing but the value of a state holds.
    pub(crate) fn of(state: &State) -> Self {
        Self(BTreeMap::from([(0, state.value)]))
    }

    pub(crate) fn set(&mut self, block: u64, value: u64) {
        self.0.insert(block, value);
    }

    pub(crate) fn at(&self, block: u64) -> u64 {
        let set = self.0.range(..=block).next_back();
        set.map_or(0, |(_, value)| *value)
    }
}

/// What a firing depends on besides its token and its actor's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub bundle: u64,
    pub mode: u64,
    pub value: u64,
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
            mode: 0,
            value: 0,
        }
    }

    /// Whether an actor's state is one in all modes; that of others begins as declared with each change.
    pub(crate) fn is_carried(actor: usize) -> bool {
        actor.is_multiple_of(2)
    }

    /// A state that goes on in the next mode.
    pub(crate) fn with_next_mode(&self, state: &State) -> State {
        let declared = self.initial();
        let mut next = state.clone();
        next.mode += 1;
        for (actor, state) in next.actors.iter_mut().enumerate() {
            if !Self::is_carried(actor) {
                *state = declared.actors[actor];
            }
        }
        next
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
    pub(crate) fn fire(&self, setting: Setting, actor: usize, state: &mut u64, x: u64) -> u64 {
        match self.is_open(actor, x) {
            true => self.fire_open(setting, actor, state, x),
            false => *state,
        }
    }

    /// The same, whatever the gate says.
    pub(crate) fn fire_open(&self, setting: Setting, actor: usize, state: &mut u64, x: u64) -> u64 {
        let Setting {
            bundle,
            mode,
            value,
        } = setting;
        let salt = bundle ^ mode << 20 ^ (actor as u64) << 40;
        let y = mix(*state, mix(x, salt ^ mix(self.seed, value)));
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
    values: Values,
    /// The state in which each mode was left.
    left: Vec<State>,
}

impl Oracle {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            states: vec![model.initial()],
            model,
            outputs: Vec::new(),
            values: Values::default(),
            left: Vec::new(),
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
        self.forget_after(blocks);
        self.states[blocks as usize].bundle = bundle;
    }

    /// From this border on, the next mode reigns.
    pub(crate) fn enter_next_mode(&mut self, blocks: u64) {
        self.forget_after(blocks);
        let entered = self.model.with_next_mode(&self.states[blocks as usize]);
        let left = std::mem::replace(&mut self.states[blocks as usize], entered);
        self.left.push(left);
    }

    /// From this block on, another value holds.
    pub(crate) fn set(&mut self, block: u64, value: u64) {
        self.forget_after(block);
        self.values.set(block, value);
    }

    /// The run goes on from an earlier state: what was asked for after that is forgotten.
    pub(crate) fn go_back(&mut self, to: &State) {
        self.forget_after(to.blocks);
        // The mode may have changed at that very border.
        let modes = to.mode as usize;
        if let Some(left) = self.left.get(modes).filter(|left| left.blocks == to.blocks) {
            self.states[to.blocks as usize] = left.clone();
        }
        self.left.truncate(modes);
        let state = &mut self.states[to.blocks as usize];
        state.bundle = to.bundle;
        self.values = Values::of(state);
    }

    fn forget_after(&mut self, blocks: u64) {
        self.compute(blocks);
        self.states.truncate(blocks as usize + 1);
        self.outputs.truncate((blocks * self.model.tokens) as usize);
    }

    fn compute(&mut self, blocks: u64) {
        while self.states.len() as u64 <= blocks {
            let mut state = self.states[self.states.len() - 1].clone();
            let mut x = self.model.input(state.blocks);
            if let Some(late) = state.feedback.pop_front() {
                x = mix(x, late);
            }
            state.value = self.values.at(state.blocks);
            let setting = Setting {
                bundle: state.bundle,
                mode: state.mode,
                value: state.value,
            };
            for actor in 0..self.model.actors {
                x = self.model.fire(setting, actor, &mut state.actors[actor], x);
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

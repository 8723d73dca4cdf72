//! Gates: actors whose work is skipped while a token says so.
//!
//! A gated actor has one more input, its *gate*. At each firing the actor is *open* if any token in the gate's window is
//! not zero, and *closed* otherwise. An open firing is the op's. A closed one calls no kernel: each output is zeros or
//! what the last open firing wrote ([`ClosedAnswer`]), and so are states. Everything else is as ever: a closed firing
//! consumes its rates and produces its rates, so that calendars, rates and memory are those of the actor without a gate,
//! its time stays reserved, and windows move on. So the first firing after an opening looks at the very tokens that came
//! before it (mode-controlled dataflow: Bekooij et al., "Dataflow analysis for real-time embedded multiprocessor system
//! design", 2005).
//!
//! What an actor holds is a state like any other: a self-loop channel beside those of the op, with the tokens of one
//! firing. So a gated actor is still a pure function of its windows, and losses, borders and replays need to know nothing
//! of gates.
//!
//! | ports | in this order |
//! |---|---|
//! | inputs | the op's, states among them; the gate; one for each held output |
//! | outputs | the op's, states among them; one for each held output |
//! | states | the op's; one for each held output, in the order of outputs |

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Actor, DType, InPort, OutPort, Role, StatePort, TokenType, Value, limits};

/// What stands for the tokens that a closed firing does not compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClosedAnswer {
    /// Those of the last open firing; before the first one, the last initial tokens of the channel, or zeros.
    Hold,
    /// Zeros; of bursts, empty ones.
    Zero,
}

impl ClosedAnswer {
    /// As models write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Zero => "zero",
        }
    }
}

/// The gate of an actor: the value of its parameter [`Gate::PARAM`], which ops never see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Index of the gate among the actor's inputs: that of the first one behind the op's own.
    pub input: u32,
    /// Of each output of the op that is no state, in their order.
    pub outputs: Vec<ClosedAnswer>,
    /// Of the op's states: they stay as they are, or become zeros.
    pub states: ClosedAnswer,
}

impl Gate {
    /// The parameter that holds an actor's gate.
    pub const PARAM: &str = "gate";

    /// Outputs that are held.
    pub fn held(&self) -> usize {
        let held = self.outputs.iter();
        held.filter(|answer| **answer == ClosedAnswer::Hold).count()
    }

    /// The actor without its gate, as its op knows it. Of an actor that is not verified, something.
    pub fn without(&self, actor: &Actor) -> Actor {
        let held = self.held();
        let mut bare = actor.clone();
        bare.params.remove(Self::PARAM);
        bare.inputs.truncate(self.input as usize);
        bare.outputs
            .truncate(actor.outputs.len().saturating_sub(held));
        bare.state.truncate(actor.state.len().saturating_sub(held));
        bare
    }

    /// Why an actor cannot have this gate, as a clause; `None` if it can.
    pub fn fault(&self, actor: &Actor) -> Option<String> {
        if actor.role != Role::Compute {
            return Some("stands at a source or a sink".to_owned());
        }
        let held = self.held();
        let (inputs, outputs) = (actor.inputs.len(), actor.outputs.len());
        let states = actor.state.len();
        // What is beyond the limits is refused for that, and not looked at here.
        if inputs.max(outputs).max(states) > limits::MAX_PORTS {
            return None;
        }
        let gate = self.input as usize;
        if inputs.checked_sub(held + 1) != Some(gate) || outputs < held || states < held {
            return Some(format!(
                "is input {gate}, with {held} held outputs, of {inputs} inputs, {outputs} outputs and {states} states"
            ));
        }
        if let Some(why) = gate_type_fault(&actor.inputs[gate].token) {
            return Some(why);
        }

        if actor.in_place.iter().any(|pair| pair.input == self.input) {
            return Some("may be written over, while firings still read it".to_owned());
        }

        let bare = self.without(actor);
        let mut plain_outputs = Vec::new();
        for (index, port) in (0..).zip(&bare.outputs) {
            if bare.state_of_output(index).is_none() {
                plain_outputs.push(port);
            }
        }
        if plain_outputs.len() != self.outputs.len() {
            return Some(format!(
                "answers for {} outputs of {}",
                self.outputs.len(),
                plain_outputs.len()
            ));
        }

        let is_beyond = |state: &&StatePort| {
            state.input >= self.input || state.output as usize >= bare.outputs.len()
        };
        if let Some(state) = bare.state.iter().find(is_beyond) {
            return Some(format!(
                "has a state of the op at input {} and output {}, beyond the op's ports",
                state.input, state.output
            ));
        }
        self.held_state_fault(actor, &bare, &plain_outputs)
    }

    /// The states that hold outputs: in their order, each of the size of a firing's tokens.
    fn held_state_fault(
        &self,
        actor: &Actor,
        bare: &Actor,
        outputs: &[&OutPort],
    ) -> Option<String> {
        let answers = outputs.iter().zip(&self.outputs);
        let held_outputs = answers.filter(|(_, answer)| **answer == ClosedAnswer::Hold);
        for (index, (port, _)) in held_outputs.enumerate() {
            let expected = StatePort {
                input: self.input + 1 + index as u32,
                output: (bare.outputs.len() + index) as u32,
            };
            let found = actor.state[bare.state.len() + index];
            if found != expected {
                return Some(format!(
                    "holds `{}` in inputs {} and outputs {} instead of {} and {}",
                    port.name, found.input, found.output, expected.input, expected.output
                ));
            }
            let token = &actor.outputs[expected.output as usize].token;
            let needed = held_token(port);
            if *token != needed {
                return Some(format!(
                    "holds `{}` in a state of {token}, needs {needed}",
                    port.name
                ));
            }
        }
        None
    }
}

impl Actor {
    /// The actor's gate, if it has one.
    pub fn gate(&self) -> Option<&Gate> {
        match self.params.get(Gate::PARAM) {
            Some(Value::Gate(gate)) => Some(gate),
            _ => None,
        }
    }

    /// The actor as its op knows it: without its gate, if it has one.
    pub fn ungated(&self) -> Cow<'_, Actor> {
        match self.gate() {
            Some(gate) => Cow::Owned(gate.without(self)),
            None => Cow::Borrowed(self),
        }
    }

    /// The actor with a gate of such tokens. An open firing follows any token that is not zero among `window`, of which
    /// `rate` are new to each firing. `answers` are asked of each output that is no state, by index.
    pub fn with_gate(
        &self,
        port: InPort,
        states: ClosedAnswer,
        answers: impl Fn(u32) -> ClosedAnswer,
    ) -> Actor {
        let mut gated = self.clone();
        let input = gated.inputs.len() as u32;
        gated.inputs.push(port);

        let mut outputs = Vec::new();
        for (index, output) in (0..).zip(&self.outputs) {
            if self.state_of_output(index).is_some() {
                continue;
            }
            let answer = answers(index);
            outputs.push(answer);
            if answer == ClosedAnswer::Hold {
                gated.add_held(output);
            }
        }
        let gate = Gate {
            input,
            outputs,
            states,
        };
        let value = Value::Gate(Box::new(gate));
        gated.params.insert(Gate::PARAM.to_owned(), value);
        gated
    }

    /// Adds the state that holds an output's tokens of a firing.
    fn add_held(&mut self, output: &OutPort) {
        let name = format!("{}.{}", Gate::PARAM, output.name);
        let token = held_token(output);
        self.state.push(StatePort {
            input: self.inputs.len() as u32,
            output: self.outputs.len() as u32,
        });
        self.inputs.push(InPort {
            name: name.clone(),
            token: token.clone(),
            rate: 1,
            window: 1,
        });
        self.outputs.push(OutPort {
            name,
            token,
            rate: 1,
        });
    }
}

/// The token that holds what a firing writes to an output.
pub fn held_token(output: &OutPort) -> TokenType {
    let token = &output.token;
    if output.rate == 1 {
        return token.clone();
    }
    // A row of tokens; a dimension that is too large is refused where the rate is.
    let count = u32::try_from(output.rate).unwrap_or(u32::MAX);
    if token.burst {
        let bytes = token.bytes().saturating_mul(output.rate);
        return TokenType::new(DType::U8, [u32::try_from(bytes).unwrap_or(u32::MAX)]);
    }
    let shape = std::iter::once(count).chain(token.shape.iter().copied());
    if token.shape.len() < limits::MAX_RANK {
        return TokenType::new(token.dtype, shape.collect::<Vec<u32>>());
    }
    let elements = shape.fold(1u32, u32::saturating_mul);
    TokenType::new(token.dtype, [elements])
}

/// Why tokens of a type cannot be a gate's, as a clause; `None` if they can.
pub fn gate_type_fault(token: &TokenType) -> Option<String> {
    let is_one = token.shape.len() <= limits::MAX_RANK && token.elements() == 1;
    let is_number = token.dtype != DType::C32 && !token.burst;
    (!is_one || !is_number).then(|| {
        format!("reads tokens of {token}, which are not one real number or truth value each")
    })
}

/// Whether a gate with these tokens in its window is open: one of them is not zero. Not a number is not zero.
///
/// `bytes` are whole elements of `dtype`.
pub fn is_open(dtype: DType, bytes: &[u8]) -> bool {
    // The sign of a zero is not a number's only bit: it is the last byte's first, of floats.
    let element_bytes = dtype.size_bytes() as usize;
    let is_float = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16);
    let mut elements = bytes.chunks_exact(element_bytes);
    elements.any(|element| {
        if !is_float {
            return element.iter().any(|byte| *byte != 0);
        }
        let sign_byte = if cfg!(target_endian = "little") {
            element_bytes - 1
        } else {
            0
        };
        let mut bytes = element.iter().enumerate();
        bytes.any(|(index, byte)| {
            let magnitude = if index == sign_byte {
                byte & 0x7f
            } else {
                *byte
            };
            magnitude != 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Params;

    fn actor() -> Actor {
        let token = TokenType::new(DType::F32, [3]);
        let input = |name: &str, rate| InPort {
            name: name.to_owned(),
            token: token.clone(),
            rate,
            window: rate,
        };
        let output = |name: &str, rate| OutPort {
            name: name.to_owned(),
            token: token.clone(),
            rate,
        };
        Actor {
            name: "a".to_owned(),
            role: Role::Compute,
            op: "Mix".to_owned(),
            params: Params::from([("k".to_owned(), Value::Int(1))]),
            inputs: vec![input("x", 2), input("s", 1)],
            outputs: vec![output("y", 1), output("s", 1), output("z", 4)],
            state: vec![StatePort {
                input: 1,
                output: 1,
            }],
            in_place: Vec::new(),
        }
    }

    fn gated(answers: impl Fn(u32) -> ClosedAnswer) -> Actor {
        let port = InPort {
            name: "gate".to_owned(),
            token: TokenType::scalar(DType::Bool),
            rate: 1,
            window: 1,
        };
        actor().with_gate(port, ClosedAnswer::Hold, answers)
    }

    #[test]
    fn a_gate_can_be_put_on_and_taken_off() {
        let answers: [fn(u32) -> ClosedAnswer; 3] = [
            |_| ClosedAnswer::Hold,
            |_| ClosedAnswer::Zero,
            |index| match index {
                0 => ClosedAnswer::Zero,
                _ => ClosedAnswer::Hold,
            },
        ];
        for (answers, held) in answers.into_iter().zip([2, 0, 1]) {
            let with_gate = gated(answers);
            let gate = with_gate.gate().expect("it has one");
            assert_eq!(gate.fault(&with_gate), None);
            assert_eq!((gate.input, gate.outputs.len(), gate.held()), (2, 2, held));
            assert_eq!(with_gate.state.len(), 1 + held);
            assert_eq!(*with_gate.ungated(), actor());
        }
    }

    #[test]
    fn what_is_held_has_the_size_of_a_firing() {
        let with_gate = gated(|_| ClosedAnswer::Hold);
        let held = &with_gate.outputs[3..];
        assert_eq!(held[0].token, TokenType::new(DType::F32, [3]));
        assert_eq!(held[1].token, TokenType::new(DType::F32, [4, 3]));
        let burst = OutPort {
            name: "b".to_owned(),
            token: TokenType::burst(DType::U8, [14]),
            rate: 3,
        };
        assert_eq!(held_token(&burst), TokenType::new(DType::U8, [96]));
    }

    #[test]
    fn gates_open_with_anything_but_zeros() {
        let f32s =
            |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_ne_bytes()).collect() };
        for (dtype, bytes, expected) in [
            (DType::Bool, vec![0, 0, 0], false),
            (DType::Bool, vec![0, 1, 0], true),
            (DType::U8, vec![128], true),
            (DType::I16, i16::MIN.to_ne_bytes().to_vec(), true),
            (DType::I64, 0i64.to_ne_bytes().to_vec(), false),
            (DType::F32, f32s(&[0.0, -0.0]), false),
            (DType::F32, f32s(&[0.0, f32::MIN_POSITIVE]), true),
            (DType::F32, f32s(&[f32::NAN]), true),
            (DType::F64, (-0.0f64).to_ne_bytes().to_vec(), false),
            (DType::F64, (-1e-300f64).to_ne_bytes().to_vec(), true),
            (DType::F16, vec![0, 0], false),
            (DType::Bool, vec![], false),
        ] {
            assert_eq!(is_open(dtype, &bytes), expected, "{dtype} {bytes:?}");
        }
    }
}

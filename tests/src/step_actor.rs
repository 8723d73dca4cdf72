//! Custom actors of a test: a function from the bytes of a firing's inputs and state to those of its outputs.

use std::sync::Arc;

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{CustomActor, Registry, Signature, StateSpec};
use zbmd_ir::{DType, InPort, OutPort, TokenType};

/// What one firing sees: the token of each input, the state, and a place for the token of each output.
pub struct Step<'a> {
    /// One token of each input.
    pub inputs: Vec<&'a [u8]>,
    /// The state, empty if there is none.
    pub state: &'a mut [u8],
    /// One token for each output, zeros at first.
    pub outputs: Vec<&'a mut [u8]>,
}

/// The ports of an actor: names, and bytes of a token.
#[derive(Clone, Debug, Default)]
pub struct StepPorts {
    /// Inputs, in the order of their names.
    pub inputs: Vec<(String, u32)>,
    /// Outputs, in the order of their names.
    pub outputs: Vec<(String, u32)>,
    /// The state at the start; empty if there is none.
    pub state: Vec<u8>,
}

struct StepActor<F> {
    ports: StepPorts,
    step: Arc<F>,
}

/// Registers an actor under a name.
pub fn register<F>(registry: &mut Registry, name: &str, ports: StepPorts, step: F)
where
    F: Fn(Step<'_>) + Send + Sync + 'static,
{
    let step = Arc::new(step);
    registry.register(name, move |_| {
        Ok(StepActor {
            ports: ports.clone(),
            step: step.clone(),
        })
    });
}

impl<F> StepActor<F> {
    fn has_state(&self) -> bool {
        !self.ports.state.is_empty()
    }
}

fn token(bytes: u32) -> TokenType {
    TokenType::new(DType::U8, [bytes])
}

impl<F: Fn(Step<'_>) + Send + Sync> Kernel for StepActor<F> {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let inputs: Vec<&[u8]> = (0..self.ports.inputs.len())
            .map(|index| io.input_bytes(index))
            .collect();
        let mut outputs: Vec<&mut [u8]> = (0..self.ports.outputs.len())
            .map(|index| io.output_bytes(index))
            .collect();
        let mut none = [];
        let state: &mut [u8] = match self.has_state() {
            true => io.state_bytes(0),
            false => &mut none,
        };

        for firing in 0..io.firings() {
            let inputs = inputs.iter().zip(&self.ports.inputs);
            let outputs = outputs.iter_mut().zip(&self.ports.outputs);
            let mut step = Step {
                inputs: inputs
                    .map(|(bytes, (_, size))| part(bytes, *size, firing))
                    .collect(),
                state: &mut *state,
                outputs: outputs
                    .map(|(bytes, (_, size))| part_mut(bytes, *size, firing))
                    .collect(),
            };
            step.outputs.iter_mut().for_each(|output| output.fill(0));
            (self.step)(step);
        }
        Ok(())
    }
}

fn part(bytes: &[u8], size: u32, index: usize) -> &[u8] {
    let size = size as usize;
    &bytes[index * size..(index + 1) * size]
}

fn part_mut(bytes: &mut [u8], size: u32, index: usize) -> &mut [u8] {
    let size = size as usize;
    &mut bytes[index * size..(index + 1) * size]
}

impl<F: Fn(Step<'_>) + Send + Sync> CustomActor for StepActor<F> {
    fn ports(&self) -> Signature {
        let inputs = self.ports.inputs.iter().map(|(name, bytes)| InPort {
            name: name.clone(),
            token: token(*bytes),
            rate: 1,
            window: 1,
        });
        let outputs = self.ports.outputs.iter().map(|(name, bytes)| OutPort {
            name: name.clone(),
            token: token(*bytes),
            rate: 1,
        });
        let state = self.has_state().then(|| StateSpec {
            name: "state".to_owned(),
            token: token(self.ports.state.len() as u32),
            initial: self.ports.state.clone(),
        });
        Signature {
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            states: state.into_iter().collect(),
        }
    }
}

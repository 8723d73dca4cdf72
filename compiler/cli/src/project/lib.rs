//! A loudness meter: model.ron says what is computed, this file holds the actor that zbmd does not have.

use std::error::Error;
use std::path::{Path, PathBuf};

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{CustomActor, OpError, Registry, Signature};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{DType, InPort, OutPort, Params, Program, TokenType, Value};

/// Samples of one firing.
const SAMPLES: usize = 480;

/// The actor `level`: the power of 480 samples, in decibels. A pure function of its window: what it kept
/// from one firing to the next would have to be a channel.
pub struct Level {
    floor: f32,
}

impl Level {
    /// The actor for a model's `params`.
    ///
    /// # Errors
    /// Where `floor` is no number.
    pub fn new(params: &Params) -> Result<Self, OpError> {
        match params.get("floor").map_or(Some(-120.0), Value::as_float) {
            Some(floor) => Ok(Self { floor: floor as f32 }),
            None => Err(OpError::Param {
                name: "floor".to_owned(),
                message: "is no number".to_owned(),
                help: "give decibels, such as -90.0".to_owned(),
            }),
        }
    }
}

impl Kernel for Level {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (samples, levels) = (io.input::<f32>(0), io.output::<f32>(0));
        // A call may be for several firings: that many windows, that many outputs.
        for (window, level) in samples.chunks_exact(SAMPLES).zip(levels) {
            let power = window.iter().map(|x| x * x).sum::<f32>() / SAMPLES as f32;
            *level = (10.0 * power.log10()).max(self.floor);
        }
        Ok(())
    }
}

impl CustomActor for Level {
    fn ports(&self) -> Signature {
        let token = TokenType::scalar(DType::F32);
        let (rate, window) = (SAMPLES as u64, SAMPLES as u64);
        Signature {
            inputs: vec![InPort { name: "in".to_owned(), token: token.clone(), rate, window }],
            outputs: vec![OutPort { name: "out".to_owned(), token, rate: 1 }],
            states: vec![],
        }
    }
}

/// All ops that the model may use.
pub fn registry() -> Registry {
    let mut registry = zbmd_backends::standard_registry();
    registry.register("level", Level::new);
    registry
}

/// A file of this project.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The model, compiled for a machine.
///
/// # Errors
/// What is wrong with the model or the machine.
pub fn compile(machine: MachineChoice) -> Result<Verified<Program>, Box<dyn Error>> {
    let options = CompileOptions { registry: registry(), machine, ..CompileOptions::default() };
    Ok(compile_file(file("model.ron"), &options)?.program)
}

/// Runs a program on sound; gives its loudness.
///
/// # Errors
/// Where it cannot be started, or a kernel fails.
pub fn run(program: Verified<Program>, sound: &[f32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut session = Engine::new(program, &registry())?.start(RunOptions::default())?;
    let (mut source, mut sink) = (session.source("sound")?, session.sink("loudness")?);
    let mut loudness = vec![0.0; sound.len() / SAMPLES];
    let pulled = std::thread::scope(|scope| {
        scope.spawn(move || source.push(sound));
        sink.pull(&mut loudness)
    })?;
    drop(sink);
    session.join()?;
    loudness.truncate(pulled as usize);
    Ok(loudness)
}

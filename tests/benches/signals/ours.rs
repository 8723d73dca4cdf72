//! zbmd's side: models that repeat one kernel, and graphs of the repository, called on the measuring thread.

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file, compile_str};
use zbmd_executor::{Caller, Engine};
use zbmd_ir::DType;
use zbmd_tests::run::graph_file;

use crate::quality::{self, Quality};
use crate::{CALL_SAMPLES, Side, timed};

/// Iterations of a sample-rate converter's call: each takes 147 samples and gives 160.
pub(crate) const RESAMPLE_ITERATIONS: u64 = 32;

/// A program that is called, and memory for what goes in and out.
pub(crate) struct Ours {
    caller: Caller,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Ours {
    /// A chain of actors of one input and one output behind a source of these tokens, in blocks of so many iterations.
    pub(crate) fn chain(
        dtype: &str,
        actors: usize,
        block: u64,
        actor: impl Fn(usize) -> String,
    ) -> Self {
        let lines: String = (0..actors)
            .map(|i| format!("\"a{i}\": {},", actor(i)))
            .collect();
        let channel = |i: usize| match i {
            0 => "(from: \"x\", to: [\"a0\"]),".to_owned(),
            _ => format!("(from: \"a{}\", to: [\"a{i}\"]),", i - 1),
        };
        let channels: String = (0..actors).map(channel).collect();
        let last = actors - 1;
        let text = format!(
            "Model(name: \"chain\", sources: {{\"x\": Stream(dtype: {dtype})}}, actors: {{{lines}}}, \
             channels: [{channels} (from: \"a{last}\", to: [\"y\"])], sinks: {{\"y\": Stream()}})"
        );
        Self::compile(&text, block)
    }

    /// Many actors `Magnitude` that read the same samples. Nobody reads what they give, but for a few tokens of the first one.
    pub(crate) fn magnitudes(copies: usize) -> Self {
        const TOKEN: usize = 64;
        let tokens = CALL_SAMPLES / TOKEN;
        let mut actors = String::new();
        let mut channels = String::new();
        for i in 0..copies {
            let reader = if i == 0 { "\"decimate\"" } else { "" };
            actors += &format!("\"m{i}\": Magnitude(), ");
            channels +=
                &format!("(from: \"x\", to: [\"m{i}\"]), (from: \"m{i}\", to: [{reader}]), ");
        }
        let text = format!(
            "Model(name: \"magnitudes\", sources: {{\"x\": Stream(dtype: c32, shape: [{TOKEN}])}}, \
             actors: {{{actors}\"decimate\": Decimate({tokens})}}, \
             channels: [{channels}(from: \"decimate\", to: [\"y\"])], sinks: {{\"y\": Stream()}})"
        );
        Self::compile(&text, 1)
    }

    /// A file of `graphs/`, in blocks of so many iterations.
    pub(crate) fn of_graph(model: &str, block: u64) -> Self {
        let compiled = compile_file(graph_file(model), &options(block));
        Self::new(compiled.unwrap_or_else(|errors| panic!("{model}: {errors}")))
    }

    fn compile(text: &str, block: u64) -> Self {
        let compiled = compile_str("model", text, ".", &options(block));
        Self::new(compiled.unwrap_or_else(|errors| panic!("{text}: {errors}")))
    }

    fn new(compiled: zbmd_compiler::Compiled) -> Self {
        let engine = Engine::new(compiled.program, &zbmd_backends::standard_registry());
        let engine = engine.expect("known ops");
        let caller = engine.caller().expect("one CPU device");
        let sources = engine.program().graph.sources();
        let inputs = sources
            .zip(caller.inputs())
            .map(|((_, source), (_, bytes))| noise(source.outputs[0].token.dtype, bytes))
            .collect();
        let outputs = caller.outputs().map(|(_, bytes)| vec![0; bytes]).collect();
        Self {
            caller,
            inputs,
            outputs,
        }
    }

    /// One call after the other with the same inputs.
    pub(crate) fn side(mut self) -> Side {
        timed(move || self.call())
    }

    /// The quality of a converter from 44.1 to 48 kHz.
    pub(crate) fn quality(self) -> Quality {
        quality::measure(self)
    }

    fn call(&mut self) {
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        self.caller.call(&inputs, &mut outputs).expect("a call");
    }
}

impl quality::Converter for Ours {
    fn convert(&mut self, cd: &[f32]) -> Vec<f32> {
        let call_samples = self.inputs[0].len() / size_of::<f32>();
        let mut dat = Vec::new();
        for samples in cd.chunks_exact(call_samples) {
            self.inputs[0].copy_from_slice(bytemuck::cast_slice(samples));
            self.call();
            let (floats, _) = self.outputs[0].as_chunks::<4>();
            dat.extend(floats.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        }
        dat
    }
}

fn options(block: u64) -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(block),
        ..CompileOptions::default()
    }
}

/// Samples without a pattern: bytes, or floats so small that a chain of transforms does not overflow.
fn noise(dtype: DType, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    if dtype == DType::U8 {
        return (0..bytes).map(|_| rng.u8(..)).collect();
    }
    let samples = (0..bytes / size_of::<f32>()).map(|_| (rng.f32() - 0.5) * 1e-6);
    samples.flat_map(f32::to_ne_bytes).collect()
}

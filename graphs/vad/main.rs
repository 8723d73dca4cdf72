//! `cargo run --release -p zbmd-examples --example vad -- DETECTOR.onnx AUDIO.wav`: segments of speech in seconds, one a line.
//!
//! Takes mono WAV files of 16 bits at any rate. The models are model.ron (16 kHz) and any.ron; segments.rs is their
//! custom actor.

#[expect(unreachable_pub, reason = "tests use the actor too")]
mod segments;

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, compile_file};
use zbmd_executor::{Engine, RunOptions};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [detector, audio] = arguments.as_slice() else {
        eprintln!("usage: vad DETECTOR.onnx AUDIO.wav    (16 bits, mono, any rate)");
        return ExitCode::from(2);
    };
    match listen(Path::new(detector), Path::new(audio)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vad: {error}");
            ExitCode::FAILURE
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn listen(detector: &Path, audio: &Path) -> Result<(), Box<dyn Error>> {
    let mut reader = hound::WavReader::open(audio)?;
    let spec = reader.spec();
    if spec.channels != 1 || spec.bits_per_sample != 16 {
        return Err(format!(
            "{}: {} channels of {} bits, it takes one of 16",
            audio.display(),
            spec.channels,
            spec.bits_per_sample
        )
        .into());
    }
    let mut samples: Vec<i16> = reader.samples().collect::<Result<_, _>>()?;
    let rate = spec.sample_rate;
    let common = gcd(rate, 16_000);
    let (up, down) = (16_000 / common, rate / common);
    let hop = (512 * u64::from(down)).div_ceil(u64::from(up)) as usize;
    samples.resize(samples.len() + segments::silence(samples.len(), hop), 0);

    let mut registry = Registry::standard();
    segments::register(&mut registry);
    let mut options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let path = std::path::absolute(detector)?;
    options.params.insert(
        "detector".into(),
        format!("{:?}", path.display().to_string()),
    );
    let plain = rate == 16_000;
    if !plain {
        for (name, value) in [
            ("up", up),
            ("down", down),
            ("rate", rate * up),
            ("taps", 48 * up.max(down) + 1),
        ] {
            options.params.insert(name.into(), value.to_string());
        }
    }
    let model = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("vad")
        .join(if plain { "model.ron" } else { "any.ron" });
    let program = compile_file(model, &options)?.program;
    let mut session = Engine::new(program, &registry)?.start(RunOptions::default())?;
    let (mut source, mut probabilities, mut sink) = (
        session.source("pcm")?,
        session.sink("prob")?,
        session.sink("segments")?,
    );
    let feed = std::thread::spawn(move || {
        let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        source.push_bytes(&bytes)
    });
    let track = std::thread::spawn(move || {
        let mut part = vec![0; 4096];
        while probabilities
            .pull_some_bytes(&mut part)
            .is_ok_and(|n| n > 0)
        {}
    });
    let mut stdout = std::io::stdout().lock();
    let token_bytes = sink.token().bytes() as usize;
    let mut records = vec![0; 64 * token_bytes];
    loop {
        let tokens = sink.pull_some_bytes(&mut records)? as usize;
        if tokens == 0 {
            break;
        }
        write!(
            stdout,
            "{}",
            segments::lines(&records[..tokens * token_bytes])
        )?;
    }
    let outcome = session.join()?;
    if let Ok(pushed) = feed.join() {
        pushed?;
    }
    let _ = track.join();
    eprintln!("{}", outcome.report);
    Ok(())
}

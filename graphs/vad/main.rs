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
use zbmd_executor::{Engine, RunOptions, SinkHandle};
use zbmd_ir::Program;
use zbmd_ir::math::gcd_u64;
use zbmd_ir::verify::Verified;

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

/// Sample rate of the detector, in Hz.
const DETECTOR_RATE: u32 = 16_000;
/// Samples of a frame at the detector's rate.
const FRAME_SAMPLES: u64 = 512;

/// A recording of one channel.
struct Recording {
    samples: Vec<i16>,
    /// In Hz.
    rate: u32,
}

/// The ratio by which a recording is resampled to the detector's rate, in lowest terms.
#[derive(Clone, Copy)]
struct Resampling {
    up: u32,
    down: u32,
}

impl Resampling {
    fn from_rate(rate: u32) -> Self {
        // The divisor of two 32-bit numbers fits into 32 bits.
        let common_factor = gcd_u64(rate.into(), DETECTOR_RATE.into()) as u32;
        Self {
            up: DETECTOR_RATE / common_factor,
            down: rate / common_factor,
        }
    }

    /// Samples of the recording that make a frame for the detector, rounded up.
    fn frame_samples(self) -> usize {
        (FRAME_SAMPLES * u64::from(self.down)).div_ceil(u64::from(self.up)) as usize
    }
}

fn read_recording(audio: &Path) -> Result<Recording, Box<dyn Error>> {
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
    Ok(Recording {
        samples: reader.samples().collect::<Result<_, _>>()?,
        rate: spec.sample_rate,
    })
}

/// The program for recordings of this rate.
fn compile_detector(
    detector: &Path,
    rate: u32,
    registry: &Registry,
) -> Result<Verified<Program>, Box<dyn Error>> {
    let mut options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let path = std::path::absolute(detector)?;
    options.params.insert(
        "detector".into(),
        format!("{:?}", path.display().to_string()),
    );

    let model = if rate == DETECTOR_RATE {
        "model.ron"
    } else {
        let Resampling { up, down } = Resampling::from_rate(rate);
        for (name, value) in [
            ("up", up),
            ("down", down),
            ("rate", rate * up),
            // An odd number, so that the filter has a tap in the middle.
            ("taps", 48 * up.max(down) + 1),
        ] {
            options.params.insert(name.into(), value.to_string());
        }
        "any.ron"
    };

    let model = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("vad")
        .join(model);
    Ok(compile_file(model, &options)?.program)
}

fn listen(detector: &Path, audio: &Path) -> Result<(), Box<dyn Error>> {
    let Recording { mut samples, rate } = read_recording(audio)?;
    let frame_samples = Resampling::from_rate(rate).frame_samples();
    let padding = segments::silence(samples.len(), frame_samples);
    samples.resize(samples.len() + padding, 0);

    let mut registry = zbmd_backends::standard_registry();
    segments::register(&mut registry);
    let program = compile_detector(detector, rate, &registry)?;
    let mut session = Engine::new(program, &registry)?.start(RunOptions::default())?;
    let mut source = session.source("pcm")?;
    let mut probabilities = session.sink("prob")?;
    let sink = session.sink("segments")?;

    // Every stream has its own thread, so that none can stop the session by not being served.
    let feeder = std::thread::spawn(move || {
        let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        source.push_bytes(&bytes)
    });
    let drain = std::thread::spawn(move || {
        let mut part = vec![0; 4096];
        while probabilities
            .pull_some_bytes(&mut part)
            .is_ok_and(|n| n > 0)
        {}
    });
    print_segments(sink)?;

    let outcome = session.join()?;
    if let Ok(pushed) = feeder.join() {
        pushed?;
    }
    let _ = drain.join();
    eprintln!("{}", outcome.report);
    Ok(())
}

/// Prints the segments as they come, until the stream ends.
fn print_segments(mut sink: SinkHandle) -> Result<(), Box<dyn Error>> {
    let mut stdout = std::io::stdout().lock();
    let token_bytes = sink.token().bytes() as usize;
    let mut records = vec![0; 64 * token_bytes];

    loop {
        let tokens = sink.pull_some_bytes(&mut records)? as usize;
        if tokens == 0 {
            return Ok(());
        }
        let received = &records[..tokens * token_bytes];
        write!(stdout, "{}", segments::lines(received))?;
    }
}

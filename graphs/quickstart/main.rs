//! `cargo run --release -p zbmd-examples --example quickstart`: compiles model.ron for two CPU devices, shows the calendars, plays
//! 1.6 seconds of it, shows the report and draws what came out. Needs no data.

use std::error::Error;
use std::f32::consts::TAU;
use std::path::Path;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::PlanId;
use zbmd_ir::text::{TextOptions, calendar};

/// Iterations of 160 samples of 48 kHz: one round of the melody.
const ITERATIONS: u64 = 480;
const RATE: f32 = 48_000.0;
/// Samples between columns of the drawing, and samples that each looks at.
const STEP: usize = 1200;
const WINDOW: usize = 4096;
/// Semitones above 196 Hz (G3) that are drawn.
const SEMITONES: i32 = 32;
const NAMES: [&str; 12] = [
    "G", "G#", "A", "A#", "B", "C", "C#", "D", "D#", "E", "F", "F#",
];

fn main() -> Result<(), Box<dyn Error>> {
    let registry = zbmd_backends::standard_registry();
    let options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::Uniform(2),
        ..CompileOptions::default()
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("quickstart/model.ron");
    let program = compile_file(model, &options)?.program;
    println!(
        "Two calendars, made before the first sample: what runs where, when, and out of which bytes.\n"
    );
    println!(
        "{}",
        calendar(&program, &program.plans[PlanId(0)], TextOptions::default())
    );

    let run = RunOptions {
        iterations: Some(ITERATIONS),
        ..RunOptions::default()
    };
    let mut session = Engine::new(program, &registry)?.start(run)?;
    let mut sink = session.sink("dat")?;
    let mut samples = vec![0.0f32; ITERATIONS as usize * 160];
    let pulled = sink.pull(&mut samples)? as usize;
    samples.truncate(pulled);
    drop(sink);
    println!("{}", session.join()?.report);

    println!("What came out, {:.1} s of it:\n", pulled as f32 / RATE);
    print!("{}", piano_roll(&samples));
    Ok(())
}

/// Time to the right, pitch upwards; the darker, the louder.
fn piano_roll(samples: &[f32]) -> String {
    let columns = samples.len() / STEP;
    let row = |semitone: i32| -> Vec<f32> {
        let hz = 196.0 * 2f32.powf(semitone as f32 / 12.0);
        (0..columns)
            .map(|column| level(samples, column * STEP, hz))
            .collect()
    };
    let rows: Vec<Vec<f32>> = (0..SEMITONES).map(row).collect();
    let loudest = rows
        .iter()
        .flatten()
        .fold(f32::MIN_POSITIVE, |a, &b| a.max(b));
    let mut drawing = String::new();
    for (semitone, row) in rows.iter().enumerate().rev() {
        let shade = |level: &f32| match 20.0 * (level / loudest).max(1e-6).log10() {
            db if db > -7.0 => '#',
            db if db > -13.0 => '=',
            db if db > -19.0 => '-',
            db if db > -25.0 => '.',
            _ => ' ',
        };
        let line: String = row.iter().map(shade).collect();
        drawing.push_str(&format!(
            "  {:>2} |{}\n",
            NAMES[semitone % 12],
            line.trim_end()
        ));
    }
    drawing
}

/// Magnitude at `hz` in the Hann window that begins at `start`.
fn level(samples: &[f32], start: usize, hz: f32) -> f32 {
    let window = &samples[start..samples.len().min(start + WINDOW)];
    let (mut re, mut im) = (0.0, 0.0);
    for (n, sample) in window.iter().enumerate() {
        let weight = 0.5 - 0.5 * (TAU * n as f32 / WINDOW as f32).cos();
        let (sin, cos) = (TAU * (hz * n as f32 / RATE).fract()).sin_cos();
        re += sample * weight * cos;
        im -= sample * weight * sin;
    }
    re.hypot(im)
}

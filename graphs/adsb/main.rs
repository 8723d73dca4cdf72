//! `cargo run --release -p zbmd-examples --example adsb -- FILE`: the Mode S frames in a recording of u8 I/Q at 2 MS/s.
//!
//! Prints each distinct frame with a clean checksum once, in hex, in the order in which they were first heard; with
//! `--json` before the file every frame as a line of JSON, with the index of its first sample and its time in seconds.
//! The model is model.ron; decode.rs is its custom actor, registered here.

#[expect(unreachable_pub, reason = "tests use the actor too")]
mod decode;

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, RunOptions};

/// Samples a second of a recording.
const SAMPLE_RATE: f64 = 2e6;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let print_json = args.first().is_some_and(|arg| arg == "--json");
    if print_json {
        args.remove(0);
    }
    let [file] = args.as_slice() else {
        eprintln!("usage: adsb [--json] FILE    (u8 I/Q, 2 MS/s, 1090 MHz)");
        return ExitCode::from(2);
    };
    match receive(Path::new(file), print_json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("adsb: {error}");
            ExitCode::FAILURE
        }
    }
}

fn receive(file: &Path, print_json: bool) -> Result<(), Box<dyn Error>> {
    let mut iq = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    // Half a sample at the end is no sample.
    iq.truncate(iq.len() / 2 * 2);
    iq.extend(decode::silence(iq.len()));

    let mut registry = zbmd_backends::standard_registry();
    decode::register(&mut registry);
    let options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::Uniform(2),
        ..CompileOptions::default()
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("adsb/model.ron");
    let program = compile_file(model, &options)?.program;
    let mut session = Engine::new(program, &registry)?.start(RunOptions::default())?;
    let (mut source, mut sink) = (session.source("iq")?, session.sink("frames")?);
    // The reader of the sink may give up (a closed pipe); then the run ends, and the source with it.
    let feed = std::thread::spawn(move || source.push_bytes(&iq));

    let mut listener = decode::Listener::default();
    let mut heard = BTreeSet::new();
    let mut stdout = std::io::stdout().lock();
    let token_bytes = sink.token().bytes() as usize;
    let mut records = vec![0; 256 * token_bytes];
    loop {
        let tokens = sink.pull_some_bytes(&mut records)? as usize;
        if tokens == 0 {
            break;
        }
        for frame in listener.frames(&records[..tokens * token_bytes]) {
            let is_new = heard.insert(frame.hex.clone());
            if print_json {
                let seconds = frame.sample as f64 / SAMPLE_RATE;
                writeln!(
                    stdout,
                    r#"{{"sample":{},"seconds":{seconds:.7},"frame":"{}"}}"#,
                    frame.sample, frame.hex
                )?;
            } else if is_new {
                writeln!(stdout, "{}", frame.hex)?;
            }
        }
    }
    let outcome = session.join()?;
    if let Ok(pushed) = feed.join() {
        pushed?;
    }
    eprintln!("{} distinct frames\n{}", heard.len(), outcome.report);
    Ok(())
}

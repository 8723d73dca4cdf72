//! `cargo run --release -p zbmd-examples --example adsb -- FILE`: the Mode S frames in a recording of u8 I/Q at 2 MS/s.
//!
//! Prints each distinct frame with a clean checksum once, in hex, in the order in which they were first heard. The
//! model is model.ron; decode.rs is its custom actor, registered here.

#[expect(unreachable_pub, reason = "tests use the actor too")]
mod decode;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, RunOptions};

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: adsb FILE    (u8 I/Q, 2 MS/s, 1090 MHz)");
        return ExitCode::from(2);
    };
    match receive(Path::new(&file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("adsb: {error}");
            ExitCode::FAILURE
        }
    }
}

fn receive(file: &Path) -> Result<(), Box<dyn Error>> {
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

    let mut heard = BTreeSet::new();
    let mut stdout = std::io::stdout().lock();
    let token_bytes = sink.token().bytes() as usize;
    let mut records = vec![0; 256 * token_bytes];
    loop {
        let tokens = sink.pull_some_bytes(&mut records)? as usize;
        if tokens == 0 {
            break;
        }
        for frame in decode::frames(&records[..tokens * token_bytes]) {
            if heard.insert(frame.clone()) {
                writeln!(stdout, "{frame}")?;
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

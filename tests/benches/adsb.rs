//! ADS-B beside dump1090: `DUMP1090=PROGRAM cargo bench -p zbmd-tests --bench adsb`.
//!
//! Both read the same file, a recording over and over, without correcting errors (antirez/dump1090's `--no-fix`): CPU time
//! of the whole process by turns, and the frames with a plain checksum that each of them finds. Without `DUMP1090`, ours alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use zbmd_executor::{Engine, RunOptions};
use zbmd_tests::actors::{decode, registry};
use zbmd_tests::figures::load;
use zbmd_tests::run::compile;
use zbmd_tests::{cpu_time, data};

/// How often the recording of 0.18 s is repeated.
const LOOPS: usize = 300;
const TURNS: usize = 7;

fn main() {
    let Some(recording) = data::file("iq/modes1.bin") else {
        println!("without ZBMD_DATA there is no recording");
        return;
    };
    let recording = std::fs::read(recording).expect("readable");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    for _ in 0..LOOPS {
        file.write_all(&recording).expect("written");
    }
    let samples = (LOOPS * recording.len() / 2) as f64;
    let engine = Engine::new(
        compile("adsb/model.ron", 1, &registry()).program,
        &registry(),
    );
    let engine = engine.expect("an engine");

    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for turn in 0..=TURNS {
        let (our_time, our_frames) = ours_once(&engine, file.path());
        let rival =
            std::env::var_os("DUMP1090").map(|program| dump1090(program.as_ref(), file.path()));
        // The first turn warms up.
        if turn > 0 {
            ours.push(our_time.as_secs_f64() * 1e9 / samples);
            theirs.extend(rival.map(|(time, _)| time.as_secs_f64() * 1e9 / samples));
        } else if let Some((_, their_frames)) = rival {
            println!(
                "distinct frames: {} ours, {} dump1090's, {} common; only dump1090's: {:?}",
                our_frames.len(),
                their_frames.len(),
                our_frames.intersection(&their_frames).count(),
                their_frames.difference(&our_frames).collect::<Vec<_>>(),
            );
        } else {
            println!(
                "distinct frames: {}; dump1090 not run: DUMP1090 names no program",
                our_frames.len()
            );
        }
    }

    println!("{samples:.0} samples, {TURNS} turns, load {}", load());
    let mut ratios: Vec<f64> = ours
        .iter()
        .zip(&theirs)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    for (name, unit, values) in [
        ("zbmd", "ns a sample", &mut ours),
        ("dump1090", "ns a sample", &mut theirs),
        ("zbmd / dump1090", "", &mut ratios),
    ] {
        values.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (values.first(), values.last()) {
            let median = values[values.len() / 2];
            println!("{name:16} {median:6.2} {unit} ({least:.2} to {most:.2})");
        }
    }
}

/// CPU time of a run over the file, and the distinct frames.
fn ours_once(engine: &Engine, path: &Path) -> (Duration, BTreeSet<String>) {
    let before = cpu_time::of_process();
    let mut session = engine.start(RunOptions::default()).expect("a session");
    let mut source = session.source("iq").expect("a source");
    let mut sink = session.sink("frames").expect("a sink");
    let mut file = File::open(path).expect("the file");
    let feed = std::thread::spawn(move || {
        let mut bytes = vec![0; 256 * 1024];
        let mut total = 0;
        loop {
            let read = file.read(&mut bytes).expect("readable");
            if read == 0 {
                break;
            }
            source.push_bytes(&bytes[..read]).expect("a run");
            total += read;
        }
        source.push_bytes(&decode::silence(total)).expect("a run");
    });

    // As a program that reads a file does: it need not be woken for each block.
    const LINGER: Duration = Duration::from_millis(50);
    let token_bytes = sink.token().bytes() as usize;
    let mut records = vec![0; 8192 * token_bytes];
    let mut listener = decode::Listener::default();
    let mut frames = BTreeSet::new();
    loop {
        let tokens = sink.pull_batch_bytes(&mut records, LINGER).expect("a run") as usize;
        if tokens == 0 {
            break;
        }
        let heard = listener.frames(&records[..tokens * token_bytes]);
        frames.extend(heard.into_iter().map(|frame| frame.hex));
    }
    feed.join().expect("fed");
    session.join().expect("a run");
    (cpu_time::of_process() - before, frames)
}

/// The same of dump1090.
fn dump1090(program: &Path, path: &Path) -> (Duration, BTreeSet<String>) {
    let before = cpu_time::of_children();
    let output = Command::new(program)
        .args(["--no-fix", "--raw", "--ifile"])
        .arg(path)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let time = cpu_time::of_children() - before;
    // `*8d4d2023...;` a line. The formats that ours checks are those whose parity is not overlaid with an address.
    let text = String::from_utf8_lossy(&output.stdout);
    let frames = text.lines().filter_map(|line| {
        let hex = line.strip_prefix('*')?.strip_suffix(';')?.to_lowercase();
        let format = u8::from_str_radix(hex.get(..2)?, 16).ok()? >> 3;
        matches!(format, 11 | 17 | 18).then_some(hex)
    });
    (time, frames.collect())
}

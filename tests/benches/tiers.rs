//! Models of two and four times the memory that their device has: the period, and what the transfers in it cost at best,
//! which is the time in which one thread reads the same bytes by the same calls and does nothing else. By turns, medians of
//! [`TURNS`].
//!
//! `cargo bench -p zbmd-tests --bench tiers [FOLDER]`. The bundle is in the folder (here without one); the system keeps what
//! it read before in memory as far as it has room, for both sides alike.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use zbmd_backends::standard_registry;
use zbmd_compiler::{Compiled, Losses};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Action, PlanId, Program, bundle, walk};
use zbmd_tests::figures::{load, median};
use zbmd_tests::run::{drive, random_inputs};
use zbmd_tests::tiers::{Layers, compile, machine};

const TURNS: usize = 7;
/// What the executor reads at a time.
const READ_BYTES: usize = 1 << 20;
/// Iterations of a short and of a long run: the difference has no start and no end in it.
const ITERATIONS: [u64; 2] = [10, 60];

fn main() {
    let folder = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let folder = folder.map_or_else(|| PathBuf::from("."), PathBuf::from);
    println!("load {}", load());
    println!(
        "{:<28} {:>6} {:>10} {:>11} {:>11} {:>11} {:>11} {:>8}",
        "layers", "memory", "fetched", "planned ms", "in memory", "reads ms", "period ms", "ratio"
    );
    for (rows, width, count) in [(1, 1024, 24), (16, 1024, 24), (64, 512, 48)] {
        let layers = Layers {
            rows,
            width,
            count,
            quantised: false,
        };
        for factor in [2, 4] {
            measure(&folder, &layers, factor);
        }
    }
    println!("load {}", load());
}

/// Bytes that a calendar fetches, in its order, and where they are in the bundle.
struct Reads {
    file: File,
    places: Vec<(u64, usize)>,
}

impl Reads {
    fn of(program: &Verified<Program>) -> Self {
        let image = bundle::image_of(program).expect("an image");
        let entries = &program.plans[PlanId(0)].calendars[0].lanes[0].entries;
        let fetched = walk::top_slots(entries).filter_map(|slot| match slot.action {
            Action::Fetch { actor, .. } => Some(actor),
            _ => None,
        });
        let places = fetched.map(|actor| {
            let weights = program.graph.actors[actor].packed_weights();
            let (blob, _) = weights.expect("packed weights");
            let bytes = &program.blobs[blob];
            (image.offset_of(bytes).expect("in the bundle"), bytes.len())
        });
        Self {
            places: places.collect(),
            file: image.file().try_clone().expect("a descriptor"),
        }
    }

    /// Milliseconds of reading all of them into memory that two of the largest take.
    fn read_ms(&self) -> f64 {
        let largest = self
            .places
            .iter()
            .map(|(_, bytes)| *bytes)
            .max()
            .unwrap_or(0);
        let mut memory = vec![0u8; 2 * largest];
        memory.fill(1);
        let begun = Instant::now();
        for (number, &(offset, bytes)) in self.places.iter().enumerate() {
            let start = number % 2 * largest;
            let place = &mut memory[start..start + bytes];
            for (piece, part) in place.chunks_mut(READ_BYTES).enumerate() {
                let offset = offset + (piece * READ_BYTES) as u64;
                self.file.read_exact_at(part, offset).expect("readable");
            }
        }
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        std::hint::black_box(&memory);
        ms
    }
}

/// Milliseconds of an iteration.
fn period_ms(engine: &Engine) -> f64 {
    let seconds = ITERATIONS.map(|iterations| {
        let inputs = random_inputs(engine.program(), iterations, 1);
        let options = RunOptions {
            iterations: Some(iterations),
            lock_memory: false,
            ..RunOptions::default()
        };
        let session = engine.start(options).expect("a session");
        let begun = Instant::now();
        drive(session, &inputs, vec!["out".to_owned()]);
        begun.elapsed().as_secs_f64()
    });
    (seconds[1] - seconds[0]) / (ITERATIONS[1] - ITERATIONS[0]) as f64 * 1e3
}

fn measure(folder: &Path, layers: &Layers, factor: u64) {
    let work = tempfile::tempdir_in(folder).expect("the folder can be written to");
    let model = layers.write(work.path());
    let registry = standard_registry();
    let compiled_for = |memory_bytes| {
        let machine = machine(1, memory_bytes);
        let compiled = compile(&model, work.path(), machine, Losses::None, &registry);
        compiled.unwrap_or_else(|d| panic!("{d}"))
    };

    let Compiled {
        program, fetched, ..
    } = compiled_for(layers.weight_bytes() / factor);
    let fetched = fetched.first().expect("weights are fetched");
    let path = work.path().join("layers.zbmd");
    bundle::write(&path, &program).expect("written");
    let program = bundle::open(&path).expect("opened");
    let block = program.plans[PlanId(0)].block as f64;
    let reads = Reads::of(&program);
    let engine = Engine::new(program, &registry).expect("an engine");
    let in_memory = Engine::new(compiled_for(1 << 34).program, &registry).expect("an engine");

    let mut read_ms = Vec::new();
    let mut fetching_ms = Vec::new();
    let mut memory_ms = Vec::new();
    for _ in 0..TURNS {
        read_ms.push(reads.read_ms());
        fetching_ms.push(period_ms(&engine) * block);
        memory_ms.push(period_ms(&in_memory));
    }
    let [read_ms, fetching_ms, memory_ms] = [read_ms, fetching_ms, memory_ms].map(median);
    let name = format!("{} of {} rows {}", layers.count, layers.width, layers.rows);
    println!(
        "{:<28} {:>6} {:>10} {:>11.3} {:>11.3} {:>11.3} {:>11.3} {:>8.2}",
        name,
        format!("1/{factor}"),
        zbmd_ir::text::bytes(fetched.fetched_bytes),
        fetched.period_ns as f64 / 1e6,
        memory_ms,
        read_ms,
        fetching_ms,
        fetching_ms / read_ms
    );
}

//! `ZBMD_CSDF=FOLDER cargo bench -p zbmd-tests --bench csdf [-- FILTER]`: cyclo-static graphs of industry and generated ones
//! (Kiter's benchmarks): actors, phases, firings of an iteration, the exact period, the published one where there is one, and
//! the time of the analysis. It ends with a panic where a figure differs.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use zbmd_scheduler::throughput::{Period, analyse};
use zbmd_tests::csdf;

/// Graphs, the small ones first. Those called `sized` have bounded buffers.
const GRAPHS: [&str; 17] = [
    "sample",
    "slides",
    "mp3_csdf",
    "IB5CSDF/BlackScholes",
    "IB5CSDF/BlackScholes_sized",
    "IB5CSDF/Echo",
    "IB5CSDF/Echo_sized",
    "IB5CSDF/JPEG2000",
    "IB5CSDF/JPEG2000_sized",
    "IB5CSDF/PDectect",
    "IB5CSDF/PDectect_sized",
    "IB5CSDF/H264",
    "IB5CSDF/H264_sized",
    "AGB5CSDF/autogen1",
    "AGB5CSDF/autogen2",
    "AGB5CSDF/autogen3",
    "AGB5CSDF/autogen4",
];
/// For one analysis.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let words: Vec<String> = words.collect();
    let Some(folder) = csdf::folder() else {
        return;
    };
    println!(
        "{:<28} {:>7} {:>8} {:>12} {:>20} {:>12} {:>12}",
        "graph", "actors", "phases", "firings", "period", "published", "time"
    );
    for name in GRAPHS {
        if !words.iter().all(|word| name.contains(word.as_str())) {
            continue;
        }
        let instance = match csdf::read(&folder, name) {
            Ok(instance) => instance,
            Err(why) => {
                println!("{name:<28} {why}");
                continue;
            }
        };
        let (actors, phases) = (instance.sdf.actors.len(), instance.phases);

        // An analysis that takes too long is left behind: the end of the process ends it.
        let (sender, receiver) = mpsc::channel();
        let start = Instant::now();
        std::thread::spawn(move || sender.send(analyse(&instance.sdf)));
        let found = match receiver.recv_timeout(LIMIT) {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                println!("{name:<28} {actors:>7} {phases:>8} {error}");
                continue;
            }
            Err(_) => {
                println!("{name:<28} {actors:>7} {phases:>8} not within {LIMIT:?}");
                continue;
            }
        };
        let took = start.elapsed();

        let mut published = csdf::PUBLISHED.iter();
        let published = published.find(|(known, _)| *known == name);
        let shown = published.map_or("-".to_owned(), |(_, period)| period.to_string());
        let firings: u64 = found.repetition.iter().sum();
        println!(
            "{name:<28} {actors:>7} {phases:>8} {firings:>12} {:>20} {shown:>12} {:>9.1} ms",
            found.period.to_string(),
            took.as_secs_f64() * 1e3
        );
        if let Some((_, period)) = published {
            assert_eq!(found.period, Period::from(*period), "{name}");
        }
    }
}

//! What it brings that requests which wait are computed together: `cargo bench -p zbmd-serve --bench serving -- batches MODEL.onnx
//! [SIZES]`, with sizes such as `1,2,4,8`.
//!
//! One, eight and sixteen clients ask a server of the model in these batches, and one of the model without, as fast as they are answered, by
//! turns. Clients and servers share the cores; the server that is not asked does nothing.

use zbmd_compiler::CompileOptions;

use super::client::ask_until;
use super::common::Models;
use super::figures::load;
use super::shared::{Model, options, request, words};
use super::turn::{TURNS, Turn};

const CLIENTS: [usize; 3] = [1, 8, 16];

pub(crate) fn run() {
    let chosen = Model::chosen();
    if chosen.path().is_none() {
        println!("skipped: batches are made of ONNX models, and none is named");
        return;
    }
    let sizes = words().nth(2).unwrap_or_else(|| "1,2,4,8".to_owned());
    let buckets = sizes.split(',').map(|size| size.parse().expect("a size"));
    let batch_options = CompileOptions {
        buckets: buckets.collect(),
        ..options()
    };
    let single = chosen.compile(&options());
    let request = request(&single, None);
    let serve = |model| Models::new().with("model", model).serve(&[]);
    let servers = [serve(&chosen.compile(&batch_options)), serve(&single)];
    println!("{} in batches of {sizes}; load {}", chosen.name, load());

    println!(
        "clients  batches answers/s  p50 us  p99 us  one by one answers/s  p50 us  p99 us  ratio of answers/s"
    );
    for clients in CLIENTS {
        let mut turns = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        for _ in 0..TURNS {
            let seen = servers
                .each_ref()
                .map(|server| Turn::run(clients, |end| ask_until(end, server.address, &request)));
            ratios.push(seen[0].rate / seen[1].rate);
            for (turns, turn) in turns.iter_mut().zip(seen) {
                turns.push(turn);
            }
        }
        ratios.sort_by(f64::total_cmp);
        let [batches, single] = turns.map(Turn::median);
        println!(
            "{clients:7} {:18.0} {:7.0} {:7.0} {:21.0} {:7.0} {:7.0} {:19.2}",
            batches.rate,
            batches.p50_us,
            batches.p99_us,
            single.rate,
            single.p50_us,
            single.p99_us,
            ratios[ratios.len() / 2]
        );
    }
    let metrics = servers[0].get("/metrics").text();
    for line in metrics.lines() {
        if line.starts_with("zbmd_batches_total{") {
            println!("{line}");
        }
    }
    println!("load {}", load());
}

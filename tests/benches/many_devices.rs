//! What compilation costs as the machine grows: seconds for 1 to 1,024 alike and unlike devices, one table.
//!
//! `cargo bench -p zbmd-tests --bench many_devices`. Each is a whole compilation, from the model's text to the bytes of
//! the bundle. Machines link every device to all others, so that what only reads or writes them grows with the square.

use std::time::Instant;

use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_file, compile_str};
use zbmd_ir::{Machine, PlanId, bundle};
use zbmd_tests::run::graph_file;
use zbmd_tests::{actors, machines, random};

const DEVICES: [usize; 6] = [1, 4, 16, 64, 256, 1024];

type MakeMachine = fn(usize) -> Machine;

fn main() {
    print!("{:<12} {:<8} {:<7}", "model", "devices", "losses");
    for devices in DEVICES {
        print!(" {devices:>8}");
    }
    println!("   used of {}", DEVICES[DEVICES.len() - 1]);

    let kinds: [(&str, MakeMachine); 2] =
        [("alike", random::machine), ("unlike", machines::unlike)];
    for model in [
        "agc",
        "cd2dat",
        "fm",
        "pll",
        "adsb",
        "quickstart",
        "chain of 16",
        "chain of 64",
    ] {
        for (kind, make_machine) in kinds {
            print_row(model, kind, make_machine, Losses::None);
        }
    }
    for (kind, make_machine) in kinds {
        print_row("cd2dat", kind, make_machine, Losses::Single);
    }
    print_row("cd2dat", "alike", random::machine, Losses::Pairs);
}

/// Seconds for each number of devices, and how many of the most are used.
fn print_row(model: &str, kind: &str, make_machine: MakeMachine, losses: Losses) {
    let losses_text = format!("{losses:?}").to_lowercase();
    print!("{model:<12} {kind:<8} {losses_text:<7}");
    let mut used = 0;
    for devices in DEVICES {
        let machine = make_machine(devices);
        let start = Instant::now();
        used = compile(model, machine, losses);
        print!(" {:>8.3}", start.elapsed().as_secs_f64());
    }
    println!("   {used}");
}

/// Compiles and encodes; the number of devices that have work.
fn compile(model: &str, machine: Machine, contingencies: Losses) -> usize {
    let options = CompileOptions {
        registry: actors::registry(),
        machine: MachineChoice::Given(machine),
        contingencies,
        ..CompileOptions::default()
    };
    let compiled = match model.strip_prefix("chain of ") {
        Some(filters) => {
            let filters = filters.parse().expect("a number");
            compile_str("chain.ron", &machines::chain(filters), "", &options)
        }
        None => compile_file(graph_file(&format!("{model}/model.ron")), &options),
    };

    let program = compiled
        .unwrap_or_else(|errors| panic!("{model}: {errors}"))
        .program;
    std::hint::black_box(bundle::encode(&program));
    program.plans[PlanId(0)].calendars.len()
}

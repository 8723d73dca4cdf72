//! `cargo run --release -p zbmd-examples --example cluster -- MODEL HOSTS DEVICES`: prints the model `topology`, `dag` or `ring` for a
//! cluster of so many hosts with so many devices each. `zbmdc compile --hosts HOSTS --devices DEVICES` compiles it, and
//! `zbmd-run --virtual-cluster` runs it with an agent for each host on this computer.

#[expect(unreachable_pub, reason = "tests use the models too")]
mod models;

use std::process::ExitCode;

use models::Cluster;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match model_text(&arguments) {
        Some(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!(
                "cluster: wanted are `topology`, `dag` or `ring`, and two numbers of at least 1, such as `topology 32 32`; found: {}",
                arguments.join(" ")
            );
            ExitCode::from(2)
        }
    }
}

/// The model that is asked for; `None` if that is none.
fn model_text(arguments: &[String]) -> Option<String> {
    let [model, hosts, devices] = arguments else {
        return None;
    };
    let number = |text: &String| text.parse().ok().filter(|number| *number > 0);
    let cluster = Cluster {
        hosts: number(hosts)?,
        devices: number(devices)?,
    };
    match model.as_str() {
        "topology" => Some(cluster.topology()),
        "dag" => Some(cluster.dag()),
        "ring" => Some(cluster.ring()),
        _ => None,
    }
}

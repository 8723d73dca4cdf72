//! Machines of many devices, and a model for them.

use std::fmt::Write as _;

use zbmd_ir::Machine;

use crate::random;

/// That many CPU devices, each quicker than the one before by half a percent of the first.
pub fn unlike(devices: usize) -> Machine {
    let mut machine = random::machine(devices);
    for (device, index) in machine.devices.iter_mut().zip(0u64..) {
        device.flops_per_s += 50_000_000 * index;
        device.bytes_per_s += 50_000_000 * index;
    }
    machine
}

/// Alike devices of which only each and the next are linked, in both directions.
pub fn in_a_row(devices: usize) -> Machine {
    let mut machine = random::machine(devices);
    machine
        .links
        .retain(|link| link.from.0.abs_diff(link.to.0) == 1);
    machine
}

/// The text of a model: so many filters of equal work in a row, between a source `x` and a sink `y`.
pub fn chain(filters: usize) -> String {
    let taps: Vec<String> = (1..=32)
        .map(|tap| format!("{:.4}", 0.5 / f64::from(tap)))
        .collect();
    let taps = taps.join(", ");
    let mut actors = String::new();
    let mut channels = "(from: \"x\", to: [\"f0\"]),\n".to_owned();
    for filter in 0..filters {
        let reader = match filter + 1 {
            next if next < filters => format!("f{next}"),
            _ => "y".to_owned(),
        };
        writeln!(actors, "\"f{filter}\": Fir([{taps}]),").expect("text");
        writeln!(channels, "(from: \"f{filter}\", to: [\"{reader}\"]),").expect("text");
    }
    format!(
        "Model(name: \"chain\", sources: {{ \"x\": Stream(dtype: f32) }}, actors: {{ {actors} }}, \
         channels: [ {channels} ], sinks: {{ \"y\": Stream() }})"
    )
}

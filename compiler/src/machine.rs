//! `machine.ron`: devices and links; what this computer is where no such file is given; and the way back to RON.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use zbmd_ir::{Device, DeviceId, Link, Machine, TiVec, limits};

use crate::codes::Code;
use crate::costs::{self, MeasuredCosts};
use crate::diag::{Diagnostic, Sink, suggest};
use crate::format::{self, Group};
use crate::parse::{self, Kind, Node};
use crate::read::{self, Fields};
use crate::source::{FileId, Span, Spanned};
use crate::units::{self, UnitError};

/// The CPU devices of this computer: `zbmd_backends::devices::detect`.
pub use zbmd_backends::devices::{CORE_BYTES_PER_S, CORE_FLOPS, detect, detect_in_teams, uniform};
use zbmd_backends::devices::{LINK_BYTES_PER_S, LINK_LATENCY_NS, memory_bytes};

/// A link between every two devices.
fn all_links(devices: &TiVec<DeviceId, Device>) -> TiVec<zbmd_ir::LinkId, Link> {
    let ids: Vec<DeviceId> = devices.iter_enumerated().map(|(id, _)| id).collect();
    let pairs = ids
        .iter()
        .flat_map(|&from| ids.iter().map(move |&to| (from, to)));
    pairs
        .filter(|(from, to)| from != to)
        .map(|(from, to)| Link {
            from,
            to,
            bytes_per_s: LINK_BYTES_PER_S,
            latency_ns: LINK_LATENCY_NS,
        })
        .collect()
}

#[derive(Serialize)]
#[serde(rename = "Machine")]
struct RonMachine<'a> {
    devices: Vec<RonDevice<'a>>,
    links: Vec<RonLink<'a>>,
}

#[derive(Serialize)]
#[serde(rename = "Device")]
struct RonDevice<'a> {
    name: &'a str,
    backend: &'a str,
    cores: &'a [u32],
    memory: u64,
    flops: u64,
    bandwidth: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    programmatic: bool,
}

#[derive(Serialize)]
#[serde(rename = "Link")]
struct RonLink<'a> {
    from: &'a str,
    to: &'a str,
    bandwidth: u64,
    latency: String,
}

/// The machine as a `machine.ron` that reads back as the same machine.
///
/// # Errors
/// None in practice: every machine can be written.
pub fn to_ron(machine: &Machine) -> Result<String, ron::Error> {
    let name = |id: DeviceId| machine.devices.get(id).map_or("?", |d| d.name.as_str());
    let typed = RonMachine {
        devices: machine
            .devices
            .iter()
            .map(|d| RonDevice {
                name: &d.name,
                backend: &d.backend,
                cores: &d.cores,
                memory: d.memory_bytes,
                flops: d.flops_per_s,
                bandwidth: d.bytes_per_s,
                programmatic: d.programmatic,
            })
            .collect(),
        links: machine
            .links
            .iter()
            .map(|l| RonLink {
                from: name(l.from),
                to: name(l.to),
                bandwidth: l.bytes_per_s,
                latency: format!("{}ns", l.latency_ns),
            })
            .collect(),
    };
    let config = ron::ser::PrettyConfig::new()
        .struct_names(true)
        .depth_limit(2);
    ron::ser::to_string_pretty(&typed, config).map(|s| s + "\n")
}

/// The machine with what was measured on it, as a `machine.ron` that reads back as both.
///
/// # Errors
/// None in practice: every machine can be written.
pub fn to_ron_with_costs(machine: &Machine, costs: &MeasuredCosts) -> Result<String, ron::Error> {
    let text = to_ron(machine)?;
    // Written apart: one cost a line, deeper in the tree than devices are.
    Ok(
        match (costs::to_ron(machine, costs)?, text.strip_suffix("\n)\n")) {
            (Some(costs), Some(body)) => format!("{body}\n    costs: {costs},\n)\n"),
            _ => text,
        },
    )
}

/// Reads a machine file; `None` if there were errors. Where `links` is not given, every two devices are linked.
pub(crate) fn read(file: FileId, text: &str, sink: &mut Sink) -> Option<(Machine, MeasuredCosts)> {
    let before = sink.errors();
    let node = parse::parse(file, text, sink)?;
    if sink.errors() > before {
        return None;
    }
    let args = match &node.kind {
        Kind::Call(Some(name), args) if name.value == "Machine" => args,
        Kind::Call(None, args) => args,
        _ => {
            sink.push(read::wrong_kind(
                &node,
                "a machine: `Machine(devices: […])`",
            ));
            return None;
        }
    };
    let head = match &node.kind {
        Kind::Call(Some(name), _) => name.span,
        _ => node.span,
    };
    let mut fields = Fields::of(&format::MACHINE, "Machine", head, args, sink);
    let list = fields.need("devices", "[Device(name: \"cpu:0\", backend: cpu)]", sink);
    let links = fields.take("links");
    let costs = fields.take("costs");
    fields.done(sink);
    let list = read::list(list?, "a list of devices", sink)?;
    let (names, devices) = read_devices(list, head, sink)?;
    let links = match links {
        None => all_links(&devices),
        Some(node) => read_links(read::list(node, "a list of links", sink)?, &names, sink),
    };
    let costs = match costs {
        None => MeasuredCosts::default(),
        Some(node) => costs::read(read::list(node, "a list of costs", sink)?, &names, sink),
    };
    (sink.errors() == before).then_some((Machine { devices, links }, costs))
}

/// E0505 for devices.
pub(crate) fn too_many_devices(devices: usize) -> Diagnostic {
    let limit = limits::MAX_DEVICES;
    let message = format!("the machine has {devices} devices, more than the limit of {limit}");
    Diagnostic::new(Code::E0505, message).help("compile for fewer devices")
}

/// Refuses what the verifier would, for machines that were made in Rust; whether all is well.
pub(crate) fn check(machine: &Machine, sink: &mut Sink) -> bool {
    let before = sink.errors();
    if machine.devices.is_empty() {
        sink.push(
            Diagnostic::new(Code::E0507, "the machine has no devices")
                .help("compile for 1 device or more"),
        );
    }
    for error in zbmd_ir::verify::check_machine(machine)
        .err()
        .unwrap_or_default()
    {
        let message = format!("the machine is impossible: {error}");
        sink.push(Diagnostic::new(Code::E0507, message));
    }
    sink.errors() == before
}

type Devices = (Vec<Spanned<String>>, TiVec<DeviceId, Device>);

fn read_devices(list: &[Node], head: Span, sink: &mut Sink) -> Option<Devices> {
    let before = sink.errors();
    let mut devices = TiVec::new();
    let mut names: Vec<Spanned<String>> = Vec::new();
    let mut first_named: BTreeMap<String, Span> = BTreeMap::new();
    for node in list {
        if devices.len() == limits::MAX_DEVICES {
            break;
        }
        if let Some((name, device)) = device(node, &first_named, sink) {
            first_named.entry(name.value.clone()).or_insert(name.span);
            names.push(name);
            devices.push(device);
        }
    }
    if devices.is_empty() && sink.errors() == before {
        sink.push(
            Diagnostic::new(Code::E0507, "the machine has no devices")
                .primary(head, "nothing runs here")
                .help("add `Device(name: \"cpu:0\", backend: cpu)`; `zbmdc devices --ron` prints this computer"),
        );
    }
    if list.len() > limits::MAX_DEVICES {
        sink.push(too_many_devices(list.len()).primary(head, "this machine"));
        return None;
    }
    Some((names, devices))
}

fn group<'a>(
    node: &'a Node,
    what: &str,
    of: &'static Group,
    sink: &mut Sink,
) -> Option<Fields<'a>> {
    match &node.kind {
        Kind::Call(name, args) if name.as_ref().is_none_or(|n| n.value == of.name) => {
            Some(Fields::of(of, what, node.span, args, sink))
        }
        _ => {
            sink.push(read::wrong_kind(node, &format!("{what}: `{}(…)`", of.name)));
            None
        }
    }
}

fn device(
    node: &Node,
    others: &BTreeMap<String, Span>,
    sink: &mut Sink,
) -> Option<(Spanned<String>, Device)> {
    let mut fields = group(node, "a device", &format::DEVICE, sink)?;
    let name = fields
        .need("name", "\"cpu:0\"", sink)
        .and_then(|n| read::string(n, "a name in quotes", sink))
        .filter(|name| read::check_text(name, "a device", sink));
    let backend = fields
        .need("backend", "cpu", sink)
        .and_then(|n| read::word(n, "a backend: `cpu`", sink));
    let cores = fields
        .take("cores")
        .and_then(|n| read::list(n, "a list of core numbers", sink));
    let cores = core_numbers(cores.unwrap_or_default(), sink);
    let memory = quantity(
        fields.take("memory"),
        "a size such as \"1GiB\"",
        units::bytes,
        sink,
    );
    let flops = quantity(
        fields.take("flops"),
        "operations per second such as \"50G\"",
        units::per_s,
        sink,
    );
    let bandwidth = quantity(
        fields.take("bandwidth"),
        "a bandwidth such as \"10GB/s\"",
        units::bytes_per_s,
        sink,
    );
    let launch = fields.take("programmatic");
    let programmatic = launch.is_some_and(|node| read::flag(node, sink));
    fields.done(sink);
    let (name, backend) = (name?, backend?);
    if let Some(first) = others.get(&name.value) {
        sink.push(
            Diagnostic::new(
                Code::E0205,
                format!("the device name `{}` is used twice", name.value),
            )
            .primary(name.span, "used again here")
            .context(*first, "first used here")
            .help("number the devices of a backend: `cpu:0`, `cpu:1`"),
        );
    }
    if !["cpu", "vulkan", "cuda"].contains(&backend.value.as_str()) {
        sink.push(
            Diagnostic::new(
                Code::E0507,
                format!("there is no backend `{}`", backend.value),
            )
            .primary(backend.span, "unknown backend")
            .help(suggest(&backend.value, ["cpu", "vulkan", "cuda"])),
        );
    }
    if let Some(node) = launch.filter(|_| programmatic && backend.value != "cuda") {
        let said = format!(
            "`programmatic` is for CUDA devices, and `{}` is of `{}`",
            name.value, backend.value
        );
        sink.push(Diagnostic::new(Code::E0507, said).primary(node.span, "should be left out"));
    }
    let device = Device {
        backend: backend.value,
        cores,
        memory_bytes: memory.unwrap_or_else(memory_bytes),
        flops_per_s: flops.unwrap_or(CORE_FLOPS),
        bytes_per_s: bandwidth.unwrap_or(CORE_BYTES_PER_S),
        programmatic,
        name: name.value.clone(),
    };
    Some((name, device))
}

/// Numbers of cores, each once: a device does not run on a core twice. Two devices may share one, by turns of the
/// operating system.
fn core_numbers(nodes: &[Node], sink: &mut Sink) -> Vec<u32> {
    let mut first_written: BTreeMap<u32, Span> = BTreeMap::new();
    let mut cores = Vec::new();
    for node in nodes {
        let highest = u64::from(limits::MAX_CORE);
        let Some(core) = read::count(node, "a core number", 0, highest, sink) else {
            continue;
        };
        let core = core.value as u32;
        if let Some(first) = first_written.get(&core) {
            sink.push(
                Diagnostic::new(Code::E0507, format!("the device has core {core} twice"))
                    .primary(node.span, "named again here")
                    .context(*first, "first named here")
                    .help("name each core of a device once"),
            );
            continue;
        }
        first_written.insert(core, node.span);
        cores.push(core);
    }
    cores
}

/// A number of base units, or a string with a unit; at least 1.
fn quantity(
    node: Option<&Node>,
    want: &str,
    parse: fn(&str) -> Result<u64, UnitError>,
    sink: &mut Sink,
) -> Option<u64> {
    let node = node?;
    let value = match &node.kind {
        Kind::Str(s) => match parse(s) {
            Ok(value) => value,
            Err(error) => {
                sink.push(
                    Diagnostic::new(Code::E0203, error.to_string())
                        .primary(node.span, format!("should be {want}")),
                );
                return None;
            }
        },
        Kind::Int(_) | Kind::Float(_) => {
            return Some(read::count(node, want, 1, i64::MAX as u64, sink)?.value);
        }
        _ => {
            sink.push(read::wrong_kind(node, want));
            return None;
        }
    };
    if value == 0 {
        sink.push(
            Diagnostic::new(
                Code::E0507,
                "a device or link with none of this cannot run anything",
            )
            .primary(node.span, "should be more than zero"),
        );
    }
    Some(value)
}

/// Most latency of a link: times of many transfers are added up in 64 bits.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

fn read_links(
    nodes: &[Node],
    names: &[Spanned<String>],
    sink: &mut Sink,
) -> TiVec<zbmd_ir::LinkId, Link> {
    let mut links: TiVec<_, Link> = TiVec::new();
    let mut linked: BTreeSet<(DeviceId, DeviceId)> = BTreeSet::new();
    let by_name: BTreeMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(index, name)| (name.value.as_str(), index))
        .collect();
    for node in nodes {
        let Some(mut fields) = group(node, "a link", &format::LINK, sink) else {
            continue;
        };
        let mut end = |field: &str| {
            let node = fields.need(field, "\"cpu:0\"", sink)?;
            let name = read::string(node, "a device in quotes", sink)?;
            let found = by_name.get(name.value.as_str()).copied();
            if found.is_none() {
                sink.push(
                    Diagnostic::new(Code::E0501, format!("there is no device `{}`", name.value))
                        .primary(name.span, "this end of the link")
                        .help(suggest(&name.value, names.iter().map(|n| n.value.as_str()))),
                );
            }
            found.map(DeviceId::from)
        };
        let (from, to) = (end("from"), end("to"));
        let both = fields.take("both").is_some_and(|n| read::flag(n, sink));
        let bandwidth = quantity(
            fields.take("bandwidth"),
            "a bandwidth such as \"10GB/s\"",
            units::bytes_per_s,
            sink,
        );
        let latency = fields.take("latency");
        let latency_ns = match latency.map(|n| &n.kind) {
            None => Some(LINK_LATENCY_NS),
            Some(Kind::Str(s))
                if s.trim_start().starts_with('0') && units::duration_ns(s) == Ok(0) =>
            {
                Some(0)
            }
            Some(_) => quantity(
                latency,
                "a latency such as \"2us\"",
                units::duration_ns,
                sink,
            ),
        };
        if let Some((node, latency_ns)) = latency.zip(latency_ns)
            && latency_ns > MAX_LATENCY_NS
        {
            let message =
                format!("a latency is {latency_ns} ns, more than the limit of {MAX_LATENCY_NS}");
            sink.push(Diagnostic::new(Code::E0505, message).primary(node.span, "at most 60min"));
        }
        fields.done(sink);
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        let bytes_per_s = bandwidth.unwrap_or(LINK_BYTES_PER_S);
        for (from, to) in [(from, to), (to, from)]
            .into_iter()
            .take(if both { 2 } else { 1 })
        {
            if from == to || !linked.insert((from, to)) {
                let (code, message) = if from == to {
                    (Code::E0501, "a link joins a device to itself")
                } else {
                    (
                        Code::E0107,
                        "two devices are linked twice in the same direction",
                    )
                };
                sink.push(
                    Diagnostic::new(code, message)
                        .primary(node.span, "this link")
                        .help("remove it"),
                );
                continue;
            }
            links.push(Link {
                from,
                to,
                bytes_per_s,
                latency_ns: latency_ns.unwrap_or(LINK_LATENCY_NS),
            });
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceMap;

    fn parse(text: &str) -> Result<Machine, Vec<String>> {
        let mut sources = SourceMap::default();
        let file = sources.add("machine.ron", text);
        let mut sink = Sink::default();
        let machine = read(file, text, &mut sink).map(|(machine, _)| machine);
        let errors: Vec<String> = sink
            .iter()
            .map(|d| format!("{} {}", d.code, d.message))
            .collect();
        if errors.is_empty() {
            Ok(machine.unwrap_or_default())
        } else {
            Err(errors)
        }
    }

    #[test]
    fn written_machines_read_back() {
        let mut early = uniform(3);
        early.devices[DeviceId(1)].backend = "cuda".to_owned();
        early.devices[DeviceId(1)].programmatic = true;
        for machine in [detect(), uniform(3), early] {
            let text = to_ron(&machine).unwrap_or_default();
            assert_eq!(parse(&text), Ok(machine), "{text}");
        }
    }

    #[test]
    fn mistakes() {
        let cases: &[(&str, &str)] = &[
            ("Machine(devices: [])", "E0507 the machine has no devices"),
            ("Machine()", "E0202 Machine has no `devices`"),
            (
                "Machine(devices: [(name: \"a\", backend: cpux)])",
                "E0507 there is no backend `cpux`",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu), (name: \"a\", backend: cpu)])",
                "E0205 the device name `a` is used twice",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu)], links: [(from: \"a\", to: \"b\")])",
                "E0501 there is no device `b`",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu)], links: [(from: \"a\", to: \"a\")])",
                "E0501 a link joins a device to itself",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu, memory: \"1 parsec\")])",
                "E0203 `parsec` is no unit here: write one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu, memory: 0)])",
                "E0203 a size such as \"1GiB\" is 0, less than 1",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu, ram: 5)])",
                "E0201 a device has no field `ram`",
            ),
            (
                "Machine(devices: [(name: \"a\", backend: cpu, programmatic: true)])",
                "E0507 `programmatic` is for CUDA devices, and `a` is of `cpu`",
            ),
            (
                "[1]",
                "E0203 expected a machine: `Machine(devices: […])`, found a list",
            ),
        ];
        for (text, expect) in cases {
            let errors = parse(text).expect_err(text);
            assert!(errors.iter().any(|e| e == expect), "{text}: {errors:?}");
        }
    }
}

//! `machine.ron`: reads and writes machines; and this computer as a machine, where no such file is given.

mod cluster;
mod hosts;
mod links;

use std::collections::BTreeMap;

use serde::Serialize;
use zbmd_ir::{Device, DeviceId, DeviceKind, Host, Link, Machine, TiVec, Tier, limits};

use crate::codes::Code;
use crate::costs::{self, MeasuredCosts};
use crate::diag::{Diagnostic, Sink, suggest};
use crate::format::{self, Group};
use crate::parse::{self, Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{FileId, Span, Spanned};
use crate::units::{self, UnitError};

pub use cluster::{ClusterHost, HostLink, cluster_to_ron};
use zbmd_backends::devices::memory_bytes;
/// The CPU devices of this computer: `zbmd_backends::devices::detect`.
pub use zbmd_backends::devices::{CORE_BYTES_PER_S, CORE_FLOPS, detect, detect_in_teams, uniform};

#[derive(Serialize)]
#[serde(rename = "Machine")]
struct RonMachine<'a> {
    devices: Vec<RonDevice<'a>>,
    links: Vec<RonLink<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hosts: BTreeMap<&'a str, Vec<&'a str>>,
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
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "serialize_tier"
    )]
    tier: Option<RonTier>,
}

/// A tier is written as itself, without `Some`.
fn serialize_tier<S: serde::Serializer>(
    tier: &Option<RonTier>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match tier {
        Some(tier) => tier.serialize(serializer),
        None => serializer.serialize_none(),
    }
}

#[derive(Serialize)]
#[serde(rename = "Tier")]
struct RonTier {
    memory: u64,
    bandwidth: u64,
}

impl<'a> RonDevice<'a> {
    fn new(device: &'a Device, tier: Option<&Tier>) -> Self {
        Self {
            name: &device.name,
            backend: device.backend.as_str(),
            cores: &device.cores,
            memory: device.memory_bytes,
            flops: device.flops_per_s,
            bandwidth: device.bytes_per_s,
            programmatic: device.programmatic,
            tier: tier.map(|tier| RonTier {
                memory: tier.memory_bytes,
                bandwidth: tier.bytes_per_s,
            }),
        }
    }
}

#[derive(Serialize)]
#[serde(rename = "Link")]
struct RonLink<'a> {
    from: &'a str,
    to: &'a str,
    bandwidth: u64,
    latency: String,
}

impl<'a> RonLink<'a> {
    fn new(link: &Link, machine: &'a Machine) -> Self {
        Self {
            from: device_name(machine, link.from),
            to: device_name(machine, link.to),
            bandwidth: link.bytes_per_s,
            latency: format!("{}ns", link.latency_ns),
        }
    }
}

fn device_name(machine: &Machine, id: DeviceId) -> &str {
    machine.devices.get(id).map_or("?", |device| &device.name)
}

/// The machine as a `machine.ron` that reads back as the same machine.
///
/// # Errors
/// None in practice: every machine can be written.
pub fn to_ron(machine: &Machine) -> Result<String, ron::Error> {
    let links = machine.links.iter();
    let serialisable = RonMachine {
        devices: machine
            .devices
            .iter_enumerated()
            .map(|(id, device)| RonDevice::new(device, machine.tiers.get(&id)))
            .collect(),
        links: links.map(|link| RonLink::new(&link, machine)).collect(),
        hosts: hosts::names(machine),
    };
    ron_text(&serialisable)
}

fn ron_text(machine: &RonMachine<'_>) -> Result<String, ron::Error> {
    let ron_config = ron::ser::PrettyConfig::new()
        .struct_names(true)
        .depth_limit(2);
    let text = ron::ser::to_string_pretty(machine, ron_config)?;
    Ok(text + "\n")
}

/// The machine with what was measured on it, as a `machine.ron` that reads back as both.
///
/// # Errors
/// None in practice: every machine can be written.
pub fn to_ron_with_costs(machine: &Machine, costs: &MeasuredCosts) -> Result<String, ron::Error> {
    let machine_text = to_ron(machine)?;
    // Written apart: one cost a line, deeper in the tree than devices are.
    let costs_text = costs::to_ron(machine, costs)?;
    let open_text = machine_text.strip_suffix("\n)\n");
    Ok(match (costs_text, open_text) {
        (Some(costs), Some(body)) => format!("{body}\n    costs: {costs},\n)\n"),
        _ => machine_text,
    })
}

/// Reads a machine file; `None` if there were errors. Where `links` is not given, every two devices are linked.
pub(crate) fn read(file: FileId, text: &str, sink: &mut Sink) -> Option<(Machine, MeasuredCosts)> {
    // Of the whole sink, only errors of this file count. A text that does not parse is not read further: what is missing
    // in it would make errors that follow from the first.
    let errors_before = sink.errors();
    let root_node = parse::parse(file, text, sink)?;
    if sink.errors() > errors_before {
        return None;
    }
    let (head, args) = match &root_node.kind {
        NodeKind::Call(Some(name), args) if name.value == "Machine" => (name.span, args),
        NodeKind::Call(None, args) => (root_node.span, args),
        _ => {
            let expected = "a machine: `Machine(devices: […])`";
            sink.push(read::wrong_kind(&root_node, expected));
            return None;
        }
    };

    let mut fields = Fields::of(&format::MACHINE, "Machine", head, args, sink);
    let device_list = fields.need("devices", "[Device(name: \"cpu:0\", backend: cpu)]", sink);
    let link_list = fields.take("links");
    let host_map = fields.take("hosts");
    let cost_list = fields.take("costs");
    fields.done(sink);

    let device_nodes = read::list(device_list?, "a list of devices", sink)?;
    let NamedDevices {
        names,
        devices,
        tiers,
    } = read_devices(device_nodes, head, sink)?;

    // An empty list is different: it states that no two devices are linked.
    let hosts = match host_map {
        None => TiVec::new(),
        Some(map) => hosts::read(map, &names, sink),
    };
    let links = match link_list {
        None => links::link_all(&devices, &hosts),
        Some(list) => {
            let link_nodes = read::list(list, "a list of links", sink)?;
            links::read(link_nodes, &names, &hosts, sink)
        }
    };

    let costs = match cost_list {
        None => MeasuredCosts::default(),
        Some(list) => {
            let cost_nodes = read::list(list, "a list of costs", sink)?;
            costs::read(cost_nodes, &names, sink)
        }
    };

    (sink.errors() == errors_before).then_some((
        Machine {
            devices,
            links,
            hosts,
            tiers,
        },
        costs,
    ))
}

/// A machine of equal hosts, each with so many equal CPU devices, such as all of them on one computer for a trial: host `h0` has
/// the devices `h0:0`, `h0:1` and so on. Devices are linked as those of a machine file without links, and tied to no core.
pub fn uniform_hosts(hosts: usize, devices: usize) -> Machine {
    let one_host = uniform(devices).devices;
    let mut machine = Machine::default();
    for host in 0..hosts {
        let named = one_host.iter().enumerate().map(|(index, device)| Device {
            name: format!("h{host}:{index}"),
            cores: Vec::new(),
            ..device.clone()
        });
        let ids = named.map(|device| machine.devices.push_and_get_key(device));
        let host = Host {
            name: format!("h{host}"),
            devices: ids.collect(),
        };
        machine.hosts.push(host);
    }
    machine.links = links::link_all(&machine.devices, &machine.hosts);
    machine
}

/// E0505 for devices.
pub(crate) fn too_many_devices(devices: usize) -> Diagnostic {
    let limit = limits::MAX_DEVICES;
    let message = format!("the machine has {devices} devices, more than the limit of {limit}");
    Diagnostic::new(Code::E0505, message).help("compile for fewer devices")
}

/// Refuses what the verifier would, for machines that were made in Rust; whether all is well.
pub(crate) fn check(machine: &Machine, sink: &mut Sink) -> bool {
    let errors_before = sink.errors();
    if machine.devices.is_empty() {
        let message = "the machine has no devices";
        let refusal = Diagnostic::new(Code::E0507, message);
        sink.push(refusal.help("compile for 1 device or more"));
    }

    let refused = zbmd_ir::verify::check_machine(machine).err();
    for error in refused.unwrap_or_default() {
        let message = format!("the machine is impossible: {error}");
        sink.push(Diagnostic::new(Code::E0507, message));
    }

    sink.errors() == errors_before
}

/// Devices, and where their names were written.
#[derive(Default)]
struct NamedDevices {
    names: Vec<Spanned<String>>,
    devices: TiVec<DeviceId, Device>,
    tiers: BTreeMap<DeviceId, Tier>,
}

/// A device as it is written.
struct WrittenDevice {
    name: Spanned<String>,
    device: Device,
    tier: Option<Tier>,
}

fn read_devices(list: &[Node], head: Span, sink: &mut Sink) -> Option<NamedDevices> {
    let errors_before = sink.errors();
    let mut named_devices = NamedDevices::default();
    let mut first_named: BTreeMap<String, Span> = BTreeMap::new();
    for node in list {
        // What is beyond the limit is refused anyway, and not read.
        if named_devices.devices.len() == limits::MAX_DEVICES {
            break;
        }
        if let Some(written) = read_device(node, &first_named, sink) {
            let name = written.name;
            first_named.entry(name.value.clone()).or_insert(name.span);
            named_devices.names.push(name);
            let id = named_devices.devices.push_and_get_key(written.device);
            named_devices
                .tiers
                .extend(written.tier.map(|tier| (id, tier)));
        }
    }

    // Without devices for another reason, that reason has been reported.
    if named_devices.devices.is_empty() && sink.errors() == errors_before {
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

    Some(named_devices)
}

fn group<'a>(
    node: &'a Node,
    what: &str,
    of: &'static Group,
    sink: &mut Sink,
) -> Option<Fields<'a>> {
    match &node.kind {
        NodeKind::Call(name, args) if name.as_ref().is_none_or(|name| name.value == of.name) => {
            Some(Fields::of(of, what, node.span, args, sink))
        }
        _ => {
            let expected = format!("{what}: `{}(…)`", of.name);
            sink.push(read::wrong_kind(node, &expected));
            None
        }
    }
}

fn read_device(
    node: &Node,
    others: &BTreeMap<String, Span>,
    sink: &mut Sink,
) -> Option<WrittenDevice> {
    let mut fields = group(node, "a device", &format::DEVICE, sink)?;
    let name_node = fields.need("name", "\"cpu:0\"", sink);
    let name = name_node
        .and_then(|node| read::string(node, "a name in quotes", sink))
        .filter(|name| read::check_text(name, "a device", sink));
    let backend_node = fields.need("backend", "cpu", sink);
    let backend = backend_node.and_then(|node| read::word(node, "a backend: `cpu`", sink));
    let cores = read_cores(fields.take("cores"), sink);

    let memory_node = fields.take("memory");
    let memory = quantity(memory_node, "a size such as \"1GiB\"", units::bytes, sink);
    let flops_node = fields.take("flops");
    let flops_example = "operations per second such as \"50G\"";
    let flops = quantity(flops_node, flops_example, units::per_s, sink);
    let bandwidth = read_bandwidth(&mut fields, sink);
    let early_node = fields.take("programmatic");
    let programmatic = early_node.is_some_and(|node| read::flag(node, sink));
    let tier_node = fields.take("tier");
    let tier = tier_node.and_then(|node| read_tier(node, sink));
    fields.done(sink);

    // All fields are read before the first of them is missed, so that all mistakes are reported.
    let name = name?;
    let backend = backend?;
    check_device_name(&name, others, sink);
    let kind = read_kind(&backend, sink);

    // Elsewhere the field would be ignored silently.
    if let Some(node) = early_node.filter(|_| programmatic && !kind.has_dependent_launch()) {
        let message = format!(
            "`programmatic` is for CUDA devices, and `{}` is of `{kind}`",
            name.value
        );
        sink.push(Diagnostic::new(Code::E0507, message).primary(node.span, "should be left out"));
    }

    let device = Device {
        backend: kind,
        cores,
        memory_bytes: memory.unwrap_or_else(memory_bytes),
        flops_per_s: flops.unwrap_or(CORE_FLOPS),
        bytes_per_s: bandwidth.unwrap_or(CORE_BYTES_PER_S),
        programmatic,
        name: name.value.clone(),
    };

    Some(WrittenDevice { name, device, tier })
}

/// The slower memory of a device.
fn read_tier(node: &Node, sink: &mut Sink) -> Option<Tier> {
    let mut fields = group(node, "a tier", &format::TIER, sink)?;
    let memory_node = fields.take("memory");
    let memory = quantity(memory_node, "a size such as \"64GiB\"", units::bytes, sink);
    let bandwidth_node = fields.need("bandwidth", "\"2GB/s\"", sink);
    let expected = "a bandwidth such as \"2GB/s\"";
    let bandwidth = quantity(bandwidth_node, expected, units::bytes_per_s, sink);
    fields.done(sink);
    Some(Tier {
        memory_bytes: memory.unwrap_or(u64::MAX),
        bytes_per_s: bandwidth?,
    })
}

/// Core numbers, each once: a device does not run on a core twice. Two devices may share one, by turns of the operating
/// system. None if they are not given.
fn read_cores(node: Option<&Node>, sink: &mut Sink) -> Vec<u32> {
    let list = node.and_then(|node| read::list(node, "a list of core numbers", sink));
    let max_core = u64::from(limits::MAX_CORE);
    let mut first_written: BTreeMap<u32, Span> = BTreeMap::new();
    let mut cores = Vec::new();
    for node in list.unwrap_or_default() {
        let Some(number) = read::count(node, "a core number", 0, max_core, sink) else {
            continue;
        };
        let core = number.value as u32;
        if let Some(first) = first_written.get(&core) {
            let message = format!("the device has core {core} twice");
            sink.push(
                Diagnostic::new(Code::E0507, message)
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

fn read_bandwidth(fields: &mut Fields<'_>, sink: &mut Sink) -> Option<u64> {
    let node = fields.take("bandwidth");
    let expected = "a bandwidth such as \"10GB/s\"";
    quantity(node, expected, units::bytes_per_s, sink)
}

/// Reports a device that is called what one before it is called.
fn check_device_name(name: &Spanned<String>, others: &BTreeMap<String, Span>, sink: &mut Sink) {
    let Some(first) = others.get(&name.value) else {
        return;
    };
    let message = format!("the device name `{}` is used twice", name.value);
    sink.push(
        Diagnostic::new(Code::E0205, message)
            .primary(name.span, "used again here")
            .context(*first, "first used here")
            .help("number the devices of a backend: `cpu:0`, `cpu:1`"),
    );
}

/// The kind that a device's backend names; reports one that does not exist.
fn read_kind(backend: &Spanned<String>, sink: &mut Sink) -> DeviceKind {
    let kind = DeviceKind::from(backend.value.as_str());
    if let DeviceKind::Other(unknown) = &kind {
        let known_names = DeviceKind::KNOWN.iter().map(DeviceKind::as_str);
        let message = format!("there is no backend `{unknown}`");
        sink.push(
            Diagnostic::new(Code::E0507, message)
                .primary(backend.span, "unknown backend")
                .help(suggest(unknown, known_names)),
        );
    }
    kind
}

/// A number of base units, or a string with a unit; at least 1.
fn quantity(
    node: Option<&Node>,
    expected: &str,
    parse: fn(&str) -> Result<u64, UnitError>,
    sink: &mut Sink,
) -> Option<u64> {
    let node = node?;
    let value = read::quantity(node, expected, parse, sink)?;
    if value == 0 {
        let message = "a device or link with none of this cannot run anything";
        let refusal = Diagnostic::new(Code::E0507, message);
        sink.push(refusal.primary(node.span, "should be more than zero"));
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use zbmd_ir::Host;

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
    fn a_cluster_reads_back_with_the_links_of_its_hosts() {
        let host = |name: &str, devices| ClusterHost {
            name: name.to_owned(),
            devices: uniform(devices).devices.raw,
        };
        let mut right = host("right", 1);
        right.devices.push(Device {
            name: "vulkan:0".to_owned(),
            backend: DeviceKind::Vulkan,
            cores: Vec::new(),
            ..right.devices[0].clone()
        });
        let hosts = [host("left", 2), right];
        let link = |from, to, bytes_per_s, latency_ns| HostLink {
            from,
            to,
            bytes_per_s,
            latency_ns,
        };
        let links = [link(0, 1, 1_200_000_000, 21_500), link(1, 0, 900, 7)];
        let text = cluster_to_ron(&hosts, &links).expect("written");
        let machine = parse(&text).unwrap_or_else(|errors| panic!("{errors:?}: {text}"));

        let names = machine.devices.iter().map(|device| device.name.as_str());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, ["left:0", "left:1", "right:0", "right/vulkan:0"]);
        assert_eq!(machine.devices[DeviceId(3)].driver_name(), "vulkan:0");
        let [left, right] = &machine.hosts.raw[..] else {
            panic!("{:?}", machine.hosts);
        };
        assert_eq!((&*left.name, &*right.name), ("left", "right"));
        let mut links: Vec<_> = machine
            .links
            .iter()
            .map(|link| (link.from.0, link.to.0, link.bytes_per_s, link.latency_ns))
            .collect();
        links.sort_unstable();
        let (within, latency) = (
            zbmd_backends::devices::LINK_BYTES_PER_S,
            zbmd_backends::devices::LINK_LATENCY_NS,
        );
        let (to_gpu, gpu_latency) = (
            zbmd_backends::devices::GPU_LINK_BYTES_PER_S,
            zbmd_backends::devices::GPU_LINK_LATENCY_NS,
        );
        assert_eq!(
            links,
            [
                (0, 1, within, latency),
                (0, 2, 1_200_000_000, 21_500),
                (0, 3, 1_200_000_000, 21_500),
                (1, 0, within, latency),
                (1, 2, 1_200_000_000, 21_500),
                (1, 3, 1_200_000_000, 21_500),
                (2, 0, 900, 7),
                (2, 1, 900, 7),
                (2, 3, to_gpu, gpu_latency),
                (3, 0, 900, 7),
                (3, 1, 900, 7),
                (3, 2, to_gpu, gpu_latency),
            ]
        );
    }

    #[test]
    fn written_machines_read_back() {
        let mut early = uniform(3);
        early.devices[DeviceId(1)].backend = DeviceKind::Cuda;
        early.devices[DeviceId(1)].programmatic = true;
        let mut hosted = uniform(3);
        hosted.hosts = [("left", vec![0, 2]), ("right", vec![1])]
            .map(|(name, ids)| Host {
                name: name.to_owned(),
                devices: ids.into_iter().map(DeviceId).collect(),
            })
            .to_vec()
            .into();
        let mut tiered = uniform(3);
        let tier = Tier {
            memory_bytes: 5 << 30,
            bytes_per_s: 1_500_000_000,
        };
        tiered.tiers.insert(DeviceId(1), tier);
        for machine in [detect(), uniform(3), early, hosted, tiered] {
            let text = to_ron(&machine).unwrap_or_default();
            assert_eq!(parse(&text), Ok(machine), "{text}");
        }
    }

    /// A machine of two hosts of two devices each, with these links.
    fn two_hosts(links: &str) -> String {
        let devices =
            ["a0", "a1", "b0", "b1"].map(|name| format!("(name: \"{name}\", backend: cpu)"));
        let hosts = "{\"a\": [\"a0\", \"a1\"], \"b\": [\"b1\", \"b0\"]}";
        let devices = devices.join(", ");
        format!("Machine(devices: [{devices}], hosts: {hosts}{links})")
    }

    #[test]
    fn links_of_hosts_are_those_of_their_devices() {
        let latency = |machine: &Machine, from: u32, to: u32| {
            let link = machine.link(DeviceId(from), DeviceId(to));
            link.map(|link| link.latency_ns)
        };
        let all = parse(&two_hosts("")).expect("a machine");
        assert_eq!(all.links.len(), 12);
        assert_eq!(
            (latency(&all, 0, 1), latency(&all, 0, 2)),
            (Some(1000), Some(30_000))
        );
        assert_eq!(
            all.hosts
                .iter()
                .map(|host| host.devices.len())
                .sum::<usize>(),
            4
        );

        let given = ", links: [(from: \"a\", to: \"a\", latency: \"1us\"), (from: \"a1\", to: \"b0\", latency: \"9us\"), \
                     (from: \"a\", to: \"b\", both: true, latency: \"50us\")]";
        let given = parse(&two_hosts(given)).expect("a machine");
        // Two within a, four from a to b and four back; none within b.
        assert_eq!(given.links.len(), 10);
        assert_eq!(
            (latency(&given, 0, 1), latency(&given, 2, 3)),
            (Some(1000), None)
        );
        assert_eq!(
            (latency(&given, 0, 3), latency(&given, 3, 0)),
            (Some(50_000), Some(50_000))
        );
        assert_eq!(
            (latency(&given, 1, 2), latency(&given, 2, 1)),
            (Some(9000), Some(50_000))
        );
        for machine in [all, given] {
            let text = to_ron(&machine).unwrap_or_default();
            assert_eq!(parse(&text), Ok(machine), "{text}");
        }
    }

    #[test]
    fn mistakes_with_hosts() {
        let devices = "devices: [(name: \"a\", backend: cpu), (name: \"b\", backend: cpu)]";
        let cases = [
            ("{\"h\": [\"a\"]}", "E0507 the device `b` is in no host"),
            (
                "{\"h\": [\"a\", \"b\"], \"i\": []}",
                "E0507 the host `i` has no devices",
            ),
            (
                "{\"h\": [\"a\", \"b\", \"a\"]}",
                "E0205 a device is in two hosts, or twice in one",
            ),
            (
                "{\"h\": [\"a\", \"b\"], \"b\": [\"a\"]}",
                "E0205 `b` is a device and a host",
            ),
            (
                "{\"h\": [\"a\", \"b\", \"c\"]}",
                "E0501 there is no device `c`",
            ),
            (
                "{\"h\": 5}",
                "E0203 expected a list of devices, found the integer 5",
            ),
        ];
        for (hosts, expect) in cases {
            let text = format!("Machine({devices}, hosts: {hosts})");
            let errors = parse(&text).expect_err(&text);
            assert!(errors.iter().any(|e| e == expect), "{text}: {errors:?}");
        }

        for (links, expect) in [
            (
                "(from: \"a\", to: \"c\")",
                "E0501 there is no device or host `c`",
            ),
            (
                "(from: \"a\", to: \"b\"), (from: \"a\", to: \"b\", both: true)",
                "E0107 two devices are linked twice in the same direction",
            ),
            (
                "(from: \"a0\", to: \"a0\")",
                "E0501 a link joins a device to itself",
            ),
        ] {
            let text = two_hosts(&format!(", links: [{links}]"));
            let errors = parse(&text).expect_err(&text);
            assert!(errors.iter().any(|e| e == expect), "{text}: {errors:?}");
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
                "Machine(devices: [(name: \"a\", backend: cpu, tier: (memory: \"1GiB\"))])",
                "E0202 a tier has no `bandwidth`",
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

//! The hosts of `machine.ron`: which devices are in one computer.

use std::collections::BTreeMap;

use zbmd_ir::{DeviceId, Host, HostId, Machine, TiVec};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::parse::Node;
use crate::read;
use crate::source::{Span, Spanned};

/// Reads hosts; `devices` are the names of the machine's devices, in order.
pub(super) fn read(
    node: &Node,
    devices: &[Spanned<String>],
    sink: &mut Sink,
) -> TiVec<HostId, Host> {
    let errors_before = sink.errors();
    let pairs = read::map(node, "a map from hosts to their devices", sink);
    let mut hosts: TiVec<HostId, Host> = TiVec::new();
    let mut placed: BTreeMap<DeviceId, Span> = BTreeMap::new();
    for (name, value) in pairs {
        check_host_name(&name, devices, sink);
        let Some(nodes) = read::list(value, "a list of devices", sink) else {
            continue;
        };
        let mut own_devices: Vec<DeviceId> = Vec::new();
        for node in nodes {
            let device = read_device(node, devices, sink);
            own_devices.extend(device.filter(|id| place(*id, node.span, &mut placed, sink)));
        }
        if nodes.is_empty() {
            let message = format!("the host `{}` has no devices", name.value);
            sink.push(
                Diagnostic::new(Code::E0507, message)
                    .primary(value.span, "no devices")
                    .help("name its devices, or leave the host out"),
            );
        }
        own_devices.sort_unstable();
        hosts.push(Host {
            name: name.value,
            devices: own_devices,
        });
    }

    // What could not be read may well have named a device that is missing.
    if sink.errors() == errors_before {
        check_all_placed(devices, &placed, node.span, sink);
    }
    hosts
}

/// The names of hosts, and of their devices, as they are written.
pub(super) fn names(machine: &Machine) -> BTreeMap<&str, Vec<&str>> {
    let hosts = machine.hosts.iter().map(|host| {
        let devices = host.devices.iter();
        let names = devices.map(|device| super::device_name(machine, *device));
        (host.name.as_str(), names.collect())
    });
    hosts.collect()
}

/// Links name devices and hosts by the same words.
fn check_host_name(name: &Spanned<String>, devices: &[Spanned<String>], sink: &mut Sink) {
    read::check_text(name, "a host", sink);
    let mut namesakes = devices.iter();
    if let Some(device) = namesakes.find(|device| device.value == name.value) {
        let message = format!("`{}` is a device and a host", name.value);
        sink.push(
            Diagnostic::new(Code::E0205, message)
                .primary(name.span, "the host")
                .context(device.span, "the device")
                .help("give the host another name"),
        );
    }
}

fn read_device(node: &Node, devices: &[Spanned<String>], sink: &mut Sink) -> Option<DeviceId> {
    let written_name = read::string(node, "a device in quotes", sink)?;
    let index = devices
        .iter()
        .position(|device| device.value == written_name.value);
    if index.is_none() {
        let known_names = devices.iter().map(|device| device.value.as_str());
        let message = format!("there is no device `{}`", written_name.value);
        sink.push(
            Diagnostic::new(Code::E0501, message)
                .primary(written_name.span, "in this host")
                .help(suggest(&written_name.value, known_names)),
        );
    }
    index.map(DeviceId::from)
}

/// Enters a device in its host; false, with the reason said, if it is in one already.
fn place(
    device: DeviceId,
    span: Span,
    placed: &mut BTreeMap<DeviceId, Span>,
    sink: &mut Sink,
) -> bool {
    let Some(first) = placed.insert(device, span) else {
        return true;
    };
    let message = "a device is in two hosts, or twice in one";
    sink.push(
        Diagnostic::new(Code::E0205, message)
            .primary(span, "named again here")
            .context(first, "first named here")
            .help("name each device once"),
    );
    false
}

fn check_all_placed(
    devices: &[Spanned<String>],
    placed: &BTreeMap<DeviceId, Span>,
    span: Span,
    sink: &mut Sink,
) {
    for (index, device) in devices.iter().enumerate() {
        if placed.contains_key(&DeviceId::from(index)) {
            continue;
        }
        let message = format!("the device `{}` is in no host", device.value);
        sink.push(
            Diagnostic::new(Code::E0507, message)
                .primary(span, "in none of these")
                .context(device.span, "the device")
                .help("add it to its host"),
        );
    }
}

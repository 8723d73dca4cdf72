//! The links of `machine.ron`: between devices, and between hosts, which are links between all their devices.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_backends::devices::{LINK_BYTES_PER_S, LINK_LATENCY_NS};
use zbmd_ir::{Device, DeviceId, Host, HostId, Link, Links, TiVec};

use super::{group, quantity, read_bandwidth};
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::format;
use crate::parse::{Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};
use crate::units;

/// Bandwidth assumed of a link between two hosts: a good part of what 10 Gbit/s Ethernet carries.
const HOST_LINK_BYTES_PER_S: u64 = 1_000_000_000;
/// Latency assumed of a link between two hosts: 4 KiB by TCP, one way, every millisecond, took 27 to 35 us between two
/// processes, with the wake-ups of both.
const HOST_LINK_LATENCY_NS: u64 = 30_000;

/// A link between every two devices, in both directions.
pub(super) fn link_all(devices: &TiVec<DeviceId, Device>, hosts: &TiVec<HostId, Host>) -> Links {
    let mut host_of: TiVec<DeviceId, Option<HostId>> = vec![None; devices.len()].into();
    for (id, host) in hosts.iter_enumerated() {
        for &device in &host.devices {
            host_of[device] = Some(id);
        }
    }

    Links::between_all(devices.len(), |from, to| {
        let is_within_host = host_of[from] == host_of[to];
        match is_within_host {
            true => (LINK_BYTES_PER_S, LINK_LATENCY_NS),
            false => (HOST_LINK_BYTES_PER_S, HOST_LINK_LATENCY_NS),
        }
    })
}

/// Max latency of a link: times of many transfers are added up in 64 bits.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

/// What the ends of links name: a device, or a host and so all its devices.
type EndsByName<'a> = BTreeMap<&'a str, LinkEnd>;

/// One end of a link.
#[derive(Clone, Debug)]
struct LinkEnd {
    devices: Vec<DeviceId>,
    is_host: bool,
}

/// Reads links. Those of hosts are links of each device of one to each of the other, and yield to
/// links between two devices that are given by themselves.
pub(super) fn read(
    nodes: &[Node],
    names: &[Spanned<String>],
    hosts: &TiVec<HostId, Host>,
    sink: &mut Sink,
) -> Links {
    let ends_by_name = ends_by_name(names, hosts);
    let mut written_links: Vec<(Span, WrittenLink)> = Vec::new();
    for node in nodes {
        let written = read_link(node, &ends_by_name, sink);
        written_links.extend(written.map(|link| (node.span, link)));
    }

    let mut linked = BTreeSet::new();
    let mut links: Vec<Link> = Vec::new();
    let mut add = |of_hosts: bool| {
        // What is given for hosts twice is a mistake as much as for devices.
        let mut linked_here: BTreeSet<(DeviceId, DeviceId)> = BTreeSet::new();
        let chosen = written_links
            .iter()
            .filter(|(_, link)| link.is_of_hosts() == of_hosts);
        for (span, written) in chosen {
            for direction in written.directions() {
                let refusal = check_link(&direction, &mut linked_here);
                match refusal {
                    // Said once for each link, however many devices its ends have.
                    Err(refusal) => {
                        sink.push(refusal.primary(*span, "this link").help("remove it"));
                        break;
                    }
                    Ok(()) if !linked.insert((direction.from, direction.to)) => {}
                    Ok(()) => links.push(direction),
                }
            }
        }
    };
    add(false);
    add(true);
    links.into_iter().collect()
}

/// Devices and hosts by name. Devices that could not be read have no name here, and no number either: the two lists run
/// in parallel.
fn ends_by_name<'a>(
    names: &'a [Spanned<String>],
    hosts: &'a TiVec<HostId, Host>,
) -> EndsByName<'a> {
    let devices = names.iter().enumerate().map(|(index, name)| {
        let end = LinkEnd {
            devices: vec![DeviceId::from(index)],
            is_host: false,
        };
        (name.value.as_str(), end)
    });
    let hosts = hosts.iter().map(|host| {
        let end = LinkEnd {
            devices: host.devices.clone(),
            is_host: true,
        };
        (host.name.as_str(), end)
    });
    devices.chain(hosts).collect()
}

/// A link as it is written.
struct WrittenLink {
    from: LinkEnd,
    to: LinkEnd,
    bytes_per_s: u64,
    latency_ns: u64,
    /// Whether there is an equal one in the other direction.
    both_ways: bool,
}

impl WrittenLink {
    fn is_of_hosts(&self) -> bool {
        self.from.is_host || self.to.is_host
    }

    /// The links that it stands for. A host linked to itself is its devices, each linked to all others.
    fn directions(&self) -> Vec<Link> {
        let mut links = Vec::new();
        let one_way = |from: &LinkEnd, to: &LinkEnd, links: &mut Vec<Link>| {
            for &from_device in &from.devices {
                for &to_device in &to.devices {
                    if self.is_of_hosts() && from_device == to_device {
                        continue;
                    }
                    links.push(Link {
                        from: from_device,
                        to: to_device,
                        bytes_per_s: self.bytes_per_s,
                        latency_ns: self.latency_ns,
                    });
                }
            }
        };
        one_way(&self.from, &self.to, &mut links);
        let is_within_host = self.is_of_hosts() && self.from.devices == self.to.devices;
        if self.both_ways && !is_within_host {
            one_way(&self.to, &self.from, &mut links);
        }
        links
    }
}

fn read_link(node: &Node, ends: &EndsByName<'_>, sink: &mut Sink) -> Option<WrittenLink> {
    let mut fields = group(node, "a link", &format::LINK, sink)?;
    let from = read_link_end("from", &mut fields, ends, sink);
    let to = read_link_end("to", &mut fields, ends, sink);
    let both_node = fields.take("both");
    let both_ways = both_node.is_some_and(|node| read::flag(node, sink));
    let bandwidth = read_bandwidth(&mut fields, sink);
    let latency = read_latency(fields.take("latency"), sink);
    fields.done(sink);

    let (from, to) = (from?, to?);
    let is_between_hosts = (from.is_host || to.is_host) && from.devices != to.devices;
    let (usual_bytes_per_s, usual_latency_ns) = match is_between_hosts {
        true => (HOST_LINK_BYTES_PER_S, HOST_LINK_LATENCY_NS),
        false => (LINK_BYTES_PER_S, LINK_LATENCY_NS),
    };
    Some(WrittenLink {
        from,
        to,
        bytes_per_s: bandwidth.unwrap_or(usual_bytes_per_s),
        latency_ns: latency.unwrap_or(usual_latency_ns),
        both_ways,
    })
}

fn read_link_end(
    field: &str,
    fields: &mut Fields<'_>,
    ends: &EndsByName<'_>,
    sink: &mut Sink,
) -> Option<LinkEnd> {
    let node = fields.need(field, "\"cpu:0\"", sink)?;
    let written_name = read::string(node, "a device or host in quotes", sink)?;
    let end = ends.get(written_name.value.as_str()).cloned();
    if end.is_none() {
        let known_names = ends.keys().copied();
        let what = match ends.values().any(|end| end.is_host) {
            true => "device or host",
            false => "device",
        };
        let message = format!("there is no {what} `{}`", written_name.value);
        sink.push(
            Diagnostic::new(Code::E0501, message)
                .primary(written_name.span, "this end of the link")
                .help(suggest(&written_name.value, known_names)),
        );
    }

    end
}

/// A latency in nanoseconds; unlike other quantities it may be zero, with a unit.
fn read_latency(node: Option<&Node>, sink: &mut Sink) -> Option<u64> {
    // `quantity` refuses zero, which is right for memory and bandwidth; a link may well have no latency.
    if let Some(NodeKind::Str(text)) = node.map(|node| &node.kind)
        && text.trim_start().starts_with('0')
        && units::duration_ns(text) == Ok(0)
    {
        return Some(0);
    }
    let node = node?;
    let expected = "a latency such as \"2us\"";
    let latency_ns = quantity(Some(node), expected, units::duration_ns, sink)?;

    if latency_ns > MAX_LATENCY_NS {
        let message =
            format!("a latency is {latency_ns} ns, more than the limit of {MAX_LATENCY_NS}");
        let refusal = Diagnostic::new(Code::E0505, message);
        sink.push(refusal.primary(node.span, "at most 60min"));
    }

    Some(latency_ns)
}

/// Enters a link in those that are there; refuses one that joins a device to itself, or devices that are linked already.
fn check_link(link: &Link, linked: &mut BTreeSet<(DeviceId, DeviceId)>) -> Result<(), Diagnostic> {
    if link.from == link.to {
        let message = "a link joins a device to itself";
        return Err(Diagnostic::new(Code::E0501, message));
    }
    if !linked.insert((link.from, link.to)) {
        let message = "two devices are linked twice in the same direction";
        return Err(Diagnostic::new(Code::E0107, message));
    }
    Ok(())
}

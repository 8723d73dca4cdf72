//! Contingencies: which devices are alike, and what to run when some are lost. Knows no costs and makes no plan.
//!
//! Devices are kept by *kind*: those of one kind can stand in for one another. A calendar names *roles*: when n devices
//! of a kind are lost, the survivors take the first roles of the kind in order, and only plans that leave its last n
//! roles empty will do. So 8 alike devices of which any 2 may fail need 2 entries beside the full machine, not 36.
//!
//! On a machine of several hosts the same holds of hosts. Alike ones stand in for one another as a whole, device by
//! device: those that have lost the least take the first roles. Kinds of devices are within a host then. So of 8 alike
//! hosts with 4 alike devices each, any one device and any one host need 2 entries.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Device, DeviceId, HostKindId, KindId, Link, Machine, PlanId, TiVec};

/// What to run when devices are lost. Empty where none was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contingencies {
    /// The devices of each kind, ascending, alike by [`Alike`]. Each device of the machine is in exactly one, or there
    /// are no kinds and no entries.
    pub kinds: TiVec<KindId, Vec<DeviceId>>,
    /// What to do about each loss that has a plan; no two for the same loss.
    pub list: Vec<Contingency>,
    /// Hosts that are alike by [`Alike::host_difference`], in ascending order: each with its devices, so that devices at
    /// one position correspond. Hosts that are like no other are not listed. Stored beside the table, so that bundles
    /// without hosts have no trace of it.
    #[serde(skip)]
    pub alike_hosts: TiVec<HostKindId, Vec<HostDevices>>,
}

/// The devices of a host, in the order in which they correspond to those of hosts that are like it.
pub type HostDevices = Vec<DeviceId>;

/// The plans for one loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contingency {
    /// What is lost, by ascending kind; not empty.
    pub lost: Vec<Loss>,
    /// Runs whole blocks, which are those of plan 0: a run can go over at any of its borders.
    pub main: PlanId,
    /// Runs what is left of the input; present where the program has a tail.
    pub tail: Option<PlanId>,
}

/// So many devices of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Loss {
    /// The kind.
    pub kind: KindId,
    /// Devices lost, at least 1.
    pub count: u32,
}

impl Contingencies {
    /// The entry for the loss of exactly these devices, in any order; `None` if it was not foreseen.
    /// O(devices log devices + list).
    pub fn find(&self, lost: &[DeviceId]) -> Option<&Contingency> {
        let wanted = self.losses_of(lost);
        self.list.iter().find(|entry| entry.lost == wanted)
    }

    /// The loss of these devices, in any order, as entries have it: counted by kind, alike hosts with the least losses
    /// first.
    pub fn losses_of(&self, lost: &[DeviceId]) -> Vec<Loss> {
        let lost: BTreeSet<DeviceId> = lost.iter().copied().collect();
        let stand_ins = self.stand_ins(&lost);
        let counts = self.kinds.iter_enumerated().map(|(kind, roles)| {
            let devices = roles.iter().map(|role| stand_ins.device(*role));
            let count = devices.filter(|device| lost.contains(device)).count() as u32;
            Loss { kind, count }
        });
        counts.filter(|loss| loss.count > 0).collect()
    }

    /// The device that takes each role when `lost` are gone: survivors of a kind take its first roles in order, and alike
    /// hosts with the least losses those of the first hosts. Roles that stay empty are left out.
    pub fn roles(&self, lost: &[DeviceId]) -> BTreeMap<DeviceId, DeviceId> {
        let lost: BTreeSet<DeviceId> = lost.iter().copied().collect();
        let stand_ins = self.stand_ins(&lost);
        let mut roles = BTreeMap::new();
        for kind_roles in &self.kinds {
            let devices = kind_roles.iter().map(|role| stand_ins.device(*role));
            let survivors = devices.filter(|device| !lost.contains(device));
            roles.extend(kind_roles.iter().copied().zip(survivors));
        }
        roles
    }

    /// Which losses entries can have.
    pub fn loss_order(&self) -> LossOrder {
        let kind_of = match self.alike_hosts.is_empty() {
            true => BTreeMap::new(),
            false => self.kinds_of_devices(),
        };
        let own_kinds = |hosts: &Vec<HostDevices>| {
            let hosts = hosts.iter();
            hosts
                .map(|host| self.kinds_in_order(host, &kind_of))
                .collect()
        };
        LossOrder {
            kinds_of_hosts: self.alike_hosts.iter().map(own_kinds).collect(),
        }
    }

    /// The kind of each device that is in one.
    pub(crate) fn kinds_of_devices(&self) -> BTreeMap<DeviceId, KindId> {
        let kinds = self.kinds.iter_enumerated();
        kinds
            .flat_map(|(kind, devices)| devices.iter().map(move |device| (*device, kind)))
            .collect()
    }

    /// The kinds of a host's devices, each once, in the order of their first device there.
    fn kinds_in_order(
        &self,
        host: &HostDevices,
        kind_of: &BTreeMap<DeviceId, KindId>,
    ) -> Vec<KindId> {
        let mut own_kinds: Vec<KindId> = Vec::new();
        for kind in host.iter().filter_map(|device| kind_of.get(device)) {
            if !own_kinds.contains(kind) {
                own_kinds.push(*kind);
            }
        }
        own_kinds
    }

    /// The device that stands at the place of each other one, so that of alike hosts the first ones have lost the least.
    fn stand_ins(&self, lost: &BTreeSet<DeviceId>) -> StandIns {
        let mut stand_ins = StandIns::default();
        if self.alike_hosts.is_empty() {
            return stand_ins;
        }

        let kind_of = self.kinds_of_devices();
        for hosts in &self.alike_hosts {
            // Which device of a kind is lost makes no difference, only how many are.
            let damage = |host: &HostDevices| -> Vec<usize> {
                let own_kinds = self.kinds_in_order(host, &kind_of);
                let mut counts = vec![0; own_kinds.len()];
                for device in host.iter().filter(|device| lost.contains(device)) {
                    let kind = kind_of.get(device);
                    let index = own_kinds.iter().position(|own| Some(own) == kind);
                    if let Some(index) = index {
                        counts[index] += 1;
                    }
                }
                counts
            };
            let mut by_damage: Vec<&HostDevices> = hosts.iter().collect();
            by_damage.sort_by_cached_key(|host| damage(host));
            for (role_host, host) in hosts.iter().zip(by_damage) {
                stand_ins
                    .by_role
                    .extend(role_host.iter().copied().zip(host.iter().copied()));
            }
        }
        stand_ins
    }
}

/// Tells the losses that entries can have from those that alike hosts make the same.
#[derive(Clone, Debug)]
pub struct LossOrder {
    /// Of each kind of hosts, the kinds of each one's devices, which correspond.
    kinds_of_hosts: Vec<Vec<Vec<KindId>>>,
}

impl LossOrder {
    /// Whether an entry can have this loss: of alike hosts, the last ones have lost the most.
    pub fn is_canonical(&self, losses: &[Loss]) -> bool {
        let count_of = |kind: &KindId| {
            let mut losses = losses.iter();
            losses
                .find(|loss| loss.kind == *kind)
                .map_or(0, |loss| loss.count)
        };
        self.kinds_of_hosts.iter().all(|hosts| {
            let damages = hosts.iter();
            let mut damages = damages.map(|kinds| kinds.iter().map(count_of).collect::<Vec<u32>>());
            let Some(mut before) = damages.next() else {
                return true;
            };
            damages.all(|damage| {
                let is_in_order = before <= damage;
                before = damage;
                is_in_order
            })
        })
    }
}

/// Which device stands at the place of which; all others stand at their own.
#[derive(Debug, Default)]
struct StandIns {
    by_role: BTreeMap<DeviceId, DeviceId>,
}

impl StandIns {
    fn device(&self, role: DeviceId) -> DeviceId {
        self.by_role.get(&role).copied().unwrap_or(role)
    }
}

/// One end of a link of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkEnd {
    /// The device at the other end.
    other: DeviceId,
    bytes_per_s: u64,
    latency_ns: u64,
}

impl LinkEnd {
    fn new(other: DeviceId, link: &Link) -> Self {
        Self {
            other,
            bytes_per_s: link.bytes_per_s,
            latency_ns: link.latency_ns,
        }
    }

    fn has_speed_of(&self, end: &LinkEnd) -> bool {
        (self.bytes_per_s, self.latency_ns) == (end.bytes_per_s, end.latency_ns)
    }
}

/// Which devices of a machine are alike: exchanging two of them, and their links, changes nothing but names and cores,
/// which only say where threads are tied to.
///
/// That is an equivalence: so a set of devices, each like the first, may be permuted at will, and so may the sets of
/// a partition at once.
#[derive(Clone, Debug)]
pub struct Alike<'m> {
    machine: &'m Machine,
    outgoing: TiVec<DeviceId, Vec<LinkEnd>>,
    incoming: TiVec<DeviceId, Vec<LinkEnd>>,
}

impl<'m> Alike<'m> {
    /// Sorts the links by device: O(n log n). Links of unknown devices are passed over.
    pub fn new(machine: &'m Machine) -> Self {
        let mut outgoing: TiVec<DeviceId, Vec<LinkEnd>> = TiVec::new();
        outgoing.resize(machine.devices.len(), Vec::new());
        let mut incoming = outgoing.clone();
        for link in machine.links.iter() {
            let ends_from = outgoing.get_mut(link.from);
            let ends_to = incoming.get_mut(link.to);
            if let (Some(ends_from), Some(ends_to)) = (ends_from, ends_to) {
                ends_from.push(LinkEnd::new(link.to, &link));
                ends_to.push(LinkEnd::new(link.from, &link));
            }
        }

        // By the device at the other end, so that two lists can be compared end by end.
        for ends in outgoing.iter_mut().chain(&mut incoming) {
            ends.sort_unstable();
        }
        Self {
            machine,
            outgoing,
            incoming,
        }
    }

    /// What tells two existing devices apart, for people; `None` if they are alike. O(their links).
    ///
    /// # Panics
    /// If a device does not exist.
    pub fn difference(&self, a: DeviceId, b: DeviceId) -> Option<String> {
        if let Some(difference) = self.device_difference(a, b) {
            return Some(difference);
        }

        let outgoing = link_difference("to", a, &self.outgoing[a], b, &self.outgoing[b]);
        outgoing.or_else(|| link_difference("from", a, &self.incoming[a], b, &self.incoming[b]))
    }

    /// What tells two hosts apart, for people; `None` if exchanging their devices, position by position, changes nothing
    /// but names and cores. An equivalence as [`Self::difference`] is. O(their links * log(their devices)).
    ///
    /// # Panics
    /// If a device does not exist.
    pub fn host_difference(&self, a: &HostDevices, b: &HostDevices) -> Option<String> {
        if a.len() != b.len() {
            return Some(format!("they have {} and {} devices", a.len(), b.len()));
        }
        let mut exchanged: BTreeMap<DeviceId, DeviceId> = BTreeMap::new();
        for (&x, &y) in a.iter().zip(b) {
            if let Some(difference) = self.device_difference(x, y) {
                return Some(format!("{x} and {y} differ: {difference}"));
            }
            exchanged.extend([(x, y), (y, x)]);
        }

        for (&x, &y) in a.iter().zip(b) {
            let outgoing =
                moved_link_difference("to", &self.outgoing[x], &self.outgoing[y], &exchanged);
            let difference = outgoing.or_else(|| {
                moved_link_difference("from", &self.incoming[x], &self.incoming[y], &exchanged)
            });
            if let Some(difference) = difference {
                return Some(format!("{x} and {y} differ: {difference}"));
            }
        }
        None
    }

    /// What tells two devices apart besides their links.
    fn device_difference(&self, a: DeviceId, b: DeviceId) -> Option<String> {
        let first: &Device = &self.machine.devices[a];
        let second: &Device = &self.machine.devices[b];
        if first.backend != second.backend {
            return Some(format!(
                "backends are `{}` and `{}`",
                first.backend, second.backend
            ));
        }

        let memory = (first.memory_bytes, second.memory_bytes);
        let peak = (first.flops_per_s, second.flops_per_s);
        let bandwidth = (first.bytes_per_s, second.bytes_per_s);
        let numbers = [
            ("memory", "bytes", memory),
            ("arithmetic peak", "flop/s", peak),
            ("memory bandwidth", "bytes/s", bandwidth),
        ];
        for (what, unit, (x, y)) in numbers {
            if x != y {
                return Some(format!("{what} is {x} and {y} {unit}"));
            }
        }
        if self.machine.tiers.get(&a) != self.machine.tiers.get(&b) {
            return Some("tiers are different".to_owned());
        }
        // Names and cores may differ: they only say where threads are tied to.
        None
    }
}

/// How the links at one device differ from those at another once devices are exchanged.
fn moved_link_difference(
    side: &str,
    ends_of_a: &[LinkEnd],
    ends_of_b: &[LinkEnd],
    exchanged: &BTreeMap<DeviceId, DeviceId>,
) -> Option<String> {
    let mut moved_ends: Vec<LinkEnd> = ends_of_a
        .iter()
        .map(|end| LinkEnd {
            other: exchanged.get(&end.other).copied().unwrap_or(end.other),
            ..*end
        })
        .collect();
    moved_ends.sort_unstable();
    let mut pairs = moved_ends.iter().zip(ends_of_b);
    if let Some((moved, end)) = pairs.find(|(moved, end)| moved != end) {
        return Some(difference_text(side, Some(moved), Some(end)));
    }
    let shorter = moved_ends.len().min(ends_of_b.len());
    let (moved, end) = (moved_ends.get(shorter), ends_of_b.get(shorter));
    (moved.is_some() || end.is_some()).then(|| difference_text(side, moved, end))
}

/// How the links of devices `a` and `b` differ once the devices are exchanged.
fn link_difference(
    side: &str,
    a: DeviceId,
    ends_of_a: &[LinkEnd],
    b: DeviceId,
    ends_of_b: &[LinkEnd],
) -> Option<String> {
    // The link between the two becomes the one back.
    let there = ends_of_a.iter().find(|end| end.other == b);
    let back = ends_of_b.iter().find(|end| end.other == a);
    let is_symmetric = match (there, back) {
        (Some(there), Some(back)) => there.has_speed_of(back),
        (there, back) => there.is_none() && back.is_none(),
    };
    if !is_symmetric {
        return Some(difference_text(side, there, back));
    }

    let mut others_of_a = ends_of_a.iter().filter(|end| end.other != b);
    let mut others_of_b = ends_of_b.iter().filter(|end| end.other != a);
    loop {
        match (others_of_a.next(), others_of_b.next()) {
            (None, None) => return None,
            (end_of_a, end_of_b) if end_of_a == end_of_b => {}
            (end_of_a, end_of_b) => return Some(difference_text(side, end_of_a, end_of_b)),
        }
    }
}

fn difference_text(side: &str, first: Option<&LinkEnd>, second: Option<&LinkEnd>) -> String {
    let first = end_text(side, first);
    let second = end_text(side, second);
    format!("links have {first} against {second}")
}

fn end_text(side: &str, end: Option<&LinkEnd>) -> String {
    match end {
        Some(end) => format!(
            "{} bytes/s and {} ns {side} {}",
            end.bytes_per_s, end.latency_ns, end.other
        ),
        None => format!("none {side} it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Links;

    /// `devices` alike, with a link from each to each.
    fn machine(devices: u32) -> Machine {
        let mut machine = Machine {
            links: Links::between_all(devices as usize, |_, _| (10, 1)),
            ..Machine::default()
        };
        for i in 0..devices {
            machine.devices.push(Device {
                name: format!("cpu:{i}"),
                backend: "cpu".into(),
                cores: vec![i],
                memory_bytes: 1000,
                flops_per_s: 2000,
                bytes_per_s: 3000,
                programmatic: false,
            });
        }
        machine
    }

    /// Slows the first link down.
    fn slow(machine: &mut Machine) {
        let ends = (DeviceId(0), DeviceId(1));
        machine.links.change(|link| {
            if (link.from, link.to) == ends {
                link.latency_ns = 9;
            }
        });
    }

    #[test]
    fn what_makes_devices_alike() {
        type Case = (fn(&mut Machine), u32, u32, Option<&'static str>);
        let cases: &[Case] = &[
            (|_| {}, 0, 2, None),
            (|m| m.devices[DeviceId(0)].cores.clear(), 0, 1, None),
            (
                |m| m.devices[DeviceId(1)].backend = "cuda".into(),
                0,
                1,
                Some("backends are `cpu` and `cuda`"),
            ),
            (
                |m| m.devices[DeviceId(1)].memory_bytes = 7,
                0,
                1,
                Some("memory is 1000 and 7 bytes"),
            ),
            (
                |m| m.devices[DeviceId(1)].flops_per_s = 7,
                0,
                1,
                Some("arithmetic peak is 2000 and 7"),
            ),
            (
                |m| m.devices[DeviceId(1)].bytes_per_s = 7,
                1,
                0,
                Some("memory bandwidth is 7 and 3000"),
            ),
            // 0 -> 1 differs from 1 -> 0.
            (
                slow,
                0,
                1,
                Some("9 ns to dev1 against 10 bytes/s and 1 ns to dev0"),
            ),
            // ... which tells 2 from both: exchanging 1 and 2 would move the odd link.
            (
                slow,
                1,
                2,
                Some("9 ns from dev0 against 10 bytes/s and 1 ns from dev0"),
            ),
            // Two pairs: exchanging the two of a pair changes nothing, exchanging across does.
            (pairs, 0, 1, None),
            (pairs, 2, 3, None),
            (pairs, 0, 2, Some("links have")),
            (|m| m.links.clear(), 0, 2, None),
            (
                |m| {
                    m.links
                        .retain(|l| l.from != DeviceId(0) || l.to != DeviceId(1))
                },
                0,
                1,
                Some("none to it against 10 bytes/s and 1 ns to dev0"),
            ),
        ];
        for (i, (change, a, b, expected)) in cases.iter().enumerate() {
            let mut machine = machine(4);
            change(&mut machine);
            let found = Alike::new(&machine).difference(DeviceId(*a), DeviceId(*b));
            match (expected, found) {
                (None, None) => {}
                (Some(expected), Some(found)) if found.contains(expected) => {}
                (expected, found) => panic!("case {i}: expected {expected:?}, found {found:?}"),
            }
        }
    }

    /// 0 and 1 are near each other, so are 2 and 3.
    fn pairs(machine: &mut Machine) {
        machine.links.change(|link| {
            let is_near = link.from.0 / 2 == link.to.0 / 2;
            link.latency_ns = if is_near { 1 } else { 50 };
        });
    }

    #[test]
    fn losses_are_found_by_kind_and_survivors_move_up() {
        let ids = |list: &[u32]| list.iter().map(|&d| DeviceId(d)).collect::<Vec<_>>();
        let entry = |lost: &[(u32, u32)], main| Contingency {
            lost: lost
                .iter()
                .map(|&(k, count)| Loss {
                    kind: KindId(k),
                    count,
                })
                .collect(),
            main: PlanId(main),
            tail: None,
        };
        let contingencies = Contingencies {
            kinds: vec![ids(&[0, 2, 3]), ids(&[1])].into(),
            list: vec![
                entry(&[(0, 1)], 1),
                entry(&[(0, 2)], 2),
                entry(&[(0, 1), (1, 1)], 3),
            ],
            alike_hosts: TiVec::new(),
        };
        let main = |lost: &[u32]| contingencies.find(&ids(lost)).map(|entry| entry.main.0);
        assert_eq!(
            (main(&[0]), main(&[2]), main(&[3])),
            (Some(1), Some(1), Some(1))
        );
        assert_eq!(
            (main(&[3, 0]), main(&[1, 2]), main(&[1])),
            (Some(2), Some(3), None)
        );
        let roles = |lost: &[u32]| -> Vec<(u32, u32)> {
            contingencies
                .roles(&ids(lost))
                .into_iter()
                .map(|(role, d)| (role.0, d.0))
                .collect()
        };
        assert_eq!(roles(&[]), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(roles(&[0]), [(0, 2), (1, 1), (2, 3)]);
        assert_eq!(roles(&[1, 2]), [(0, 0), (2, 3)]);
    }
}

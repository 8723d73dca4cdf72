//! Who is restarted when a worker is lost, and when that is too often: the supervision tree, after Erlang/OTP. Must not
//! know epochs, back-off or what a device does.
//!
//! system -> groups -> devices -> one worker each. Each supervisor may have an *intensity*: so many losses within its
//! period are tolerated, the next one makes it give up, which is a failure of its own, counted by the supervisor above and
//! answered by that one's strategy. The system giving up ends the run. A supervisor without an intensity tolerates
//! nothing itself: its losses are counted above, but its strategy still holds. So with nothing declared but the
//! system's intensity, that one number bounds the losses of the whole run.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbmd_ir::{DeviceId, TiVec};

/// Who is restarted with a lost child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Only that child.
    #[default]
    OneForOne,
    /// All children.
    OneForAll,
    /// That child and those declared after it.
    RestForOne,
}

/// Whether a worker is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// Always.
    #[default]
    Permanent,
    /// Unless it ended by itself, without a fault.
    Transient,
    /// Never.
    Temporary,
}

/// Losses that a supervisor tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// So many losses ...
    pub losses: u32,
    /// ... within so many nanoseconds.
    pub period_ns: u64,
}

/// A group as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// For people.
    pub name: String,
    /// Who is restarted with a lost device.
    pub strategy: Strategy,
    /// What it tolerates itself.
    pub intensity: Option<Intensity>,
    /// Its devices, in order of start.
    pub devices: Vec<DeviceId>,
}

/// A device as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// For people.
    pub name: String,
    /// Whether its worker is started again.
    pub restart: Restart,
    /// What it tolerates itself.
    pub intensity: Option<Intensity>,
}

/// The whole tree as declared. Devices in no group are children of the system, each as a group of its own, after the
/// declared ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// What is restarted when a group gives up.
    pub strategy: Strategy,
    /// What the system tolerates.
    pub intensity: Intensity,
    /// In order.
    pub groups: Vec<GroupSpec>,
    /// All devices of the machine.
    pub devices: TiVec<DeviceId, DeviceSpec>,
}

/// A supervisor that gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GaveUp {
    /// `system`, `group NAME` or `device NAME`.
    pub supervisor: String,
    /// Losses in its period, one more than it tolerates.
    pub losses: u32,
    /// What it tolerates.
    pub intensity: Intensity,
}

/// What follows from a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// Supervisors that gave up, from below; the last one is the system if `stop`.
    pub gave_up: Vec<GaveUp>,
    /// The run is to end.
    pub stop: bool,
    /// Workers to be killed and restarted besides the lost one, ascending, and the supervisor that wants it.
    pub with: Vec<DeviceId>,
    /// Whose strategy reached beyond the lost worker.
    pub by: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Count {
    at: VecDeque<u64>,
}

impl Count {
    /// Counts one more; the losses in the period if they are too many.
    fn add(&mut self, intensity: Intensity, now_ns: u64) -> Option<u32> {
        self.at.retain(|at| now_ns - at < intensity.period_ns);
        self.at.push_back(now_ns);
        let losses = self.at.len() as u32;
        (losses > intensity.losses).then_some(losses)
    }
}

/// The tree at work.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    spec: TreeSpec,
    /// Of each device, its place in `spec.groups`.
    group_of: TiVec<DeviceId, usize>,
    /// Groups from this number on are of one device each, which is in no declared one.
    declared_groups: usize,
    system: Count,
    groups: Vec<Count>,
    devices: TiVec<DeviceId, Count>,
}

impl Tree {
    /// A tree in which nothing was lost yet.
    pub(crate) fn new(mut spec: TreeSpec) -> Self {
        let mut declared_groups: TiVec<DeviceId, Option<usize>> =
            vec![None; spec.devices.len()].into();
        for (group_index, group) in spec.groups.iter().enumerate() {
            for &device in &group.devices {
                declared_groups[device] = Some(group_index);
            }
        }

        let TreeSpec {
            groups, devices, ..
        } = &mut spec;
        let declared_count = groups.len();
        // Who is in no group is one alone.
        let group_of: TiVec<DeviceId, usize> = declared_groups
            .into_iter_enumerated()
            .map(|(device, group)| {
                group.unwrap_or_else(|| {
                    groups.push(GroupSpec {
                        name: devices[device].name.clone(),
                        strategy: Strategy::OneForOne,
                        intensity: None,
                        devices: vec![device],
                    });
                    groups.len() - 1
                })
            })
            .collect();

        let group_counts = vec![Count::default(); spec.groups.len()];
        let device_counts = vec![Count::default(); spec.devices.len()].into();
        Self {
            spec,
            group_of,
            declared_groups: declared_count,
            system: Count::default(),
            groups: group_counts,
            devices: device_counts,
        }
    }

    /// The declaration of a device.
    pub(crate) fn device(&self, device: DeviceId) -> &DeviceSpec {
        &self.spec.devices[device]
    }

    /// The devices.
    pub(crate) fn devices(&self) -> &TiVec<DeviceId, DeviceSpec> {
        &self.spec.devices
    }

    /// The number of the group that a device is in; none of one that is in no declared group.
    pub(crate) fn declared_group(&self, device: DeviceId) -> Option<usize> {
        let group = self.group_of[device];
        (group < self.declared_groups).then_some(group)
    }

    /// Counts a loss and says what follows.
    pub(crate) fn lose(&mut self, now_ns: u64, device: DeviceId) -> Consequence {
        let mut consequence = Consequence::default();
        let device_spec = &self.spec.devices[device];
        if device_spec.restart == Restart::Temporary {
            return consequence;
        }

        // From the device up: each supervisor that tolerates the loss ends the search.
        let device_label = format!("device {}", device_spec.name);
        if consequence.tolerates(
            device_label,
            device_spec.intensity,
            &mut self.devices[device],
            now_ns,
        ) {
            return consequence;
        }

        // The group restarts by its strategy even where it gives up in the next step.
        let group_index = self.group_of[device];
        let group = &self.spec.groups[group_index];
        let group_label = format!("group {}", group.name);
        let restarted = pick(group.strategy, &group.devices, &device);
        consequence.restart(&group_label, device, restarted);
        if consequence.tolerates(
            group_label,
            group.intensity,
            &mut self.groups[group_index],
            now_ns,
        ) {
            return consequence;
        }

        // The system has nobody above it: if it does not tolerate the loss, the run ends.
        let system_intensity = Some(self.spec.intensity);
        consequence.stop = !consequence.tolerates(
            "system".to_owned(),
            system_intensity,
            &mut self.system,
            now_ns,
        );

        // A group without an intensity of its own cannot have failed as a whole.
        if group.intensity.is_some() {
            let group_indices: Vec<usize> = (0..self.spec.groups.len()).collect();
            let failed_groups = pick(self.spec.strategy, &group_indices, &group_index);
            let failed_devices = failed_groups
                .iter()
                .flat_map(|index| self.spec.groups[*index].devices.clone());
            consequence.restart("system", device, failed_devices.collect());
        }
        consequence
    }
}

impl Consequence {
    /// Counts a loss; whether the supervisor deals with it alone.
    fn tolerates(
        &mut self,
        supervisor: String,
        intensity: Option<Intensity>,
        count: &mut Count,
        now_ns: u64,
    ) -> bool {
        let Some(intensity) = intensity else {
            return false;
        };
        let Some(losses) = count.add(intensity, now_ns) else {
            return true;
        };
        // Whoever gave up is restarted by the one above, and a new supervisor has seen nothing.
        count.at.clear();
        self.gave_up.push(GaveUp {
            supervisor,
            losses,
            intensity,
        });
        false
    }

    fn restart(&mut self, supervisor: &str, lost: DeviceId, mut devices: Vec<DeviceId>) {
        devices.retain(|d| *d != lost);
        devices.sort_unstable();
        self.by = (!devices.is_empty()).then(|| supervisor.to_owned());
        self.with = devices;
    }
}

/// The children that a strategy restarts when one of them fails.
fn pick<T: Clone + PartialEq>(strategy: Strategy, children: &[T], failed: &T) -> Vec<T> {
    let failed_index = children
        .iter()
        .position(|child| child == failed)
        .unwrap_or(0);
    match strategy {
        Strategy::OneForOne => vec![failed.clone()],
        Strategy::OneForAll => children.to_vec(),
        Strategy::RestForOne => children[failed_index..].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERATED: Intensity = Intensity {
        losses: 2,
        period_ns: 100,
    };

    fn ids(list: &[u32]) -> Vec<DeviceId> {
        list.iter().map(|&d| DeviceId(d)).collect()
    }

    /// `a` holds 2, 0, 1 in this order, `b` holds 3 and 4; 5 is in no group.
    fn tree(change: impl Fn(&mut TreeSpec)) -> Tree {
        let group = |name: &str, devices: &[u32]| GroupSpec {
            name: name.into(),
            strategy: Strategy::OneForOne,
            intensity: None,
            devices: ids(devices),
        };
        let device = |i| DeviceSpec {
            name: format!("cpu:{i}"),
            restart: Restart::Permanent,
            intensity: None,
        };
        let mut spec = TreeSpec {
            strategy: Strategy::OneForOne,
            intensity: TOLERATED,
            groups: vec![group("a", &[2, 0, 1]), group("b", &[3, 4])],
            devices: (0..6).map(device).collect(),
        };
        change(&mut spec);
        Tree::new(spec)
    }

    #[test]
    fn a_strategy_says_who_is_restarted_with_the_lost() {
        use Strategy::*;
        for (strategy, lost, with) in [
            (OneForOne, 0, &[][..]),
            (OneForAll, 0, &[1, 2][..]),
            (RestForOne, 2, &[0, 1]),
            (RestForOne, 0, &[1]),
            (RestForOne, 1, &[]),
            (OneForAll, 5, &[]),
        ] {
            let mut tree = tree(|spec| spec.groups[0].strategy = strategy);
            let found = tree.lose(0, DeviceId(lost));
            assert_eq!(found.with, ids(with), "{strategy:?} after {lost}");
            assert_eq!(found.by.is_some(), !with.is_empty());
            assert!(!found.stop && found.gave_up.is_empty());
        }
    }

    #[test]
    fn what_is_not_declared_is_counted_above() {
        let mut tree = tree(|_| {});
        assert!(!tree.lose(0, DeviceId(0)).stop && !tree.lose(1, DeviceId(3)).stop);
        let found = tree.lose(2, DeviceId(5));
        assert!(found.stop);
        assert_eq!(found.gave_up[0].supervisor, "system");
        assert_eq!(
            (found.gave_up[0].losses, found.gave_up[0].intensity),
            (3, TOLERATED)
        );
    }

    #[test]
    fn losses_outside_of_the_period_do_not_count() {
        let mut tree = tree(|_| {});
        assert!((0..50).all(|n| !tree.lose(n * 50, DeviceId(0)).stop));
    }

    #[test]
    fn a_group_that_gives_up_is_restarted_by_the_system_and_counts_once() {
        for (strategy, with) in [
            (Strategy::OneForOne, &[4][..]),
            (Strategy::OneForAll, &[0, 1, 2, 4, 5]),
            (Strategy::RestForOne, &[4, 5]),
        ] {
            let mut tree = tree(|spec| {
                spec.groups[1].intensity = Some(TOLERATED);
                spec.strategy = strategy;
            });
            for round in 0..2 {
                assert_eq!(
                    tree.lose(0, DeviceId(3)),
                    Consequence::default(),
                    "round {round}"
                );
                assert_eq!(tree.lose(0, DeviceId(4)), Consequence::default());
                let found = tree.lose(0, DeviceId(3));
                assert_eq!(found.with, ids(with));
                assert_eq!(found.gave_up.len(), 1);
                assert_eq!(found.gave_up[0].supervisor, "group b");
                assert!(!found.stop, "the system tolerates two failed groups");
            }
            assert_eq!(tree.lose(0, DeviceId(3)), Consequence::default());
            assert_eq!(tree.lose(0, DeviceId(3)), Consequence::default());
            let last = tree.lose(0, DeviceId(3));
            assert!(last.stop);
            let names: Vec<&str> = last.gave_up.iter().map(|g| g.supervisor.as_str()).collect();
            assert_eq!(names, ["group b", "system"]);
        }
    }

    #[test]
    fn a_device_that_gives_up_is_its_groups_failure() {
        let mut tree = tree(|spec| {
            spec.devices[DeviceId(1)].intensity = Some(Intensity {
                losses: 0,
                period_ns: 100,
            });
            spec.groups[0].intensity = Some(TOLERATED);
        });
        let found = tree.lose(0, DeviceId(1));
        assert_eq!(found.gave_up[0].supervisor, "device cpu:1");
        assert!(!found.stop);
        tree.spec.groups[0].strategy = Strategy::OneForAll;
        tree.spec.devices[DeviceId(1)].intensity = Some(TOLERATED);
        assert_eq!(
            tree.lose(0, DeviceId(1)),
            Consequence::default(),
            "it deals with it alone"
        );
    }

    #[test]
    fn a_temporary_worker_is_nobodys_failure() {
        let mut tree = tree(|spec| {
            spec.devices[DeviceId(0)].restart = Restart::Temporary;
            spec.groups[0].strategy = Strategy::OneForAll;
        });
        assert!((0..20).all(|_| tree.lose(0, DeviceId(0)) == Consequence::default()));
    }
}

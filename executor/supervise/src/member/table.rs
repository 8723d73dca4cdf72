//! All members, and what the supervisor asks about all of them at every input, kept up to date as they change: so an
//! input costs O(log devices) and not O(devices).

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use zbmd_ir::{DeviceId, TiVec};

use super::{Member, Phase};
use crate::breaker::Breaker;
use crate::settings::Settings;

/// The members by device.
///
/// What the indices follow from is private to [`Member`] and changed by methods of the table only; everything else may
/// be changed through `IndexMut`.
#[derive(Clone, Debug)]
pub(crate) struct MemberTable {
    members: TiVec<DeviceId, Member>,
    start_ns: u64,
    kill_ns: u64,
    /// What the indices below have of each member.
    indexed: TiVec<DeviceId, Standing>,
    /// When something happens to a member by the clock alone.
    deadlines: BTreeSet<(u64, DeviceId)>,
    unavailable: BTreeSet<DeviceId>,
    unready: BTreeSet<DeviceId>,
    aside: BTreeSet<DeviceId>,
    expected: usize,
    /// Of those that are expected, the ones that were never lost.
    expected_first: usize,
}

/// What is indexed of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    deadline_ns: Option<u64>,
    is_unavailable: bool,
    is_unready: bool,
    is_aside: bool,
    is_expected: bool,
    is_expected_first: bool,
}

impl MemberTable {
    /// A member for each device; nothing has happened to any.
    pub(crate) fn new(settings: &Settings, devices: impl Iterator<Item = DeviceId>) -> Self {
        let members: TiVec<DeviceId, Member> = devices
            .map(|device| Member::new(settings, device))
            .collect();
        let mut table = Self {
            indexed: vec![Standing::default(); members.len()].into(),
            members,
            start_ns: settings.start_ns,
            kill_ns: settings.kill_ns,
            deadlines: BTreeSet::new(),
            unavailable: BTreeSet::new(),
            unready: BTreeSet::new(),
            aside: BTreeSet::new(),
            expected: 0,
            expected_first: 0,
        };
        for device in table.members.keys() {
            table.index_again(device);
        }
        table
    }

    pub(crate) fn set_phase(&mut self, device: DeviceId, phase: Phase) {
        self.members[device].phase = phase;
        self.index_again(device);
    }

    /// Keeps a member out of plans until then, or no longer.
    pub(crate) fn set_aside_until(&mut self, device: DeviceId, until_ns: Option<u64>) {
        self.members[device].aside_until_ns = until_ns;
        self.index_again(device);
    }

    pub(crate) fn mark_lost(&mut self, device: DeviceId) {
        self.members[device].was_lost = true;
        self.index_again(device);
    }

    /// Changes a member's breaker.
    pub(crate) fn with_breaker<R>(
        &mut self,
        device: DeviceId,
        change: impl FnOnce(&mut Breaker) -> R,
    ) -> R {
        let result = change(&mut self.members[device].breaker);
        self.index_again(device);
        result
    }

    /// A border was committed: faults before it do not count any more. O(devices).
    pub(crate) fn forget_faults(&mut self) {
        self.members.iter_mut().for_each(|member| member.faults = 0);
    }

    /// The first deadline of all.
    pub(crate) fn first_deadline_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_ns, _)| *deadline_ns)
    }

    /// The devices whose deadline has come. O(of these).
    pub(crate) fn due(&self, now_ns: u64) -> BTreeSet<DeviceId> {
        let due = self.deadlines.range(..=(now_ns, DeviceId(u32::MAX)));
        due.map(|(_, device)| *device).collect()
    }

    /// Whether the deadline of this one has come.
    pub(crate) fn is_due(&self, now_ns: u64, device: DeviceId) -> bool {
        let deadline_ns = self.indexed[device].deadline_ns;
        deadline_ns.is_some_and(|due_ns| due_ns <= now_ns)
    }

    /// Devices whose worker may not have a role, ascending.
    pub(crate) fn unavailable(&self) -> Vec<DeviceId> {
        self.unavailable.iter().copied().collect()
    }

    /// Devices whose worker could not have a role, ascending.
    pub(crate) fn unready(&self) -> Vec<DeviceId> {
        self.unready.iter().copied().collect()
    }

    /// Slow devices whose work is to be given to others, ascending.
    pub(crate) fn aside(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.aside.iter().copied()
    }

    /// Devices that will be there without anybody's doing.
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// Those of them that were never lost.
    pub(crate) fn expected_first(&self) -> usize {
        self.expected_first
    }

    /// The devices of which this is true, ascending. O(devices).
    pub(crate) fn devices_that(&self, is: impl Fn(&Member) -> bool) -> Vec<DeviceId> {
        let members = self.members.iter_enumerated();
        members
            .filter(|(_, member)| is(member))
            .map(|(device, _)| device)
            .collect()
    }

    fn standing(&self, device: DeviceId) -> Standing {
        let member = &self.members[device];
        let is_expected = member.is_expected();
        Standing {
            deadline_ns: member.deadline_ns(self.start_ns, self.kill_ns),
            is_unavailable: !member.is_available(),
            is_unready: !member.is_ready(),
            is_aside: member.aside_until_ns.is_some(),
            is_expected,
            is_expected_first: is_expected && !member.was_lost,
        }
    }

    /// Brings the indices up to date with a member that changed.
    fn index_again(&mut self, device: DeviceId) {
        let now = self.standing(device);
        let before = std::mem::replace(&mut self.indexed[device], now);
        if now == before {
            return;
        }

        if now.deadline_ns != before.deadline_ns {
            if let Some(deadline_ns) = before.deadline_ns {
                self.deadlines.remove(&(deadline_ns, device));
            }
            if let Some(deadline_ns) = now.deadline_ns {
                self.deadlines.insert((deadline_ns, device));
            }
        }
        set_member(&mut self.unavailable, device, now.is_unavailable);
        set_member(&mut self.unready, device, now.is_unready);
        set_member(&mut self.aside, device, now.is_aside);
        self.expected += usize::from(now.is_expected);
        self.expected -= usize::from(before.is_expected);
        self.expected_first += usize::from(now.is_expected_first);
        self.expected_first -= usize::from(before.is_expected_first);
    }
}

fn set_member(set: &mut BTreeSet<DeviceId>, device: DeviceId, is_in: bool) {
    if is_in {
        set.insert(device);
    } else {
        set.remove(&device);
    }
}

impl Index<DeviceId> for MemberTable {
    type Output = Member;

    fn index(&self, device: DeviceId) -> &Member {
        &self.members[device]
    }
}

impl IndexMut<DeviceId> for MemberTable {
    fn index_mut(&mut self, device: DeviceId) -> &mut Member {
        &mut self.members[device]
    }
}

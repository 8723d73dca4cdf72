//! What a seed stands for: model, machine, declaration, faults. Must not know how they play out.

use fastrand::Rng;
use zbmd_executor::supervise::{
    BackoffPolicy, BreakerPolicy, DeviceSpec, GroupSpec, Intensity, OnLoss, Plans, Restart,
    Settings, Strategy, TreeSpec,
};
use zbmd_ir::DeviceId;

use super::model::Model;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Which plans there are.
#[derive(Clone, Debug)]
pub(crate) struct SimPlans {
    pub devices: u32,
    /// So many may be lost ...
    pub borne: usize,
    /// ... but none of these.
    pub essential: Vec<DeviceId>,
    /// Devices that get a role, at most.
    pub roles: usize,
    /// The devices of each host; empty where they are all in one computer.
    pub hosts: Vec<Vec<DeviceId>>,
    /// So many hosts may be lost as a whole, besides.
    pub borne_hosts: usize,
}

impl SimPlans {
    /// Divides the devices among so many hosts, or fewer if there are too few.
    fn set_hosts(&mut self, hosts: u32) {
        let devices: Vec<DeviceId> = (0..self.devices).map(DeviceId).collect();
        let devices_each = self.devices.div_ceil(hosts.max(1)).max(1) as usize;
        self.hosts = devices.chunks(devices_each).map(<[_]>::to_vec).collect();
    }

    /// Hosts that are lost as a whole, and how many devices they are.
    fn lost_hosts(&self, lost: &[DeviceId]) -> (usize, usize) {
        let is_lost = |device: &DeviceId| lost.binary_search(device).is_ok();
        let hosts = self.hosts.iter().filter(|host| host.iter().all(is_lost));
        hosts.fold((0, 0), |(hosts, devices), host| {
            (hosts + 1, devices + host.len())
        })
    }
}

impl Plans for SimPlans {
    fn can_run(&self, lost: &[DeviceId]) -> bool {
        let (lost_hosts, with_hosts) = self.lost_hosts(lost);
        let is_borne_with_hosts =
            lost_hosts <= self.borne_hosts && lost.len() - with_hosts <= self.borne;
        (lost.len() <= self.borne || is_borne_with_hosts)
            && lost.len() < self.devices as usize
            && !self.essential.iter().any(|d| lost.contains(d))
    }

    fn devices_used(&self, lost: &[DeviceId]) -> Vec<DeviceId> {
        let mut lost = lost.iter().peekable();
        let left = (0..self.devices)
            .map(DeviceId)
            .filter(|d| lost.next_if(|l| *l == d).is_none());
        left.take(self.roles).collect()
    }

    fn is_faster_without(
        &self,
        _: &[DeviceId],
        to: &[DeviceId],
        slow: DeviceId,
        times: f64,
    ) -> bool {
        times > 2.0 && !self.devices_used(to).contains(&slow)
    }

    fn is_improvement(&self, from: &[DeviceId], to: &[DeviceId]) -> bool {
        self.devices_used(from) != self.devices_used(to)
    }
}

/// Something that goes wrong, or is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(DeviceId),
    /// All workers of a host at once.
    KillHost(usize),
    KillTwo(DeviceId, DeviceId),
    /// Just after the next fence, or quiesce.
    KillAtFence(DeviceId),
    KillAtQuiesce(DeviceId),
    /// Dies soon after getting ready, so many times.
    Flap(DeviceId, u32),
    /// Stopped by a signal, and continued after a while.
    Stop(DeviceId, Option<u64>),
    /// The next slot never ends; computing or sleeping.
    Hang(DeviceId, bool),
    Slow(DeviceId, u32, u64),
    Starve(DeviceId, u64),
    /// The next tokens that the device receives are wrong, and it notices.
    Corrupt(DeviceId),
    BadSlot(DeviceId, u32),
    /// So many starts fail.
    NoStart(DeviceId, u32),
    /// Neither ready nor gone after the next start.
    StuckStart(DeviceId),
    /// It gets no memory for its next roles.
    NoMemory(DeviceId, u32),
    /// Stopped for good, and it takes long to die.
    Undying(DeviceId),
    Refuse(u32),
    DiskFull(u64),
    Crash,
    AskStop,
    AskSwap,
    AskRestart(DeviceId),
    /// Asks for the next mode.
    AskMode,
    /// Sets the value.
    AskSet,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub model: Model,
    pub plans: SimPlans,
    pub tree: TreeSpec,
    pub settings: Settings,
    pub every: u64,
    pub areas: u64,
    pub slot_ns: u64,
    pub start_ns: u64,
    pub checkpoints: Option<u64>,
    /// Input tokens that are kept at most.
    pub retained: u64,
    /// Messages take up to so long; a few take 20 times as long.
    pub delay_ns: u64,
    /// When input blocks come: one every so often.
    pub input_ns: u64,
    /// When, and what.
    pub faults: Vec<(u64, Fault)>,
}

impl Scenario {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let devices = rng.u32(1..=6);
        Self::of_devices(rng, devices)
    }

    /// Several hosts, some of which are lost as a whole.
    pub(crate) fn with_hosts(rng: &mut Rng) -> Self {
        let (hosts, devices_each) = (rng.u32(2..=4), rng.u32(1..=3));
        let mut scenario = Self::of_devices(rng, hosts * devices_each);
        scenario.plans.set_hosts(hosts);
        scenario.plans.borne_hosts = rng.usize(1..hosts as usize);
        scenario.plans.essential.clear();

        let span_ns = scenario.model.blocks * scenario.slot_ns * 2 + 30 * MS;
        for _ in 0..rng.usize(1..5) {
            let host = rng.usize(0..hosts as usize);
            let at_ns = rng.u64(0..span_ns);
            scenario.faults.push((at_ns, Fault::KillHost(host)));
        }
        scenario
    }

    fn of_devices(rng: &mut Rng, devices: u32) -> Self {
        let roles = rng.usize(1..=devices as usize);
        let tokens = rng.u64(1..=3);
        let model = Model {
            seed: rng.u64(..),
            actors: devices as usize + rng.usize(0..4),
            delay: rng.usize(0..=5),
            tokens,
            blocks: rng.u64(10..160),
        };
        let ids: Vec<DeviceId> = (0..devices).map(DeviceId).collect();
        let essential = ids.iter().copied().filter(|_| rng.u32(0..5) == 0).collect();
        let borne = rng.usize(0..devices as usize);
        let (every, areas) = (rng.u64(1..=10), rng.u64(2..=3));
        let stages = devices as u64;
        let blocks_kept = (areas + 1) * every.max(stages) + 2 * stages + 2;
        let slot_ns = rng.u64(20..300) * US;
        let length_ns = model.blocks * slot_ns * 2;
        let mut scenario = Self {
            plans: SimPlans {
                devices,
                borne,
                essential,
                roles,
                hosts: Vec::new(),
                borne_hosts: 0,
            },
            tree: tree(rng, &ids),
            settings: settings(rng),
            every,
            areas,
            slot_ns,
            start_ns: rng.u64(100..20_000) * US,
            checkpoints: rng.bool().then(|| rng.u64(2..20) * MS),
            retained: blocks_kept * tokens,
            delay_ns: rng.u64(5..300) * US,
            input_ns: if rng.u32(0..4) == 0 {
                2 * slot_ns
            } else {
                slot_ns / 2
            },
            faults: Vec::new(),
            model,
        };
        let n = if rng.u32(0..12) == 0 {
            0
        } else {
            rng.usize(1..12)
        };
        let span_ns = length_ns + 30 * MS;
        scenario.faults = (0..n).map(|_| scenario.fault(rng, span_ns)).collect();
        if rng.u32(0..6) == 0 {
            // A storm.
            let device = ids[rng.usize(0..ids.len())];
            scenario
                .faults
                .push((rng.u64(0..span_ns), Fault::Flap(device, rng.u32(5..40))));
        }
        if rng.u32(0..3) == 0 {
            // Many changes of what is computed.
            let changes = (0..rng.usize(2..10)).map(|_| {
                let change = match rng.bool() {
                    true => Fault::AskMode,
                    false => Fault::AskSet,
                };
                (rng.u64(0..span_ns), change)
            });
            scenario.faults.extend(changes);
        }
        if rng.u32(0..40) == 0 {
            // Long enough for paces to be learned, for one to change for the worse, and perhaps for the better again.
            scenario.model.blocks = rng.u64(2000..5000);
            let device = ids[rng.usize(0..ids.len())];
            let fault = Fault::Slow(device, rng.u32(3..8), rng.u64(200..1000) * MS);
            scenario.faults.push((rng.u64(150..400) * MS, fault));
        }
        scenario
    }

    fn fault(&self, rng: &mut Rng, span_ns: u64) -> (u64, Fault) {
        let one = |rng: &mut Rng| DeviceId(rng.u32(0..self.plans.devices));
        let device = one(rng);
        let fault = match rng.u32(0..40) {
            0..=5 => Fault::Kill(device),
            6 => Fault::KillTwo(device, one(rng)),
            7 | 8 => Fault::KillAtFence(device),
            9 | 10 => Fault::KillAtQuiesce(device),
            11 => Fault::Flap(device, rng.u32(1..8)),
            12 => Fault::Stop(device, None),
            13..=15 => Fault::Stop(device, Some(rng.u64(100..20_000) * US)),
            16 => Fault::Hang(device, rng.bool()),
            17 => Fault::Slow(device, rng.u32(2..8), rng.u64(1..100) * MS),
            18 | 19 => Fault::Starve(device, rng.u64(1..200) * MS),
            20 => Fault::Corrupt(device),
            21 => Fault::BadSlot(device, rng.u32(1..6)),
            22 => Fault::NoStart(device, rng.u32(1..8)),
            23 => Fault::StuckStart(device),
            24 => Fault::NoMemory(device, rng.u32(1..4)),
            25 | 26 => Fault::Undying(device),
            27 => Fault::Refuse(rng.u32(1..6)),
            28 => Fault::DiskFull(rng.u64(1..50) * MS),
            29 | 30 if self.checkpoints.is_some() => Fault::Crash,
            31 => Fault::AskStop,
            32 | 33 => Fault::AskSwap,
            34 | 35 => Fault::AskMode,
            36 | 37 => Fault::AskSet,
            _ => Fault::AskRestart(device),
        };
        (rng.u64(0..span_ns), fault)
    }

    /// How long a run may take after the last fault. With feedback, a long pipeline works on a few blocks at a time.
    pub(crate) fn patience_ns(&self) -> u64 {
        let one_by_one_ns = self.model.blocks * u64::from(self.plans.devices) * self.slot_ns;
        120 * SECOND + 4 * one_by_one_ns
    }

    /// So many devices in one pipeline, with a few losses: of devices, or if they are on so many hosts, of hosts.
    pub(crate) fn large(rng: &mut Rng, devices: u32, losses: u32, hosts: u32) -> Self {
        let mut scenario = Self::new(rng);
        let (stages, every) = (u64::from(devices), u64::from(devices));
        scenario.model.actors = devices as usize;
        scenario.model.tokens = 1;
        scenario.model.blocks = 300;
        scenario.plans = SimPlans {
            devices,
            borne: losses as usize,
            essential: Vec::new(),
            roles: devices as usize,
            hosts: Vec::new(),
            borne_hosts: 0,
        };
        let mut workers_lost = losses;
        if hosts > 0 {
            scenario.plans.set_hosts(hosts);
            scenario.plans.borne_hosts = losses as usize;
            workers_lost *= devices.div_ceil(hosts);
            // As a host comes back, its devices do so one after the other.
            scenario.plans.borne = workers_lost as usize;
        }
        let ids: Vec<DeviceId> = (0..devices).map(DeviceId).collect();
        scenario.tree = tree(rng, &ids);
        scenario.tree.groups.clear();
        scenario
            .tree
            .devices
            .iter_mut()
            .for_each(|d| d.restart = Restart::Permanent);
        scenario.tree.intensity = Intensity {
            losses: 10 * workers_lost,
            period_ns: 10 * SECOND,
        };
        scenario.settings = Settings {
            futile: 1000,
            ..Settings::default()
        };
        scenario.every = every;
        scenario.slot_ns = 100 * US;
        scenario.input_ns = 50 * US;
        scenario.retained = 4 * every + 2 * stages + 2;
        scenario.checkpoints = None;
        scenario.faults = (0..losses)
            .map(|_| {
                let at_ns = rng.u64(0..200 * MS);
                let fault = match hosts {
                    0 => Fault::Kill(DeviceId(rng.u32(0..devices))),
                    _ => Fault::KillHost(rng.usize(0..scenario.plans.hosts.len())),
                };
                (at_ns, fault)
            })
            .collect();
        scenario
    }
}

fn settings(rng: &mut Rng) -> Settings {
    let mut settings = Settings {
        on_loss: if rng.u32(0..3) == 0 {
            OnLoss::Restart
        } else {
            OnLoss::Swap
        },
        start_ns: 200 * MS,
        kill_ns: rng.u64(5..100) * MS,
        seed: rng.u64(..),
        ..Settings::default()
    };
    if rng.bool() {
        settings.breaker = BreakerPolicy {
            failures: rng.u32(1..5),
            open_ns: rng.u64(1..100) * MS,
            longest_ns: SECOND,
            probes: rng.u32(1..4),
            probe_ns: rng.u64(1..20) * MS,
            ..settings.breaker
        };
    }
    if rng.bool() {
        settings.backoff = BackoffPolicy {
            base_ns: MS,
            longest_ns: 20 * MS,
            ..settings.backoff
        };
    }
    if rng.u32(0..4) == 0 {
        settings.starts = rng.u32(1..4);
        settings.retries = rng.u32(0..3);
        settings.futile = rng.u32(3..8);
    }
    settings
}

fn tree(rng: &mut Rng, devices: &[DeviceId]) -> TreeSpec {
    let strategy = |rng: &mut Rng| match rng.u32(0..4) {
        0 => Strategy::OneForAll,
        1 => Strategy::RestForOne,
        _ => Strategy::OneForOne,
    };
    let intensity = |rng: &mut Rng| {
        (rng.u32(0..3) == 0).then(|| Intensity {
            losses: rng.u32(1..6),
            period_ns: rng.u64(1..10) * SECOND,
        })
    };
    let specs = devices.iter().map(|d| DeviceSpec {
        name: format!("dev:{}", d.0),
        restart: match rng.u32(0..12) {
            0 => Restart::Temporary,
            1 => Restart::Transient,
            _ => Restart::Permanent,
        },
        intensity: intensity(rng),
    });
    let specs = specs.collect();
    let split = rng.usize(0..=devices.len());
    let groups = if rng.u32(0..3) > 0 {
        Vec::new()
    } else {
        [&devices[..split], &devices[split..]]
            .into_iter()
            .enumerate()
            .map(|(at, devices)| GroupSpec {
                name: format!("g{at}"),
                strategy: strategy(rng),
                intensity: intensity(rng),
                devices: devices.to_vec(),
            })
            .collect()
    };
    let losses = [3, 10, 1000][rng.usize(0..3)];
    TreeSpec {
        strategy: strategy(rng),
        intensity: Intensity {
            losses,
            period_ns: 10 * SECOND,
        },
        groups,
        devices: specs,
    }
}

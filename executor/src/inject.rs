//! Fault injection for tests: scripted, or random from a seed. The same seed
//! gives the same faults at the same times after the start; what they hit depends on how far the run has come.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

use crate::supervise::declare::Time;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL to the worker's process.
    Kill,
    /// SIGSTOP to the worker's process: it hangs.
    Stop,
    /// SIGSTOP, and SIGCONT 20 ms later: it is late.
    Delay,
    /// A bit of the next transfer that the worker sends is turned, if checksums are on.
    Corrupt,
    /// SIGKILL to two workers' processes at once.
    KillTwo,
    /// SIGKILL to a worker, and to another while the run recovers from that.
    KillTwice,
    /// SIGKILL to a worker, and no memory for the first of those that are to go on.
    NoMemory,
    /// The next checkpoint finds the disk full.
    FullDisk,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Delay => "delay",
            Self::Corrupt => "corrupt",
            Self::KillTwo => "kill_two",
            Self::KillTwice => "kill_twice",
            Self::NoMemory => "no_memory",
            Self::FullDisk => "full_disk",
        })
    }
}

/// Faults to bring about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename = "Inject")]
pub struct Declaration {
    /// Which kinds, in turn of a random order.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// Shortest and longest time from one to the next.
    #[serde(default = "default_every")]
    pub every: (Time, Time),
    /// For the random numbers.
    #[serde(default)]
    pub seed: u64,
    /// So many at most.
    #[serde(default)]
    pub count: Option<u64>,
    /// After so many of `kinds` without a border committed between them, the next waits for a border. Where faults come
    /// faster than the machine starts workers, a run without this limit never gets on.
    #[serde(default)]
    pub wait_for_border_after: Option<u32>,
    /// Faults at fixed times after the start.
    #[serde(default)]
    pub at: Vec<(Time, Kind)>,
    /// Wake-ups of sources that are released by the clock that are to be late. For whoever feeds sources.
    #[serde(default)]
    pub late: Vec<LateWake>,
}

/// A wake-up that is to be late: `(source: "in", piece: 20, by: "3ms")`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateWake {
    /// A source that is released by the clock.
    pub source: String,
    /// The piece that is handed over late, counted from 0.
    pub piece: u64,
    /// How late, counted from when it is due.
    pub by: Time,
}

fn default_every() -> (Time, Time) {
    (Time(50_000_000), Time(500_000_000))
}

/// How often faults that wait for a border look for it.
const BORDER_LOOK_NS: u64 = 1_000_000;

/// Says when a fault is due, and which.
#[derive(Clone, Debug)]
pub struct Injector {
    declaration: Declaration,
    random: u64,
    next_ns: Option<u64>,
    left: u64,
    /// Random faults since a border was last seen to be committed, and that border, with its epoch.
    since_border: u32,
    last_border: (u64, u64),
    /// Fixed faults still to come, the last one first.
    at: Vec<(u64, Kind)>,
    /// A second kill is due with the next fence.
    again: bool,
    again_ns: Option<u64>,
    /// The next epoch finds no memory.
    deny: bool,
}

/// A fault that is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueFault {
    kind: Kind,
    random: u64,
}

/// A fault, and whom it hits.
#[derive(Clone, Debug)]
pub(crate) struct InjectedFault {
    pub kind: Kind,
    pub devices: Vec<DeviceId>,
}

impl Injector {
    /// Faults from a declaration, counted from the start of the run.
    pub fn new(declaration: Declaration) -> Self {
        let faults_left = declaration.count.unwrap_or(u64::MAX);
        let first_random = declaration.seed ^ 0x9e37_79b9_7f4a_7c15;
        Self {
            declaration,
            random: first_random,
            next_ns: None,
            left: faults_left,
            since_border: 0,
            last_border: (0, 0),
            at: Vec::new(),
            again: false,
            again_ns: None,
            deny: false,
        }
    }

    /// The wake-ups of sources that are to be late.
    pub fn late_wakes(&self) -> &[LateWake] {
        &self.declaration.late
    }

    /// The run begins now.
    pub(crate) fn start(&mut self, now_ns: u64) {
        let fixed_faults = self
            .declaration
            .at
            .iter()
            .map(|(time, kind)| (now_ns + time.0, *kind));
        self.at = fixed_faults.collect();
        self.at.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        self.plan_next(now_ns);
    }

    /// Reads a declaration: a seed (kills every 50 to 500 ms), or `Inject(kinds: [kill, stop], seed: 7)`.
    ///
    /// # Errors
    /// Text that is neither, with the place.
    pub fn parse(text: &str) -> Result<Declaration, String> {
        if let Ok(seed) = text.trim().parse() {
            let every = default_every();
            return Ok(Declaration {
                kinds: vec![Kind::Kill],
                every,
                seed,
                count: None,
                wait_for_border_after: None,
                at: vec![],
                late: vec![],
            });
        }

        let ron_options = ron::Options::default()
            .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME);
        let declaration: Declaration = ron_options.from_str(text).map_err(|error| {
            let place = error.span.start;
            format!("line {}, column {}: {}", place.line, place.col, error.code)
        })?;

        let (min, max) = declaration.every;
        if min > max {
            return Err(format!(
                "`every` is from {min} to {max}: the first is the shorter one"
            ));
        }
        Ok(declaration)
    }

    /// splitmix64 (Steele, Lea & Flood 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn plan_next(&mut self, now_ns: u64) {
        let (Time(min), Time(max)) = self.declaration.every;
        let wait_ns = min + self.random() % (max - min).max(1);
        let has_more = self.left > 0 && !self.declaration.kinds.is_empty();
        self.next_ns = has_more.then_some(now_ns + wait_ns);
    }

    /// Whether random faults wait until the run has committed another border.
    fn waits_for_border(&self) -> bool {
        let limit = self.declaration.wait_for_border_after;
        limit.is_some_and(|limit| self.since_border >= limit)
    }

    /// An epoch has committed so many blocks. If that is news, random faults wait no more: the next one comes as long after
    /// this as after another.
    pub(crate) fn committed(&mut self, epoch: u64, blocks: u64, now_ns: u64) {
        let border = (epoch, blocks);
        if blocks == 0 || border == self.last_border {
            return;
        }
        if self.waits_for_border() {
            self.plan_next(now_ns);
        }
        self.last_border = border;
        self.since_border = 0;
    }

    /// When there is something to do next: a fault, or a look whether a border is committed.
    pub(crate) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let fixed_ns = self.at.last().map(|(ns, _)| *ns);
        let random_ns = match self.waits_for_border() {
            true => self.next_ns.map(|_| now_ns + BORDER_LOOK_NS),
            false => self.next_ns,
        };
        [random_ns, fixed_ns, self.again_ns]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn due(&mut self, now_ns: u64) -> Option<DueFault> {
        let is_due = |ns: &u64| *ns <= now_ns;
        if self.again_ns.as_ref().is_some_and(is_due) {
            self.again_ns = None;
            return Some(DueFault {
                kind: Kind::Kill,
                random: self.random(),
            });
        }

        let kind = if let Some((_, kind)) = self.at.pop_if(|(ns, _)| *ns <= now_ns) {
            kind
        } else if !self.waits_for_border() && self.next_ns.as_ref().is_some_and(is_due) {
            self.left -= 1;
            self.since_border += 1;
            self.plan_next(now_ns);
            let kind_index = self.random() % self.declaration.kinds.len() as u64;
            self.declaration.kinds[kind_index as usize]
        } else {
            return None;
        };

        self.again = kind == Kind::KillTwice;
        self.deny = kind == Kind::NoMemory;
        Some(DueFault {
            kind,
            random: self.random(),
        })
    }

    /// Whether the epoch that is being made is to find no memory.
    pub(crate) fn denies_memory(&mut self) -> bool {
        std::mem::take(&mut self.deny)
    }

    /// The run recovers from a loss just now.
    pub(crate) fn fenced(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.again) {
            self.again_ns = Some(now_ns);
        }
    }
}

impl DueFault {
    /// Chooses whom of the devices at work it hits.
    pub(crate) fn choose_targets(self, devices: &[DeviceId]) -> Option<InjectedFault> {
        let device_count = devices.len() as u64;
        let first = *devices.get((self.random % device_count.max(1)) as usize)?;
        let mut hit_devices = vec![first];
        if self.kind == Kind::KillTwo && device_count > 1 {
            let step = 1 + (self.random >> 32) % (device_count - 1);
            hit_devices
                .push(devices[((self.random % device_count + step) % device_count) as usize]);
        }
        Some(InjectedFault {
            kind: self.kind,
            devices: hit_devices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let faults = || {
            let declaration = Injector::parse("Inject(kinds: [kill, stop, kill_two], seed: 3)");
            let mut injector = Injector::new(declaration.expect("right"));
            injector.start(0);
            let devices = [DeviceId(0), DeviceId(1), DeviceId(2)];
            let mut injected = Vec::new();
            while injected.len() < 50 {
                let now_ns = injector.next_ns(0).expect("there is always another");
                let fault = injector
                    .due(now_ns)
                    .and_then(|fault| fault.choose_targets(&devices))
                    .expect("due");
                assert!(fault.devices.iter().all(|device| devices.contains(device)));
                assert_eq!(
                    fault.devices.len(),
                    if fault.kind == Kind::KillTwo { 2 } else { 1 }
                );
                injected.push((now_ns, fault.kind, fault.devices));
            }
            injected
        };
        assert_eq!(faults(), faults());
        let fault_times: Vec<u64> = faults().iter().map(|fault| fault.0).collect();
        assert!(
            fault_times
                .windows(2)
                .all(|pair| (50_000_000..500_000_000).contains(&(pair[1] - pair[0])))
        );
    }

    #[test]
    fn faults_wait_for_a_border_after_so_many_without_one() {
        let text = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), wait_for_border_after: 2)";
        let mut injector = Injector::new(Injector::parse(text).expect("right"));
        injector.start(0);
        for _ in 0..2 {
            let now_ns = injector.next_ns(0).expect("there is another");
            assert!(injector.due(now_ns).is_some());
        }
        assert!(injector.due(1_000_000_000).is_none());

        injector.committed(3, 0, 1_500_000_000);
        assert!(injector.due(1_500_000_000).is_none());
        injector.committed(3, 1, 2_000_000_000);
        let next_ns = injector.next_ns(2_000_000_000);
        let next_ns = next_ns.expect("there is another");
        assert!((2_010_000_000..2_030_000_000).contains(&next_ns));
    }

    #[test]
    fn declarations_are_a_seed_or_ron() {
        assert_eq!(Injector::parse("7").expect("a seed").seed, 7);
        let declaration = Injector::parse("Inject(at: [(\"1s\", kill_twice)])").expect("right");
        let mut injector = Injector::new(declaration);
        injector.start(5);
        assert_eq!(injector.next_ns(0), Some(1_000_000_005));
        assert_eq!(
            injector.due(1_000_000_005).expect("due").kind,
            Kind::KillTwice
        );
        injector.fenced(1_000_000_100);
        assert_eq!(
            injector.due(1_000_000_200).expect("the second").kind,
            Kind::Kill
        );
        assert_eq!(injector.next_ns(0), None);
        for (text, error) in [
            ("Inject(kinds: [explode])", "line 1, column 16"),
            (
                "Inject(every: (\"2s\", \"1s\"))",
                "the first is the shorter",
            ),
        ] {
            let message = Injector::parse(text).expect_err(text);
            assert!(message.contains(error), "{message}");
        }
    }
}

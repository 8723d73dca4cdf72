//! Supervision as people declare it, in RON; sensible where nothing is said. Must not know how it is carried out.
//!
//! ```ron
//! Supervision(
//!     intensity: 10, period: "10s",           // the run tolerates 10 losses in 10 s, the 11th ends it
//!     on_loss: swap,                          // or restart
//!     groups: {
//!         "gpus": (devices: ["cuda:0", "cuda:1"], strategy: one_for_all, intensity: 3, period: "5s"),
//!     },
//!     devices: { "cpu:1": (restart: temporary) },
//!     backoff: (base: "10ms", longest: "500ms"),
//!     breaker: (failures: 5, window: "30s"),
//!     detect: (margin: 4.0),
//! )
//! ```

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use zbmd_ir::{DeviceId, TiVec};

use super::backoff::BackoffPolicy;
use super::breaker::BreakerPolicy;
use super::detect::DetectPolicy;
pub use super::settings::OnLoss;
use super::settings::Settings;
use super::tree::{DeviceSpec, GroupSpec, Intensity, Restart, Strategy, TreeSpec};

/// Why a declaration is refused: the place, both numbers, and what would fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// It is not a declaration.
    #[error("line {line}, column {column}: {text}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        text: String,
    },
    /// A device that the machine does not have.
    #[error("{place} names device `{name}`; the machine has {known}")]
    Unknown {
        /// Where.
        place: String,
        /// What it says.
        name: String,
        /// The machine's devices.
        known: String,
    },
    /// A device with two supervisors.
    #[error("device `{device}` is in {first} and in {second}; leave it in one of them")]
    Twice {
        /// The device.
        device: String,
        /// One place.
        first: String,
        /// The other.
        second: String,
    },
    /// A period that nothing is counted in.
    #[error("{place} has a period and no intensity; say how many losses it tolerates in {period}")]
    PeriodAlone {
        /// Where.
        place: String,
        /// The period.
        period: String,
    },
    /// A number that makes no sense.
    #[error("{place} is {value}; {help}")]
    Range {
        /// Where.
        place: String,
        /// What it says.
        value: String,
        /// What would do.
        help: &'static str,
    },
}

/// A time such as "10ms", in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(pub u64);

const UNITS: [(&str, u64); 5] = [
    ("min", 60_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let syntax_error =
            || format!("`{text}` is not a time: write a number and ns, us, ms, s or min");
        let number_text = text.trim();
        let parsed_unit = UNITS
            .iter()
            .find_map(|(unit, ns)| Some((number_text.strip_suffix(unit)?, ns)));
        let (number, ns) = parsed_unit.ok_or_else(syntax_error)?;
        let number: f64 = number.trim().parse().map_err(|_| syntax_error())?;
        let total_ns = number * *ns as f64;
        // A year is beyond all use, and sums of a few of them stay far from the end of the type.
        if !(0.0..=3.2e16).contains(&total_ns) {
            return Err(format!("`{text}` is not from 0 to a year"));
        }
        Ok(Self(total_ns.round() as u64))
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        time.to_string()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |ns: &u64| self.0 >= *ns && self.0.is_multiple_of(*ns);
        let largest_unit = [UNITS[0], UNITS[4], UNITS[1], UNITS[2]]
            .into_iter()
            .find(|(_, ns)| fits(ns));
        let (unit, ns) = largest_unit.unwrap_or(UNITS[3]);
        write!(f, "{}{unit}", self.0 / ns)
    }
}

/// The whole declaration. Everything may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename = "Supervision")]
pub struct Supervision {
    /// Losses that the run tolerates in `period`; 10 if left out.
    pub intensity: Option<u32>,
    /// "10s" if left out.
    pub period: Option<Time>,
    /// What is restarted when a group gives up.
    pub strategy: Strategy,
    /// What to do first when a worker with a role is lost.
    pub on_loss: OnLoss,
    /// Devices supervised together, in order.
    #[serde(deserialize_with = "in_order")]
    pub groups: Vec<(String, Group)>,
    /// What is said of single devices.
    pub devices: BTreeMap<String, Device>,
    /// Waits before restarts.
    pub backoff: BackoffDecl,
    /// When a device is kept out.
    pub breaker: BreakerDecl,
    /// How hung and slow workers are found.
    pub detect: DetectDecl,
    /// How long a worker may take to get ready.
    pub start: Option<Time>,
    /// How long a killed worker may take to be gone.
    pub kill: Option<Time>,
    /// How long a worker may take to take up its role, after the last other one that has.
    pub join: Option<Time>,
    /// Starts in a row that may fail.
    pub starts: Option<u32>,
    /// Faults in a row that are retried with the same worker.
    pub retries: Option<u32>,
    /// Epochs in a row that may end without a border committed.
    pub futile: Option<u32>,
}

/// A group of devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    /// In order of start.
    pub devices: Vec<String>,
    /// Who is restarted with a lost device.
    pub strategy: Strategy,
    /// Losses that it tolerates itself.
    pub intensity: Option<u32>,
    /// The run's if left out.
    pub period: Option<Time>,
}

/// What is said of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Whether its worker is started again.
    pub restart: Restart,
    /// Losses that it tolerates itself.
    pub intensity: Option<u32>,
    /// The run's if left out.
    pub period: Option<Time>,
}

/// See [`BackoffPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "named as in BackoffPolicy")]
pub struct BackoffDecl {
    pub base: Option<Time>,
    pub factor: Option<f64>,
    pub longest: Option<Time>,
    pub jitter: Option<f64>,
    pub reset: Option<Time>,
}

/// See [`BreakerPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "named as in BreakerPolicy")]
pub struct BreakerDecl {
    pub failures: Option<u32>,
    pub window: Option<Time>,
    pub open: Option<Time>,
    pub longest: Option<Time>,
    pub probes: Option<u32>,
    pub probe: Option<Time>,
}

/// See [`DetectPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "named as in DetectPolicy")]
pub struct DetectDecl {
    pub look: Option<Time>,
    pub margin: Option<f64>,
    pub floor: Option<Time>,
    pub confirm: Option<Time>,
    pub slow_times: Option<f64>,
    pub slow_phi: Option<f64>,
}

/// A declaration that fits a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// For the supervisor.
    pub settings: Settings,
    /// Likewise.
    pub tree: TreeSpec,
    /// What is allowed and probably not meant.
    pub warnings: Vec<String>,
}

impl Supervision {
    /// Reads a declaration.
    ///
    /// # Errors
    /// Text that is none, with the line.
    pub fn parse(text: &str) -> Result<Self, DeclareError> {
        ron::Options::default()
            .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
            .from_str(text)
            .map_err(|error| DeclareError::Syntax {
                line: error.span.start.line,
                column: error.span.start.col,
                text: error.code.to_string(),
            })
    }

    /// Settings and tree for a machine with devices of these names, in order of id. Seed and first epoch are left at 0.
    ///
    /// # Errors
    /// Devices that are not there or in two groups; numbers that make no sense.
    pub fn resolve<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Resolved, DeclareError> {
        let device_names: Vec<&str> = names.into_iter().collect();
        let settings = self.settings()?;
        let system_intensity = Intensity {
            losses: self.intensity.unwrap_or(10),
            period_ns: self.period.map_or(10_000_000_000, |time| time.0),
        };

        // What devices and groups do not declare, they have from the system: it is checked first.
        positive("`period`", Time(system_intensity.period_ns))?;
        let mut device_specs: TiVec<DeviceId, DeviceSpec> = TiVec::new();
        for name in &device_names {
            let device_declaration = self.devices.get(*name).cloned().unwrap_or_default();
            let place = format!("device `{name}`");
            device_specs.push(DeviceSpec {
                name: (*name).to_owned(),
                restart: device_declaration.restart,
                intensity: intensity(
                    &place,
                    device_declaration.intensity,
                    device_declaration.period,
                    system_intensity,
                )?,
            });
        }

        // A declaration for a device that the machine does not have is a slip of the pen, not a default.
        for name in self.devices.keys() {
            find(&device_names, "`devices`", name)?;
        }

        let group_specs = self.groups(&device_names, system_intensity)?;
        let tree = TreeSpec {
            strategy: self.strategy,
            intensity: system_intensity,
            groups: group_specs,
            devices: device_specs,
        };

        let warnings = warnings(&settings, system_intensity);
        Ok(Resolved {
            settings,
            tree,
            warnings,
        })
    }

    fn groups(&self, names: &[&str], system: Intensity) -> Result<Vec<GroupSpec>, DeclareError> {
        let mut group_of_device: BTreeMap<DeviceId, String> = BTreeMap::new();
        let mut group_specs = Vec::with_capacity(self.groups.len());
        for (name, group) in &self.groups {
            let place = format!("group `{name}`");
            let mut device_ids = Vec::with_capacity(group.devices.len());
            for device in &group.devices {
                let id = find(names, &place, device)?;
                if let Some(first) = group_of_device.insert(id, place.clone()) {
                    return Err(DeclareError::Twice {
                        device: device.clone(),
                        first,
                        second: place,
                    });
                }
                device_ids.push(id);
            }
            group_specs.push(GroupSpec {
                name: name.clone(),
                strategy: group.strategy,
                intensity: intensity(&place, group.intensity, group.period, system)?,
                devices: device_ids,
            });
        }
        Ok(group_specs)
    }

    fn settings(&self) -> Result<Settings, DeclareError> {
        let defaults = Settings::default();
        let settings = Settings {
            on_loss: self.on_loss,
            backoff: self.backoff.resolve(defaults.backoff),
            breaker: self.breaker.resolve(defaults.breaker),
            detect: self.detect.resolve(defaults.detect),
            start_ns: ns_or(self.start, defaults.start_ns),
            kill_ns: ns_or(self.kill, defaults.kill_ns),
            join_ns: self.join.map(|time| time.0).or(defaults.join_ns),
            starts: self.starts.unwrap_or(defaults.starts),
            retries: self.retries.unwrap_or(defaults.retries),
            futile: self.futile.unwrap_or(defaults.futile),
            seed: 0,
            ..defaults
        };
        check(&settings)?;
        Ok(settings)
    }
}

fn ns_or(declared: Option<Time>, default_ns: u64) -> u64 {
    declared.map_or(default_ns, |time| time.0)
}

impl BackoffDecl {
    fn resolve(&self, default: BackoffPolicy) -> BackoffPolicy {
        BackoffPolicy {
            base_ns: ns_or(self.base, default.base_ns),
            factor: self.factor.unwrap_or(default.factor),
            longest_ns: ns_or(self.longest, default.longest_ns),
            jitter: self.jitter.unwrap_or(default.jitter),
            reset_ns: ns_or(self.reset, default.reset_ns),
        }
    }
}

impl BreakerDecl {
    fn resolve(&self, default: BreakerPolicy) -> BreakerPolicy {
        BreakerPolicy {
            failures: self.failures.unwrap_or(default.failures),
            window_ns: ns_or(self.window, default.window_ns),
            open_ns: ns_or(self.open, default.open_ns),
            longest_ns: ns_or(self.longest, default.longest_ns),
            probes: self.probes.unwrap_or(default.probes),
            probe_ns: ns_or(self.probe, default.probe_ns),
        }
    }
}

impl DetectDecl {
    fn resolve(&self, default: DetectPolicy) -> DetectPolicy {
        let look_ns = ns_or(self.look, default.look_ns);
        DetectPolicy {
            look_ns,
            margin: self.margin.unwrap_or(default.margin),
            floor_ns: ns_or(self.floor, default.floor_ns),
            confirm_ns: ns_or(self.confirm, default.confirm_ns),
            slow_times: self.slow_times.unwrap_or(default.slow_times),
            slow_phi: self.slow_phi.unwrap_or(default.slow_phi),
            // Looks that come late by less than their own distance still count in full.
            gap_ns: 2 * look_ns,
            ..default
        }
    }
}

fn check(settings: &Settings) -> Result<(), DeclareError> {
    let Settings {
        backoff,
        breaker,
        detect,
        ..
    } = settings;
    // Times of nothing would have the supervisor decide without having waited at all.
    for (place, value) in [
        ("`start`", settings.start_ns),
        ("`kill`", settings.kill_ns),
        ("`join`", settings.join_ns.unwrap_or(1)),
        ("`detect.look`", detect.look_ns),
        ("`breaker.window`", breaker.window_ns),
        ("`breaker.open`", breaker.open_ns),
    ] {
        positive(place, Time(value))?;
    }
    // Counts of 0 would be reached before anything has happened.
    for (place, value) in [
        ("`starts`", settings.starts),
        ("`futile`", settings.futile),
        ("`breaker.failures`", breaker.failures),
        ("`breaker.probes`", breaker.probes),
    ] {
        if value == 0 {
            return Err(range(place, value, "1 is the minimum"));
        }
    }
    // Factors: what is declared must not turn the rule round that it belongs to, and no sum of waits may overflow.
    for (place, value, low, high, help) in [
        (
            "`backoff.factor`",
            backoff.factor,
            1.0,
            1e6,
            "waits must not shrink: say 1.0 or more",
        ),
        (
            "`backoff.jitter`",
            backoff.jitter,
            0.0,
            1.0,
            "say a part of the wait, from 0.0 to 1.0",
        ),
        (
            "`detect.margin`",
            detect.margin,
            1.0,
            1e6,
            "a slot needs its planned time: say 1.0 or more",
        ),
        (
            "`detect.slow_times`",
            detect.slow_times,
            1.0,
            1e6,
            "slow is longer: say 1.0 or more",
        ),
        (
            "`detect.slow_phi`",
            detect.slow_phi,
            0.0,
            1e6,
            "phi is a number of digits: say 1.0 to 16.0",
        ),
    ] {
        if !(low..=high).contains(&value) {
            return Err(range(place, value, help));
        }
    }
    Ok(())
}

/// A storm must end a run: with waits so long that the intensity is never reached, it would go on for ever.
fn warnings(settings: &Settings, system: Intensity) -> Vec<String> {
    let BackoffPolicy {
        longest_ns, jitter, ..
    } = settings.backoff;
    let storm_ns = longest_ns as f64 * (1.0 + jitter) * f64::from(system.losses);
    if storm_ns < system.period_ns as f64 {
        return Vec::new();
    }
    vec![format!(
        "one device that is lost over and over never reaches the intensity: {} waits of up to {} do not fit into the period of {}; shorten `backoff.longest` or lengthen `period`",
        system.losses,
        Time(longest_ns),
        Time(system.period_ns),
    )]
}

fn range(place: &str, value: impl ToString, help: &'static str) -> DeclareError {
    DeclareError::Range {
        place: place.to_owned(),
        value: value.to_string(),
        help,
    }
}

fn positive(place: &str, time: Time) -> Result<(), DeclareError> {
    let zero = time.0 == 0;
    if zero {
        Err(range(place, time, "it must be longer than nothing"))
    } else {
        Ok(())
    }
}

fn find(names: &[&str], place: &str, name: &str) -> Result<DeviceId, DeclareError> {
    let at = names.iter().position(|n| *n == name);
    at.map(DeviceId::from).ok_or_else(|| DeclareError::Unknown {
        place: place.to_owned(),
        name: name.to_owned(),
        known: names
            .iter()
            .map(|n| format!("`{n}`"))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn intensity(
    place: &str,
    losses: Option<u32>,
    period: Option<Time>,
    system: Intensity,
) -> Result<Option<Intensity>, DeclareError> {
    match (losses, period) {
        (None, None) => Ok(None),
        (None, Some(period)) => Err(DeclareError::PeriodAlone {
            place: place.to_owned(),
            period: period.to_string(),
        }),
        (Some(losses), period) => {
            let period_ns = period.map_or(system.period_ns, |time| time.0);
            positive(&format!("the period of {place}"), Time(period_ns))?;
            Ok(Some(Intensity { losses, period_ns }))
        }
    }
}

/// A map whose order means something, and in which no key may come twice.
fn in_order<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Group)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, Group)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of groups")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs: Self::Value = Vec::new();
            while let Some((name, group)) = map.next_entry::<String, Group>()? {
                if pairs.iter().any(|(other, _)| *other == name) {
                    let text = format!("group `{name}` is declared twice");
                    return Err(serde::de::Error::custom(text));
                }
                pairs.push((name, group));
            }
            Ok(pairs)
        }
    }
    from.deserialize_map(Pairs)
}

#[cfg(test)]
#[path = "declare_tests.rs"]
mod tests;

//! Supervision as people declare it, in RON; sensible where nothing is said. Must not know how it is carried out.
//!
//! ```ron
//! Supervision(
//!     intensity: 10, period: "10s",           // the run bears 10 losses in 10 s, the 11th ends it
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

/// Why a declaration is refused: the place, both numbers, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// It is no declaration.
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
    #[error("{place} has a period and no intensity; say how many losses it bears in {period}")]
    PeriodAlone {
        /// Where.
        place: String,
        /// The period.
        period: String,
    },
    /// A number that makes no sense.
    #[error("{place} is {value}; {mend}")]
    Range {
        /// Where.
        place: String,
        /// What it says.
        value: String,
        /// What would do.
        mend: &'static str,
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
        let wrong = || format!("`{text}` is no time: write a number and ns, us, ms, s or min");
        let trimmed = text.trim();
        let unit = UNITS
            .iter()
            .find_map(|(unit, ns)| Some((trimmed.strip_suffix(unit)?, ns)));
        let (number, ns) = unit.ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let total = number * *ns as f64;
        // A year is beyond all use, and sums of a few of them stay far from the end of the type.
        if !(0.0..=3.2e16).contains(&total) {
            return Err(format!("`{text}` is not from 0 to a year"));
        }
        Ok(Self(total.round() as u64))
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
        let unit = [UNITS[0], UNITS[4], UNITS[1], UNITS[2]]
            .into_iter()
            .find(|(_, ns)| fits(ns));
        let (unit, ns) = unit.unwrap_or(UNITS[3]);
        write!(f, "{}{unit}", self.0 / ns)
    }
}

/// The whole declaration. Everything may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename = "Supervision")]
pub struct Supervision {
    /// Losses that the run bears in `period`; 10 if left out.
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
    /// How long a worker may take to take up its role.
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
    /// Losses that it bears itself.
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
    /// Losses that it bears itself.
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
        let names: Vec<&str> = names.into_iter().collect();
        let settings = self.settings()?;
        let system = Intensity {
            losses: self.intensity.unwrap_or(10),
            period_ns: self.period.map_or(10_000_000_000, |t| t.0),
        };
        positive("`period`", Time(system.period_ns))?;
        let mut devices: TiVec<DeviceId, DeviceSpec> = TiVec::new();
        for name in &names {
            let said = self.devices.get(*name).cloned().unwrap_or_default();
            let place = format!("device `{name}`");
            devices.push(DeviceSpec {
                name: (*name).to_owned(),
                restart: said.restart,
                intensity: intensity(&place, said.intensity, said.period, system)?,
            });
        }
        for name in self.devices.keys() {
            find(&names, "`devices`", name)?;
        }
        let groups = self.groups(&names, system)?;
        let tree = TreeSpec {
            strategy: self.strategy,
            intensity: system,
            groups,
            devices,
        };
        let warnings = warnings(&settings, system);
        Ok(Resolved {
            settings,
            tree,
            warnings,
        })
    }

    fn groups(&self, names: &[&str], system: Intensity) -> Result<Vec<GroupSpec>, DeclareError> {
        let mut member: BTreeMap<DeviceId, String> = BTreeMap::new();
        let mut groups = Vec::with_capacity(self.groups.len());
        for (name, group) in &self.groups {
            let place = format!("group `{name}`");
            let mut devices = Vec::with_capacity(group.devices.len());
            for device in &group.devices {
                let id = find(names, &place, device)?;
                if let Some(first) = member.insert(id, place.clone()) {
                    let (device, second) = (device.clone(), place);
                    return Err(DeclareError::Twice {
                        device,
                        first,
                        second,
                    });
                }
                devices.push(id);
            }
            groups.push(GroupSpec {
                name: name.clone(),
                strategy: group.strategy,
                intensity: intensity(&place, group.intensity, group.period, system)?,
                devices,
            });
        }
        Ok(groups)
    }

    fn settings(&self) -> Result<Settings, DeclareError> {
        let Settings {
            backoff: o,
            breaker: r,
            detect: t,
            ..
        } = Settings::default();
        let ns = |said: Option<Time>, default: u64| said.map_or(default, |time| time.0);
        let (backoff, breaker, detect) = (&self.backoff, &self.breaker, &self.detect);
        let defaults = Settings::default();
        let settings = Settings {
            on_loss: self.on_loss,
            backoff: BackoffPolicy {
                base_ns: ns(backoff.base, o.base_ns),
                factor: backoff.factor.unwrap_or(o.factor),
                longest_ns: ns(backoff.longest, o.longest_ns),
                jitter: backoff.jitter.unwrap_or(o.jitter),
                reset_ns: ns(backoff.reset, o.reset_ns),
            },
            breaker: BreakerPolicy {
                failures: breaker.failures.unwrap_or(r.failures),
                window_ns: ns(breaker.window, r.window_ns),
                open_ns: ns(breaker.open, r.open_ns),
                longest_ns: ns(breaker.longest, r.longest_ns),
                probes: breaker.probes.unwrap_or(r.probes),
                probe_ns: ns(breaker.probe, r.probe_ns),
            },
            detect: DetectPolicy {
                look_ns: ns(detect.look, t.look_ns),
                margin: detect.margin.unwrap_or(t.margin),
                floor_ns: ns(detect.floor, t.floor_ns),
                confirm_ns: ns(detect.confirm, t.confirm_ns),
                slow_times: detect.slow_times.unwrap_or(t.slow_times),
                slow_phi: detect.slow_phi.unwrap_or(t.slow_phi),
                // Looks that come late by less than their own distance still count in full.
                gap_ns: 2 * ns(detect.look, t.look_ns),
                ..t
            },
            start_ns: ns(self.start, defaults.start_ns),
            kill_ns: ns(self.kill, defaults.kill_ns),
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

fn check(settings: &Settings) -> Result<(), DeclareError> {
    let Settings {
        backoff,
        breaker,
        detect,
        ..
    } = settings;
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
    for (place, value) in [
        ("`starts`", settings.starts),
        ("`futile`", settings.futile),
        ("`breaker.failures`", breaker.failures),
        ("`breaker.probes`", breaker.probes),
    ] {
        if value == 0 {
            return Err(range(place, value, "1 is the least that has a meaning"));
        }
    }
    for (place, value, low, high, mend) in [
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
            return Err(range(place, value, mend));
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

fn range(place: &str, value: impl ToString, mend: &'static str) -> DeclareError {
    DeclareError::Range {
        place: place.to_owned(),
        value: value.to_string(),
        mend,
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

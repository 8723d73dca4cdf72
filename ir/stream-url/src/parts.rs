//! A URL's parts, and the values of keys that several schemes have.

use std::time::Duration;

use super::{Header, QueueFull, StreamAddress, Tuning, UrlError};

/// Above this no clock of ours tells two tokens apart.
const MAX_RATE: f64 = 1e12;
/// Values of the key `rate`.
pub(super) const RATE_ALLOWED: &str = "tokens a second above 0, up to 1e12";

/// A URL's parts, before any of them has a meaning.
pub(super) struct Parts<'a> {
    pub(super) scheme: &'a str,
    direction: &'static str,
    /// An address, or a path.
    pub(super) place: &'a str,
    keys: Vec<(String, String)>,
}

impl<'a> Parts<'a> {
    pub(super) fn split(
        text: &'a str,
        direction: &'static str,
        schemes: &[&str],
    ) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        if !schemes.contains(&scheme) {
            return Err(UrlError::Scheme {
                scheme: scheme.to_owned(),
                direction,
                allowed: schemes.join(", "),
            });
        }

        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let keys: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        for (index, (key, _)) in keys.iter().enumerate() {
            if keys[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(UrlError::Repeated { key: key.clone() });
            }
        }
        Ok(Self {
            scheme,
            direction,
            place,
            keys,
        })
    }

    pub(super) fn allow(&self, allowed: &[&str]) -> Result<(), UrlError> {
        let unknown = self
            .keys
            .iter()
            .find(|(key, _)| !allowed.contains(&key.as_str()));
        match unknown {
            None => Ok(()),
            Some((key, _)) => Err(UrlError::UnknownKey {
                scheme: self.scheme.to_owned(),
                key: key.clone(),
                direction: self.direction,
                allowed: allowed.join(", "),
            }),
        }
    }

    pub(super) fn address(&self) -> Result<StreamAddress, UrlError> {
        let address = self
            .place
            .strip_prefix("//")
            .ok_or_else(|| UrlError::Address {
                found: self.place.to_owned(),
            })?;
        address.parse()
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// The value of a key, if it is given.
    pub(super) fn value<T>(
        &self,
        key: &str,
        allowed: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, UrlError> {
        let Some(value) = self.text(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(meaning) => Ok(Some(meaning)),
            None => Err(UrlError::Value {
                key: key.to_owned(),
                value: value.to_owned(),
                allowed,
            }),
        }
    }

    pub(super) fn rate(&self) -> Result<Option<f64>, UrlError> {
        let read = |text: &str| {
            let rate: f64 = text.parse().ok()?;
            (rate > 0.0 && rate <= MAX_RATE).then_some(rate)
        };
        self.value("rate", RATE_ALLOWED, read)
    }

    pub(super) fn queue(&self) -> Result<Option<u64>, UrlError> {
        let read = |text: &str| text.parse().ok().filter(|tokens| *tokens > 0);
        self.value("queue", "a number of tokens from 1 on", read)
    }

    pub(super) fn full(&self) -> Result<QueueFull, UrlError> {
        let read = |text: &str| match text {
            "drop-oldest" => Some(QueueFull::DropOldest),
            "drop-newest" => Some(QueueFull::DropNewest),
            "wait" => Some(QueueFull::Wait),
            _ => None,
        };
        let full = self.value("full", "drop-oldest, drop-newest, wait", read)?;
        Ok(full.unwrap_or_default())
    }

    pub(super) fn header(&self, has_vita49: bool) -> Result<Header, UrlError> {
        let allowed = match has_vita49 {
            true => "none, seq, vita49",
            false => "none, seq",
        };
        let read = |text: &str| match text {
            "none" => Some(Header::None),
            "seq" => Some(Header::Seq),
            "vita49" if has_vita49 => Some(Header::Vita49),
            _ => None,
        };
        Ok(self.value("header", allowed, read)?.unwrap_or_default())
    }

    pub(super) fn tuning(&self) -> Result<Tuning, UrlError> {
        let read_rate = |text: &str| {
            let rate: f64 = text.parse().ok()?;
            (rate >= 1.0 && rate <= f64::from(u32::MAX)).then_some(rate)
        };
        let read_frequency = |text: &str| {
            let frequency: f64 = text.parse().ok()?;
            (frequency >= 0.0 && frequency <= f64::from(u32::MAX)).then_some(frequency as u32)
        };
        let read_gain = |text: &str| {
            if text == "auto" {
                return Some(None);
            }
            let gain: f64 = text.parse().ok()?;
            (gain.abs() <= 1000.0).then_some(Some((gain * 10.0).round() as i32))
        };
        let read_ppm = |text: &str| text.parse().ok().filter(|ppm: &i32| ppm.abs() <= 10_000);
        Ok(Tuning {
            rate: self.value("rate", "samples a second from 1 to 4294967295", read_rate)?,
            frequency_hz: self.value("freq", "Hz from 0 to 4294967295", read_frequency)?,
            gain_tenths: self.value("gain", "auto, or dB from -1000 to 1000", read_gain)?,
            ppm: self.value("ppm", "a whole number from -10000 to 10000", read_ppm)?,
        })
    }
}

/// A length of time with its unit.
pub(super) fn read_time(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit_seconds) = found?;
    let seconds = number.parse::<f64>().ok()? * unit_seconds;
    (1e-3..=3600.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

//! URLs of receivers that SoapySDR has a module for.

use super::{Parts, UrlError};

/// Keys of a `soapy` source.
pub(super) const KEYS: [&str; 4] = ["freq", "gain", "antenna", "channel"];

/// A receiver as a URL describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct SoapyReceiver {
    /// Which device, as SoapySDR reads it: `driver=rtlsdr,serial=1`.
    pub device: String,
    /// Which of its channels.
    pub channel: usize,
    /// Centre frequency.
    pub frequency_hz: Option<f64>,
    /// Gain in dB; `Some(None)` is automatic.
    pub gain_db: Option<Option<f64>>,
    /// The name of an antenna.
    pub antenna: Option<String>,
}

impl Parts<'_> {
    pub(super) fn soapy(&self) -> Result<SoapyReceiver, UrlError> {
        let read_frequency = |text: &str| {
            let hertz: f64 = text.parse().ok()?;
            (0.0..=1e12).contains(&hertz).then_some(hertz)
        };
        let read_gain = |text: &str| {
            if text == "auto" {
                return Some(None);
            }
            let db: f64 = text.parse().ok()?;
            (db.abs() <= 1000.0).then_some(Some(db))
        };
        let read_channel = |text: &str| text.parse().ok().filter(|n: &usize| *n < 1024);
        let channel = self.value("channel", "a number from 0 to 1023", read_channel)?;
        Ok(SoapyReceiver {
            device: self.place.to_owned(),
            channel: channel.unwrap_or(0),
            frequency_hz: self.value("freq", "Hz from 0 to 1e12", read_frequency)?,
            gain_db: self.value("gain", "auto, or dB from -1000 to 1000", read_gain)?,
            antenna: self.text("antenna").map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, SourceUrl};
    use super::*;

    #[test]
    fn receivers_are_read() {
        let text =
            "soapy:driver=rtlsdr,serial=1?rate=2.4e6&freq=5.8e9&gain=auto&antenna=RX2&channel=1";
        let url = SourceUrl::parse(text).expect("right");
        let receiver = SoapyReceiver {
            device: "driver=rtlsdr,serial=1".to_owned(),
            channel: 1,
            frequency_hz: Some(5.8e9),
            gain_db: Some(None),
            antenna: Some("RX2".to_owned()),
        };
        assert_eq!(url.endpoint, Endpoint::Soapy(receiver));
        assert_eq!(url.rate, Some(2.4e6));
        let error = SourceUrl::parse("soapy:?freq=-1").expect_err("below 0");
        assert!(error.to_string().contains("allowed: Hz from 0 to 1e12"));
    }
}

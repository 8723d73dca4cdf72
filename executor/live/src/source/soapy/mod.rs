//! Receivers of any kind, by way of SoapySDR. Samples have their places by the device's time stamps where it has them;
//! elsewhere an overflow is an interruption, after which time tells the index.

mod library;

use std::io;

use zbmd_ir::{DType, TokenType};

use self::library::{Received, Receiver, ReceiverSettings, SoapyLibrary};
use super::{Arrival, LiveSource};
use crate::clock::{now_ns, sleep_until};
use crate::timeline::PacketPlace;
use crate::url::SoapyReceiver;

/// Samples that are read at once.
const BUFFER_SAMPLES: usize = 16 << 10;
/// Reads before whoever waits for us has its turn.
const MAX_READS: usize = 8;
/// A device that went is looked for so often.
const RETRY_NS: u64 = 1_000_000_000;

/// Samples of a receiver.
pub(super) struct SoapySource {
    library: SoapyLibrary,
    settings: ReceiverSettings,
    receiver: Option<Receiver>,
    is_connected: bool,
    buffer: Vec<u8>,
    sample_bytes: usize,
    retry_ns: u64,
}

/// What samples are asked for as; a token is one.
fn format_of(token: &TokenType) -> Option<&'static str> {
    match (token.dtype, token.elements()) {
        (DType::C32, 1) => Some("CF32"),
        (DType::I16, 2) => Some("CS16"),
        (DType::I8, 2) => Some("CS8"),
        (DType::U8, 2) => Some("CU8"),
        _ => None,
    }
}

/// How many samples there are before a time.
fn position(time_ns: i64, rate: f64) -> i128 {
    let micro_hertz = (rate * 1e6).round() as i128;
    let samples_1e15 = i128::from(time_ns) * micro_hertz;
    (samples_1e15 + 500_000_000_000_000).div_euclid(1_000_000_000_000_000)
}

impl SoapySource {
    pub(super) fn open(url: &SoapyReceiver, token: &TokenType, rate: f64) -> io::Result<Self> {
        let Some(format) = format_of(token) else {
            return Err(io::Error::other(format!(
                "gives complex samples; the tokens are {token}: use c32, i16[2], i8[2] or u8[2]"
            )));
        };
        let settings = ReceiverSettings {
            device: url.device.clone(),
            channel: url.channel,
            rate,
            frequency_hz: url.frequency_hz,
            gain_db: url.gain_db,
            antenna: url.antenna.clone(),
            format,
        };
        let library = SoapyLibrary::load()?;
        let receiver = library.open(&settings)?;
        let sample_bytes = token.bytes() as usize;
        Ok(Self {
            library,
            settings,
            receiver: Some(receiver),
            is_connected: false,
            buffer: vec![0; BUFFER_SAMPLES * sample_bytes],
            sample_bytes,
            retry_ns: 0,
        })
    }

    /// Opens the device again if it went.
    fn connect(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if self.receiver.is_none() {
            let now = now_ns();
            if now < self.retry_ns {
                sleep_until(self.retry_ns.min(now.saturating_add(limit_ns)));
                return;
            }
            self.retry_ns = now + RETRY_NS;
            self.receiver = self.library.open(&self.settings).ok();
        }
        if let Some(receiver) = &self.receiver {
            self.is_connected = true;
            let rate = receiver.rate(self.settings.channel);
            visit(Arrival::Connected);
            visit(Arrival::SampleRate(rate));
        }
    }
}

impl LiveSource for SoapySource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if !self.is_connected {
            self.connect(limit_ns, visit);
            return;
        }
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        let mut limit_us = limit_ns / 1000;
        for _ in 0..MAX_READS {
            match receiver.read(&mut self.buffer, self.sample_bytes, limit_us) {
                Received::Samples { count, time_ns } => {
                    let to_place =
                        |time_ns| PacketPlace::Token(position(time_ns, self.settings.rate));
                    visit(Arrival::Packet {
                        place: time_ns.map_or(PacketPlace::Unknown, to_place),
                        payload: &self.buffer[..count * self.sample_bytes],
                        arrival_ns: now_ns(),
                        kernel_drops: 0,
                    });
                }
                Received::Nothing => return,
                Received::Overflow => {
                    visit(Arrival::Disconnected);
                    visit(Arrival::Connected);
                }
                Received::Lost => {
                    self.receiver = None;
                    self.is_connected = false;
                    visit(Arrival::Disconnected);
                    return;
                }
            }
            // What is there already is read, and nothing more is waited for.
            limit_us = 0;
        }
    }

    fn has_connections(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_positions() {
        // A year of nanoseconds at a rate that does not divide them.
        let year_ns = 31_557_600_000_000_000;
        assert_eq!(position(year_ns, 2.4e6), 31_557_600 * 2_400_000);
        assert_eq!(position(417, 2.4e6), 1);
        assert_eq!(position(-417, 2.4e6), -1);
    }
}

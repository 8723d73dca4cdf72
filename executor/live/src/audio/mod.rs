//! Sound cards, by way of `cpal`: ALSA on Linux, with whatever its configuration names, PipeWire and PulseAudio included.
//! Callbacks of the card only copy and resample; they wait for a lock that others hold for a copy at most.

mod input;
mod output;
mod priority;

use std::io;
use std::time::Duration;

use cpal::traits::{DeviceTrait, HostTrait};
use cpal::{BufferSize, Device, SampleFormat, StreamConfig, SupportedStreamConfigRange};

pub(crate) use self::input::AudioSource;
pub(crate) use self::output::AudioSink;

/// Names that a refusal lists.
const MAX_LISTED: usize = 12;
/// What samples are asked for as, the best first.
const FORMATS: [SampleFormat; 3] = [SampleFormat::F32, SampleFormat::I32, SampleFormat::I16];

/// Which way sound goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Input,
    Output,
}

/// A sound card and how it is to be opened.
struct OpenCard {
    device: Device,
    config: StreamConfig,
    format: SampleFormat,
}

fn failed(context: &str, error: &cpal::Error) -> io::Error {
    io::Error::other(format!("{context}: {error}"))
}

/// The device of this name, or the default one.
fn find_device(name: &str, direction: Direction) -> io::Result<Device> {
    let host = cpal::default_host();
    if name.is_empty() {
        let device = match direction {
            Direction::Input => host.default_input_device(),
            Direction::Output => host.default_output_device(),
        };
        return device.ok_or_else(|| io::Error::other("there is no default sound card"));
    }

    let devices = host.devices();
    let devices = devices.map_err(|error| failed("the sound cards cannot be listed", &error))?;
    let mut names = Vec::new();
    for device in devices {
        let is_usable = match direction {
            Direction::Input => device.supports_input(),
            Direction::Output => device.supports_output(),
        };
        let Some(id) = device.id().ok().filter(|_| is_usable) else {
            continue;
        };
        if id.id() == name {
            return Ok(device);
        }
        names.push(id.id().to_owned());
    }

    let more = match names.len() > MAX_LISTED {
        true => ", …",
        false => "",
    };
    names.truncate(MAX_LISTED);
    Err(io::Error::other(format!(
        "there is no sound card `{name}`; there are: {}{more}",
        names.join(", ")
    )))
}

impl OpenCard {
    /// Looks for a way in which a card has this rate and so many channels, and asks for blocks of about this length.
    fn new(
        name: &str,
        direction: Direction,
        rate: f64,
        channels: usize,
        block: Duration,
    ) -> io::Result<Self> {
        let device = find_device(name, direction)?;
        let opening = |error| failed("the sound card cannot be opened", &error);
        let ranges: Vec<SupportedStreamConfigRange> = match direction {
            Direction::Input => device.supported_input_configs().map_err(opening)?.collect(),
            Direction::Output => device
                .supported_output_configs()
                .map_err(opening)?
                .collect(),
        };

        let sample_rate = rate as u32;
        let is_right = |range: &SupportedStreamConfigRange| {
            let rates = range.min_sample_rate()..=range.max_sample_rate();
            f64::from(sample_rate) == rate
                && rates.contains(&sample_rate)
                && usize::from(range.channels()) == channels
        };
        let mut formats = FORMATS.into_iter();
        let of_format =
            |format| move |range: &&SupportedStreamConfigRange| range.sample_format() == format;
        let found = formats.find_map(|format| {
            let mut ranges = ranges.iter().filter(|range| is_right(range));
            ranges.find(of_format(format))
        });
        let Some(range) = found else {
            return Err(io::Error::other(format!(
                "the sound card has no {channels} channels at {rate} frames a second; it has {}",
                ranges_text(&ranges)
            )));
        };

        let wanted = (block.as_secs_f64() * rate) as u32;
        let frames = match range.buffer_size() {
            cpal::SupportedBufferSize::Range { min, max } => wanted.clamp(*min, *max),
            cpal::SupportedBufferSize::Unknown => wanted.max(1),
        };
        Ok(Self {
            device,
            config: StreamConfig {
                channels: channels as u16,
                sample_rate,
                buffer_size: BufferSize::Fixed(frames),
            },
            format: range.sample_format(),
        })
    }

    /// Frames that the card asks for or gives at once.
    fn block_frames(&self) -> u64 {
        match self.config.buffer_size {
            BufferSize::Fixed(frames) => u64::from(frames),
            BufferSize::Default => 0,
        }
    }
}

/// Which channels and rates there are, without repeats.
fn ranges_text(ranges: &[SupportedStreamConfigRange]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for range in ranges {
        let text = format!(
            "{} at {} to {}",
            range.channels(),
            range.min_sample_rate(),
            range.max_sample_rate()
        );
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.truncate(MAX_LISTED);
    match texts.is_empty() {
        true => "nothing that it tells of".to_owned(),
        false => texts.join(", "),
    }
}

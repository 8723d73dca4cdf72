//! A sound card as ALSA has it, with whatever its configuration names, PipeWire and PulseAudio included: opened for a rate
//! and a number of channels, and read or written a block at a time by a thread of its own.
//!
//! The thread sleeps until a block should be there by the card's rate and looks again. It does not `poll`: plug-ins may leave
//! their descriptors ready for a whole period (PipeWire's does), and a thread with a real-time priority must not spin.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use alsa::device_name::HintIter;
use alsa::pcm::{Access, Format, Frames, HwParams, IoFormat, PCM};
use alsa::{Direction, Output, ValueOr};

use super::priority::ThreadPriority;
use crate::clock::{now_ns, sleep_until};

/// Names that a refusal lists.
const MAX_LISTED: usize = 12;
/// Blocks that a card keeps.
const BLOCKS: usize = 4;
/// A card that is not where it should be by its rate is looked at so often: some move by steps.
const LOOK_NS: f64 = 1e6;

/// An open card.
pub(super) struct Card {
    pcm: PCM,
    direction: Direction,
    channels: usize,
    rate: f64,
    /// Frames that are read or written at once.
    block_frames: usize,
    samples: Samples,
}

/// How the card has its samples; where they are not ours, with memory for a block.
enum Samples {
    F32,
    I32(Vec<i32>),
    I16(Vec<i16>),
}

/// Why a card did not go on.
#[derive(Debug)]
pub(super) enum CardFault {
    /// It had nothing to play, or no room for what it heard, or it was suspended: [`Card::restart`] lets it go on.
    Interrupted,
    /// It is not there any more.
    Gone,
}

impl From<alsa::Error> for CardFault {
    fn from(error: alsa::Error) -> Self {
        match error.errno() {
            libc::EPIPE | libc::ESTRPIPE => Self::Interrupted,
            _ => Self::Gone,
        }
    }
}

impl Card {
    /// Opens a card, the default one if `name` is empty, for blocks of about this length.
    ///
    /// # Errors
    /// With the cards that there are, or with the rates and channels that this one has.
    pub(super) fn open(
        name: &str,
        direction: Direction,
        rate: f64,
        channels: usize,
        block: Duration,
    ) -> io::Result<Self> {
        // What ALSA says to the standard error is in the error here, as far as it helps.
        let _said = Output::local_error_handler();
        let pcm_name = if name.is_empty() { "default" } else { name };
        let pcm = PCM::new(pcm_name, direction, false)
            .map_err(|error| cannot_open(pcm_name, direction, error))?;
        let (samples, block_frames) = set_up(&pcm, rate, channels, block)?;
        Ok(Self {
            pcm,
            direction,
            channels,
            rate,
            block_frames,
            samples,
        })
    }

    /// Frames that the card keeps.
    pub(super) fn buffer_frames(&self) -> usize {
        BLOCKS * self.block_frames
    }

    /// Samples of a block, of all channels.
    pub(super) fn block_samples(&self) -> usize {
        self.block_frames * self.channels
    }

    /// Whether a block can be written or read. If not, it returns when one should be.
    pub(super) fn wait(&self) -> Result<bool, CardFault> {
        let available = self.pcm.avail()?.max(0) as usize;
        if available >= self.block_frames {
            return Ok(true);
        }
        let missing_ns = (self.block_frames - available) as f64 / self.rate * 1e9;
        sleep_until(now_ns() + missing_ns.max(LOOK_NS) as u64);
        Ok(false)
    }

    /// Plays a block. Samples beyond 1 are cut where the card has integers.
    pub(super) fn write(&mut self, block: &[f32]) -> Result<(), CardFault> {
        let Self { pcm, channels, .. } = self;
        match &mut self.samples {
            Samples::F32 => write_all(pcm, block, *channels),
            Samples::I32(samples) => {
                samples.clear();
                samples.extend(block.iter().map(|x| (f64::from(*x) * 2f64.powi(31)) as i32));
                write_all(pcm, samples, *channels)
            }
            Samples::I16(samples) => {
                samples.clear();
                samples.extend(block.iter().map(|x| (x * 2f32.powi(15)) as i16));
                write_all(pcm, samples, *channels)
            }
        }
    }

    /// Hears a block.
    pub(super) fn read(&mut self, block: &mut [f32]) -> Result<(), CardFault> {
        let Self { pcm, channels, .. } = self;
        match &mut self.samples {
            Samples::F32 => read_all(pcm, block, *channels),
            Samples::I32(samples) => {
                samples.resize(block.len(), 0);
                read_all(pcm, samples, *channels)?;
                let halves = block.iter_mut().zip(samples);
                halves.for_each(|(x, sample)| *x = (f64::from(*sample) / 2f64.powi(31)) as f32);
                Ok(())
            }
            Samples::I16(samples) => {
                samples.resize(block.len(), 0);
                read_all(pcm, samples, *channels)?;
                let halves = block.iter_mut().zip(samples);
                halves.for_each(|(x, sample)| *x = f32::from(*sample) / 2f32.powi(15));
                Ok(())
            }
        }
    }

    /// Lets the card begin to hear. One that plays begins by itself.
    pub(super) fn start(&self) -> Result<(), CardFault> {
        match self.direction {
            Direction::Capture => Ok(self.pcm.start()?),
            Direction::Playback => Ok(()),
        }
    }

    /// Lets an interrupted card go on.
    pub(super) fn restart(&self) -> Result<(), CardFault> {
        self.pcm.prepare()?;
        self.start()
    }
}

fn write_all<S: IoFormat>(pcm: &PCM, mut samples: &[S], channels: usize) -> Result<(), CardFault> {
    let io = pcm.io_checked()?;
    while !samples.is_empty() {
        let frames = io.writei(samples)?;
        samples = &samples[frames * channels..];
    }
    Ok(())
}

fn read_all<S: IoFormat>(
    pcm: &PCM,
    mut samples: &mut [S],
    channels: usize,
) -> Result<(), CardFault> {
    let io = pcm.io_checked()?;
    while !samples.is_empty() {
        let frames = io.readi(samples)?;
        samples = &mut samples[frames * channels..];
    }
    Ok(())
}

/// Sets a card up for a rate, channels and blocks of about this length: how it has its samples, and the frames of a block.
fn set_up(pcm: &PCM, rate: f64, channels: usize, block: Duration) -> io::Result<(Samples, usize)> {
    let failed = |error| io::Error::other(format!("the sound card cannot be opened: {error}"));
    let hardware = HwParams::any(pcm).map_err(failed)?;
    if !set_layout(&hardware, rate, channels) {
        return Err(io::Error::other(format!(
            "the sound card has no {channels} channels at {rate} frames a second; it has {}",
            layouts_text(pcm)
        )));
    }
    let samples = set_format(&hardware).map_err(failed)?;

    let wanted_frames = (block.as_secs_f64() * rate).max(1.0) as usize;
    let set_blocks = || {
        hardware.set_buffer_size_near((BLOCKS * wanted_frames) as Frames)?;
        hardware.set_period_size_near(wanted_frames as Frames, ValueOr::Nearest)?;
        pcm.hw_params(&hardware)?;
        hardware.get_buffer_size()
    };
    let buffer_frames = set_blocks().map_err(failed)? as usize;
    let block_frames = (buffer_frames / BLOCKS).max(1);

    // A card that plays begins when it is full.
    let set_start = || {
        let software = pcm.sw_params_current()?;
        software.set_start_threshold((BLOCKS * block_frames) as Frames)?;
        pcm.sw_params(&software)
    };
    set_start().map_err(failed)?;
    Ok((samples, block_frames))
}

/// Whether the card has so many channels at this rate; then it is set to them.
fn set_layout(hardware: &HwParams<'_>, rate: f64, channels: usize) -> bool {
    let set = || {
        hardware.set_access(Access::RWInterleaved)?;
        hardware.set_channels(channels as u32)?;
        hardware.set_rate(rate as u32, ValueOr::Nearest)?;
        hardware.get_rate()
    };
    set().is_ok_and(|set_rate| f64::from(set_rate) == rate)
}

/// Sets the best format of samples that the card has.
fn set_format(hardware: &HwParams<'_>) -> alsa::Result<Samples> {
    if hardware.set_format(Format::float()).is_ok() {
        return Ok(Samples::F32);
    }
    if hardware.set_format(Format::s32()).is_ok() {
        return Ok(Samples::I32(Vec::new()));
    }
    hardware.set_format(Format::s16())?;
    Ok(Samples::I16(Vec::new()))
}

/// Which channels and rates a card has.
fn layouts_text(pcm: &PCM) -> String {
    let text = |least: u32, most: u32| match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    };
    let ranges = || {
        let hardware = HwParams::any(pcm)?;
        let channels = text(hardware.get_channels_min()?, hardware.get_channels_max()?);
        let rates = text(hardware.get_rate_min()?, hardware.get_rate_max()?);
        Ok::<_, alsa::Error>(format!("{channels} at {rates}"))
    };
    ranges().unwrap_or_else(|_| "nothing that it tells of".to_owned())
}

fn cannot_open(name: &str, direction: Direction, error: alsa::Error) -> io::Error {
    if error.errno() != libc::ENOENT {
        return io::Error::other(format!("the sound card `{name}` cannot be opened: {error}"));
    }
    let hints = HintIter::new_str(None, "pcm").into_iter().flatten();
    let is_usable =
        |hint: &alsa::device_name::Hint| hint.direction.is_none_or(|usable| usable == direction);
    let mut names: Vec<String> = hints
        .filter(is_usable)
        .filter_map(|hint| hint.name)
        .collect();
    let more = match names.len() > MAX_LISTED {
        true => ", …",
        false => "",
    };
    names.truncate(MAX_LISTED);
    io::Error::other(format!(
        "there is no sound card `{name}`; there are: {}{more}",
        names.join(", ")
    ))
}

/// The thread that serves a card, until this is dropped.
pub(super) struct CardThread {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CardThread {
    /// Starts it with the priority of the calling thread, which is at the other end of its queue: so in a real-time run
    /// neither waits for ordinary work. `serve` ends once the flag is set, after a block at the latest.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(
        name: &str,
        serve: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let priority = ThreadPriority::of_caller();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                priority.give_to_caller();
                serve(&flag);
            })?;
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for CardThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of it has said what it was.
            let _ = thread.join();
        }
    }
}

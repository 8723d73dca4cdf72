//! `zbmd-run probe`: what a channel of a run that is on carries.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use zbmd_ir::text::printable;

use super::ask::{BUSY_LIMIT, BUSY_PAUSE, Failure, RunConnection, code_of, show};
use super::message::{ChannelState, RefusalKind, Reply, Request};
use crate::block_figures::{BlockStats, Spectrum, spectrum_of};
use crate::exit;
use crate::io::{PreparedSink, SinkFile, port_of};
use crate::top::the_only_run;

/// The strongest oscillations that are shown.
const PEAKS: usize = 8;

/// Which channel, of which run, and what of it.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The run's process, which may be left out where one run is on; then the actor that writes the channel, with
    /// `.PORT` where it has several outputs. Without one, the channels are listed.
    #[arg(value_name = "[PID] CHANNEL", num_args = 0..=2)]
    words: Vec<String>,
    /// Say the extremes, the mean and the power of each block, which is what is said without an option.
    #[arg(long)]
    stats: bool,
    /// Say at what the blocks oscillate: the mean of their spectra, by a Hann window.
    #[arg(long, conflicts_with = "stats")]
    fft: bool,
    /// Write the tokens to a file, in a format by its extension, as `zbmd-run --output` does.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stats", "fft"])]
    output: Option<PathBuf>,
    /// Blocks to look at.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
}

/// Looks at a channel, or lists them; the exit code.
pub(crate) fn probe(args: &ProbeArgs) -> u8 {
    let (pid, name) = read_words(&args.words);
    let pid = match pid {
        Some(pid) => Ok(pid),
        None => the_only_run().map_err(|(code, text)| Failure::new(code, text)),
    };
    let shown = pid.and_then(|pid| match name {
        None => list(pid),
        Some(name) => look(args, pid, name),
    });
    show(shown)
}

/// The process, if the first word is one and not the only one, or there is no other; and the channel.
fn read_words(words: &[String]) -> (Option<u32>, Option<&str>) {
    let pid = words.first().and_then(|word| word.parse().ok());
    let name = words.get(usize::from(pid.is_some()));
    (pid, name.map(String::as_str))
}

fn list(pid: u32) -> Result<String, Failure> {
    match RunConnection::open(pid)?.ask(&Request::Channels)? {
        Reply::Channels(channels) => Ok(channels.iter().map(channel_line).collect()),
        Reply::Refused { kind, text } => Err(Failure::new(code_of(kind), text)),
        _ => Err(Failure::unasked()),
    }
}

fn channel_line(channel: &ChannelState) -> String {
    let ChannelState {
        name,
        token,
        block_tokens,
        device,
        sample_rate,
    } = channel;
    let name = printable(name);
    let rate = sample_rate.map_or_else(String::new, |rate| format!(", {rate} a second"));
    format!(
        "{name}   {token}, {block_tokens} in a block{rate}, on {}\n",
        printable(device)
    )
}

/// Connects to a run and looks at a channel, again for a while where somebody else does.
fn attach(pid: u32, name: &str) -> Result<(RunConnection, ChannelState), Failure> {
    let busy_until = std::time::Instant::now() + BUSY_LIMIT;
    let request = Request::Probe(name.to_owned());
    loop {
        let mut run = RunConnection::open(pid)?;
        match run.ask(&request)? {
            Reply::Probing(channel) => return Ok((run, channel)),
            Reply::Refused {
                kind: RefusalKind::Busy,
                ..
            } if std::time::Instant::now() < busy_until => std::thread::sleep(BUSY_PAUSE),
            Reply::Refused { kind, text } => return Err(Failure::new(code_of(kind), text)),
            _ => return Err(Failure::unasked()),
        }
    }
}

/// What is made of the blocks.
enum Look {
    Stats(String),
    Fft { sum: Option<Spectrum> },
    Output { sink: SinkFile, path: PathBuf },
}

fn look(args: &ProbeArgs, pid: u32, name: &str) -> Result<String, Failure> {
    let (mut run, channel) = attach(pid, name)?;
    let mut look = begin(args, &channel)?;
    let mut count = 0;
    let mut left_out = 0;
    let mut next_iteration = None;
    while count < args.count {
        let (iteration, iterations, length) = match run.ask(&Request::NextBlock)? {
            Reply::NoBlock => continue,
            Reply::Block {
                iteration,
                iterations,
                bytes,
            } => (iteration, iterations, bytes),
            // What it has had to its end is shown.
            Reply::Refused {
                kind: RefusalKind::Ended,
                ..
            } if count > 0 => break,
            Reply::Refused { kind, text } => return Err(Failure::new(code_of(kind), text)),
            _ => return Err(Failure::unasked()),
        };
        let bytes = run.read_bytes(length)?;
        let expected = next_iteration.replace(iteration + iterations);
        left_out += iteration - expected.unwrap_or(iteration);
        add_block(&mut look, &channel, (iteration, iterations), &bytes)?;
        count += 1;
    }

    let mut text = end(look, &channel, count)?;
    if left_out > 0 {
        let _ = writeln!(
            text,
            "{left_out} iterations between these blocks were left out: they come faster than they are read"
        );
    }
    Ok(text)
}

fn begin(args: &ProbeArgs, channel: &ChannelState) -> Result<Look, Failure> {
    if args.fft {
        return Ok(Look::Fft { sum: None });
    }
    let Some(path) = &args.output else {
        return Ok(Look::Stats(String::new()));
    };
    let port = port_of(&channel.token);
    let sink = PreparedSink::open(path, port).and_then(PreparedSink::begin);
    let sink = sink.map_err(|error| Failure::new(exit::FILE, error.to_string()))?;
    Ok(Look::Output {
        sink,
        path: path.clone(),
    })
}

fn add_block(
    look: &mut Look,
    channel: &ChannelState,
    (iteration, iterations): (u64, u64),
    bytes: &[u8],
) -> Result<(), Failure> {
    match look {
        Look::Stats(text) => {
            let stats = BlockStats::of(channel.token.dtype, bytes);
            let place = format!("{iteration}..{}", iteration + iterations);
            let _ = writeln!(text, "{place:<20} {}", stats_text(&stats));
        }
        Look::Fft { sum } => {
            let spectrum = spectrum_of(&channel.token, bytes);
            let spectrum = spectrum.map_err(|why| Failure::new(exit::REFUSED, why))?;
            match sum {
                // The last block of a run may be shorter.
                Some(sum) if sum.powers.len() == spectrum.powers.len() => {
                    let parts = sum.powers.iter_mut().zip(&spectrum.powers);
                    parts.for_each(|(sum, power)| *sum += power);
                }
                Some(_) => {}
                None => *sum = Some(spectrum),
            }
        }
        Look::Output { sink, path } => sink.write_tokens(bytes).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            Failure::new(exit::FILE, text)
        })?,
    }
    Ok(())
}

fn end(look: Look, channel: &ChannelState, count: u64) -> Result<String, Failure> {
    match look {
        Look::Stats(text) => Ok(text),
        Look::Fft { sum } => {
            Ok(sum.map_or_else(String::new, |sum| peaks_text(&sum, channel, count)))
        }
        Look::Output { mut sink, path } => {
            let synced = sink.sync();
            synced.map_err(|error| {
                let text = format!("{}: {error}", path.display());
                Failure::new(exit::FILE, text)
            })?;
            Ok(String::new())
        }
    }
}

fn stats_text(stats: &BlockStats) -> String {
    let BlockStats {
        min,
        max,
        mean,
        rms,
        non_finite,
    } = stats;
    let mean = match mean {
        (re, 0.0) => format!("{re:.6}"),
        (re, im) => format!("{re:.6}{im:+.6}i"),
    };
    let mut text = format!("min {min:.6}   max {max:.6}   mean {mean}   rms {rms:.6}");
    if *non_finite > 0 {
        let _ = write!(text, "   {non_finite} not finite");
    }
    text
}

/// The strongest local maxima, and the median of all.
fn peaks_text(sum: &Spectrum, channel: &ChannelState, count: u64) -> String {
    let powers: Vec<f64> = sum
        .powers
        .iter()
        .map(|power| power / count as f64)
        .collect();
    let is_peak = |bin: &usize| {
        let beside = |other: Option<usize>| other.and_then(|other| powers.get(other)).copied();
        let below = beside(bin.checked_sub(1)).is_none_or(|power| power < powers[*bin]);
        below && beside(Some(bin + 1)).is_none_or(|power| power <= powers[*bin])
    };
    let mut peaks: Vec<usize> = (0..powers.len()).filter(is_peak).collect();
    peaks.sort_by(|a, b| powers[*b].total_cmp(&powers[*a]));

    let mut text = String::new();
    for bin in peaks.into_iter().take(PEAKS) {
        let frequency = sum.first + bin as f64 * sum.step;
        let place = match element_rate(channel) {
            Some(rate) => format!("{:.3} Hz", frequency * rate),
            None => format!("{frequency:.6} of the sample rate"),
        };
        let _ = writeln!(text, "{place:>24}   {:>7.1} dB", decibels(powers[bin]));
    }
    let mut sorted = powers;
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let _ = writeln!(text, "{:>24}   {:>7.1} dB", "median", decibels(median));
    text
}

/// Elements a second.
fn element_rate(channel: &ChannelState) -> Option<f64> {
    let elements: u64 = channel
        .token
        .shape
        .iter()
        .map(|size| u64::from(*size))
        .product();
    Some(channel.sample_rate? * elements as f64)
}

fn decibels(power: f64) -> f64 {
    10.0 * power.max(1e-30).log10()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::{DType, TokenType};

    fn channel(sample_rate: Option<f64>) -> ChannelState {
        ChannelState {
            name: "scale".to_owned(),
            token: TokenType::scalar(DType::C32),
            block_tokens: 4,
            device: "cpu:0".to_owned(),
            sample_rate,
        }
    }

    #[test]
    fn peaks_are_shown_by_strength_and_with_their_frequency() {
        let sum = Spectrum {
            first: -0.5,
            step: 0.125,
            powers: vec![2e-6, 2e-6, 2.0, 2e-6, 2e-6, 2e-2, 2e-6, 2e-6],
        };
        let text = peaks_text(&sum, &channel(Some(48000.0)), 2);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert_eq!(lines[0], "-12000.000 Hz       0.0 dB");
        assert_eq!(lines[1], "6000.000 Hz     -20.0 dB");
        assert_eq!(lines.last(), Some(&"median     -60.0 dB"));
        let text = peaks_text(&sum, &channel(None), 2);
        assert!(text.contains("-0.250000 of the sample rate"), "{text}");
    }

    #[test]
    fn channels_are_listed_with_their_tokens() {
        assert_eq!(
            channel_line(&channel(Some(48000.0))),
            "scale   c32, 4 in a block, 48000 a second, on cpu:0\n"
        );
    }
}

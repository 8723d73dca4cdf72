//! The clock bridge on a simulated clock: a day with clocks that disagree, what it does to a sine, and a replay.

use std::f64::consts::TAU;
use std::time::Duration;

use zbmd_live::bridge::{
    BridgeAction, BridgeControl, BridgeRecord, BridgeSettings, ClockBridge, ClockFollowing,
    Increment, ONE_FRAME, RecordReader, RecordWriter, Resampler,
};

const RATE: f64 = 48e3;
const TARGET: Duration = Duration::from_millis(25);
const OFFSETS_PPM: [f64; 5] = [-500.0, -100.0, 0.0, 100.0, 500.0];
/// Of the resampler's filter at equal rates.
const HALF_TAPS: u64 = 32;

fn settings() -> BridgeSettings {
    BridgeSettings {
        source_rate: RATE,
        sink_rate: RATE,
        target: TARGET,
        following: ClockFollowing::Source,
    }
}

/// A generator of numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Blocks on one clock, each handed over late by a time of its own.
struct BlockClock {
    rate: f64,
    frames: u64,
    done: u64,
    max_late_ns: f64,
    random: Random,
    next_ns: f64,
    paused_ns: f64,
}

impl BlockClock {
    fn new(ppm: f64, frames: u64, max_late_ns: f64, seed: u64) -> Self {
        let mut clock = Self {
            rate: RATE * (1.0 + ppm * 1e-6),
            frames,
            done: 0,
            max_late_ns,
            random: Random(seed),
            next_ns: 0.0,
            paused_ns: 0.0,
        };
        clock.advance();
        clock
    }

    /// Stands still for so long.
    fn pause(&mut self, pause_ns: f64) {
        self.next_ns += pause_ns;
        self.paused_ns += pause_ns;
    }

    /// When the last frame of the next block is there, and then its lateness.
    fn advance(&mut self) {
        self.done += self.frames;
        let due_ns = self.done as f64 / self.rate * 1e9 + self.paused_ns;
        self.next_ns = due_ns + self.random.fraction() * self.max_late_ns;
    }
}

/// Whatever the bridge asks of either side, in the order of time.
struct Simulation {
    source: BlockClock,
    sink: BlockClock,
}

enum Event {
    Write { now_ns: f64, frames: u64 },
    Read { now_ns: f64, frames: u64 },
}

impl Simulation {
    /// The source is off by `ppm`; it hands over blocks of 10 ms up to 2 ms late, the sink asks up to 1 ms late.
    fn new(ppm: f64) -> Self {
        Self {
            source: BlockClock::new(ppm, 480, 2e6, 7),
            sink: BlockClock::new(0.0, 256, 1e6, 11),
        }
    }

    fn next(&mut self) -> Event {
        let is_source = self.source.next_ns <= self.sink.next_ns;
        let clock = if is_source {
            &mut self.source
        } else {
            &mut self.sink
        };
        let now_ns = clock.next_ns;
        let frames = clock.frames;
        clock.advance();
        match is_source {
            true => Event::Write { now_ns, frames },
            false => Event::Read { now_ns, frames },
        }
    }

    /// Frames that the source's clock has counted when the sink asks, blocks and lateness aside.
    fn sourced(&self, reads: u64) -> f64 {
        let sink_s = (reads * self.sink.frames) as f64 / self.sink.rate;
        let mean_late_s = (self.sink.max_late_ns - self.source.max_late_ns) / 2.0 / 1e9;
        (sink_s + mean_late_s) * self.source.rate
    }
}

/// Runs a control for so long; the largest difference of its queue from the target after `settled_s`, in seconds.
fn largest_error_s(
    mut simulation: Simulation,
    target: Duration,
    seconds: f64,
    settled_s: f64,
) -> f64 {
    let ppm = (simulation.source.rate / RATE - 1.0) * 1e6;
    let mut settings = settings();
    settings.target = target;
    let mut control = BridgeControl::new(settings, HALF_TAPS);
    // A card's whole buffer is asked for before it begins to play.
    for _ in 0..2 {
        control.read(0, simulation.sink.frames);
    }
    let mut reads = 0;
    let mut largest = 0.0f64;
    loop {
        match simulation.next() {
            Event::Write { now_ns, frames } => {
                let action = control.written(now_ns as u64, frames);
                assert_eq!(action, None, "{ppm} ppm: an overrun");
            }
            Event::Read { now_ns, frames } => {
                // The sink asks when a block of its was played.
                reads += 1;
                let before = control.position();
                let has_played = control.counts().played > 0;
                let actions = control.read(now_ns as u64, frames);
                let filled = actions.iter().flatten().map(BridgeAction::output_frames);
                assert_eq!(filled.sum::<u64>(), frames);

                let now_s = now_ns / 1e9;
                if has_played && now_s > settled_s {
                    let level_s = (simulation.sourced(reads) - before) / RATE;
                    largest = largest.max((level_s - target.as_secs_f64()).abs());
                }
                if now_s > seconds {
                    break;
                }
            }
        }
    }
    let counts = control.counts();
    assert_eq!(
        (counts.underruns, counts.overruns, counts.skipped),
        (0, 0, 0),
        "{ppm} ppm: {counts:?}"
    );
    assert!((control.correction() * 1e6 - ppm).abs() < 50.0, "{ppm} ppm");
    largest
}

#[test]
fn the_queue_is_at_its_target_from_the_start() {
    for ppm in OFFSETS_PPM {
        // A card with a large buffer, which it asks for at once.
        let mut simulation = Simulation::new(ppm);
        simulation.sink = BlockClock::new(0.0, 1200, 1e6, 11);
        let error_s = largest_error_s(simulation, Duration::from_millis(100), 60.0, 0.5);
        println!("{ppm} ppm: at most {:.3} ms from the target", error_s * 1e3);
        assert!(error_s < 2e-3, "{ppm} ppm: {error_s} s");
    }
}

#[test]
fn a_card_that_runs_dry_again_and_again_changes_no_ratio() {
    let mut simulation = Simulation::new(100.0);
    let mut control = BridgeControl::new(settings(), HALF_TAPS);
    let mut reads = 0;
    let mut overruns = 0;
    loop {
        match simulation.next() {
            Event::Write { now_ns, frames } => {
                let action = control.written(now_ns as u64, frames);
                overruns += u64::from(action.is_some());
            }
            Event::Read { now_ns, frames } => {
                // Three times a second, the card stands still for 30 ms, and then asks for its buffer at once.
                if reads > 0 && reads % 64 == 0 {
                    control.sink_restarted();
                    control.read(now_ns as u64, frames);
                }
                control.read(now_ns as u64, frames);
                reads += 1;
                if reads % 64 == 0 {
                    simulation.sink.pause(30e6);
                }
                if now_ns > 60e9 {
                    break;
                }
            }
        }
    }
    let counts = control.counts();
    assert_eq!((counts.underruns, overruns), (0, 0), "{counts:?}");
    assert!(
        control.correction().abs() < 500e-6,
        "{}",
        control.correction()
    );
    assert!(
        (control.level_s() - TARGET.as_secs_f64()).abs() < 3e-3,
        "{}",
        control.level_s()
    );
    // 30 ms less one block, 180 times.
    assert!(counts.skipped > 180 * 48 * 20, "{counts:?}");
}

#[test]
fn a_day_with_clocks_that_disagree_has_neither_underrun_nor_overrun() {
    const DAY_S: f64 = 24.0 * 3600.0;
    std::thread::scope(|scope| {
        for ppm in OFFSETS_PPM {
            scope.spawn(move || {
                let error_s = largest_error_s(Simulation::new(ppm), TARGET, DAY_S, 30.0);
                println!("{ppm} ppm: at most {:.3} ms from the target", error_s * 1e3);
                assert!(error_s < 1e-3, "{ppm} ppm: {error_s} s");
            });
        }
    });
}

/// All of a sine that is not the sine, in dB: least squares of a sine, a cosine and a constant are removed.
fn thd_n_db(samples: &[f32], cycles_per_frame: f64) -> f64 {
    let basis = |index: usize| {
        let angle = TAU * ((cycles_per_frame * index as f64).fract());
        [angle.sin(), angle.cos(), 1.0]
    };
    let mut matrix = [[0.0f64; 4]; 3];
    for (index, sample) in samples.iter().enumerate() {
        let values = basis(index);
        for row in 0..3 {
            for column in 0..3 {
                matrix[row][column] += values[row] * values[column];
            }
            matrix[row][3] += values[row] * f64::from(*sample);
        }
    }
    // Gauss and Jordan; the diagonal is far larger than the rest.
    for pivot in 0..3 {
        let pivot_row = matrix[pivot];
        for (row, values) in matrix.iter_mut().enumerate() {
            if row != pivot {
                let factor = values[pivot] / pivot_row[pivot];
                for column in 0..4 {
                    values[column] -= factor * pivot_row[column];
                }
            }
        }
    }
    let fit = [0, 1, 2].map(|row| matrix[row][3] / matrix[row][row]);

    let mut signal = 0.0;
    let mut rest = 0.0;
    for (index, sample) in samples.iter().enumerate() {
        let values = basis(index);
        let sine = fit[0] * values[0] + fit[1] * values[1];
        signal += sine * sine;
        rest += (f64::from(*sample) - sine).powi(2);
    }
    10.0 * (rest / signal).log10()
}

/// A sine in both channels, the second of them at another phase, through a resampler.
fn resampled_sine(
    hertz: f64,
    source_rate: f64,
    sink_rate: f64,
    increment: Increment,
) -> [Vec<f32>; 2] {
    const FRAMES: usize = 96_000;
    let mut resampler = Resampler::new(source_rate, sink_rate, 2);
    let needed = (FRAMES as f64 * increment as f64 / ONE_FRAME as f64) as usize + 1000;
    let sample = |index: usize, phase: f64| {
        let turns = (hertz / source_rate * index as f64).fract();
        (0.9 * (TAU * (turns + phase)).sin()) as f32
    };
    let input: Vec<f32> = (0..needed)
        .flat_map(|index| [sample(index, 0.0), sample(index, 0.3)])
        .collect();
    // In pieces of odd sizes, as they come.
    let mut output = Vec::new();
    for piece in input.chunks(2 * 1237) {
        resampler.write(piece);
        let frames = resampler.available(increment);
        let begin = output.len();
        output.resize(begin + 2 * frames as usize, 0.0);
        resampler.apply(
            BridgeAction::Play { frames, increment },
            &mut output[begin..],
        );
    }
    assert!(output.len() >= 2 * FRAMES);
    [0, 1].map(|channel| {
        let channel = output.iter().skip(2 * 200 + channel).step_by(2);
        channel.take(FRAMES - 400).copied().collect()
    })
}

fn increment(ratio: f64) -> Increment {
    (ratio * ONE_FRAME as f64).round() as Increment
}

#[test]
fn a_sine_stays_a_sine() {
    for ppm in OFFSETS_PPM {
        for hertz in [997.0, 10_007.0, 19_997.0] {
            let increment = increment(1.0 + ppm * 1e-6);
            let cycles = hertz / RATE * increment as f64 / ONE_FRAME as f64;
            for samples in resampled_sine(hertz, RATE, RATE, increment) {
                let measured = thd_n_db(&samples, cycles);
                println!("{hertz} Hz, {ppm} ppm: {measured:.1} dB");
                assert!(measured <= -100.0, "{hertz} Hz, {ppm} ppm: {measured} dB");
            }
        }
    }
}

#[test]
fn rates_may_differ_by_more_than_clocks_do() {
    for (source_rate, sink_rate) in [(44.1e3, 48e3), (48e3, 44.1e3), (96e3, 48e3), (32e3, 192e3)] {
        let increment = increment(source_rate / sink_rate);
        let cycles = 997.0 / source_rate * increment as f64 / ONE_FRAME as f64;
        for samples in resampled_sine(997.0, source_rate, sink_rate, increment) {
            let measured = thd_n_db(&samples, cycles);
            assert!(
                measured <= -100.0,
                "{source_rate} to {sink_rate}: {measured} dB"
            );
        }
    }
    // What the lower rate cannot have is not heard as something else.
    for samples in resampled_sine(28e3, 96e3, 48e3, increment(2.0)) {
        let loudest = samples.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        assert!(loudest < 1e-5, "{loudest}");
    }
}

/// Ten seconds of noise through a bridge whose source stands still once, and once gives everything at once.
fn noise_through_a_bridge() -> (Vec<f32>, Vec<f32>, String) {
    let mut simulation = Simulation::new(300.0);
    let mut bridge = ClockBridge::new(settings(), 2, true);
    let mut random = Random(5);
    let mut input = Vec::new();
    let mut output = Vec::new();
    let mut late = Vec::new();
    let mut actions = Vec::new();
    loop {
        match simulation.next() {
            Event::Write { now_ns, frames } => {
                let samples = (0..2 * frames).map(|_| random.fraction() as f32 - 0.5);
                late.extend(samples);
                // For a tenth of a second nothing comes, and nothing after the end.
                let is_still = (4.0..4.1).contains(&(now_ns / 1e9));
                if !is_still && !bridge.control().has_ended() {
                    bridge.write(now_ns as u64, &late);
                    input.append(&mut late);
                }
            }
            Event::Read { now_ns, frames } => {
                let begin = output.len();
                output.resize(begin + 2 * frames as usize, f32::NAN);
                bridge.read(now_ns as u64, &mut output[begin..]);
                bridge.take_actions(&mut actions);
                if now_ns > 10e9 {
                    bridge.finish();
                }
                if bridge.control().is_drained() {
                    break;
                }
            }
        }
    }
    let counts = bridge.control().counts();
    assert_eq!(counts.underruns, 1, "{counts:?}");
    assert!(counts.skipped > 0 && counts.silent > 0, "{counts:?}");
    assert_eq!(counts.silent + counts.played, output.len() as u64 / 2);

    let record = BridgeRecord {
        source_rate: RATE,
        sink_rate: RATE,
        channels: 2,
    };
    let mut text = Vec::new();
    let mut writer = RecordWriter::new(&mut text, record).expect("memory");
    for action in actions {
        writer.add(action).expect("memory");
    }
    writer.finish().expect("memory");
    (input, output, String::from_utf8(text).expect("a text"))
}

#[test]
fn a_replay_by_the_record_gives_the_same_bits() {
    let (input, output, text) = noise_through_a_bridge();
    let mut record = RecordReader::new(text.as_bytes()).expect("a record");
    let mut resampler = Resampler::new(RATE, RATE, 2);
    // All at once, and not as it came.
    resampler.write(&input);
    resampler.write_tail();
    let mut replayed = Vec::new();
    while let Some(action) = record.next_action().expect("right") {
        let begin = replayed.len();
        replayed.resize(begin + 2 * action.output_frames() as usize, f32::NAN);
        resampler.apply(action, &mut replayed[begin..]);
    }
    let bits = |samples: &[f32]| samples.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    assert!(bits(&replayed) == bits(&output));
    // The record is short: a line for each change of the ratio, ten in a second.
    assert!(text.lines().count() < 130, "{} lines", text.lines().count());
}

#[test]
fn a_source_without_a_clock_is_played_to_its_last_frame() {
    let mut nominal = settings();
    nominal.following = ClockFollowing::Nominal;
    let mut bridge = ClockBridge::new(nominal, 1, false);
    let given: Vec<f32> = (0..48_000)
        .map(|n| ((n * 7919) % 1000) as f32 / 1000.0)
        .collect();
    let mut left = &given[..];
    let mut output = Vec::new();
    let mut now_ns = 0;
    while !bridge.control().is_drained() {
        while bridge.control().has_room() && !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(300));
            bridge.write(now_ns, now);
            left = later;
        }
        if left.is_empty() {
            bridge.finish();
        }
        let begin = output.len();
        output.resize(begin + 256, f32::NAN);
        bridge.read(now_ns, &mut output[begin..]);
        now_ns += 5_333_333;
    }
    let counts = bridge.control().counts();
    assert_eq!((counts.underruns, counts.skipped), (0, 0), "{counts:?}");
    // At an increment of one frame the filter is a delta at its own position.
    let first = output.iter().position(|x| *x != 0.0).expect("not silent") - 1;
    for (frame, sample) in given.iter().enumerate() {
        assert!(
            (output[first + frame] - sample).abs() < 1e-4,
            "frame {frame}"
        );
    }
}

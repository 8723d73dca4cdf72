//! The actor `vad.segment`: from speech probabilities to segments of speech as lines of text.
//!
//! A segment begins with a frame of probability 0.5 or more and ends with the first of four frames in a row below
//! 0.35, so that a breath does not cut a sentence. What it knows of the past is a token on a channel: frames so far,
//! the frame in which the segment began (−1 outside of one), frames of silence in a row.

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{CustomActor, Registry, Signature};
use zbmd_ir::{DType, InPort, OutPort, TokenType};

/// Name under which models call the actor.
const NAME: &str = "vad.segment";
/// Probability from which on speech begins, and below which it may end.
const BEGIN: f32 = 0.5;
const END: f32 = 0.35;
/// Frames of silence that end a segment.
const SILENCE: i64 = 4;
/// Seconds of a frame: 512 samples at 16 kHz.
const FRAME_SECONDS: f64 = 0.032;
/// Bytes of a record: a line, then zeros.
const RECORD: usize = 32;

/// The actor.
pub struct Segment;

/// Adds the actor to a registry.
pub fn register(registry: &mut Registry) {
    registry.register(NAME, |_| Ok(Segment));
}

/// The lines in a sink's records.
pub fn lines(records: &[u8]) -> String {
    records
        .iter()
        .copied()
        .filter(|&b| b != 0)
        .map(char::from)
        .collect()
}

/// Audio that ends the last segment: silence for one frame more than it takes, rounded up to whole frames of
/// `hop` samples.
pub fn silence(samples: usize, hop: usize) -> usize {
    samples.next_multiple_of(hop) - samples + (SILENCE as usize + 2) * hop
}

fn step(run: &mut [i64; 3], probability: f32, record: &mut [u8]) {
    record.fill(0);
    let [frames, begin, quiet] = run;
    if *begin < 0 {
        if probability >= BEGIN {
            *begin = *frames;
            *quiet = 0;
        }
    } else if probability < END {
        *quiet += 1;
        if *quiet == SILENCE {
            // The segment ends where the silence began, `SILENCE` frames ago with this one.
            let end = *frames + 1 - SILENCE;
            let line = format_line(*begin as f64 * FRAME_SECONDS, end as f64 * FRAME_SECONDS);
            record.copy_from_slice(&line);
            *begin = -1;
            *quiet = 0;
        }
    } else {
        *quiet = 0;
    }
    *frames += 1;
}

/// `begin end` in seconds, without allocation.
fn format_line(begin: f64, end: f64) -> [u8; RECORD] {
    let mut line = [0; RECORD];
    let mut rest: &mut [u8] = &mut line;
    // A number of seconds that does not fit is cut; it would be longer than the age of the universe.
    let _ = std::io::Write::write_fmt(&mut rest, format_args!("{begin:.3} {end:.3}\n"));
    line
}

impl Kernel for Segment {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let probabilities = io.input::<f32>(0);
        let before = io.input::<i64>(1);
        let after = io.output::<i64>(0);
        let text = io.output::<u8>(1);

        let firings = probabilities.iter().zip(before.as_chunks::<3>().0);
        let outputs = after
            .as_chunks_mut::<3>()
            .0
            .iter_mut()
            .zip(text.chunks_exact_mut(RECORD));
        for ((&probability, before), (after, record)) in firings.zip(outputs) {
            *after = *before;
            step(after, probability, record);
        }
        Ok(())
    }
}

impl CustomActor for Segment {
    fn ports(&self) -> Signature {
        let run = TokenType::new(DType::I64, [3]);
        let input = |name: &str, token: TokenType| InPort {
            name: name.to_owned(),
            token,
            rate: 1,
            window: 1,
        };
        let output = |name: &str, token: TokenType| OutPort {
            name: name.to_owned(),
            token,
            rate: 1,
        };
        Signature {
            inputs: vec![
                input("prob", TokenType::new(DType::F32, [1, 1])),
                input("run", run.clone()),
            ],
            outputs: vec![
                output("run", run),
                output("text", TokenType::new(DType::U8, [RECORD as u32])),
            ],
            states: Vec::new(),
        }
    }
}

//! The actor `adsb.decode`: from magnitudes and a preamble score to Mode S frames with a clean checksum.
//!
//! Knows nothing of files, calendars or devices: it is a pure function of its windows, as every actor is. A frame is
//! a preamble of 16 samples (2 MS/s: 8 us) and 56 or 112 bits of two samples each; a bit is 1 where the first half
//! is the stronger one. Only formats whose parity is not overlaid with an unknown address can be checked: DF 11
//! (interrogator 0), 17 and 18.
//!
//! The transponder's clock is not ours, so a sample may straddle two half bits and lend its neighbour energy. The
//! slicer therefore tries a frame three times: as it is; from the first bit on, with each bit's first half weighed
//! by the bit before (the receiver samples early); and from the last bit back, with each bit's second half weighed
//! by the bit after (it samples late). The checksum tells which was right.

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::burst::BurstWriter;
use zbmd_backends::op::{CustomActor, OpError, Registry, Signature, Work};
use zbmd_ir::burst::BurstLayout;
use zbmd_ir::{DType, InPort, OutPort, Params, TokenType, Value};

/// Name under which models call the actor.
const NAME: &str = "adsb.decode";
/// Samples of new data in one firing: about a millisecond.
const HOP: usize = 2048;
/// Samples of preamble.
const PREAMBLE: usize = 16;
/// Bits of a long and of a short frame.
const LONG_BITS: usize = 112;
const SHORT_BITS: usize = 56;
/// Samples that a start in the hop may need beyond it: a whole long frame, rounded up.
const LOOKAHEAD: usize = 256;
/// Bursts of one firing, one for each frame. Frames do not overlap and take at least 128 samples, so there are never more.
const FRAMES: usize = HOP / (PREAMBLE + 2 * SHORT_BITS);
/// Bits that say the format of a frame.
const FORMAT_BITS: usize = 5;
/// Generator of the Mode S checksum without its leading term (ICAO Annex 10, volume IV, 3.1.2.3.3).
const POLYNOMIAL: u32 = 0xff_f409;
/// Remainders of all bytes.
const REMAINDERS: [u32; 256] = remainders();
/// Scores that are looked at together: those that are worth a try are few.
const SCANNED: usize = 32;

/// The actor. `tilt` is the weight of the neighbouring bit in the two corrected attempts.
pub struct Decode {
    tilt: f32,
    layout: BurstLayout,
}

/// A frame that was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Index of the sample with which its preamble begins.
    pub sample: i64,
    /// Its 7 or 14 bytes, in hex.
    pub hex: String,
}

/// Adds the actor to a registry.
pub fn register(registry: &mut Registry) {
    registry.register(NAME, Decode::new);
}

/// Silence to append to `bytes` of u8 I/Q: it pushes the last samples through the decoder's window and completes the
/// last iteration.
pub fn silence(bytes: usize) -> Vec<u8> {
    let samples = bytes / 2;
    let padded = (samples + LOOKAHEAD).next_multiple_of(HOP);
    // 127 and 128 by turns, because 127.5 is what stands for 0.
    [127, 128].repeat(padded - samples)
}

/// The type of the bursts: a frame has up to 14 bytes.
pub fn frame_token() -> TokenType {
    TokenType::burst(DType::U8, [LONG_BITS as u32 / 8])
}

/// The frames in a sink's tokens.
pub fn frames(tokens: &[u8]) -> Vec<Heard> {
    let bursts = frame_layout().read_all(tokens);
    bursts
        .map(|burst| burst.expect("an actor writes no burst beyond its maximum"))
        .filter(|burst| burst.length > 0)
        .map(|burst| Heard {
            sample: burst.first,
            hex: burst
                .items
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        })
        .collect()
}

fn frame_layout() -> BurstLayout {
    BurstLayout::of(&frame_token()).expect("the type is one of bursts")
}

impl Decode {
    /// The actor for a model's `params: {"tilt": 1.5}`.
    ///
    /// # Errors
    /// [`OpError::Param`] where `tilt` is not a number of at least 1.
    fn new(params: &Params) -> Result<Self, OpError> {
        match params.get("tilt").map_or(Some(1.5), Value::as_float) {
            Some(tilt) if (1.0..=4.0).contains(&tilt) => Ok(Self {
                tilt: tilt as f32,
                layout: frame_layout(),
            }),
            _ => Err(OpError::Param {
                name: "tilt".to_owned(),
                message: "is no number between 1 and 4".to_owned(),
                help: "1.5 is good for 2 samples a bit".to_owned(),
            }),
        }
    }

    /// Looks for frames that start in the hop; how many. `gate[i]` above 0 says that a preamble ends at sample i.
    fn hop(&self, magnitude: &[f32], gate: &[f32], frames: &mut BurstWriter<'_>) -> usize {
        let gate = &gate[PREAMBLE - 1..][..HOP];
        let mut found = 0;
        let mut start = 0;
        while let Some(passed) = first_positive(&gate[start.min(HOP)..]) {
            start += passed;
            let samples = &magnitude[start + PREAMBLE..][..2 * LONG_BITS];
            let Some((frame, length)) = self.attempts(samples) else {
                start += 1;
                continue;
            };
            if found < FRAMES {
                frames.write(start as i64, &frame[..length]);
                found += 1;
            }
            start += PREAMBLE + 16 * length;
        }
        found
    }

    /// A clean frame and its length in bytes, from the samples behind a preamble.
    fn attempts(&self, samples: &[f32]) -> Option<([u8; 14], usize)> {
        forward(samples, 1.0)
            .and_then(|frame| clean(&frame))
            .or_else(|| forward(samples, self.tilt).and_then(|frame| clean(&frame)))
            .or_else(|| self.backward_attempt(samples))
            .or_else(|| self.backward_attempt(&samples[..2 * SHORT_BITS]))
    }

    /// An attempt from the last bit back, if it would give a format with a plain checksum.
    fn backward_attempt(&self, samples: &[f32]) -> Option<([u8; 14], usize)> {
        length(&backward_format(samples, self.tilt))?;
        clean(&backward(samples, self.tilt))
    }
}

/// The place of the first score above 0.
fn first_positive(scores: &[f32]) -> Option<usize> {
    // Most groups have none: that is found without a branch for each score.
    let is_wanted = |group: &[f32]| group.iter().fold(false, |any, &score| any | (score > 0.0));
    let group = scores.chunks(SCANNED).position(is_wanted)?;
    let before = group * SCANNED;
    let in_group = scores[before..].iter().position(|&score| score > 0.0)?;
    Some(before + in_group)
}

/// Slices from the first bit on; after a 1 the next first half counts `tilt` times as much, else as much less. `None`
/// once the format shows to be one without a plain checksum: so most starts cost five bits here.
fn forward(samples: &[f32], tilt: f32) -> Option<[u8; 14]> {
    let mut frame = [0; 14];
    let mut weight = 1.0;
    for (bit, pair) in samples.chunks_exact(2).enumerate() {
        let one = pair[0] * weight > pair[1];
        frame[bit / 8] |= u8::from(one) << (7 - bit % 8);
        if bit == FORMAT_BITS - 1 {
            length(&frame)?;
        }
        weight = if one { tilt } else { tilt.recip() };
    }
    Some(frame)
}

/// Slices from the last bit back; before a 1 the second half counts `tilt` times less, else as much more.
fn backward(samples: &[f32], tilt: f32) -> [u8; 14] {
    let mut frame = [0; 14];
    let mut weight = 1.0;
    for (bit, pair) in samples.chunks_exact(2).enumerate().rev() {
        let one = pair[0] > pair[1] * weight;
        frame[bit / 8] |= u8::from(one) << (7 - bit % 8);
        weight = if one { tilt.recip() } else { tilt };
    }
    frame
}

/// [`backward`] of the shortest beginning of a frame that gives the bits of its format: it ends with a bit that is the same
/// whatever the bit behind it is, and then also where it is the last one.
fn backward_format(samples: &[f32], tilt: f32) -> [u8; 14] {
    let is_settled =
        |pair: &[f32]| (pair[0] > pair[1] * tilt) == (pair[0] > pair[1] * tilt.recip());
    let mut behind_format = samples.chunks_exact(2).skip(FORMAT_BITS - 1);
    let settled = behind_format.position(is_settled);
    let end = settled.map_or(samples.len(), |passed| 2 * (FORMAT_BITS + passed));
    backward(&samples[..end], tilt)
}

/// Bytes of a frame whose format, in its first five bits, has a plain checksum.
fn length(frame: &[u8; 14]) -> Option<usize> {
    match frame[0] >> 3 {
        11 => Some(SHORT_BITS / 8),
        17 | 18 => Some(LONG_BITS / 8),
        _ => None,
    }
}

/// The frame and its length, if its format has a plain checksum and that is right.
fn clean(frame: &[u8; 14]) -> Option<([u8; 14], usize)> {
    let length = length(frame)?;
    (checksum(&frame[..length]) == 0).then_some((*frame, length))
}

/// Remainder of the frame, parity included, by the generator: 0 for a clean one.
fn checksum(frame: &[u8]) -> u32 {
    frame.iter().fold(0, |remainder, &byte| {
        let first = (remainder >> 16) as u8 ^ byte;
        (remainder << 8) & 0xff_ffff ^ REMAINDERS[first as usize]
    })
}

/// The remainder of each byte, shifted in bit by bit.
const fn remainders() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = (byte as u32) << 16;
        let mut bit = 0;
        while bit < 8 {
            let is_subtracted = remainder & 0x80_0000 != 0;
            remainder = (remainder << 1) & 0xff_ffff;
            if is_subtracted {
                remainder ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

impl Kernel for Decode {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (gate, magnitude) = (io.input::<f32>(0), io.input::<f32>(1));
        let mut frames = io.burst_writer(0, &self.layout);
        for firing in 0..io.firings() {
            let window = firing * HOP..firing * HOP + HOP + LOOKAHEAD;
            let found = self.hop(&magnitude[window.clone()], &gate[window], &mut frames);
            frames.write_empty(FRAMES - found);
        }
        Ok(())
    }
}

impl CustomActor for Decode {
    fn ports(&self) -> Signature {
        let samples = |name: &str| InPort {
            name: name.to_owned(),
            token: TokenType::scalar(DType::F32),
            rate: HOP as u64,
            window: (HOP + LOOKAHEAD) as u64,
        };
        let frames = OutPort {
            name: "frames".to_owned(),
            token: frame_token(),
            rate: FRAMES as u64,
        };
        Signature {
            // In the order of their names, as models declare them.
            inputs: vec![samples("gate"), samples("magnitude")],
            outputs: vec![frames],
            states: vec![],
        }
    }

    fn work(&self) -> Option<Work> {
        // In noise one start in five passes the gate and costs four slicings, of which one in eleven is longer than the
        // bits of the format. A bit is decided after its neighbour, which takes as long as some fifteen operations on wide
        // vectors.
        let sliced_bits = 4 * (FORMAT_BITS + 1) + 4 * LONG_BITS / 11;
        let flops = (HOP / 5 * sliced_bits * 15) as f64;
        Some(Work {
            flops,
            bytes: (HOP * 8 + FRAMES * self.layout.token_bytes) as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_look_back_gives_the_format_of_the_long_one() {
        let mut state = 1u32;
        let mut sample = || {
            // Numerical Recipes' generator; equal neighbours are common.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 29) as f32
        };
        for _ in 0..20_000 {
            let samples: Vec<f32> = (0..2 * LONG_BITS).map(|_| sample()).collect();
            for samples in [&samples[..], &samples[..2 * SHORT_BITS]] {
                let format = |frame: [u8; 14]| frame[0] >> (8 - FORMAT_BITS);
                let expect = format(backward(samples, 1.5));
                assert_eq!(format(backward_format(samples, 1.5)), expect);
            }
        }
    }

    #[test]
    fn the_checksum_divides_by_the_generator() {
        // A frame of DF 17 (ICAO Annex 10's format), off the air.
        let frame = [
            0x8d, 0x48, 0x40, 0xd6, 0x20, 0x2c, 0xc3, 0x71, 0xc3, 0x2c, 0xe0, 0x57, 0x60, 0x98,
        ];
        assert_eq!(checksum(&frame), 0);
        for bit in 0..8 * frame.len() {
            let mut damaged = frame;
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            assert_ne!(checksum(&damaged), 0, "bit {bit}");
        }
    }

    #[test]
    fn the_first_positive_score_is_found_wherever_it_is() {
        for place in 0..100 {
            let mut scores = [-1.0; 100];
            scores[99] = 1.0;
            scores[place] = 0.5;
            assert_eq!(first_positive(&scores), Some(place));
        }
        assert_eq!(first_positive(&[0.0, -0.0, f32::NAN]), None);
        assert_eq!(first_positive(&[]), None);
    }
}

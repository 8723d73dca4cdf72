//! The actor `adsb.decode`: from magnitudes and a preamble score to Mode S frames with a clean checksum.
//!
//! Knows nothing of files, calendars or devices: it is a pure function of its windows, as every actor is. A frame is
//! a preamble of 16 samples (2 MS/s: 8 us) and 56 or 112 bits of two samples each; a bit is 1 where the first half
//! is the stronger one. Only formats whose parity is not overlaid with an unknown address can be checked: DF 17 and 18, and
//! DF 11, whose parity is overlaid with a short code of who asked.
//!
//! The transponder's clock is not ours, so a sample may straddle two half bits and lend its neighbour energy. The
//! slicer therefore tries a frame three times: as it is; from the first bit on, with each bit's first half weighed
//! by the bit before (the receiver samples early); and from the last bit back, with each bit's second half weighed
//! by the bit after (it samples late). The checksum tells which was right.
//!
//! slice.rs slices: it compares all halves of a window once, and has the bits of a frame from these with a few operations
//! on words.

#[path = "slice.rs"]
mod slice;

use std::collections::BTreeSet;

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::burst::BurstWriter;
use zbmd_backends::op::{CustomActor, OpError, Registry, Signature, Work};
use zbmd_ir::burst::BurstLayout;
use zbmd_ir::{DType, InPort, OutPort, Params, TokenType, Value};

use self::slice::{Frame, LONG_BITS, PREAMBLE, SHORT_BITS, Slicer, WINDOW_SAMPLES, packed};

/// Name under which models call the actor.
const NAME: &str = "adsb.decode";
/// Samples of new data in one firing: about a millisecond.
const HOP: usize = 2048;
/// Samples that a start in the hop may need beyond it: a whole long frame, rounded up.
const LOOKAHEAD: usize = WINDOW_SAMPLES - HOP;
/// Bursts of one firing, one for each frame. Frames do not overlap and take at least 128 samples, so there are never more.
const FRAMES: usize = HOP / (PREAMBLE + 2 * SHORT_BITS);
/// Generator of the Mode S checksum without its leading term (ICAO Annex 10, volume IV, 3.1.2.3.3).
const POLYNOMIAL: u32 = 0xff_f409;
/// `REMAINDERS[n][byte]` is the remainder of a byte with `n` bytes of zeros behind it.
static REMAINDERS: [[u32; 256]; LONG_BITS / 8] = remainders();
/// Replies to all calls (DF 11) have their parity overlaid with a code of who called: 4 bits of one of five sets.
const INTERROGATORS: u32 = 80;
/// Formats with a plain checksum.
const FORMATS: [u8; 3] = [11, 17, 18];
/// Samples whose starts are looked at together.
const GROUP: usize = 128;

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

/// Reads the tokens of a sink.
///
/// A DF 11 with a code in its parity has less of a checksum: it counts where a clean frame told of its aircraft before.
#[derive(Debug, Default)]
pub struct Listener {
    addresses: BTreeSet<[u8; 3]>,
}

impl Listener {
    /// The frames in the sink's next tokens.
    pub fn frames(&mut self, tokens: &[u8]) -> Vec<Heard> {
        let layout = frame_layout();
        let mut frames = Vec::new();
        for burst in layout.read_all(tokens) {
            let burst = burst.expect("an actor writes no burst beyond its maximum");
            let &[_, a, b, c, ..] = burst.items else {
                continue;
            };
            let is_clean = checksum(burst.items) == 0;
            if is_clean {
                self.addresses.insert([a, b, c]);
            }
            if is_clean || self.addresses.contains(&[a, b, c]) {
                let hex = burst.items.iter().map(|byte| format!("{byte:02x}"));
                frames.push(Heard {
                    sample: burst.first,
                    hex: hex.collect(),
                });
            }
        }
        frames
    }
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
        let slicer = Slicer::new(magnitude, self.tilt);
        let gate = &gate[PREAMBLE - 1..][..HOP];
        let mut found = 0;
        // The first sample behind the last frame: frames do not overlap.
        let mut free = 0;
        for (group, scores) in gate.as_chunks::<GROUP>().0.iter().enumerate() {
            for start in Starts::new(&slicer, group * GROUP, scores) {
                if start < free {
                    continue;
                }
                let Some((frame, length)) = attempts(&slicer, start) else {
                    continue;
                };
                if found < FRAMES {
                    frames.write(start as i64, &frame[..length]);
                    found += 1;
                }
                free = start + PREAMBLE + 16 * length;
            }
        }
        found
    }
}

/// Starts that are worth an attempt, of a group of samples: where the gate is open and the bits can be those of a format with
/// a plain checksum.
struct Starts {
    first: usize,
    /// A bit for each of the group's even samples, and of its odd ones.
    even: u64,
    odd: u64,
}

impl Starts {
    fn new(slicer: &Slicer, first: usize, scores: &[f32; GROUP]) -> Self {
        let halves = scores.as_chunks::<64>().0.iter();
        let open = halves.map(|half| packed(&half.map(|score| score > 0.0)));
        let open = open
            .rev()
            .fold(0, |open, half| open << 64 | u128::from(half));
        let even = even_bits(open) & slicer.starts_of(&FORMATS, 0, first / 2);
        let odd = even_bits(open >> 1) & slicer.starts_of(&FORMATS, 1, first / 2);
        Self { first, even, odd }
    }
}

impl Iterator for Starts {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let even = 2 * self.even.trailing_zeros() as usize;
        let odd = 2 * self.odd.trailing_zeros() as usize + 1;
        if even.min(odd) >= GROUP {
            return None;
        }
        let next = if even < odd {
            &mut self.even
        } else {
            &mut self.odd
        };
        *next &= *next - 1;
        Some(self.first + even.min(odd))
    }
}

/// Every second bit, from the lowest one on.
fn even_bits(bits: u128) -> u64 {
    // Ones, twos, fours and so on of bits, with gaps of the same length between them, move together.
    const KEPT: [u128; 7] = [
        u128::MAX / 0x3,
        u128::MAX / 0x5,
        u128::MAX / 0x11,
        u128::MAX / 0x101,
        u128::MAX / 0x1_0001,
        u128::MAX / 0x1_0000_0001,
        u128::MAX >> 64,
    ];
    let together = |bits: u128, step: usize| (bits | bits >> (1 << step >> 1)) & KEPT[step];
    (0..KEPT.len()).fold(bits, together) as u64
}

/// A clean frame behind a preamble that begins at `start`, and its length in bytes.
fn attempts(slicer: &Slicer, start: usize) -> Option<(Frame, usize)> {
    clean(slicer.plain(start))
        .or_else(|| clean(slicer.forward(start)))
        .or_else(|| clean(slicer.backward(start, LONG_BITS)))
        .or_else(|| clean(slicer.backward(start, SHORT_BITS)))
}

/// The frame and its length in bytes, if its format, in its first five bits, has a plain checksum and that is right.
fn clean(frame: Frame) -> Option<(Frame, usize)> {
    let (length, remainders) = match frame[0] >> 3 {
        11 => (SHORT_BITS / 8, INTERROGATORS),
        17 | 18 => (LONG_BITS / 8, 1),
        _ => return None,
    };
    (checksum(&frame[..length]) < remainders).then_some((frame, length))
}

/// Remainder of the frame, parity included, by the generator: 0 for a clean one.
fn checksum(frame: &[u8]) -> u32 {
    // The division is linear: each byte has its part whatever the others are, so none waits for another.
    let parts = frame.iter().rev().zip(&REMAINDERS);
    parts.fold(0, |remainder, (&byte, of_byte)| {
        remainder ^ of_byte[byte as usize]
    })
}

const fn remainders() -> [[u32; 256]; LONG_BITS / 8] {
    let mut table = [[0; 256]; LONG_BITS / 8];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut behind = 0;
        while behind < LONG_BITS / 8 {
            table[behind][byte] = remainder;
            let mut bit = 0;
            while bit < 8 {
                let is_subtracted = remainder & 0x80_0000 != 0;
                remainder = (remainder << 1) & 0xff_ffff;
                if is_subtracted {
                    remainder ^= POLYNOMIAL;
                }
                bit += 1;
            }
            behind += 1;
        }
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
        // Each sample is weighed and compared five times, and each comparison packed into a word. What is sliced is little.
        const OPERATIONS: usize = 30;
        Some(Work {
            flops: (HOP * OPERATIONS) as f64,
            bytes: (HOP * 8 + FRAMES * self.layout.token_bytes) as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_second_bit_is_kept() {
        for bit in 0..128 {
            let expected = if bit % 2 == 0 { 1 << (bit / 2) } else { 0 };
            assert_eq!(even_bits(1 << bit), expected, "{bit}");
        }
        assert_eq!(even_bits(u128::MAX), u64::MAX);
    }
}

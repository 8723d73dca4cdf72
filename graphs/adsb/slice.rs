//! Slices Mode S frames at any start of a window of magnitudes.
//!
//! A bit is two samples, its halves, and 1 where the first is the stronger one. Where a neighbouring bit is weighed in, there
//! are two comparisons of a bit's halves, one for each value of the neighbour. Both are made once for all pairs of samples of
//! a window and kept as words of flags, 64 pairs each: those that begin at even samples apart from those at odd ones, so
//! that the bits of a frame lie side by side.
//!
//! From these flags a frame is sliced by an addition. A bit is 1 if it is 1 after a 0, or if it is 1 after a 1 and the bit
//! before is 1. That is how a carry goes through a sum: made where both terms have a 1, passed on where one of them has. So
//! the carries of the sum of both rows of flags are the frame's bits.

use std::array::from_fn;

/// Samples of a window, of which a start may lie in the first 2048.
pub(super) const WINDOW_SAMPLES: usize = 2304;
/// Samples of a preamble.
pub(super) const PREAMBLE: usize = 16;
/// Bits of a long and of a short frame.
pub(super) const LONG_BITS: usize = 112;
pub(super) const SHORT_BITS: usize = 56;
/// Bits that say the format of a frame.
const FORMAT_BITS: usize = 5;

/// The bits of a frame, the first one on top of the first byte; those behind its end are 0.
pub(super) type Frame = [u8; LONG_BITS / 8];

/// Pairs of a window that begin at samples of one parity.
const PAIRS: usize = WINDOW_SAMPLES / 2;
/// Words of their flags, and two of zeros so that 128 flags can be read from any of them.
const WORDS: usize = PAIRS / 64 + 2;

/// Flags of pairs, the first one in the lowest bit.
#[derive(Clone)]
struct Flags([u64; WORDS]);

/// What a bit is by a neighbour. Magnitudes are not negative, so a bit that is 1 beside a 0 is 1 beside a 1 too.
#[derive(Clone)]
struct Weighed {
    beside_one: Flags,
    beside_zero: Flags,
}

/// The comparisons of all pairs that begin at samples of one parity.
struct Pairs {
    plain: Flags,
    /// By the bit before.
    forward: Weighed,
    /// By the bit behind.
    backward: Weighed,
}

/// The comparisons of all pairs of a window.
pub(super) struct Slicer {
    /// By the parity of the sample with which they begin.
    pairs: [Pairs; 2],
}

impl Slicer {
    /// Compares the halves in a window of [`WINDOW_SAMPLES`] magnitudes. `tilt`, at least 1, is the weight of a
    /// neighbouring bit.
    pub(super) fn new(magnitude: &[f32], tilt: f32) -> Self {
        let even: [f32; PAIRS] = from_fn(|pair| magnitude[2 * pair]);
        let odd: [f32; PAIRS] = from_fn(|pair| magnitude[2 * pair + 1]);
        // The last pair of odd ones would end behind the window. No frame has it.
        let next_even: [f32; PAIRS] = from_fn(|pair| even[(pair + 1).min(PAIRS - 1)]);
        Self {
            pairs: [
                Pairs::new(&even, &odd, tilt),
                Pairs::new(&odd, &next_even, tilt),
            ],
        }
    }

    /// Which of 64 starts may give a frame of one of the formats: those at the samples `2 * pair + parity` for the pairs from
    /// `first_pair` on. All that do are among them.
    pub(super) fn starts_of(&self, formats: &[u8], parity: usize, first_pair: usize) -> u64 {
        let behind_preamble = first_pair + PREAMBLE / 2;
        let pairs = &self.pairs[parity];
        formats
            .iter()
            .map(|&format| pairs.starts_of(format, behind_preamble))
            .fold(0, |all, starts| all | starts)
    }

    /// The frame behind a preamble that begins at sample `start`, each bit by its own halves.
    pub(super) fn plain(&self, start: usize) -> Frame {
        let (pairs, first_pair) = self.behind_preamble(start);
        frame(pairs.plain.from(first_pair))
    }

    /// The same; after a 1 a first half counts `tilt` times as much, else as much less.
    pub(super) fn forward(&self, start: usize) -> Frame {
        let (pairs, first_pair) = self.behind_preamble(start);
        let plain = pairs.plain.from(first_pair);
        let beside_one = pairs.forward.beside_one.from(first_pair);
        let beside_zero = pairs.forward.beside_zero.from(first_pair);
        frame(chain(plain, beside_one, beside_zero))
    }

    /// The same from the last of `bits` bits back; before a 1 a second half counts `tilt` times less, else as much more.
    pub(super) fn backward(&self, start: usize, bits: usize) -> Frame {
        let (pairs, first_pair) = self.behind_preamble(start);
        let reversed = |flags: &Flags| (flags.from(first_pair) << (128 - bits)).reverse_bits();
        let plain = reversed(&pairs.plain);
        let beside_one = reversed(&pairs.backward.beside_one);
        let beside_zero = reversed(&pairs.backward.beside_zero);
        let from_the_last = chain(plain, beside_one, beside_zero);
        frame(from_the_last.reverse_bits() >> (128 - bits))
    }

    /// The pairs that a frame of this start has, and the first of them.
    fn behind_preamble(&self, start: usize) -> (&Pairs, usize) {
        (&self.pairs[start % 2], (start + PREAMBLE) / 2)
    }
}

impl Pairs {
    fn new(first: &[f32; PAIRS], second: &[f32; PAIRS], tilt: f32) -> Self {
        let recip = tilt.recip();
        Self {
            plain: Flags::compare(first, second, |first, second| first > second),
            forward: Weighed {
                beside_one: Flags::compare(first, second, |first, second| first * tilt > second),
                beside_zero: Flags::compare(first, second, |first, second| first * recip > second),
            },
            backward: Weighed {
                beside_one: Flags::compare(first, second, |first, second| first > second * recip),
                beside_zero: Flags::compare(first, second, |first, second| first > second * tilt),
            },
        }
    }

    /// Which of the 64 pairs from `first_pair` on begin with the bits of a format, in any of the attempts.
    fn starts_of(&self, format: u8, first_pair: usize) -> u64 {
        let is_one = |bit: usize| format >> (FORMAT_BITS - 1 - bit) & 1 == 1;
        let last = FORMAT_BITS - 1;
        let (mut plain, mut forward, mut backward) = (!0, !0, !0);
        for bit in 0..FORMAT_BITS {
            let pair = first_pair + bit;
            let alike = |flags: u64| if is_one(bit) { flags } else { !flags };

            plain &= alike(self.plain.word(pair));
            forward &= match bit.checked_sub(1) {
                None => alike(self.plain.word(pair)),
                Some(before) => alike(self.forward.beside(is_one(before)).word(pair)),
            };
            // What follows the last bit of the format is not known: whatever would do.
            let behind = if bit == last {
                is_one(bit)
            } else {
                is_one(bit + 1)
            };
            backward &= alike(self.backward.beside(behind).word(pair));
        }
        plain | forward | backward
    }
}

impl Weighed {
    fn beside(&self, is_one: bool) -> &Flags {
        if is_one {
            &self.beside_one
        } else {
            &self.beside_zero
        }
    }
}

impl Flags {
    fn compare(
        first: &[f32; PAIRS],
        second: &[f32; PAIRS],
        is_one: impl Fn(f32, f32) -> bool,
    ) -> Self {
        let mut words = [0; WORDS];
        let pairs = first
            .as_chunks::<64>()
            .0
            .iter()
            .zip(second.as_chunks::<64>().0);
        for (word, (first, second)) in words.iter_mut().zip(pairs) {
            *word = packed(&from_fn(|pair| is_one(first[pair], second[pair])));
        }
        Self(words)
    }

    /// 64 flags from a pair on.
    fn word(&self, pair: usize) -> u64 {
        let (word, shift) = (pair / 64, pair % 64);
        let both = u128::from(self.0[word + 1]) << 64 | u128::from(self.0[word]);
        (both >> shift) as u64
    }

    /// 128 flags from a pair on.
    fn from(&self, pair: usize) -> u128 {
        u128::from(self.word(pair + 64)) << 64 | u128::from(self.word(pair))
    }
}

/// 64 flags in a word, the first one in its lowest bit.
pub(super) fn packed(flags: &[bool; 64]) -> u64 {
    // Eight bytes of 0 or 1 times this have the eight flags in their highest byte: none of the products meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    flags
        .as_chunks::<8>()
        .0
        .iter()
        .rev()
        .fold(0, |word, eight| {
            let bytes = u64::from_le_bytes(eight.map(u8::from));
            word << 8 | bytes.wrapping_mul(GATHER) >> 56
        })
}

/// The bits of a frame, the first one in the lowest bit: that one by its own halves, each other by the one before.
fn chain(plain: u128, beside_one: u128, beside_zero: u128) -> u128 {
    let own = |flags: u128| flags & !1 | plain & 1;
    let (passed_on, made) = (own(beside_one), own(beside_zero));
    let carries = passed_on.wrapping_add(made) ^ passed_on ^ made;
    // The carry out of a bit goes into the next. That out of the last, bit 127, is none of a frame's.
    carries >> 1
}

/// The bytes of up to 112 bits of which the first one is the lowest.
fn frame(bits: u128) -> Frame {
    let bytes = bits.reverse_bits().to_be_bytes();
    from_fn(|byte| bytes[byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILT: f32 = 1.5;

    /// The slicing of each attempt bit by bit, as the module says it.
    fn forward(samples: &[f32], tilt: f32) -> Frame {
        let mut frame = [0; 14];
        let mut weight = 1.0;
        for (bit, pair) in samples.chunks_exact(2).enumerate() {
            let one = pair[0] * weight > pair[1];
            frame[bit / 8] |= u8::from(one) << (7 - bit % 8);
            weight = if one { tilt } else { tilt.recip() };
        }
        frame
    }

    fn backward(samples: &[f32], tilt: f32) -> Frame {
        let mut frame = [0; 14];
        let mut weight = 1.0;
        for (bit, pair) in samples.chunks_exact(2).enumerate().rev() {
            let one = pair[0] > pair[1] * weight;
            frame[bit / 8] |= u8::from(one) << (7 - bit % 8);
            weight = if one { tilt.recip() } else { tilt };
        }
        frame
    }

    /// Magnitudes among which equal neighbours, and such in the ratio of the tilt, are common.
    fn window(seed: u32) -> Vec<f32> {
        let mut state = seed;
        let sample = |_| {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 29) as f32
        };
        (0..WINDOW_SAMPLES).map(sample).collect()
    }

    #[test]
    fn frames_are_those_sliced_bit_by_bit() {
        for seed in 0..10 {
            let magnitude = window(seed);
            let slicer = Slicer::new(&magnitude, TILT);
            for start in 0..2048 {
                let samples = &magnitude[start + PREAMBLE..][..2 * LONG_BITS];
                let short = &samples[..2 * SHORT_BITS];
                assert_eq!(slicer.plain(start), forward(samples, 1.0), "{seed} {start}");
                assert_eq!(
                    slicer.forward(start),
                    forward(samples, TILT),
                    "{seed} {start}"
                );
                assert_eq!(slicer.backward(start, LONG_BITS), backward(samples, TILT));
                assert_eq!(slicer.backward(start, SHORT_BITS), backward(short, TILT));
            }
        }
    }

    #[test]
    fn starts_that_give_a_format_are_all_found_and_few_others() {
        let (mut given, mut found) = (0, 0);
        for seed in 0..10 {
            let magnitude = window(seed);
            let slicer = Slicer::new(&magnitude, TILT);
            for start in 0..2048 {
                let attempts = [
                    slicer.plain(start),
                    slicer.forward(start),
                    slicer.backward(start, LONG_BITS),
                    slicer.backward(start, SHORT_BITS),
                ];
                let gives = attempts
                    .iter()
                    .any(|frame| [11, 17].contains(&(frame[0] >> 3)));
                // The start is each of the 64 in turn.
                let first_pair = (start / 2).saturating_sub(start % 64);
                let starts = slicer.starts_of(&[11, 17], start % 2, first_pair);
                let is_found = starts >> (start / 2 - first_pair) & 1 == 1;
                assert!(is_found || !gives, "{seed} {start}");
                given += usize::from(gives);
                found += usize::from(is_found);
            }
        }
        assert!(given > 1000 && found < given * 3 / 2, "{given} {found}");
    }
}

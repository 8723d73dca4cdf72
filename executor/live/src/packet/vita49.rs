//! VITA 49.2 packets: signal data, and of context packets the sample rate. Everything is big-endian, in words of 32 bits.
//!
//! ```text
//! word 0: type 31..28 | class id 27 | trailer 26 | 25..24 | TSI 23..22 | TSF 21..20 | count 19..16 | words 15..0
//! stream id, class id (2 words), integer seconds, fraction (2 words): where word 0 says so; payload; trailer
//! ```
//!
//! One sample is one token. Source: ANSI/VITA 49.2-2017, sections 5.1 (prologue), 6 (signal data) and 7.1 (context).

use std::ops::Range;

use zbmd_ir::DType;

/// Picoseconds in a second.
const PS_PER_S: i128 = 1_000_000_000_000;

/// Why a datagram is not a packet that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Vita49Error {
    /// It ends before its header does, or before its size says.
    #[error("a packet of {size} bytes, by its header, has {found}")]
    Short {
        /// Bytes that it should have.
        size: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// Its size is smaller than what its header says it has.
    #[error("a size of {size} bytes, with {needed} bytes before and after the payload")]
    Size {
        /// The size.
        size: usize,
        /// What the header says.
        needed: usize,
    },
    /// It carries no signal and no context: a command, or a type that is not defined.
    #[error("packets of type {0} are not read")]
    Type(u32),
}

/// The second part of a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraction {
    /// There is none.
    None,
    /// Samples since the second.
    Samples(u64),
    /// Picoseconds since the second.
    Picoseconds(u64),
    /// Samples since an arbitrary moment.
    FreeCount(u64),
}

/// Who defined the packet's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassId {
    /// Bits at the end of the payload that only fill up a word.
    pub pad_bits: u32,
    /// The organisation.
    pub organisation: u32,
    /// Its code for the kind of information, and for the kind of packet.
    pub codes: u32,
}

/// What stands before the payload of any packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// Which stream it is of.
    pub stream_id: Option<u32>,
    /// Its class.
    pub class_id: Option<ClassId>,
    /// Seconds of its time stamp, whatever they are counted from.
    pub seconds: Option<u32>,
    /// The rest of its time stamp.
    pub fraction: Fraction,
    /// Packets of the stream before it, modulo 16.
    pub count: u8,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vita49 {
    /// Samples.
    Data {
        /// What stands before them.
        prologue: Prologue,
        /// Where the samples are in the datagram.
        payload: Range<usize>,
        /// The word after them.
        trailer: Option<u32>,
    },
    /// What the samples of a stream are.
    Context {
        /// What stands before it.
        prologue: Prologue,
        /// Samples a second, as a multiple of 2^-20 Hz, if it says so.
        sample_rate: Option<i64>,
    },
}

/// Words of a datagram, each checked to be there.
struct Words<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let word = self.bytes.get(self.position..)?.first_chunk::<4>()?;
        self.position += 4;
        Some(u32::from_be_bytes(*word))
    }

    fn next_long(&mut self) -> Option<u64> {
        let high = u64::from(self.next()?);
        let low = u64::from(self.next()?);
        Some(high << 32 | low)
    }

    fn next_if<T>(
        &mut self,
        is_there: bool,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match is_there {
            true => read(self).map(Some),
            false => Some(None),
        }
    }
}

/// Reads a packet.
///
/// # Errors
/// See [`Vita49Error`].
pub fn parse(datagram: &[u8]) -> Result<Vita49, Vita49Error> {
    let mut words = Words {
        bytes: datagram,
        position: 0,
    };
    let Some(header) = words.next() else {
        return Err(Vita49Error::Short {
            size: 4,
            found: datagram.len(),
        });
    };
    let size = (header & 0xffff) as usize * 4;
    if size > datagram.len() {
        return Err(Vita49Error::Short {
            size,
            found: datagram.len(),
        });
    }

    let packet_type = header >> 28;
    if packet_type > 5 {
        return Err(Vita49Error::Type(packet_type));
    }
    // What lies beyond the size is not the packet's.
    words.bytes = &datagram[..size.max(4)];
    let found = prologue(header, packet_type, &mut words);
    let Some(prologue) = found.filter(|_| words.position <= size) else {
        let needed = prologue_bytes(header, packet_type);
        return Err(Vita49Error::Size { size, needed });
    };
    if packet_type >= 4 {
        let sample_rate = sample_rate(&mut words);
        return Ok(Vita49::Context {
            prologue,
            sample_rate,
        });
    }

    let has_trailer = header & 1 << 26 != 0;
    let begin = words.position;
    let trailer_bytes = if has_trailer { 4 } else { 0 };
    let pad_bytes = prologue.class_id.map_or(0, |class| class.pad_bits / 8) as usize;
    let Some(end) = size.checked_sub(trailer_bytes).filter(|end| begin <= *end) else {
        let needed = begin + trailer_bytes;
        return Err(Vita49Error::Size { size, needed });
    };
    words.position = end;
    let trailer = has_trailer.then(|| words.next()).flatten();
    Ok(Vita49::Data {
        prologue,
        payload: begin..end.saturating_sub(pad_bytes).max(begin),
        trailer,
    })
}

fn has_stream_id(packet_type: u32) -> bool {
    !matches!(packet_type, 0 | 2)
}

fn prologue_bytes(header: u32, packet_type: u32) -> usize {
    let stream_id = usize::from(has_stream_id(packet_type));
    let class_id = 2 * usize::from(header & 1 << 27 != 0);
    let seconds = usize::from(header >> 22 & 3 != 0);
    let fraction = 2 * usize::from(header >> 20 & 3 != 0);
    4 * (1 + stream_id + class_id + seconds + fraction)
}

fn prologue(header: u32, packet_type: u32, words: &mut Words<'_>) -> Option<Prologue> {
    let stream_id = words.next_if(has_stream_id(packet_type), Words::next)?;
    let class_id = words.next_if(header & 1 << 27 != 0, |words| {
        let first = words.next()?;
        Some(ClassId {
            pad_bits: first >> 27,
            organisation: first & 0xff_ffff,
            codes: words.next()?,
        })
    })?;
    let seconds = words.next_if(header >> 22 & 3 != 0, Words::next)?;
    let fraction = match header >> 20 & 3 {
        0 => Fraction::None,
        1 => Fraction::Samples(words.next_long()?),
        2 => Fraction::Picoseconds(words.next_long()?),
        _ => Fraction::FreeCount(words.next_long()?),
    };
    Some(Prologue {
        stream_id,
        class_id,
        seconds,
        fraction,
        count: (header >> 16 & 15) as u8,
    })
}

/// The sample rate of a context packet, if it has one where fields have their plain form.
fn sample_rate(words: &mut Words<'_>) -> Option<i64> {
    /// Words of the fields before the sample rate, from bit 30 of the indicator down.
    const FIELD_WORDS: [usize; 9] = [1, 2, 2, 2, 2, 2, 1, 1, 1];
    const SAMPLE_RATE_BIT: u32 = 21;
    let indicator = words.next()?;
    // Attributes give fields another form.
    if indicator & 1 << SAMPLE_RATE_BIT == 0 || indicator & 1 << 7 != 0 {
        return None;
    }
    let more_indicators = (indicator & 0b1110).count_ones() as usize;
    let fields = FIELD_WORDS.iter().zip((22..=30).rev());
    let present = fields.filter(|(_, bit)| indicator & 1 << bit != 0);
    let skipped_words: usize = present.map(|(words, _)| words).sum();
    words.position += 4 * (more_indicators + skipped_words);
    Some(words.next_long()?.cast_signed())
}

/// A sample rate from a context packet in Hz.
pub fn rate_hz(sample_rate: i64) -> f64 {
    sample_rate as f64 / f64::from(1 << 20)
}

/// Samples from the time stamps' beginning to this one, at so many millionths of a sample a second; `None` without a
/// complete time stamp.
pub fn position(prologue: &Prologue, rate_micro: i128) -> Option<i128> {
    let seconds = i128::from(prologue.seconds.unwrap_or(0));
    match prologue.fraction {
        Fraction::None => None,
        Fraction::FreeCount(count) => Some(i128::from(count)),
        Fraction::Samples(count) => {
            let before = divided(seconds.checked_mul(rate_micro)?, 1_000_000);
            Some(before + i128::from(count))
        }
        Fraction::Picoseconds(picoseconds) => {
            let time_ps = seconds * PS_PER_S + i128::from(picoseconds);
            Some(divided(
                time_ps.checked_mul(rate_micro)?,
                PS_PER_S * 1_000_000,
            ))
        }
    }
}

/// A quotient of numbers that are not negative, rounded.
fn divided(number: i128, by: i128) -> i128 {
    (number + by / 2) / by
}

/// Puts elements of a payload into this machine's byte order.
pub fn to_native(payload: &[u8], dtype: DType, tokens: &mut Vec<u8>) {
    tokens.clear();
    tokens.extend_from_slice(payload);
    if cfg!(target_endian = "little") {
        // A complex number is two elements.
        match dtype.align_bytes() {
            2 => tokens
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|x| x.reverse()),
            4 => tokens
                .as_chunks_mut::<4>()
                .0
                .iter_mut()
                .for_each(|x| x.reverse()),
            8 => tokens
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .for_each(|x| x.reverse()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn data_with_everything_is_read() {
        // Type 1, class id, trailer, UTC, picoseconds, count 9, 11 words.
        let bytes = packet(&[
            0x1c69_000b,
            0xdead_beef,
            0x8012_3456,
            0x0001_0002,
            1_700_000_000,
            0x0000_0074,
            0x6a52_8800,
            0x0001_0002,
            0x0003_0004,
            0x0506_0000,
            0x4000_0000,
        ]);
        let Ok(Vita49::Data {
            prologue,
            payload,
            trailer,
        }) = parse(&bytes)
        else {
            panic!("data")
        };
        assert_eq!(prologue.stream_id, Some(0xdead_beef));
        let class_id = ClassId {
            pad_bits: 16,
            organisation: 0x12_3456,
            codes: 0x0001_0002,
        };
        assert_eq!(prologue.class_id, Some(class_id));
        assert_eq!(prologue.seconds, Some(1_700_000_000));
        assert_eq!(prologue.fraction, Fraction::Picoseconds(500_000_000_000));
        assert_eq!(prologue.count, 9);
        assert_eq!(trailer, Some(0x4000_0000));
        assert_eq!(payload, 28..38, "without two bytes of padding");

        let mut tokens = Vec::new();
        to_native(&bytes[payload], DType::I16, &mut tokens);
        let samples: Vec<i16> = tokens
            .as_chunks::<2>()
            .0
            .iter()
            .map(|x| i16::from_ne_bytes(*x))
            .collect();
        assert_eq!(samples, [1, 2, 3, 4, 0x506]);
        let expect = 1_700_000_000 * 48_000 + 24_000;
        assert_eq!(position(&prologue, 48_000_000_000), Some(expect));
    }

    #[test]
    fn data_with_nothing_is_read() {
        let bytes = packet(&[0x0003_0002, 7]);
        let Ok(Vita49::Data {
            prologue, payload, ..
        }) = parse(&bytes)
        else {
            panic!("data")
        };
        assert_eq!((prologue.count, payload), (3, 4..8));
        assert_eq!(position(&prologue, 1_000_000), None);
    }

    #[test]
    fn a_context_tells_the_sample_rate() {
        // Type 4, no time stamp: bandwidth, gain and sample rate; a second indicator word.
        let rate = 48_000i64 << 20;
        let bytes = packet(&[
            0x4000_0009,
            1,
            0x20a0_0002,
            0,
            11,
            12,
            13,
            (rate >> 32) as u32,
            rate as u32,
        ]);
        let Ok(Vita49::Context { sample_rate, .. }) = parse(&bytes) else {
            panic!("context")
        };
        assert_eq!(sample_rate.map(rate_hz), Some(48_000.0));
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        for (bytes, expect) in [
            (vec![0x10], "a packet of 4 bytes, by its header, has 1"),
            (
                packet(&[0x1000_0004, 1, 2]),
                "a packet of 16 bytes, by its header, has 12",
            ),
            (
                packet(&[0x1000_0001]),
                "a size of 4 bytes, with 8 bytes before and after the payload",
            ),
            (
                packet(&[0x1400_0002, 1]),
                "a size of 8 bytes, with 12 bytes before and after the payload",
            ),
            (
                packet(&[0x0000_0000]),
                "a size of 0 bytes, with 4 bytes before and after the payload",
            ),
            (packet(&[0x6000_0002, 1]), "packets of type 6 are not read"),
        ] {
            let error = parse(&bytes).expect_err("refused");
            assert_eq!(error.to_string(), expect);
        }
    }
}

//! Sound files: s16 and float samples, as i16 or float tokens. A token holds whole frames, or a frame is one token.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use hound::{SampleFormat, WavIntoSamples, WavReader, WavSpec, WavWriter};
use zbmd_ir::{DType, Params, Value};

use super::{FileError, Port, io_error, mismatch};

/// Full scale of 16-bit samples: what 1.0 becomes, and saturates just below.
const FULL_SCALE: f32 = 32768.0;

/// Samples of one token and whether they are floats; `None` for dtypes that are not sound.
fn samples(port: Port<'_>) -> Option<(u64, bool)> {
    match port.token.dtype {
        DType::F32 => Some((port.token.elements(), true)),
        DType::C32 => Some((2 * port.token.elements(), true)),
        DType::I16 => Some((port.token.elements(), false)),
        _ => None,
    }
}

enum WavSamples {
    /// Integers of any width, as they are.
    Raw(WavIntoSamples<BufReader<File>, i16>),
    /// Integers of up to 32 bits, scaled by this.
    Scaled(WavIntoSamples<BufReader<File>, i32>, f32),
    Floats(WavIntoSamples<BufReader<File>, f32>),
}

struct WavTokens {
    samples: WavSamples,
}

/// A failure of a sound file that is read.
fn wav_error(path: &Path, error: hound::Error) -> FileError {
    match error {
        hound::Error::IoError(source) => FileError::Io {
            path: path.to_owned(),
            source,
        },
        other => FileError::Content {
            path: path.to_owned(),
            message: other.to_string(),
        },
    }
}

/// What a sound file holds, for a refusal.
fn describe(spec: WavSpec) -> String {
    let kind = if spec.sample_format == SampleFormat::Float {
        "float"
    } else {
        "integer"
    };
    let channels = spec.channels;
    let bits_per_sample = spec.bits_per_sample;
    format!("{channels} channels of {bits_per_sample}-bit {kind} samples")
}

pub(super) fn open(
    path: &Path,
    file: File,
    port: Port<'_>,
) -> Result<Box<dyn Read + Send>, FileError> {
    let reader = WavReader::new(BufReader::new(file)).map_err(|error| wav_error(path, error))?;
    let spec = reader.spec();
    let Some((samples_per_token, is_float)) = samples(port) else {
        let help = "sound needs tokens of f32, c32 or i16";
        return Err(mismatch(path, port, describe(spec), help));
    };
    if samples_per_token % u64::from(spec.channels.max(1)) != 0 {
        let help = "make a token hold whole frames of all channels";
        return Err(mismatch(path, port, describe(spec), help));
    }

    let wav_samples = match (spec.sample_format, spec.bits_per_sample, is_float) {
        (SampleFormat::Int, 1..=16, false) => WavSamples::Raw(reader.into_samples()),
        (SampleFormat::Int, bits @ 1..=32, true) => {
            WavSamples::Scaled(reader.into_samples(), 1.0 / (1u64 << (bits - 1)) as f32)
        }
        (SampleFormat::Float, 32, true) => WavSamples::Floats(reader.into_samples()),
        _ => return Err(mismatch(path, port, describe(spec), "use f32 tokens")),
    };
    Ok(Box::new(WavTokens {
        samples: wav_samples,
    }))
}

fn next<T: hound::Sample, R: Read>(samples: &mut WavIntoSamples<R, T>) -> io::Result<Option<T>> {
    samples.next().transpose().map_err(|error| match error {
        hound::Error::IoError(source) => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    })
}

impl Read for WavTokens {
    /// Fills whole samples; pieces shorter than one give nothing.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut filled_bytes = 0;
        match &mut self.samples {
            WavSamples::Raw(samples) => {
                for piece in to.chunks_exact_mut(2) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&sample.to_ne_bytes());
                    filled_bytes += 2;
                }
            }
            WavSamples::Scaled(samples, scale) => {
                for piece in to.chunks_exact_mut(4) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&(sample as f32 * *scale).to_ne_bytes());
                    filled_bytes += 4;
                }
            }
            WavSamples::Floats(samples) => {
                for piece in to.chunks_exact_mut(4) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&sample.to_ne_bytes());
                    filled_bytes += 4;
                }
            }
        }
        Ok(filled_bytes)
    }
}

/// A parameter that counts something, if it is there and fits.
fn number(params: &Params, name: &str) -> Option<u32> {
    params
        .get(name)
        .and_then(Value::as_int)
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| *number > 0)
}

/// How samples stand in a file that is written.
#[derive(Clone, Debug)]
pub(super) struct WavLayout {
    /// The header of a file without samples.
    empty_header: Vec<u8>,
    samples_per_token: u64,
    tokens_are_floats: bool,
    samples_are_floats: bool,
}

/// Where a header has the length of what follows these four bytes.
const RIFF_LENGTH_OFFSET: usize = 4;
/// A header's last bytes, and what comes before what they and the RIFF length count.
const LENGTH_BYTES: usize = 4;
const RIFF_PREFIX_BYTES: u64 = 8;

impl WavLayout {
    /// The sink's `sample_rate` (48000 without one), `channels` (2 for c32, else 1) and `format` (`s16`, or `f32`).
    pub(super) fn of(path: &Path, port: Port<'_>) -> Result<Self, FileError> {
        let Some((samples_per_token, tokens_are_floats)) = samples(port) else {
            let help = "sound needs tokens of f32, c32 or i16";
            return Err(mismatch(path, port, "sound".to_owned(), help));
        };
        let format_name = port
            .params
            .get("format")
            .and_then(Value::as_str)
            .unwrap_or("s16");
        let samples_are_floats = match format_name {
            "s16" => false,
            "f32" if tokens_are_floats => true,
            other => {
                let found = format!("`{other}` samples by its parameter `format`");
                let help = "s16 and, for float tokens, f32 can be written";
                return Err(mismatch(path, port, found, help));
            }
        };

        // Real and imaginary parts are a frame of two.
        let default_channels = if port.token.dtype == DType::C32 { 2 } else { 1 };
        let channels = number(port.params, "channels").unwrap_or(default_channels);
        if samples_per_token % u64::from(channels) != 0 || channels > u32::from(u16::MAX) {
            let found = format!("{channels} channels");
            let help = "make a token hold whole frames of all channels";
            return Err(mismatch(path, port, found, help));
        }

        let sample_rate = number(port.params, "sample_rate").unwrap_or(48_000);
        let bits_per_sample: u16 = if samples_are_floats { 32 } else { 16 };
        // The header has this as 32 bits.
        let bytes_per_s =
            u64::from(sample_rate) * u64::from(channels) * u64::from(bits_per_sample / 8);
        if bytes_per_s > u64::from(u32::MAX) {
            let found = format!("{bytes_per_s} bytes per second");
            let help = "its header holds up to 4294967295: name the file .npy or .bin";
            return Err(mismatch(path, port, found, help));
        }

        let spec = WavSpec {
            channels: channels as u16,
            sample_rate,
            bits_per_sample,
            sample_format: if samples_are_floats {
                SampleFormat::Float
            } else {
                SampleFormat::Int
            },
        };
        Ok(Self {
            empty_header: empty_header(spec).map_err(io_error(path))?,
            samples_per_token,
            tokens_are_floats,
            samples_are_floats,
        })
    }

    /// Bytes of a token in the file.
    pub(super) fn token_bytes(&self) -> u64 {
        self.samples_per_token * if self.samples_are_floats { 4 } else { 2 }
    }

    /// The header for so many tokens, which [`Self::check_room`] has let pass.
    pub(super) fn header(&self, tokens: u64) -> Vec<u8> {
        let mut header_bytes = self.empty_header.clone();
        let data_bytes = tokens * self.token_bytes();
        let riff_bytes = data_bytes + header_bytes.len() as u64 - RIFF_PREFIX_BYTES;

        let data_length_offset = header_bytes.len() - LENGTH_BYTES;
        put_length(&mut header_bytes, RIFF_LENGTH_OFFSET, riff_bytes);
        put_length(&mut header_bytes, data_length_offset, data_bytes);
        header_bytes
    }

    /// Whether a file begins with this header, with any lengths in it.
    pub(super) fn owns_header(&self, found: &[u8]) -> bool {
        let mut expected_header = self.empty_header.clone();
        let mut found_header = found.to_vec();
        if found_header.len() != expected_header.len() {
            return false;
        }

        let data_length_offset = expected_header.len() - LENGTH_BYTES;
        for header in [&mut expected_header, &mut found_header] {
            put_length(header, RIFF_LENGTH_OFFSET, 0);
            put_length(header, data_length_offset, 0);
        }
        expected_header == found_header
    }

    /// Refuses data that would make the file longer than its header can say.
    pub(super) fn check_room(&self, data_bytes: u64, more_bytes: u64) -> io::Result<()> {
        let riff_bytes =
            data_bytes + more_bytes + self.empty_header.len() as u64 - RIFF_PREFIX_BYTES;
        if riff_bytes > u64::from(u32::MAX) {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "a WAV file holds up to 4 GiB: write .npy or .bin",
            ));
        }
        Ok(())
    }

    /// Puts the bytes of tokens into `encoded` as samples.
    pub(super) fn encode(&self, tokens: &[u8], encoded: &mut Vec<u8>) {
        encoded.clear();
        if !self.tokens_are_floats {
            let integer_samples = tokens.as_chunks::<2>().0.iter();
            let little_endian =
                integer_samples.flat_map(|sample| i16::from_ne_bytes(*sample).to_le_bytes());
            encoded.extend(little_endian);
            return;
        }

        let float_samples = tokens
            .as_chunks::<4>()
            .0
            .iter()
            .map(|sample| f32::from_ne_bytes(*sample));
        if self.samples_are_floats {
            encoded.extend(float_samples.flat_map(f32::to_le_bytes));
        } else {
            encoded.extend(float_samples.flat_map(|sample| quantise(sample).to_le_bytes()));
        }
    }
}

fn put_length(header: &mut [u8], offset: usize, length: u64) {
    let length_field = u32::try_from(length).unwrap_or(u32::MAX);
    header[offset..offset + LENGTH_BYTES].copy_from_slice(&length_field.to_le_bytes());
}

fn empty_header(spec: WavSpec) -> io::Result<Vec<u8>> {
    let mut header_file = io::Cursor::new(Vec::new());
    WavWriter::new(&mut header_file, spec)
        .and_then(WavWriter::finalize)
        .map_err(into_io)?;
    Ok(header_file.into_inner())
}

fn into_io(error: hound::Error) -> io::Error {
    match error {
        hound::Error::IoError(source) => source,
        other => io::Error::other(other),
    }
}

/// The nearest 16-bit sample; beyond full scale the last one, and silence for what is not a number.
fn quantise(x: f32) -> i16 {
    // `as` saturates and takes NaN to 0.
    (x * FULL_SCALE).round() as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::TokenType;

    fn round_trip(token: &TokenType, params: &Params, bytes: &[u8]) -> (WavSpec, Vec<u8>) {
        let folder = tempfile::tempdir().expect("a folder");
        let wav_path = folder.path().join("x.wav");
        let port = Port {
            stream: "x",
            token,
            params,
        };
        let mut sink = super::super::create_sink(&wav_path, port).expect("sound");
        sink.write_tokens(bytes).expect("written");
        let wav_spec = WavReader::open(&wav_path).expect("sound").spec();
        let mut read_bytes = Vec::new();
        let mut token_reader =
            open(&wav_path, File::open(&wav_path).expect("there"), port).expect("sound");
        let mut piece = vec![0; token.bytes() as usize * 3];
        loop {
            match token_reader.read(&mut piece).expect("read") {
                0 => return (wav_spec, read_bytes),
                n => read_bytes.extend_from_slice(&piece[..n]),
            }
        }
    }

    #[test]
    fn samples_come_back() {
        let float_bytes: Vec<u8> = [0.0f32, 0.5, -1.0, 0.25, 32767.0 / 32768.0, -0.125]
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect();
        let integer_bytes: Vec<u8> = [0i16, 1, -1, i16::MAX, i16::MIN, 7]
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect();
        let with = |pairs: &[(&str, Value)]| -> Params {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.clone()))
                .collect()
        };
        let float_params = with(&[
            ("format", Value::Str("f32".into())),
            ("sample_rate", Value::Int(16_000)),
        ]);
        for (token, params, bytes, channels, rate) in [
            (
                TokenType::scalar(DType::F32),
                with(&[]),
                &float_bytes,
                1,
                48_000,
            ),
            (
                TokenType::new(DType::F32, [3]),
                float_params,
                &float_bytes,
                1,
                16_000,
            ),
            (
                TokenType::new(DType::F32, [2]),
                with(&[("channels", Value::Int(2))]),
                &float_bytes,
                2,
                48_000,
            ),
            (
                TokenType::scalar(DType::C32),
                with(&[]),
                &float_bytes,
                2,
                48_000,
            ),
            (
                TokenType::scalar(DType::I16),
                with(&[("sample_rate", Value::Float(8000.0))]),
                &integer_bytes,
                1,
                8000,
            ),
        ] {
            let (spec, back) = round_trip(&token, &params, bytes);
            assert_eq!(&back, bytes, "{token}");
            assert_eq!(
                (spec.channels, spec.sample_rate),
                (channels, rate),
                "{token}"
            );
        }
    }

    #[test]
    fn a_header_never_says_more_than_it_can_hold() {
        let token = TokenType::scalar(DType::F32);
        let path = Path::new("x.wav");
        let mut params = Params::new();
        params.insert("sample_rate".to_owned(), Value::Int(4_000_000_000));
        let port = |params| Port {
            stream: "x",
            token: &token,
            params,
        };
        let refusal = WavLayout::of(path, port(&params)).expect_err("too fast");
        assert!(
            refusal.to_string().contains("8000000000 bytes per second"),
            "{refusal}"
        );

        let usual_params = Params::new();
        let layout = WavLayout::of(path, port(&usual_params)).expect("sound");
        let max_bytes = u64::from(u32::MAX) - 36;
        layout.check_room(max_bytes - 2, 2).expect("it just fits");
        let error = layout.check_room(max_bytes, 2).expect_err("too long");
        assert!(error.to_string().contains("up to 4 GiB"), "{error}");
        assert!(layout.owns_header(&layout.header(77)));
        assert!(!layout.owns_header(&layout.header(77)[1..]));
    }

    #[test]
    fn beyond_full_scale_samples_saturate() {
        for (x, expect) in [
            (1.0, 32767),
            (7.0, 32767),
            (-1.0, -32768),
            (-9.0, -32768),
            (f32::NAN, 0),
            (0.5 / 32768.0, 1),
        ] {
            assert_eq!(quantise(x), expect, "{x}");
        }
    }

    #[test]
    fn tokens_that_are_no_sound_are_refused() {
        let params = Params::new();
        let token = TokenType::scalar(DType::I64);
        let port = Port {
            stream: "x",
            token: &token,
            params: &params,
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.wav");
        let error = super::super::create_sink(&path, port).expect_err("refused");
        assert!(
            error
                .to_string()
                .ends_with("stream `x` carries i64: sound needs tokens of f32, c32 or i16"),
            "{error}"
        );
    }
}

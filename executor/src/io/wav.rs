//! Sound files: s16 and float samples, as i16 or float tokens. A token holds whole frames, or a frame is one token.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::Path;

use hound::{SampleFormat, WavIntoSamples, WavReader, WavSpec, WavWriter};
use zbmd_ir::{DType, Params, Value};

use super::{FileError, Port, TokenWrite, io_error, mismatch};

/// Full scale of 16-bit samples: what 1.0 becomes, and saturates just below.
const FULL_SCALE: f32 = 32768.0;

/// Samples of one token and whether they are floats; `None` for dtypes that are no sound.
fn samples(port: Port<'_>) -> Option<(u64, bool)> {
    match port.token.dtype {
        DType::F32 => Some((port.token.elements(), true)),
        DType::C32 => Some((2 * port.token.elements(), true)),
        DType::I16 => Some((port.token.elements(), false)),
        _ => None,
    }
}

enum Samples {
    /// Integers of any width, as they are.
    Raw(WavIntoSamples<BufReader<File>, i16>),
    /// Integers of up to 32 bits, scaled by this.
    Scaled(WavIntoSamples<BufReader<File>, i32>, f32),
    Floats(WavIntoSamples<BufReader<File>, f32>),
}

struct Reader {
    samples: Samples,
}

pub(super) fn open(
    path: &Path,
    file: File,
    port: Port<'_>,
) -> Result<Box<dyn Read + Send>, FileError> {
    let content = |e: hound::Error| match e {
        hound::Error::IoError(source) => FileError::Io {
            path: path.to_owned(),
            source,
        },
        other => FileError::Content {
            path: path.to_owned(),
            message: other.to_string(),
        },
    };
    let reader = WavReader::new(BufReader::new(file)).map_err(content)?;
    let WavSpec {
        channels,
        bits_per_sample,
        sample_format,
        ..
    } = reader.spec();
    let found = || {
        let kind = if sample_format == SampleFormat::Float {
            "float"
        } else {
            "integer"
        };
        format!("{channels} channels of {bits_per_sample}-bit {kind} samples")
    };
    let Some((per_token, float)) = samples(port) else {
        return Err(mismatch(
            path,
            port,
            found(),
            "sound needs tokens of f32, c32 or i16",
        ));
    };
    if per_token % u64::from(channels.max(1)) != 0 {
        return Err(mismatch(
            path,
            port,
            found(),
            "make a token hold whole frames of all channels",
        ));
    }
    let samples = match (sample_format, bits_per_sample, float) {
        (SampleFormat::Int, 1..=16, false) => Samples::Raw(reader.into_samples()),
        (SampleFormat::Int, bits @ 1..=32, true) => {
            Samples::Scaled(reader.into_samples(), 1.0 / (1u64 << (bits - 1)) as f32)
        }
        (SampleFormat::Float, 32, true) => Samples::Floats(reader.into_samples()),
        _ => return Err(mismatch(path, port, found(), "use f32 tokens")),
    };
    Ok(Box::new(Reader { samples }))
}

fn next<T: hound::Sample, R: Read>(samples: &mut WavIntoSamples<R, T>) -> io::Result<Option<T>> {
    samples.next().transpose().map_err(|e| match e {
        hound::Error::IoError(source) => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    })
}

impl Read for Reader {
    /// Fills whole samples; pieces shorter than one give nothing.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        match &mut self.samples {
            Samples::Raw(samples) => {
                for piece in to.chunks_exact_mut(2) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&sample.to_ne_bytes());
                    done += 2;
                }
            }
            Samples::Scaled(samples, scale) => {
                for piece in to.chunks_exact_mut(4) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&(sample as f32 * *scale).to_ne_bytes());
                    done += 4;
                }
            }
            Samples::Floats(samples) => {
                for piece in to.chunks_exact_mut(4) {
                    let Some(sample) = next(samples)? else { break };
                    piece.copy_from_slice(&sample.to_ne_bytes());
                    done += 4;
                }
            }
        }
        Ok(done)
    }
}

struct Writer {
    writer: WavWriter<BufWriter<File>>,
    /// The same file, to sync it.
    file: File,
    tokens_are_floats: bool,
}

/// A parameter that counts something, if it is there and fits.
fn number(params: &Params, name: &str) -> Option<u32> {
    params
        .get(name)
        .and_then(Value::as_int)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|n| *n > 0)
}

/// The sink's `sample_rate` (48000 without one), `channels` (2 for c32, else 1) and `format` (`s16`, or `f32`).
pub(super) fn create(
    path: &Path,
    file: File,
    port: Port<'_>,
) -> Result<Box<dyn TokenWrite>, FileError> {
    let Some((per_token, floats)) = samples(port) else {
        let found = "sound".to_owned();
        return Err(mismatch(
            path,
            port,
            found,
            "sound needs tokens of f32, c32 or i16",
        ));
    };
    let default_channels = if port.token.dtype == DType::C32 { 2 } else { 1 };
    let channels = number(port.params, "channels").unwrap_or(default_channels);
    let format = port
        .params
        .get("format")
        .and_then(Value::as_str)
        .unwrap_or("s16");
    let as_floats = match format {
        "s16" => false,
        "f32" if floats => true,
        other => {
            let found = format!("`{other}` samples by its parameter `format`");
            return Err(mismatch(
                path,
                port,
                found,
                "s16 and, for float tokens, f32 can be written",
            ));
        }
    };
    if per_token % u64::from(channels) != 0 || channels > u32::from(u16::MAX) {
        let found = format!("{channels} channels");
        return Err(mismatch(
            path,
            port,
            found,
            "make a token hold whole frames of all channels",
        ));
    }
    let spec = WavSpec {
        channels: channels as u16,
        sample_rate: number(port.params, "sample_rate").unwrap_or(48_000),
        bits_per_sample: if as_floats { 32 } else { 16 },
        sample_format: if as_floats {
            SampleFormat::Float
        } else {
            SampleFormat::Int
        },
    };
    let same = file.try_clone().map_err(io_error(path))?;
    let writer =
        WavWriter::new(BufWriter::new(file), spec).map_err(|e| io_error(path)(into_io(e)))?;
    Ok(Box::new(Writer {
        writer,
        file: same,
        tokens_are_floats: floats,
    }))
}

fn into_io(error: hound::Error) -> io::Error {
    match error {
        hound::Error::IoError(source) => source,
        other => io::Error::other(other),
    }
}

/// The nearest 16-bit sample; beyond full scale the last one, and silence for what is no number.
fn quantise(x: f32) -> i16 {
    // `as` saturates and takes NaN to 0.
    (x * FULL_SCALE).round() as i16
}

impl TokenWrite for Writer {
    fn write_tokens(&mut self, bytes: &[u8]) -> io::Result<()> {
        let as_floats = self.writer.spec().sample_format == SampleFormat::Float;
        if !self.tokens_are_floats {
            for piece in bytes.as_chunks::<2>().0 {
                self.writer
                    .write_sample(i16::from_ne_bytes(*piece))
                    .map_err(into_io)?;
            }
            return Ok(());
        }
        for piece in bytes.as_chunks::<4>().0 {
            let x = f32::from_ne_bytes(*piece);
            let written = if as_floats {
                self.writer.write_sample(x)
            } else {
                self.writer.write_sample(quantise(x))
            };
            written.map_err(into_io)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(into_io)?;
        self.file.sync_data()
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.writer.finalize().map_err(into_io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::TokenType;

    fn round_trip(token: &TokenType, params: &Params, bytes: &[u8]) -> (WavSpec, Vec<u8>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.wav");
        let port = Port {
            stream: "x",
            token,
            params,
        };
        let mut writer = create(&path, File::create(&path).expect("created"), port).expect("sound");
        writer.write_tokens(bytes).expect("written");
        writer.finish().expect("finished");
        let spec = WavReader::open(&path).expect("sound").spec();
        let mut back = Vec::new();
        let mut reader = open(&path, File::open(&path).expect("there"), port).expect("sound");
        let mut piece = vec![0; token.bytes() as usize * 3];
        loop {
            match reader.read(&mut piece).expect("read") {
                0 => return (spec, back),
                n => back.extend_from_slice(&piece[..n]),
            }
        }
    }

    #[test]
    fn samples_come_back() {
        let f32s: Vec<u8> = [0.0f32, 0.5, -1.0, 0.25, 32767.0 / 32768.0, -0.125]
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect();
        let i16s: Vec<u8> = [0i16, 1, -1, i16::MAX, i16::MIN, 7]
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect();
        let with = |pairs: &[(&str, Value)]| -> Params {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.clone()))
                .collect()
        };
        let float = with(&[
            ("format", Value::Str("f32".into())),
            ("sample_rate", Value::Int(16_000)),
        ]);
        for (token, params, bytes, channels, rate) in [
            (TokenType::scalar(DType::F32), with(&[]), &f32s, 1, 48_000),
            (TokenType::new(DType::F32, [3]), float, &f32s, 1, 16_000),
            (
                TokenType::new(DType::F32, [2]),
                with(&[("channels", Value::Int(2))]),
                &f32s,
                2,
                48_000,
            ),
            (TokenType::scalar(DType::C32), with(&[]), &f32s, 2, 48_000),
            (
                TokenType::scalar(DType::I16),
                with(&[("sample_rate", Value::Float(8000.0))]),
                &i16s,
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
        let error = create(&path, File::create(&path).expect("created"), port)
            .err()
            .expect("refused");
        assert!(
            error
                .to_string()
                .ends_with("stream `x` carries i64: sound needs tokens of f32, c32 or i16"),
            "{error}"
        );
    }
}

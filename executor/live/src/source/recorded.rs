//! A SigMF recording, as fast as the run takes it, with its gaps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zbmd_ir::TokenType;

use super::{Arrival, LiveSource};
use crate::clock::now_ns;
use crate::gap::Cause;
use crate::sigmf::{self, Recording, Segment};
use crate::timeline::PacketPlace;

/// Tokens are read in pieces of about so many bytes.
const PIECE_BYTES: usize = 1 << 16;

/// Gives what a recording has.
pub(crate) struct RecordedSource {
    recording: Recording,
    data: File,
    token_bytes: usize,
    /// Filled tokens are filled anew, not as they were recorded.
    fills_anew: bool,
    next_segment: usize,
    piece: Vec<u8>,
    told_rate: bool,
}

impl RecordedSource {
    /// Opens a recording by the name of either of its files.
    pub(crate) fn open(path: &Path, token: &TokenType, fills_anew: bool) -> io::Result<Self> {
        let named =
            |path: &Path, error: String| io::Error::other(format!("{}: {error}", path.display()));
        let meta_path = sigmf::meta_path(path);
        let data_path = sigmf::data_path(path);
        let open = |path: &Path| File::open(path).map_err(|error| named(path, error.to_string()));
        let meta_file = open(&meta_path)?;
        let data = open(&data_path)?;

        let mut meta = Vec::new();
        let limited = io::Read::take(&meta_file, sigmf::MAX_META_BYTES + 1);
        io::Read::read_to_end(&mut { limited }, &mut meta)?;
        if meta.len() as u64 > sigmf::MAX_META_BYTES {
            let max_mib = sigmf::MAX_META_BYTES >> 20;
            let error = format!("is longer than {max_mib} MiB, the maximum here");
            return Err(named(&meta_path, error));
        }
        let data_bytes = data.metadata()?.len();
        let recording = Recording::parse(&meta, data_bytes, token)
            .map_err(|error| named(&meta_path, error.to_string()))?;

        let token_bytes = token.bytes() as usize;
        let piece_tokens = (PIECE_BYTES / token_bytes).max(1);
        Ok(Self {
            recording,
            data,
            token_bytes,
            fills_anew,
            next_segment: 0,
            piece: vec![0; piece_tokens * token_bytes],
            told_rate: false,
        })
    }

    /// Reads tokens into the piece; whether they are there.
    fn read(&mut self, at_byte: u64, tokens: u64) -> Option<usize> {
        let piece_tokens = (self.piece.len() / self.token_bytes) as u64;
        let bytes = tokens.min(piece_tokens) as usize * self.token_bytes;
        let piece = &mut self.piece[..bytes];
        self.data.read_exact_at(piece, at_byte).ok()?;
        self.recording.datatype.to_native(piece);
        Some(bytes)
    }
}

impl LiveSource for RecordedSource {
    fn receive(&mut self, _limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if !std::mem::replace(&mut self.told_rate, true)
            && let Some(rate) = self.recording.token_rate
        {
            visit(Arrival::SampleRate(rate));
        }
        let Some(segment) = self.recording.segments.get(self.next_segment).copied() else {
            return visit(Arrival::Ended);
        };
        self.next_segment += 1;
        match segment {
            Segment::Data { at_byte, tokens } => {
                let Some(bytes) = self.read(at_byte, tokens) else {
                    // The file is shorter than when it was opened, or cannot be read.
                    self.next_segment = self.recording.segments.len();
                    return visit(Arrival::Refused);
                };
                let read_tokens = (bytes / self.token_bytes) as u64;
                if read_tokens < tokens {
                    self.next_segment -= 1;
                    self.recording.segments[self.next_segment] = Segment::Data {
                        at_byte: at_byte + bytes as u64,
                        tokens: tokens - read_tokens,
                    };
                }
                visit(Arrival::Packet {
                    place: PacketPlace::Unknown,
                    payload: &self.piece[..bytes],
                    arrival_ns: now_ns(),
                    kernel_drops: 0,
                });
            }
            Segment::Filled {
                at_byte,
                tokens,
                cause,
            } => {
                let recorded = self.read(at_byte, 1).filter(|_| !self.fills_anew);
                visit(Arrival::Missing {
                    tokens,
                    cause,
                    fill: recorded.map(|bytes| &self.piece[..bytes]),
                });
            }
            Segment::Missing { tokens } => visit(Arrival::Missing {
                tokens,
                cause: Cause::Lost,
                fill: None,
            }),
        }
    }

    fn has_connections(&self) -> bool {
        false
    }
}

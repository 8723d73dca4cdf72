//! The protocol of `rtl_tcp`: a server sends 12 bytes when a client connects, then samples of unsigned bytes, I before Q;
//! a client sends commands of 5 bytes at any time. Numbers are big-endian.
//!
//! Source: `src/rtl_tcp.c` of rtl-sdr, `dongle_info_t` and `struct command`.

/// What a server begins with.
pub const MAGIC: [u8; 4] = *b"RTL0";
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 12;
/// Bytes of a command.
pub const COMMAND_BYTES: usize = 5;

/// What a server says of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of the tuner's type in `rtl-sdr.h`; 5 is an R820T.
    pub tuner: u32,
    /// Gains that it can be set to.
    pub gains: u32,
}

impl Hello {
    /// Reads a hello; `None` if it is not one.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let (magic, numbers) = bytes.split_first_chunk::<4>()?;
        let (numbers, _) = numbers.as_chunks::<4>();
        (*magic == MAGIC).then(|| Self {
            tuner: u32::from_be_bytes(numbers[0]),
            gains: u32::from_be_bytes(numbers[1]),
        })
    }

    /// The hello as it is sent.
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.tuner.to_be_bytes());
        bytes[8..].copy_from_slice(&self.gains.to_be_bytes());
        bytes
    }
}

/// Sets something of the receiver. Numbers of commands that are not listed are kept: servers pass over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Centre frequency in Hz.
    Frequency(u32),
    /// I/Q samples a second.
    SampleRate(u32),
    /// Whether [`Command::Gain`] counts.
    ManualGain(bool),
    /// Gain of the tuner in tenths of a dB.
    Gain(i32),
    /// Correction of the clock in parts per million.
    Correction(i32),
    /// Another one, by its number.
    Other(u8, u32),
}

impl Command {
    /// Reads a command.
    pub fn parse(bytes: &[u8; COMMAND_BYTES]) -> Self {
        let [number, value @ ..] = *bytes;
        let value = u32::from_be_bytes(value);
        match number {
            1 => Self::Frequency(value),
            2 => Self::SampleRate(value),
            3 if value <= 1 => Self::ManualGain(value == 1),
            4 => Self::Gain(value.cast_signed()),
            5 => Self::Correction(value.cast_signed()),
            other => Self::Other(other, value),
        }
    }

    /// The command as it is sent.
    pub fn bytes(&self) -> [u8; COMMAND_BYTES] {
        let (number, value) = match *self {
            Self::Frequency(hz) => (1, hz),
            Self::SampleRate(rate) => (2, rate),
            Self::ManualGain(is_manual) => (3, u32::from(is_manual)),
            Self::Gain(tenths) => (4, tenths.cast_unsigned()),
            Self::Correction(ppm) => (5, ppm.cast_unsigned()),
            Self::Other(number, value) => (number, value),
        };
        let mut bytes = [number; COMMAND_BYTES];
        bytes[1..].copy_from_slice(&value.to_be_bytes());
        bytes
    }
}

/// Finds commands in what a client sends, in pieces of any size. Takes the memory of one command.
#[derive(Clone, Debug, Default)]
pub struct CommandReader {
    partial: [u8; COMMAND_BYTES],
    length: usize,
}

impl CommandReader {
    /// Takes bytes in; each command that is complete goes to `visit`.
    pub fn read(&mut self, bytes: &[u8], mut visit: impl FnMut(Command)) {
        for byte in bytes {
            self.partial[self.length] = *byte;
            self.length += 1;
            if self.length == COMMAND_BYTES {
                visit(Command::parse(&self.partial));
                self.length = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_come_back() {
        let hello = Hello {
            tuner: 5,
            gains: 29,
        };
        let bytes = hello.bytes();
        assert_eq!(&bytes, b"RTL0\0\0\0\x05\0\0\0\x1d");
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(b"HTTP/1.1 400"), None);
    }

    #[test]
    fn commands_come_back_in_pieces_of_any_size() {
        let commands = [
            Command::Frequency(1_090_000_000),
            Command::SampleRate(2_400_000),
            Command::ManualGain(true),
            Command::Gain(-10),
            Command::Correction(-3),
            Command::Other(0x0e, 1),
            Command::Other(3, 7),
        ];
        assert_eq!(commands[1].bytes(), [2, 0, 0x24, 0x9f, 0]);
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).collect();
        for size in 1..=bytes.len() {
            let mut reader = CommandReader::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                reader.read(piece, |command| found.push(command));
            }
            assert_eq!(found, commands, "pieces of {size}");
        }
    }
}

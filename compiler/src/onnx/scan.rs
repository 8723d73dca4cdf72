//! A first look at an ONNX file: lengths and nesting, before a parser trusts them.
//!
//! A length that reaches beyond its message would have memory allocated for it, deep nesting would exhaust the stack,
//! and on a number of more than ten bytes the parser never ends. This walk goes through exactly those messages that the
//! parser reads.

use std::io::{Read, Seek, SeekFrom};

use super::error::OnnxError;

/// Nesting of graphs in attributes of nodes.
const MAX_DEPTH: usize = 48;
/// Fields of all messages together.
const MAX_FIELDS: u64 = 1 << 26;

#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    ValueInfo,
    Type,
    Sequence,
    Tensor,
    SparseTensor,
    TensorType,
    Shape,
    /// One that holds no other: an entry of metadata, a set of operators, a dimension.
    Plain,
}

/// What a field with a length holds.
enum Field {
    Message(Message),
    /// Numbers in a row, of any length each. The parser never ends on one that is cut off.
    Varints,
    /// Numbers in a row, of so many bytes each; the same.
    Words(u64),
    /// Bytes, or what is not read.
    Bytes,
}

impl Message {
    /// What a field of this message holds, by its number in `onnx.proto`. What the parser skips is skipped here too.
    fn field(self, number: u64) -> Field {
        Field::Message(match (self, number) {
            (Message::Model, 7) => Message::Graph,
            (Message::Model, 8 | 14) | (Message::Tensor, 13) | (Message::Shape, 1) => {
                Message::Plain
            }
            (Message::Type, 1) => Message::TensorType,
            (Message::TensorType, 2) => Message::Shape,
            (Message::Graph, 1) => Message::Node,
            (Message::Graph, 11..=13) => Message::ValueInfo,
            (Message::Node, 5) => Message::Attribute,
            (Message::Attribute, 6 | 11) => Message::Graph,
            (Message::ValueInfo, 2) => Message::Type,
            (Message::Type, 4) => Message::Sequence,
            (Message::Sequence, 1) => Message::Type,
            (Message::Graph, 5) | (Message::Attribute, 5 | 10) => Message::Tensor,
            (Message::Graph, 15) | (Message::Attribute, 22 | 23) => Message::SparseTensor,
            (Message::SparseTensor, 1 | 2) => Message::Tensor,
            (Message::Tensor, 1 | 5 | 7 | 11) => return Field::Varints,
            (Message::Attribute, 8) | (Message::SparseTensor, 3) => return Field::Varints,
            (Message::Tensor, 4) | (Message::Attribute, 7) => return Field::Words(4),
            (Message::Tensor, 10) => return Field::Words(8),
            _ => return Field::Bytes,
        })
    }
}

/// Walks through a whole file of `len` bytes.
///
/// # Errors
/// [`OnnxError::Parse`] saying where and what.
pub(super) fn scan(reader: &mut (impl Read + Seek), len: u64) -> Result<(), OnnxError> {
    let mut scan = Scan {
        reader,
        at: 0,
        fields: 0,
    };
    scan.message(Message::Model, len, 0)
}

struct Scan<'a, R> {
    reader: &'a mut R,
    at: u64,
    fields: u64,
}

impl<R: Read + Seek> Scan<'_, R> {
    fn wrong(&self, what: &str) -> OnnxError {
        OnnxError::Parse(format!("{what} at byte {}", self.at))
    }

    fn byte(&mut self) -> Result<u8, OnnxError> {
        let mut byte = [0];
        self.reader
            .read_exact(&mut byte)
            .map_err(|_| self.wrong("it ends in the middle of a field"))?;
        self.at += 1;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64, OnnxError> {
        // Seven bits a byte, lowest first; the high bit says that another byte follows: at most ten.
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.wrong("a number never ends"))
    }

    fn skip(&mut self, bytes: u64, end: u64) -> Result<(), OnnxError> {
        let next = self.at.checked_add(bytes).filter(|n| *n <= end);
        let next = next.ok_or_else(|| self.wrong("a field reaches beyond its message"))?;
        let by = i64::try_from(bytes).map_err(|_| self.wrong("a field is absurdly long"))?;
        self.reader
            .seek(SeekFrom::Current(by))
            .map_err(|_| self.wrong("it cannot be read"))?;
        self.at = next;
        Ok(())
    }

    fn message(&mut self, message: Message, end: u64, depth: usize) -> Result<(), OnnxError> {
        if depth > MAX_DEPTH {
            return Err(self.wrong(&format!("messages are nested deeper than {MAX_DEPTH}")));
        }
        while self.at < end {
            self.fields += 1;
            if self.fields > MAX_FIELDS {
                return Err(self.wrong(&format!("it has more than {MAX_FIELDS} fields")));
            }

            // The low three bits are the wire type: 0 a varint, 1 eight bytes, 2 a length and bytes, 5 four bytes. 3 and
            // 4 are groups, which ONNX does not use.
            let key = self.varint()?;
            match key & 7 {
                0 => drop(self.varint()?),
                1 => self.skip(8, end)?,
                5 => self.skip(4, end)?,
                2 => {
                    let len = self.varint()?;
                    let inner = self.at.checked_add(len).filter(|n| *n <= end);
                    let inner =
                        inner.ok_or_else(|| self.wrong("a field reaches beyond its message"))?;
                    match message.field(key >> 3) {
                        Field::Message(next) => self.message(next, inner, depth + 1)?,
                        Field::Words(bytes) if !len.is_multiple_of(bytes) => {
                            return Err(self.wrong("a number is cut off"));
                        }
                        Field::Words(_) | Field::Bytes => self.skip(len, end)?,
                        Field::Varints => {
                            while self.at < inner {
                                self.varint()?;
                            }
                            if self.at > inner {
                                return Err(self.wrong("a number is cut off"));
                            }
                        }
                    }
                }
                _ => return Err(self.wrong("a field of an unknown kind")),
            }

            // A number at the end of the message may have run past it.
            if self.at > end {
                return Err(self.wrong("a field reaches beyond its message"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn lengths_and_nesting_are_checked_before_anything_is_parsed() {
        let nested = |depth: usize| {
            let mut bytes: Vec<u8> = Vec::new();
            for field in [6_u8, 5, 1].iter().cycle().take(3 * depth) {
                let mut outer = vec![field << 3 | 2];
                let mut len = bytes.len();
                loop {
                    outer.push((len & 0x7f) as u8 | if len > 0x7f { 0x80 } else { 0 });
                    len >>= 7;
                    if len == 0 {
                        break;
                    }
                }
                bytes = [outer, bytes].concat();
            }
            let mut model = vec![7 << 3 | 2];
            let len = bytes.len();
            model.extend([
                (len & 0x7f) as u8 | 0x80,
                (len >> 7 & 0x7f) as u8 | 0x80,
                (len >> 14) as u8,
            ]);
            [model, bytes].concat()
        };
        let cases: [(&str, Vec<u8>, Option<&str>); 7] = [
            ("empty", vec![], None),
            ("version", vec![8, 7], None),
            ("cut short", vec![8], Some("in the middle")),
            (
                "beyond the file",
                vec![7 << 3 | 2, 100, 0],
                Some("reaches beyond"),
            ),
            (
                "absurd",
                vec![7 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                Some("reaches beyond"),
            ),
            ("groups", vec![7 << 3 | 3], Some("unknown kind")),
            ("deep", nested(40), Some("deeper")),
        ];
        for (name, bytes, expect) in cases {
            let len = bytes.len() as u64;
            let got = scan(&mut Cursor::new(bytes), len).map_err(|e| e.to_string());
            match expect {
                None => assert_eq!(got, Ok(()), "{name}"),
                Some(part) => {
                    assert!(
                        got.clone().is_err_and(|e| e.contains(part)),
                        "{name}: {got:?}"
                    )
                }
            }
        }
    }
}

//! Messages from and to bytes. A message of strangers has so many parts at most: an empty part takes two bytes of the message, and
//! a hundred times as many once it is read.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Inputs, outputs, parameters and tensors of a message, at most.
const MAX_PARTS: usize = 4096;

/// The wire's types of fields, as the documents of protocol buffers have them.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const LENGTH: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// What is asked and what is answered.
pub(super) struct MessageCodec<Asked, Told>(PhantomData<(Asked, Told)>);

impl<Asked, Told> MessageCodec<Asked, Told> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<Asked, Told> Codec for MessageCodec<Asked, Told>
where
    Asked: Message + Default + 'static,
    Told: Message + 'static,
{
    type Encode = Told;
    type Decode = Asked;
    type Encoder = MessageEncoder<Told>;
    type Decoder = MessageDecoder<Asked>;

    fn encoder(&mut self) -> Self::Encoder {
        MessageEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

pub(super) struct MessageEncoder<Told>(PhantomData<Told>);

impl<Told: Message> Encoder for MessageEncoder<Told> {
    type Item = Told;
    type Error = Status;

    fn encode(&mut self, message: Told, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = message.encode(buffer);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }
}

pub(super) struct MessageDecoder<Asked>(PhantomData<Asked>);

impl<Asked: Message + Default> Decoder for MessageDecoder<Asked> {
    type Item = Asked;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Asked>, Status> {
        // Tensors stay where they are.
        read_whole(buffer.copy_to_bytes(buffer.remaining())).map(Some)
    }
}

/// Reads a message of a stranger.
///
/// # Errors
/// Bytes that are no such message, or one of too many parts.
pub(crate) fn read_whole<Asked: Message + Default>(bytes: Bytes) -> Result<Asked, Status> {
    match count_parts(&bytes) {
        Some(0..=MAX_PARTS) => {}
        Some(parts) => {
            return Err(Status::invalid_argument(format!(
                "the message has {parts} parts; {MAX_PARTS} are more than a request ever needs"
            )));
        }
        None => return Err(Status::invalid_argument("the message is not well-formed")),
    }
    Asked::decode(bytes).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Fields of a message itself that have a length: strings, bytes and other messages. Nothing if it is not a message.
fn count_parts(mut message: &[u8]) -> Option<usize> {
    let mut parts = 0;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        let skipped = match key & 7 {
            VARINT => {
                take_varint(&mut message)?;
                0
            }
            EIGHT_BYTES => 8,
            FOUR_BYTES => 4,
            LENGTH => {
                parts += 1;
                usize::try_from(take_varint(&mut message)?).ok()?
            }
            // Groups are of a time before this protocol.
            _ => return None,
        };
        message = message.get(skipped..)?;
    }
    Some(parts)
}

/// A number of seven bits a byte, lowest first.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::messages::{InferInputTensor, ModelInferRequest};

    #[test]
    fn parts_are_counted_before_they_are_read() {
        let message = ModelInferRequest {
            model_name: "m".to_owned(),
            inputs: vec![InferInputTensor::default(); 300],
            raw_input_contents: vec![vec![7; 300].into()],
            ..Default::default()
        };
        assert_eq!(count_parts(&message.encode_to_vec()), Some(302));
        assert_eq!(count_parts(&[]), Some(0));
        // A number, eight bytes, four bytes.
        let numbers = [
            0x08, 0x96, 0x01, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0,
        ];
        assert_eq!(count_parts(&numbers), Some(0));
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        for bytes in [
            &[0x80][..],
            &[0x0a],
            &[0x0a, 2, 1],
            &[0x0b],
            &[0x1d, 0],
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            &[0xff; 11],
        ] {
            assert_eq!(count_parts(bytes), None, "{bytes:?}");
        }
    }
}

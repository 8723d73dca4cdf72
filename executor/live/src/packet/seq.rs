//! Datagrams with a number of 64 bits, as GNU Radio 3.10 sends them (`network.udp_sink` with `HEADERTYPE_SEQNUM`).
//!
//! The block copies its counter in the byte order of the sender's machine, which is little-endian on x86-64, ARM and
//! RISC-V; it increments before it sends, so the first datagram has number 1. The rest of the datagram is tokens. At its
//! end a flow graph may send empty datagrams, which have no number.
//!
//! Source: `gr-network/lib/udp_sink_impl.cc` and `gr-network/include/gnuradio/network/packet_headers.h` of GNU Radio.

/// Bytes of the number.
pub const HEADER_BYTES: usize = 8;

/// The number and the tokens' bytes; `None` for a datagram that is too short.
pub fn split(datagram: &[u8]) -> Option<(u64, &[u8])> {
    let (header, payload) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    Some((u64::from_le_bytes(*header), payload))
}

/// The header of the datagram with this number.
pub fn header(number: u64) -> [u8; HEADER_BYTES] {
    number.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian() {
        let datagram = [2, 1, 0, 0, 0, 0, 0, 0, 7, 8];
        assert_eq!(split(&datagram), Some((0x102, &[7, 8][..])));
        assert_eq!(header(0x102), datagram[..8]);
        assert_eq!(split(&datagram[..7]), None);
        assert_eq!(split(&[]), None);
    }
}
